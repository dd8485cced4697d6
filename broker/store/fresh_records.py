"""FreshRuns: what the appender knows of the records that it wrote last, so that reput need not read them.

    appender ── add ──> [run] [run] [run] ── take ──> reput

They are a hint and no more: where one is missing, or what reput wants begins in the middle of it, the log is
read, which says the same. So few are kept, and the oldest go first. One thread may add while another takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

_RUNS_MAX = 64
RUN_BYTES_MAX = 1 << 16
"""Of the records of a run: more are better read from the log, many at once."""


class FreshRecord(NamedTuple):
    """One record, of a message that gets an entry in its consume queue."""

    queue: tuple[str, int]
    queue_offset: int
    physical_offset: int
    size: int
    properties: bytes


class FreshRun(NamedTuple):
    """Records that lie back to back in the log, and were stored at the same time."""

    records: Sequence[FreshRecord]
    store_timestamp: int
    end_offset: int

    @property
    def start_offset(self) -> int:
        """Where in the log it begins."""
        return self.records[0].physical_offset


class FreshRuns:
    """The last runs that were written, each whole."""

    def __init__(self) -> None:
        self._runs: deque[FreshRun] = deque(maxlen=_RUNS_MAX)

    def add(self, run: FreshRun) -> None:
        """This one has been written."""
        if run.end_offset - run.start_offset <= RUN_BYTES_MAX:
            self._runs.append(run)

    def take(self, start: int, limit: int) -> FreshRun | None:
        """The run that starts at a place in the log, if it is known and ends before a limit.

        What lies before that place is forgotten.
        """
        while True:
            try:
                run = self._runs.popleft()
            except IndexError:
                return None
            if run.start_offset > start or run.end_offset > limit:
                self._runs.appendleft(run)
                return None
            if run.start_offset == start:
                return run
