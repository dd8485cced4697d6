"""Consistency check: compares queues and index with the log, if a start reads all of it anyway.

Their entries have no checksums, so a start compares those of a small store with the records: a
queue file of zeros, an older copy of a file, or a changed tag or key code would hide messages. The
check writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.record_layout import BLANK_SIZE
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import bulk_tools
from ..bulk import lazy_numpy as np
from ..components import StoreComponents
from ..dispatch.dispatcher import FEW_MAX, Dispatcher, QueueEntries
from ..errors import UnreadableFile, is_retryable_read
from ..index.index_keys import HashedKeys, hash_columns, hash_records, key_columns
from ..index.index_service import IndexService
from ..log.commit_log import CommitLog
from ..queues.consume_queue import ENTRY, ENTRY_BYTES, READ_ENTRIES_MAX, ConsumeQueue
from ..queues.entry_check import EntryCheck, WrongEntry
from ..queues.queue_table import QueueTable
from ..results import FIRST_IN_QUEUE, PhysicalOffset

QUEUES_MAX = 1_000
"""With more queues, reading their files takes longer than reading the log."""

_RUN_BYTES = 8 << 20


class ConsistencyResult(NamedTuple):
    """The result of a comparison."""

    inconsistent_queue: ConsumeQueue | None
    """A queue that differs from the log, or None."""
    is_index_consistent: bool


def check_derived_files(
    components: StoreComponents, end_offset: PhysicalOffset, expired_before: PhysicalOffset
) -> ConsistencyResult:
    """Compare queues and index with the dispatched part of the log, which must be without holes.

    Everything before ``end_offset`` was dispatched. Queues may have entries of later records as
    well: a checkpoint has the last offset before which every queue was complete, and the ends of
    queues at that time. ``expired_before`` is where the log began when entries last expired.
    """
    log, queues, index = components.log, components.queues, components.index
    comparison = _QueueComparison()
    # A separate dispatcher, so that reput does not get rolled-back rows that it passed long ago.
    dispatcher = Dispatcher(components.config.message_delay_level_ms)
    dispatcher.deleted_topics = components.dispatcher.deleted_topics
    wrong: ConsumeQueue | None = None
    keys: list[HashedKeys] = []
    for start, data, sizes in _pieces(log, log.min_offset, log.written_offset, end_offset):
        if len(sizes) <= FEW_MAX or not bulk_tools.are_loaded():
            runs: Iterable[QueueEntries] = dispatcher.entries_of_few(data, sizes, start)
            if start < end_offset:
                keys.append(hash_records(data, sizes, start))
        else:
            chunk = bulk_tools.RecordChunk(data[: sum(sizes)], sizes)
            runs = dispatcher.entries_of_chunk(chunk, start)
            if start < end_offset:
                keys.append(hash_columns(key_columns(chunk, start)))
        runs = dispatcher.exclude_deleted(runs)
        if start >= end_offset:
            runs = _truncate_to_ends(queues, runs)
        for run in runs:
            queue = queues.get_or_create(run.topic, run.queue_id)
            wrong = wrong or (None if comparison.matches(queue, run) else queue)
    bounds = log.min_offset, expired_before
    wrong = wrong or next(
        (queue for _, _, queue in queues if comparison.has_other_entries(queue, *bounds)), None
    )
    if wrong is None:
        for _, _, queue in queues:
            queue.unverified_before = FIRST_IN_QUEUE
    return ConsistencyResult(
        wrong, index is None or _index_matches(index, keys, range(log.min_offset, end_offset))
    )


def _index_matches(index: IndexService, keys: list[HashedKeys], between: range) -> bool:
    hashes, positions, times = (
        np.concatenate([part[column] for part in keys] or [np.zeros(0, np.int64)])
        for column in range(3)
    )
    try:
        return index.matches(hashes, positions, times, between)
    except UnreadableFile as error:
        if is_retryable_read(error):
            raise
        return False


def _truncate_to_ends(queues: QueueTable, runs: Iterable[QueueEntries]) -> Iterator[QueueEntries]:
    for run in runs:
        queue = queues.get(run.topic, run.queue_id)
        held = 0 if queue is None else queue.max_offset - run.queue_offset
        if held > 0:
            yield run._replace(entries=memoryview(run.entries)[: held * ENTRY_BYTES])


def _pieces(
    log: CommitLog, start: PhysicalOffset, end_offset: PhysicalOffset, border: PhysicalOffset
) -> Iterator[tuple[PhysicalOffset, Buffer, list[int]]]:
    """Yield position, bytes and sizes of the records of a log; no piece crosses the border."""
    while start < end_offset:
        stop = border if start < border else end_offset
        try:
            data, sizes = log.read_records(start, stop, _RUN_BYTES)
        except RecordError:
            data = log.read_record(start)  # the border of a changed manifest is inside a record
            sizes = [len(data)]
            if not len(data):
                raise
        if sizes:
            yield start, data, sizes
        start += sum(sizes) or log.files.space_left(start)


def _entries_equal(found: Buffer, expected: Buffer, *, has_codes: bool) -> bool:
    """Return whether entries are equal, apart from delivery times in place of tags codes.

    Delivery times depend on the delay settings with which they were written, and nothing uses them.
    """
    if found == expected:
        return True
    if has_codes:
        return False
    found_entries, expected_entries = np.frombuffer(found, ENTRY), np.frombuffer(expected, ENTRY)
    return all(
        np.array_equal(found_entries[name], expected_entries[name])
        for name in ("physical_offset", "size")
    )


class _QueueComparison:
    """The number of entries of each queue that match the log."""

    def __init__(self) -> None:
        self._counts: dict[ConsumeQueue, int] = {}

    def matches(self, queue: ConsumeQueue, run: QueueEntries) -> bool:
        if run.queue_offset < queue.min_offset:
            return False
        entries = memoryview(run.entries)
        count = len(entries) // ENTRY_BYTES
        done = 0
        while done < count:
            try:
                found = queue.read(run.queue_offset + done, min(count - done, READ_ENTRIES_MAX))
            except UnreadableFile as error:
                if is_retryable_read(error):
                    raise
                return False
            expected = entries[done * ENTRY_BYTES :][: len(found)]
            if not len(found) or not _entries_equal(found, expected, has_codes=queue.has_codes):
                return False
            done += len(found) // ENTRY_BYTES
        self._counts[queue] = self._counts.get(queue, 0) + count
        return True

    def has_other_entries(
        self, queue: ConsumeQueue, log_min_offset: PhysicalOffset, expired_before: PhysicalOffset
    ) -> bool:
        """Return whether a queue has further entries, not counting blank and expired ones."""
        try:
            return self._count(queue, log_min_offset, expired_before) != self._counts.get(queue, 0)
        except (WrongEntry, UnreadableFile) as error:
            if is_retryable_read(error):
                raise
            return True

    def _count(
        self, queue: ConsumeQueue, log_min_offset: PhysicalOffset, expired_before: PhysicalOffset
    ) -> int:
        check = EntryCheck(expired_before, has_codes=queue.has_codes)
        queue_offset, count = queue.min_offset, 0
        while queue_offset < queue.max_offset:
            data = queue.read(queue_offset, READ_ENTRIES_MAX)
            check.check(data)
            entries = np.frombuffer(data, ENTRY)
            is_kept = (entries["size"] != BLANK_SIZE) & (
                entries["physical_offset"] >= log_min_offset
            )
            count += int(np.count_nonzero(is_kept))
            queue_offset += len(entries)
        return count
