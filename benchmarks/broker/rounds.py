"""Runs rounds: every case on every side, one after the other, repeatedly.

A disturbance of a second on a shared machine then affects a broker and its peer alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from benchmarks.broker.cases import Case
from benchmarks.broker.figures import Result, Role


def run_rounds(
    cases: Sequence[Case], roles: Collection[Role], rounds: int, say: Callable[[str], object]
) -> list[Result]:
    """Return a result for each figure of each case; ``say`` gets the progress."""
    for case in cases:
        if case.is_warmed:
            for role in _roles(case, roles):
                say(f"warming: {case.subject}: {role}")
                case.measure(role)
    values: dict[tuple[str, str], dict[Role, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(1, rounds + 1):
        for case in cases:
            for role in _roles(case, roles):
                say(f"round {number} of {rounds}: {case.subject}: {role}")
                for figure, value in zip(case.figures, case.measure(role), strict=True):
                    values[case.subject, figure.name][role].append(value)
    return [
        Result(
            case.subject,
            figure,
            {role: tuple(of) for role, of in values[case.subject, figure.name].items()},
        )
        for case in cases
        for figure in case.figures
    ]


def _roles(case: Case, roles: Collection[Role]) -> list[Role]:
    """Return the roles of the case that take part in this run."""
    return [role for role in case.roles if role in roles]
