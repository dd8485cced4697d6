"""RecentWriteQueue: the last records of the appenders, so that reput need not read the log.

    appender ── add ──> [run] [rows] [run] ── pop ──> reput
    chunk appender ──────> [chunk] [chunk] ─────────> reput
        commit ──> [uncommitted] ── pop ──> PrecomputedDispatch, while its rows are hidden

These records are only a hint: if one is missing, or reput starts in the middle of a run, reput
reads the log, with the same result. So only a few are kept, and the oldest are dropped first. One
thread may add while another pops.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from rmq_spark.wire.message_queue import QueueKey

from ..results import PhysicalOffset, QueueOffset

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.buffer_slices import Widths

_RUNS_MAX = 64
RUN_BYTES_MAX = 1 << 16
"""The maximum size of a run in memory, without bodies. Reput reads larger runs from the log, many
records at once."""

_ROW_BYTES = 100
_COLUMNS_BYTES = 24

_CHUNKS_MAX = 8
CHUNK_BYTES_MAX = 8 << 20
"""The maximum size of a chunk: memory must not grow with the size of what clients send."""
_UNCOMMITTED_MAX = 32
"""The maximum number of uncommitted chunks: more than one step appends. The staged chunk to which
they belong is in memory at that time anyway."""
_UNCOMMITTED_BYTES_MAX = 2 << 20
"""The maximum size of an uncommitted chunk. Only a chunk of a single row can be larger, so all
others are kept while reput is suspended."""


class _LogRange(Protocol):
    @property
    def start_offset(self) -> PhysicalOffset: ...
    @property
    def end_offset(self) -> PhysicalOffset: ...


_Run = TypeVar("_Run", bound=_LogRange)


class RecentRecord(NamedTuple):
    """One record with an entry in its consume queue."""

    queue: QueueKey
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int
    properties: bytes
    """Empty, or ending with a separator."""


class RecentRun(NamedTuple):
    """Contiguous records of the log that were stored at the same time."""

    records: Sequence[RecentRecord]
    store_timestamp: int
    end_offset: PhysicalOffset

    @property
    def start_offset(self) -> PhysicalOffset:
        """The log offset where the run begins."""
        return self.records[0].physical_offset

    @property
    def queue_offset(self) -> QueueOffset:
        """The offset of the first record in its queue."""
        return self.records[0].queue_offset

    @property
    def rows(self) -> int:
        """The number of records."""
        return len(self.records)

    @property
    def kept_bytes(self) -> int:
        """The size of what is kept in memory: the properties, and an object for each record."""
        properties = sum([len(each[4]) for each in self.records])  # access by name is half as fast
        return properties + len(self.records) * _ROW_BYTES


class ColumnRun(NamedTuple):
    """Contiguous records of one queue that were stored at the same time, as columns."""

    queue: QueueKey
    queue_offset: QueueOffset
    positions: npt.NDArray[np.int64]
    """The physical offset of each record."""
    sizes: Widths
    """The size of each record, or of all."""
    properties: bytes
    """The properties of all messages, back to back; each text is empty or ends with a separator."""
    properties_lengths: Widths
    """The length of the properties of each message, or of all."""
    store_timestamp: int

    @property
    def start_offset(self) -> PhysicalOffset:
        """The log offset where the records begin."""
        return PhysicalOffset(int(self.positions[0]))

    @property
    def end_offset(self) -> PhysicalOffset:
        """The log offset past the records."""
        sizes = self.sizes
        return PhysicalOffset(
            int(self.positions[-1] + (sizes if isinstance(sizes, int) else sizes[-1]))
        )

    @property
    def rows(self) -> int:
        """The number of records."""
        return len(self.positions)

    @property
    def kept_bytes(self) -> int:
        """The size of what is kept in memory."""
        return len(self.properties) + self.rows * _COLUMNS_BYTES


class RecentChunk(NamedTuple):
    """Many records that were appended together, with successive offsets of one queue."""

    chunk: RecordChunk
    queue: QueueKey
    start_offset: PhysicalOffset

    @property
    def end_offset(self) -> PhysicalOffset:
        """The log offset past the records."""
        return self.start_offset + len(self.chunk.data)


def _log_bytes(run: _LogRange) -> int:
    return run.end_offset - run.start_offset


class RecentWriteQueue(Generic[_Run]):
    """Parts of the log that are kept in memory, in log order."""

    def __init__(
        self,
        count_max: int | None = None,
        bytes_max: int = sys.maxsize,
        bytes_of: Callable[[_Run], int] = _log_bytes,
    ) -> None:
        """Keep at most ``count_max`` parts, none of them larger than ``bytes_max``.

        ``bytes_of`` returns the bytes of a part; by default, those of its records.
        """
        self._bytes_of = bytes_of
        self._runs: deque[_Run] = deque(maxlen=count_max)
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self._runs)

    def add(self, run: _Run) -> None:
        """Keep a part that was just written."""
        if self._bytes_of(run) <= self._bytes_max:
            self._runs.append(run)

    def pop_at(self, start: PhysicalOffset, limit: PhysicalOffset) -> _Run | None:
        """Pop the part that starts at a log offset, if it is kept and ends before a limit.

        All parts before that offset are dropped.
        """
        while (run := self.pop()) is not None:
            if run.start_offset > start or run.end_offset > limit:
                self._runs.appendleft(run)
                return None
            if run.start_offset == start:
                return run
        return None

    def pop(self) -> _Run | None:
        """Pop the oldest part, wherever in the log it is; return None if there is none."""
        try:
            return self._runs.popleft()
        except IndexError:
            return None

    def next_start(self, start: PhysicalOffset, limit: PhysicalOffset) -> PhysicalOffset:
        """Return where the next part past a log offset begins, at most the limit."""
        begins = (each.start_offset for each in self._runs if each.start_offset > start)
        return min(next(begins, limit), limit)

    def discard(self) -> None:
        """Drop all parts."""
        self._runs.clear()


class RecentWrites(NamedTuple):
    """The last writes of all kinds; ``uncommitted`` has those of the commit under way."""

    runs: RecentWriteQueue[RecentRun | ColumnRun]
    chunks: RecentWriteQueue[RecentChunk]
    uncommitted: RecentWriteQueue[RecentChunk]


def empty_recent_writes() -> RecentWrites:
    """Return the recent writes of a store that has written nothing so far."""
    return RecentWrites(
        RecentWriteQueue(_RUNS_MAX, RUN_BYTES_MAX, lambda run: run.kept_bytes),
        RecentWriteQueue(_CHUNKS_MAX, CHUNK_BYTES_MAX),
        RecentWriteQueue(_UNCOMMITTED_MAX, _UNCOMMITTED_BYTES_MAX),
    )


# ---- UnindexedRuns: writes that were dispatched to queues and are not indexed yet.

_RUNS_KEPT_MAX: Final = 4_096
_FEW_MAX: Final = 128
_ROWS_PER_STEP: Final = 1_024
"""Messages of contiguous runs that are indexed in one step."""


class UnindexedRuns:
    """The last dispatched runs, in log order."""

    def __init__(self) -> None:
        self._runs: deque[RecentRun | ColumnRun] = deque(maxlen=_RUNS_KEPT_MAX)

    def add(self, runs: Iterable[RecentRun | ColumnRun]) -> None:
        """Keep the runs that were just dispatched."""
        self._runs += runs

    def next_contiguous(
        self, start: PhysicalOffset, limit: PhysicalOffset
    ) -> Sequence[RecentRun | ColumnRun]:
        """Return the first contiguous runs from a log offset on that are large enough for a step.

        Smaller ones suffice if they end at ``limit``. Runs past the limit are not returned; all
        runs before the result are dropped.
        """
        runs = self._runs
        while runs and runs[0].start_offset < start:
            runs.popleft()
        while runs and runs[0].end_offset <= limit:
            contiguous: list[RecentRun | ColumnRun] = []
            rows, end = 0, runs[0].start_offset
            for each in runs:
                is_next = each.start_offset == end
                if not is_next or each.end_offset > limit or rows >= _ROWS_PER_STEP:
                    break
                contiguous.append(each)
                rows, end = rows + each.rows, each.end_offset
            if rows > _FEW_MAX or end == limit:
                return contiguous
            self.discard(contiguous)
        return ()

    def discard(self, runs: Sequence[RecentRun | ColumnRun]) -> None:
        """Drop the first runs, whose keys are read from the log."""
        for _ in runs:
            self._runs.popleft()
