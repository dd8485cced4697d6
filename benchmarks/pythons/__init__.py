"""Benchmark of the same work on several Pythons: what the broker, the store and the client take.

    .venv/bin/python -m benchmarks.pythons /usr/bin/python3 ~/venvs/3.13/bin/python

Each Python needs the dependencies of rocketpoll. It measures in a process of its own, one Python
after the other and that several times, so that what disturbs the machine disturbs all of them. The
figures are the lowest processor times, which are comparable on a machine with other work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Case
from benchmarks.store import singles
from benchmarks.store.workspace import Workspace
from benchmarks.turns import Turns, turn_cases
from benchmarks.wire import wire_cases

_SECONDS = 0.1
"""Seconds of processor time for each case in one process."""
_TURNS, _PUT = "a turn of the broker", "put one message of 100 B with four properties"
_STORE = "get messages that lie together"
_RECORD, _CHUNK = "one record, 100 B body, 3 properties", "chunk decode, 100 B body, 3 properties"
_CASES = (
    *(f"{_TURNS}: {turn}" for turn in ("1 sends", "20 sends", "a batch of 100", "a pull of 32")),
    *(f"{_TURNS}: {turn}" for turn in ("20 varied sends", "a varied batch of 100")),
    *(f"{_PUT}: put_message", f"{_STORE}: 32 of many, by tags"),
    "pull request header, frame to typed header: JSON",
    "frame encode, send request, 100 B: JSON",
    *(f"{_RECORD}: decode, properties too", f"{_RECORD}: encode"),
    *(f"{_CHUNK}: one at a time", f"{_CHUNK}: default columns, sizes given"),
)
"""The broker's turns, single messages of the store, and what the client decodes and encodes."""


def measure(directory: Path) -> dict[str, float]:
    """Return the lowest microseconds of processor time of each case in this process."""
    (directory / "turns").mkdir()
    (directory / "store").mkdir()
    turns = Turns(directory / "turns")
    with Workspace(directory / "store") as workspace:
        try:
            cases = [*turn_cases(turns), *singles.cases(workspace), *wire_cases()]
            by_name = {case.name: case for case in cases}
            return {name: _lowest(by_name[name]) for name in _CASES}
        finally:
            turns.shutdown()


def _lowest(case: Case) -> float:
    runs: list[float] = []
    until = time.process_time() + _SECONDS
    while not runs or time.process_time() < until:
        if case.prepare is not None:
            case.prepare()
        began = time.process_time()
        case.run()
        runs.append(time.process_time() - began)
    return min(runs) / case.units_per_run * 1e6


def table(versions: Sequence[str], figures: Sequence[dict[str, float]]) -> str:
    """Return the table of the figures of each version, with the ratio to the first in brackets."""
    width = max(map(len, figures[0]), default=0)
    lines = [" " * width + "".join(f"{version:>18}" for version in versions)]
    for name, first in figures[0].items():
        cells = (f"{each[name]:>10.3g} ({first / each[name]:.2f})" for each in figures)
        lines.append(f"{name:{width}}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)
