"""Results of all sides as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from benchmarks.broker.figures import Result, Role
from benchmarks.report import aligned

_LEFT = {"case", "target"}  # columns of words


def as_table(results: Sequence[Result], names: Mapping[Role, str]) -> str:
    """Return a line for each figure, below its subject, with a column for each side."""
    roles = list(names)
    columns = [
        "case",
        *(column for role in roles for column in (names[role], "±")),
        "ratio",
        "target",
    ]
    rows = [columns]
    for subject, group in groupby(results, lambda result: result.subject):
        rows.append([subject])
        rows += [_cells(result, roles) for result in group]
    return aligned(rows, _LEFT)


def as_json(
    name: str,
    machine: Mapping[str, Any],
    results: Sequence[Result],
    names: Mapping[Role, str],
    conditions: Mapping[str, Any],
) -> dict[str, Any]:
    """Return all measurements, every round included, for later comparisons."""
    return {
        "benchmark": name,
        "machine": dict(machine),
        "conditions": dict(conditions),
        "results": [_object(result, names) for result in results],
    }


def _cells(result: Result, roles: Sequence[Role]) -> list[str]:
    cells = [f"  {result.figure.name}"]
    for role in roles:
        median = result.median(role)
        if median is None:
            cells += ["", ""]
        else:
            cells += [show(median, result.figure.unit), f"{result.spread(role):.0%}"]
    ratio = result.ratio
    return [*cells, "" if ratio is None else f"{ratio:.2f} x", _verdict(result)]


def _verdict(result: Result) -> str:
    target = result.figure.target
    if target is None:
        return ""
    if target.quantity == "ratio":
        wanted = f">= {target.bound:g} x"
    else:
        sign = ">=" if result.figure.is_speed else "<="
        wanted = f"{sign} {show(target.bound, result.figure.unit)}"
    share = result.share
    if share is None:
        return f"{wanted}: no peer"
    return f"{wanted}: {'reached' if share >= 1 else f'{share:.0%} of it'}"


def show(value: float, unit: str) -> str:
    """Return a value with its unit in three digits, as the fourth is noise."""
    if unit.endswith("/s"):
        for scale, letter in ((1e6, " M"), (1e3, " k")):
            if value >= scale:
                return f"{_three_digits(value / scale)}{letter} {unit}"
    return f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    size = abs(value)
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or not size else 3
    return f"{value:,.{decimals}f}"


def _object(result: Result, names: Mapping[Role, str]) -> dict[str, Any]:
    figure = result.figure
    return {
        "subject": result.subject,
        "figure": figure.name,
        "unit": figure.unit,
        "sides": {
            names[role]: {"role": role, "median": result.median(role), "rounds": list(values)}
            for role, values in result.rounds.items()
        },
        "ratio": result.ratio,
        "target": None
        if figure.target is None
        else {
            "quantity": figure.target.quantity,
            "bound": figure.target.bound,
            "share": result.share,
            "reached": None if result.share is None else result.share >= 1,
        },
    }
