"""ReputMessageService: follows the log, and carries what is confirmed to consume queues and index.

It has no thread and no timer. Whoever appends or flushes calls `run`; it takes what is new up to the
confirm offset, so that nobody sees a message that a crash could still take back, and tells the listener
once for each queue. The index follows at its own pace, in larger runs: it is looked at rarely, and before
every look it catches up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from broker.store.commit_log import CommitLog
from broker.store.dispatch import (
    FEW,
    Dispatcher,
    MessageArrivingListener,
    QueueEntries,
    record_sizes,
)
from broker.store.index_service import IndexService
from broker.store.queue_table import QueueTable
from rmq_spark.wire.chunk import COLUMNS, RecordChunk
from rmq_spark.wire.properties import UNIQ_KEY

RUN_BYTES_MAX = 8 << 20
INDEX_BEHIND_MAX = 1 << 20


class ReputMessageService:
    """One follower of one log."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: IndexService | None,
        dispatcher: Dispatcher,
        listener: MessageArrivingListener | None,
        confirm_offset: Callable[[], int],
    ) -> None:
        """Without a listener, nobody is told."""
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._listener = listener
        self._confirm_offset = confirm_offset
        self._lock = threading.Lock()
        self._holes: Sequence[tuple[int, int]] = ()
        self.reput_from_offset = 0
        self.index_from_offset = 0

    def resume(
        self, reput_from_offset: int, index_from_offset: int, holes: Sequence[tuple[int, int]]
    ) -> None:
        """Go on from there, passing over the places where recovery found no record."""
        self.reput_from_offset = reput_from_offset
        self.index_from_offset = index_from_offset
        self._holes = holes

    def run(self) -> None:
        """Dispatch all that is confirmed and not dispatched yet."""
        with self._lock:
            while self.reput_from_offset < self._confirm_offset():
                self._run_once()
            if self._confirm_offset() - self.index_from_offset >= INDEX_BEHIND_MAX:
                self._catch_up_index()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is dispatched meanwhile."""
        with self._lock:
            yield

    def catch_up_index(self) -> None:
        """Bring the index to where the consume queues are."""
        with self._lock:
            self._catch_up_index()

    def _run_once(self) -> None:
        start = self.reput_from_offset
        data, sizes, next_offset = self._next_records(start, self._confirm_offset())
        if len(sizes) <= FEW:
            self._dispatch(self._dispatcher.entries_of_few(data, sizes, start), next_offset)
            return
        chunk = RecordChunk(data[: sum(sizes)], sizes)
        self._dispatch(self._dispatcher.entries_of_chunk(chunk, start), next_offset)
        if self.index_from_offset == start:
            self._index_chunk(chunk, start, next_offset)

    def _dispatch(self, runs: Iterator[QueueEntries], next_offset: int) -> None:
        arrivals: dict[tuple[str, int], list[int]] = {}
        for run in runs:
            self._queues.get_or_make(run.topic, run.queue_id).append(run.queue_offset, run.entries)
            if self._listener is not None:
                codes = arrivals.setdefault((run.topic, run.queue_id), [])
                codes += run.entries["tags_code"].tolist()
        self.reput_from_offset = next_offset
        if self._listener is not None:
            for (topic, queue_id), codes in arrivals.items():
                max_offset = self._queues.get_or_make(topic, queue_id).max_offset
                self._listener.arriving(topic, queue_id, max_offset, codes)

    def _catch_up_index(self) -> None:
        while self.index_from_offset < self.reput_from_offset:
            start = self.index_from_offset
            data, sizes, next_offset = self._next_records(start, self.reput_from_offset)
            self._index_chunk(RecordChunk(data[: sum(sizes)], sizes), start, next_offset)

    def _index_chunk(self, chunk: RecordChunk, start: int, next_offset: int) -> None:
        if self._index is not None and len(chunk):
            self._index.dispatch(
                topics=COLUMNS["topic"].build(chunk),
                unique_keys=chunk.properties.values(UNIQ_KEY),
                keys=COLUMNS["keys"].build(chunk),
                physical_offsets=chunk.starts + start,
                store_timestamps=COLUMNS["storeTimestamp"].build(chunk).view("int64"),
                sys_flags=chunk.sys_flag,
            )
        self.index_from_offset = next_offset

    def _next_records(self, start: int, end: int) -> tuple[memoryview, list[int], int]:
        """Records from a place in the log on, within one file, and the place behind them."""
        stop = end
        for hole_start, hole_end in self._holes:
            if hole_start <= start < hole_end:
                return memoryview(b""), [], min(hole_end, end)
            if start < hole_start:
                stop = min(stop, hole_start)
        data = self._log.view(start, min(stop - start, RUN_BYTES_MAX))
        sizes = record_sizes(data)
        if sizes:
            return data, sizes, start + sum(sizes)
        # A record longer than a run, or the blank that ends a file.
        data = self._log.view(start, stop - start)
        sizes = record_sizes(data)[:1]
        if sizes:
            return data, sizes, start + sizes[0]
        return data, [], min(start + self._log.files.space_left(start), end)
