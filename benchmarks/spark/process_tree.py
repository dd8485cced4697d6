"""Processor time of a process on Linux, with or without its descendants."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Behind the name of the program, which may hold anything but is the last to hold a bracket.
_PARENT = 1
_TIMES = slice(11, 15)
"""The fields of user and system time, of the process and of its children that have ended."""

_PROGRAM = b"start_broker"
"""The name of the process that `EmbeddedBroker` starts."""

_CLOCK_BITS = 3
_CLOCK_OF_ALL_THREADS = 2
"""The clock of clock_getcpuclockid(3) for a whole process, which Python cannot call."""


def tree_cpu_seconds(process_id: int) -> float:
    """Return the seconds of processor time that a process and its descendants have used.

    Processes that have ended count, as long as their parents are alive.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for each, fields in _processes():
        parents[each] = int(fields[_PARENT])
        ticks[each] = sum(map(int, fields[_TIMES]))
    children = defaultdict(list)
    for each, parent in parents.items():
        children[parent].append(each)
    total, found = 0, [process_id]
    while found:
        each = found.pop()
        total += ticks.get(each, 0)
        found += children[each]
    return total / _TICKS_PER_SECOND


def process_cpu_seconds(process_id: int) -> float:
    """Return the seconds of processor time of one process, to the nanosecond."""
    return time.clock_gettime(~process_id << _CLOCK_BITS | _CLOCK_OF_ALL_THREADS)


def children_of(process_id: int) -> list[int]:
    """Return the running child processes of a process."""
    return [each for each, fields in _processes() if int(fields[_PARENT]) == process_id]


def embedded_broker() -> int:
    """Return the process of the one broker that this process has started for itself."""
    [broker] = [
        each
        for each in children_of(os.getpid())
        if _PROGRAM in Path(f"/proc/{each}/cmdline").read_bytes()
    ]
    return broker


def _processes() -> Iterator[tuple[int, list[str]]]:
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                stat = (directory / "stat").read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            yield int(directory.name), stat.rpartition(")")[2].split()
