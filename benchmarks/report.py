"""Results as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from benchmarks.harness import Result

_COLUMNS = ("case", "speed", "µs", "spread", "vs peer", "target")
_LEFT = {0, 4, 5}  # columns of words; numbers end where their columns end


def as_table(results: Sequence[Result]) -> str:
    """One line for each case below its subject."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for subject, group in groupby(results, lambda result: result.case.subject):
        rows += [(subject,), *map(_row, group)]
    # A subject may run across the other columns, which are empty in its line.
    widths = [max(len(row[at]) for row in rows if len(row) > 1) for at in range(len(_COLUMNS))]
    lines = (
        "  ".join(
            cell.ljust(width) if at in _LEFT else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def as_json(name: str, machine: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """Everything that was measured, every round of it, for later comparisons."""
    return {"benchmark": name, "machine": dict(machine), "results": [_object(result) for result in results]}


def describe_conditions(machine: Mapping[str, Any]) -> str:
    """The machine's description in three lines."""
    libraries = ", ".join(f"{library} {version}" for library, version in machine["libraries"].items())
    before, after = machine["load_average_before"], machine["load_average_after"]
    return (
        f"{machine['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['kernel']}\n"
        f"{machine['python']}, {libraries}\n"
        f"load average {before:.2f} before and {after:.2f} after"
    )


def _row(result: Result) -> tuple[str, ...]:
    case = result.case
    return (
        f"  {case.variant}",
        _speed(result.per_second, case.unit),
        _microseconds(result.microseconds),
        f"{result.spread:.0%}",
        "" if result.ratio is None else f"{result.ratio:.2f} x {case.peer}",
        _verdict(result),
    )


def _verdict(result: Result) -> str:
    target = result.case.target
    if target is None:
        return ""
    wanted = {
        "per_second": f">= {_speed(target.bound, result.case.unit)}",
        "microseconds": f"<= {target.bound:g} µs",
        "ratio": f">= {target.bound:g} x {result.case.peer}",
    }[target.quantity]
    return f"{wanted}: {'reached' if target.is_reached(result) else 'not reached'}"


def _object(result: Result) -> dict[str, Any]:
    case, target = result.case, result.case.target
    first, third = result.quartiles
    return {
        "subject": case.subject,
        "variant": case.variant,
        "unit": case.unit,
        "per_second": result.per_second,
        "microseconds": {
            "median": result.microseconds,
            "minimum": min(result.rounds) * 1e6,
            "first_quartile": first,
            "third_quartile": third,
            "rounds": [seconds * 1e6 for seconds in result.rounds],
        },
        "peer": None
        if case.peer is None
        else {"variant": case.peer, "ratio": result.ratio, "rounds": list(result.ratios)},
        "target": None
        if target is None
        else {
            "quantity": target.quantity,
            "bound": target.bound,
            "reached": target.is_reached(result),
        },
    }


def _speed(per_second: float, unit: str) -> str:
    """Three digits: the fourth is noise."""
    for scale, letter in ((1e6, " M"), (1e3, " k")):
        if per_second >= scale:
            return f"{_three_digits(per_second / scale)}{letter} {unit}/s"
    return f"{_three_digits(per_second)} {unit}/s"


def _microseconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else _three_digits(value)


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
