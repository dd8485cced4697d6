"""MessageReader: finds messages by queue offset or log offset.

It returns records as they lie in the log, without decoding: in one piece where messages are
contiguous, otherwise in several pieces or copied into one. Data that cannot be read raises
`UnreadableFile` only for a caller that asks for it: a get returns the messages before it, and known
holes are not read along with their surroundings.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.message.record_layout import BLANK_SIZE
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import bulk_tools
from ..bulk import lazy_numpy as np
from ..errors import UnreadableFile
from ..files.local_file import COPIED_BYTES_MAX
from ..log.commit_log import CommitLog
from ..queues.consume_queue import (
    ENTRY_BYTES,
    ENTRY_STRUCT,
    READ_ENTRIES_MAX,
    ConsumeQueue,
    QueueBounds,
)
from ..queues.entry_check import (
    FEW_MAX,
    HEAD_BYTES,
    EntryCheck,
    RecordOwner,
    WrongEntry,
    first_wrong,
    matches_entry,
    run_ends_match,
)
from ..queues.queue_table import end_unknown_error
from ..results import (
    FIRST_IN_QUEUE,
    LOG_START,
    GetMessageResult,
    GetMessageStatus,
    Numbers,
    PhysicalOffset,
    QueueOffset,
)
from .entry_selection import (
    EntrySelection,
    GetLimits,
    MessageFilter,
    SelectedEntries,
    select_all,
    select_few,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk

    from ..components import StoreComponents


# ---- Checks of the records that a pull reads: each must belong to its entry and to the queue.


def are_in_range(numbers: Numbers, minimum: int, end: int) -> bool:
    """Return whether all numbers are at least ``minimum`` and below ``end``."""
    if isinstance(numbers, list):
        return minimum <= min(numbers) and max(numbers) < end
    return bool(minimum <= numbers.min() and numbers.max() < end)


def check_records(
    records: Sequence[Buffer],
    positions: Numbers,
    sizes: Numbers,
    queue_offsets: range,
    owner: RecordOwner | None = None,
) -> None:
    """Compare each record with its entry, and with the queue that must own it."""
    wrong = first_wrong(records, positions, sizes, queue_offsets, owner)
    if wrong is not None:
        raise WrongEntry(int(positions[wrong]), wrong)


def first_unreadable(data: bytes, sizes: npt.NDArray[np.int64]) -> int:
    """Return the number of the first record that cannot be decoded."""
    ends = np.cumsum(sizes)

    def fails(number: int) -> bool:
        try:
            bulk_tools.RecordChunk(data[: ends[number]], sizes[: number + 1])
        except RecordError:
            return True
        return False

    return bisect_left(range(len(sizes) - 1), 1, key=fails)


# ---- WrongEntrySearch: finds the wrong entry of a consume queue, so that the entries before it are
# served.

_SKIP_HINT = (
    "To skip what cannot be read, start the broker once with checkWholeLogBytes above the size "
    "of the log, which finds and reports it"
)


class WrongEntrySearch:
    """Searches queues of one log for wrong entries."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def limits_before(
        self, wrong: WrongEntry, queue: ConsumeQueue, queue_offset: QueueOffset, limits: GetLimits
    ) -> GetLimits:
        """Return limits that end before a wrong entry; halve them while its place is unknown."""
        fewer = min(limits.scan_max, queue.max_offset - queue_offset) // 2
        if wrong.right_count:
            return limits._replace(count_max=wrong.right_count)
        if wrong.overlapped is not None:
            fewer = wrong.overlapped
            if fewer and not self.is_right(queue, queue_offset + fewer - 1):
                fewer -= 1
        if not fewer:
            raise damaged_entry_error(queue, f"that of offset {queue_offset}", wrong) from None
        return limits._replace(scan_max=fewer)

    def is_right(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> bool:
        """Return whether an entry is blank or leads to its record."""
        entry = queue.read(queue_offset, 1)
        if not len(entry):
            return False
        position, size, _ = ENTRY_STRUCT.unpack(entry)
        if size == BLANK_SIZE or position < self._log.min_offset:
            return True
        head = self._log.files.read(position, HEAD_BYTES)
        return len(head) == HEAD_BYTES and matches_entry(
            head, 0, position, size, range(queue_offset, queue_offset + 1)
        )

    def end_before(
        self, queue: ConsumeQueue, queue_offset: QueueOffset, entries: Buffer
    ) -> PhysicalOffset:
        """Return the end of the previous record if it overlaps and its entry is right, else 0."""
        if queue_offset <= queue.min_offset:
            return LOG_START
        before = queue.read(queue_offset - 1, 1)
        if not len(before):
            return LOG_START
        position, size, _ = ENTRY_STRUCT.unpack(before)
        next_place, next_size, _ = ENTRY_STRUCT.unpack_from(entries)
        if BLANK_SIZE in (size, next_size) or next_place >= position + size:
            return LOG_START
        return PhysicalOffset(position + size if self.is_right(queue, queue_offset - 1) else 0)


def halve_limits(
    scanned: int, queue: ConsumeQueue, limits: GetLimits, error: UnreadableFile
) -> GetLimits:
    """Return limits of half as many entries, after the disk failed to read their records.

    Raises:
        UnreadableFile: There was only one entry. If the failure is permanent, the error says how
            to continue.
    """
    if scanned <= 1:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.EIO:
            is_of_queue = Path(str(cause.filename)).parent == queue.directory
            advice = _rebuild_hint(queue) if is_of_queue else _SKIP_HINT
            raise UnreadableFile(f"{error}. {advice}") from cause
        raise error
    return limits._replace(scan_max=scanned // 2)


def damaged_entry_error(queue: ConsumeQueue, which: str, wrong: WrongEntry) -> UnreadableFile:
    """Return the error for an entry that does not lead to its message, with the remedy."""
    return UnreadableFile(
        f"an entry of {queue.directory}, {which}, points to {wrong.position} of the commit log, "
        f"where its message is not: the entry or the record is damaged. {_rebuild_hint(queue)}, "
        "which reports and skips a damaged record"
    )


def _rebuild_hint(queue: ConsumeQueue) -> str:
    return f"To rebuild the queue, stop the broker, delete {queue.directory}, and start the broker"


_RUNS_MAX = 4
"""Up to this number, runs of records are read one by one, in a fifth of the time of arrays."""

_SLICES_MAX = 256
"""With more pieces than this, one copy is cheaper than passing them all to the network."""

_GAP_BYTES_MAX = 1 << 16
"""Up to this size, reading the gap between two messages is cheaper than reading twice."""

_READ_BYTES_MAX = 8 << 20
"""Bytes of the log read at a time if the messages are scattered over more."""


OffsetsOnlyPredicate: TypeAlias = "Callable[[Numbers, Numbers], bool]"
"""A function that returns whether the positions and sizes of records suffice, without the
records."""


class RecordRemoved(Exception):
    """Retention has deleted a file of the log since its entries were read."""


class MessageReader:
    """Reads log and consume queues together, in any number of threads while another appends."""

    def __init__(
        self,
        components: StoreComponents,
        degradation: Callable[[], str | None],
        next_offset: Callable[[QueueKey], QueueOffset],
    ) -> None:
        """Store the parts, and two functions for what the files do not contain.

        ``degradation`` returns why a start is unfinished; ``next_offset`` returns the offset past
        all messages of a queue, including those not dispatched yet.
        """
        self._dispatcher = components.dispatcher
        self._log = log = components.log
        self._read_log = log.files.read
        self._file_size = log.files.file_size
        self._queues = components.queues
        self._lower_bound = components.recovered_ends.lower_bound
        self._degradation = degradation
        self._next_offset = next_offset
        self._reput = components.reput
        self._wrong_entries = WrongEntrySearch(log)

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: QueueOffset,
        limits: GetLimits,
        message_filter: MessageFilter | None = None,
        wants_offsets_only: OffsetsOnlyPredicate | None = None,
    ) -> GetMessageResult:
        """Return messages of a queue from an offset on, up to limits; the first whatever its size.

        This does not read past the end of a consume-queue file. If ``wants_offsets_only`` accepts
        the positions and sizes, the messages themselves are neither read nor returned.

        Raises:
            EndUnknown: An unfinished start has found more messages of this queue.
        """
        owner = self.owner_of(topic, queue_id)
        least_end = self._lower_bound(topic, queue_id)
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            self.check_end(topic, queue_id, FIRST_IN_QUEUE, least_end)
            return self._overflow_result(
                (topic, queue_id), queue_offset, FIRST_IN_QUEUE, FIRST_IN_QUEUE
            )
        while True:
            low, high = queue.min_offset, queue.max_offset
            if not low <= queue_offset < high:
                self.check_end(topic, queue_id, high, min(queue_offset + 1, least_end))
                if queue_offset < low and high:
                    return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
                return self._overflow_result((topic, queue_id), queue_offset, low, high)
            scan_count = min(limits.scan_max, high - queue_offset)
            try:
                picked = self._select(queue, owner, queue_offset, limits, message_filter)
                if picked is None:
                    next_file = min(queue.next_file_offset(queue_offset), high)
                    return GetMessageResult(
                        GetMessageStatus.OFFSET_FOUND_NULL, next_file, low, high
                    )
                scanned, positions, sizes, status = picked
                scan_count = scanned
                next_offset = queue_offset + scanned
                if not len(positions):
                    # The reported minimum must exclude expired messages, even while that of the
                    # queue still includes them.
                    is_removed = status is GetMessageStatus.MESSAGE_WAS_REMOVING
                    return GetMessageResult(
                        status, next_offset, next_offset if is_removed else low, high
                    )
                queue_offsets = range(queue_offset, next_offset)
                records = self._records(
                    queue, owner, queue_offsets, positions, sizes, wants_offsets_only
                )
            except RecordRemoved:
                continue  # select again from the same entries
            except WrongEntry as wrong:
                limits = self._wrong_entries.limits_before(wrong, queue, queue_offset, limits)
                continue
            except UnreadableFile as error:
                limits = halve_limits(scan_count, queue, limits, error)
                continue
            return GetMessageResult(
                GetMessageStatus.FOUND, next_offset, low, high, records, sizes, positions
            )

    def _overflow_result(
        self, queue: QueueKey, queue_offset: QueueOffset, low: QueueOffset, high: QueueOffset
    ) -> GetMessageResult:
        """Return the status past a queue's end: messages not dispatched yet, or no such offset."""
        if queue_offset == high > 0 or high < queue_offset < self._next_offset(queue):
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
        if high == 0:
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, FIRST_IN_QUEUE, low, high)
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)

    def check_end(
        self, topic: str, queue_id: int, end: QueueOffset, lower_bound: QueueOffset
    ) -> None:
        """Refuse to report an end that is not final yet."""
        if end < lower_bound:
            raise end_unknown_error(topic, queue_id, self._degradation())

    def queue_offsets(self, topic: str, queue_id: int, *, allow_incomplete: bool) -> QueueBounds:
        """Return the first offset of a queue, and the offset of its next message.

        Raises:
            EndUnknown: An unfinished start may have found more messages, and
                ``allow_incomplete`` is false.
        """
        least_end = FIRST_IN_QUEUE if allow_incomplete else self._lower_bound(topic, queue_id)
        queue = self._queues.get(topic, queue_id)
        bounds = (
            QueueBounds(queue.min_offset, queue.max_offset)
            if queue is not None
            else QueueBounds(FIRST_IN_QUEUE, FIRST_IN_QUEUE)
        )
        self.check_end(topic, queue_id, bounds.next, least_end)
        return bounds

    def owner_of(self, topic: str, queue_id: int) -> RecordOwner:
        """Return the owner of the records that a queue leads to.

        Call this before reading the queue, whose topic may be deleted at any time.
        """
        since = self._dispatcher.deleted_topics.get(topic, LOG_START)
        return RecordOwner(topic.encode(), queue_id, since)

    def _select(
        self,
        queue: ConsumeQueue,
        owner: RecordOwner,
        queue_offset: QueueOffset,
        limits: GetLimits,
        message_filter: MessageFilter | None,
    ) -> SelectedEntries | None:
        """Select the entries to return; None if no file has entries at this offset."""
        # Without a filter, as many entries as wanted messages usually suffice.
        first = FEW_MAX if message_filter is not None else limits.count_max
        entries = queue.read(queue_offset, min(first, limits.scan_max, READ_ENTRIES_MAX))
        if not entries:
            return None
        log_min_offset = self._log.min_offset
        picked: SelectedEntries | None = None
        if message_filter is None:
            picked = select_all(entries, limits, log_min_offset)
        if picked is None:
            first_place = max(self._queues.expired_before, owner.since)
            if message_filter is not None:  # otherwise every returned record is checked
                first_place = max(
                    first_place, self._wrong_entries.end_before(queue, queue_offset, entries)
                )
            entry_check = EntryCheck(first_place, has_codes=queue.has_codes)
            entry_check.check(entries)
            count = queue.count_in_file(queue_offset, limits.scan_max)
            if message_filter is None or not message_filter.needs_messages:
                are_all = len(entries) == count * ENTRY_BYTES
                picked = select_few(
                    entries, limits, log_min_offset, message_filter, are_all=are_all
                )
            if picked is None:
                pieces = _pieces(queue, queue_offset, count, entries, entry_check)
                queue_offsets = range(queue_offset, queue_offset + count)
                chunk = partial(self._chunk, queue, owner, queue_offsets)
                picked = EntrySelection(limits, log_min_offset, message_filter, chunk).select(
                    pieces
                )
        return picked

    def _records(
        self,
        queue: ConsumeQueue,
        owner: RecordOwner,
        queue_offsets: range,
        positions: Numbers,
        sizes: Numbers,
        wants_offsets_only: OffsetsOnlyPredicate | None = None,
    ) -> tuple[Buffer, ...]:
        """Return the records at these positions, in order, which have these offsets in their queue.

        Entries of an earlier run that the start has not compared with the log are checked here,
        record by record. Other entries are checked only where this costs nothing. A caller that
        wants only positions has to compare each record with its entry.
        """
        is_unverified = queue_offsets.start < queue.unverified_before
        if wants_offsets_only is not None and not is_unverified:
            self._check_possible(owner.since, queue_offsets, positions, sizes)
            if wants_offsets_only(positions, sizes):
                return ()
        records = self._read_records(owner.since, queue_offsets, positions, sizes)
        if is_unverified:
            check_records(records, positions, sizes, queue_offsets, owner)
        return records

    def _chunk(
        self,
        queue: ConsumeQueue,
        owner: RecordOwner,
        queue_offsets: range,
        positions: Numbers,
        sizes: Numbers,
    ) -> RecordChunk:
        records = self._records(queue, owner, queue_offsets, positions, sizes)
        data = b"".join(records)
        try:
            return bulk_tools.RecordChunk(data, sizes)
        except RecordError:
            check_records(records, positions, sizes, queue_offsets, owner)
            number = first_unreadable(data, np.asarray(sizes, np.int64))
            raise WrongEntry(int(positions[number]), number) from None

    def _read_records(
        self, since: PhysicalOffset, queue_offsets: range, positions: Numbers, sizes: Numbers
    ) -> tuple[Buffer, ...]:
        """Read records; of each contiguous run, compare only the first and last with its entry."""
        first = PhysicalOffset(positions[0])
        size = int(sum(sizes) if isinstance(sizes, list) else sizes.sum())
        extent = int(positions[-1] + sizes[-1]) - first
        self._check_possible(since, queue_offsets, positions, sizes)
        if extent == size and first % self._file_size + size <= self._file_size:
            data = self.read(first, size)  # the records are contiguous
            self._check_entry(queue_offsets, data, first, int(sizes[0]))
            last, number = int(sizes[-1]), len(sizes) - 1
            if number and not matches_entry(
                data, size - last, int(positions[-1]), last, queue_offsets
            ):
                check_records((data,), positions, sizes, queue_offsets)
                raise WrongEntry(int(positions[number]), number)
            return (data,)
        if isinstance(positions, list) and isinstance(sizes, list):
            runs = _runs_of(positions, sizes)
            if len(runs) <= _RUNS_MAX:  # such as successive batches
                records = tuple(
                    self.read(PhysicalOffset(positions[run.start]), sum(sizes[run])) for run in runs
                )
                if not run_ends_match(records, runs, positions, sizes, queue_offsets):
                    check_records(records, positions, sizes, queue_offsets)
                    raise WrongEntry(positions[-1], len(positions) - 1)
                return records
            gathered = (
                self._read_near(positions, sizes, extent)
                if size < extent <= COPIED_BYTES_MAX
                else None
            )
            if gathered is not None:
                check_records((gathered,), positions, sizes, queue_offsets)
                return (gathered,)
        starts, lengths = np.asarray(positions, np.int64), np.asarray(sizes, np.int64)
        records = tuple(
            piece
            for contiguous_range in self._contiguous_ranges(starts, lengths)
            for piece in self._read_contiguous(*contiguous_range)
        )
        check_records(records, starts, lengths, queue_offsets)
        return records

    def _check_possible(
        self, since: PhysicalOffset, queue_offsets: range, positions: Numbers, sizes: Numbers
    ) -> None:
        """Refuse impossible positions, and sizes too large to allocate unchecked."""
        first, size = PhysicalOffset(positions[0]), int(sizes[0])
        are_possible = are_in_range(positions, since, self._log.written_offset)
        if not are_possible or not are_in_range(sizes, HEAD_BYTES, BLANK_SIZE):
            raise WrongEntry(first)
        if size > _READ_BYTES_MAX:  # no limit bounds the first size: check it
            self._check_entry(queue_offsets, self.read(first, HEAD_BYTES), first, size)

    def _check_entry(
        self, queue_offsets: range, data: Buffer, position: PhysicalOffset, size: int
    ) -> None:
        if not matches_entry(data, 0, position, size, queue_offsets):
            raise WrongEntry(position)

    def _holes_in(self, start: PhysicalOffset, end: PhysicalOffset) -> list[PhysicalOffset]:
        return [hole for hole, _ in self._reput.holes if start <= hole < end]

    def _read_near(self, positions: list[int], sizes: list[int], extent: int) -> Buffer | None:
        """Return a few nearby records as one piece; None across files or holes."""
        first = PhysicalOffset(positions[0])
        if first % self._file_size + extent > self._file_size or self._holes_in(
            first, first + extent
        ):
            return None
        data = self.read(first, extent)
        pieces: list[Buffer] = []
        end: int = first
        for position, length in zip(positions, sizes, strict=True):
            if position < end:
                return None
            end = position + length
            pieces.append(data[position - first : end - first])
        return b"".join(pieces)

    def _contiguous_ranges(
        self, positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Split where the next record is in another file, too far away, or past a hole."""
        file_size = self._file_size
        ends = positions + sizes
        gaps = positions[1:] - ends[:-1]
        is_cut = (
            (gaps < 0)
            | (gaps > _GAP_BYTES_MAX)
            | (positions[1:] // file_size != positions[:-1] // file_size)
        )
        # Read records with gaps between them in stretches of limited length.
        is_cut |= (gaps != 0) & (ends[1:] // _READ_BYTES_MAX != ends[:-1] // _READ_BYTES_MAX)
        if self._reput.holes:
            for hole in self._holes_in(
                PhysicalOffset(positions.min()), PhysicalOffset(positions.max())
            ):
                is_cut |= (ends[:-1] <= hole) & (hole < positions[1:])
        cuts = (np.flatnonzero(is_cut) + 1).tolist()
        for start, end in zip([0, *cuts], [*cuts, len(positions)], strict=True):
            yield positions[start:end], sizes[start:end]

    def _read_contiguous(
        self, positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> tuple[Buffer, ...]:
        """Return the records of a part of the log that is read in one piece."""
        first, size = PhysicalOffset(positions[0]), int(sizes.sum())
        data = self.read(first, int(positions[-1] + sizes[-1]) - first)
        if len(data) == size:
            return (data,)
        cuts = np.flatnonzero(positions[1:] != (positions + sizes)[:-1]) + 1
        if len(cuts) < _SLICES_MAX:
            starts = [0, *cuts.tolist()]
            stops = [*cuts.tolist(), len(positions)]
            view = memoryview(data)
            pieces = [
                view[int(positions[a]) - first : int(positions[b - 1] + sizes[b - 1]) - first]
                for a, b in zip(starts, stops, strict=True)
            ]
            # Copy small results: slices would keep everything that was read in memory.
            return (b"".join(pieces),) if size <= COPIED_BYTES_MAX else tuple(pieces)
        gathered = bulk_tools.take_bytes(bulk_tools.py_buffer(data), positions - first, sizes)
        return (memoryview(gathered.buffers()[2])[:size],)

    def read(self, physical_offset: PhysicalOffset, size: int) -> Buffer:
        """Read bytes of the log.

        Raises:
            RecordRemoved: Retention has deleted them meanwhile.
            WrongEntry: The log ends before them.
        """
        data = self._read_log(physical_offset, size)
        if len(data) < size:
            raise (
                RecordRemoved
                if physical_offset < self._log.min_offset
                else WrongEntry(physical_offset)
            )
        return data

    def record_at(self, physical_offset: PhysicalOffset) -> Buffer | None:
        """Return the record that starts at a log offset, or None."""
        if not self._log.min_offset <= physical_offset < self._log.written_offset:
            return None
        record = self._log.read_record(physical_offset)
        try:
            return record if decode_record(record).physical_offset == physical_offset else None
        except RecordError:
            return None


def _runs_of(positions: list[int], sizes: list[int]) -> list[slice]:
    ends = map(add, positions, sizes)
    cuts = [
        n
        for n, (end, position) in enumerate(zip(ends, positions[1:], strict=False), 1)
        if end != position
    ]
    return list(map(slice, [0, *cuts], [*cuts, len(positions)]))


def _pieces(
    queue: ConsumeQueue,
    queue_offset: QueueOffset,
    count: int,
    first: Buffer,
    entry_check: EntryCheck,
) -> Iterator[Buffer]:
    """Yield a number of entries, the first of which are already read and checked."""
    yield first
    done = len(first) // ENTRY_BYTES
    while done < count:
        piece = queue.read(queue_offset + done, min(READ_ENTRIES_MAX, count - done))
        if not len(piece):
            return
        entry_check.check(piece)
        yield piece
        done += len(piece) // ENTRY_BYTES
