"""Results as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

from benchmarks.harness import Result

_COLUMNS = ("case", "speed", "MB/s", "µs", "spread", "vs peer", "target")
_LEFT = {"case", "vs peer", "target"}  # columns of words
_MEGABYTE = 1e6


def as_table(results: Sequence[Result]) -> str:
    """Return one line for each case, below its subject; megabytes only if a case has any."""
    has_bytes = any(result.case.bytes_per_unit for result in results)
    columns = [name for name in _COLUMNS if has_bytes or name != "MB/s"]
    rows: list[list[str]] = [columns]
    for subject, group in groupby(results, lambda result: result.case.subject):
        rows.append([subject])
        rows += [[cells[name] for name in columns] for cells in map(_cells, group)]
    return aligned(rows, _LEFT)


def aligned(rows: Sequence[Sequence[str]], left: Collection[str]) -> str:
    """Return lines of cells in columns; the first row has the columns' names.

    A row of one cell is a heading. Columns named in ``left`` are aligned left, the others right.
    """
    names = rows[0]
    # A heading may run across the other columns, which are empty in its line.
    widths = [max(len(row[at]) for row in rows if len(row) > 1) for at in range(len(names))]
    lines = (
        "  ".join(
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(names, row, widths, strict=False)
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def as_json(name: str, machine: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """Return all measurements, every round included, for later comparisons."""
    return {
        "benchmark": name,
        "machine": dict(machine),
        "results": [_object(result) for result in results],
    }


def describe_conditions(machine: Mapping[str, Any]) -> str:
    """Return the machine's description in three lines."""
    libraries = ", ".join(
        f"{library} {version}" for library, version in machine["libraries"].items()
    )
    before, after = machine["load_average_before"], machine["load_average_after"]
    return (
        f"{machine['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['kernel']}\n"
        f"{machine['python']}, {libraries}\n"
        f"load average {before:.2f} before and {after:.2f} after"
    )


def _cells(result: Result) -> dict[str, str]:
    case = result.case
    return {
        "case": f"  {case.variant}",
        "speed": _speed(result.per_second, case.unit),
        "MB/s": _three_digits(result.bytes_per_second / _MEGABYTE) if case.bytes_per_unit else "",
        "µs": _microseconds(result.microseconds),
        "spread": f"{result.spread:.0%}",
        "vs peer": "" if result.ratio is None else f"{result.ratio:.2f} x {case.peer}",
        "target": _verdict(result),
    }


def _verdict(result: Result) -> str:
    target = result.case.target
    if target is None:
        return ""
    wanted = {
        "per_second": f">= {_speed(target.bound, result.case.unit)}",
        "bytes_per_second": f">= {_three_digits(target.bound / _MEGABYTE)} MB/s",
        "microseconds": f"<= {_bound(target.bound)} µs",
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
        "bytes_per_second": result.bytes_per_second if case.bytes_per_unit else None,
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
    """Return a speed in three digits, as the fourth is noise."""
    for scale, letter in ((1e6, " M"), (1e3, " k")):
        if per_second >= scale:
            return f"{_three_digits(per_second / scale)}{letter} {unit}/s"
    return f"{_three_digits(per_second)} {unit}/s"


def _microseconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else _three_digits(value)


def _bound(value: float) -> str:
    return f"{value:,.0f}" if value >= 1e4 else f"{value:g}"


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
