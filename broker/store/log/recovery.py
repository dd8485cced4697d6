"""LogRecovery: finds the end and the holes of the log after a stop or a crash.

Recovery follows the records and checks size, magic, position, body CRC, and the checksum of the
whole. Where one is wrong, the data that follows decides:

- nothing follows: this is the end. The rest of a record that was never acknowledged has to be wiped
  (`wipe_after`); otherwise a later, shorter append could make a stale record past it valid again;
- a whole record follows, or the offset up to which all was once on the disk: this is a hole, made
  by a bad disk. The data past it stays; the hole is kept unchanged, and reported. A whole record
  within the bytes that the damaged one claims counts only if successive records lead from it past
  these bytes: then the damaged size is wrong. Otherwise it is part of a body, whose content the
  sender chose.

Data that the disk does not return counts as a hole if records follow, because the disk may return
it again later. If no record follows, the end of the log is unknown: then the start fails and
changes nothing. Since the disk may return the data a moment later, a refused read is repeated once,
and an offset counts as the end only after a scan without a refused read.

Scanning changes nothing; wiping writes zeros past the end only; nothing is ever deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.record import decode_blank
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import lazy_numpy as np
from ..errors import UnreadableFile, is_resource_shortage
from ..files.mapped_file_queue import PAGE_BYTES, MappedFileQueue
from ..records.fields import body_position
from ..records.integrity import RecordCheck, record_sizes
from ..records.store_timeline import StoreTimeline
from ..results import LOG_START, Hole, PhysicalOffset
from .checkpoint_file import Checkpoint
from .commit_log import BLANK_BYTES

CHECK_BYTES = 8 << 20
ONE_BY_ONE_RECORDS_MAX = 4096
"""A log of up to this number of records is checked without loading pyarrow."""

_SEARCH_BYTES = 1 << 18
_WRITE_BYTES = 1 << 18

_MAGIC_AT = 4
_BODY_AT_MAX = body_position(-1)
"""The position of the body in a record whose two hosts have IPv6 addresses."""
_MAGICS = tuple(
    (magic % (1 << 32)).to_bytes(4, "big") for magic in (layout.MAGIC_V1, layout.MAGIC_V2)
)


class RecoveredLog(NamedTuple):
    """The end of the log, its store times, its holes, and the padding after blank records."""

    end_offset: PhysicalOffset
    timeline: StoreTimeline
    """The store timestamps of the scanned records, added to the timeline known before."""
    holes: tuple[Hole, ...]
    padding: tuple[tuple[PhysicalOffset, PhysicalOffset], ...]


def reliable_checkpoint(
    checkpoint: Checkpoint | None, files: MappedFileQueue, *, is_foreign: bool
) -> Checkpoint | None:
    """Return the checkpoint if it fits the log and no other program wrote to the store since."""
    # Another program writes its own checkpoint at a clean stop; after a kill it may leave ours.
    if checkpoint is None or is_foreign:
        return None
    return checkpoint if files.first_offset <= checkpoint.safe_offset <= files.end_offset else None


class LogRecovery:
    """One scan of a log without a writer.

    All data before ``safe_offset`` was once on the disk; from ``sealed_from`` on, all records have
    checksums.
    """

    def __init__(
        self,
        files: MappedFileQueue,
        checkpoint: Checkpoint | None,
        report: Callable[[int], object] = int,
    ) -> None:
        """Prepare a scan; without a checkpoint, any record may be another program's.

        ``report`` is called with each position reached; an exception from it ends the scan.
        """
        self._files = files
        self._report = report
        self._checked_one_by_one = 0
        self._unreadable: UnreadableFile | None = None
        self._unreadable_at = LOG_START
        first, end = PhysicalOffset(files.first_offset), PhysicalOffset(files.end_offset)
        self.safe_offset = checkpoint.safe_offset if checkpoint else first
        self.sealed_from = checkpoint.sealed_from if checkpoint else end
        self._check = RecordCheck(self.sealed_from)
        self._timeline = StoreTimeline()

    def scan_from(
        self,
        start: PhysicalOffset,
        timeline: StoreTimeline = StoreTimeline(),  # noqa: B008  # immutable
    ) -> RecoveredLog:
        """Scan the log from the start of a record; ``timeline`` has the store times before it."""
        files = self._files
        position = max(start, PhysicalOffset(files.first_offset))
        self._timeline, rescanned_at = timeline, -1
        holes: list[Hole] = []
        padding: list[tuple[PhysicalOffset, PhysicalOffset]] = []
        while position < files.end_offset:
            self._unreadable = None
            valid_end = self._scan_file(position)
            filled = valid_end > position and valid_end % files.file_size == 0
            position = valid_end
            blank = decode_blank(self._read(position, BLANK_BYTES))
            if blank == files.space_left(position):
                padding.append((position + BLANK_BYTES, position + blank))
                position += blank
            elif not filled:
                found = self._next_record(position + 1, position)
                if found is None and position < self.safe_offset:
                    found = self.safe_offset
                if self._unreadable is not None and rescanned_at != position:
                    rescanned_at = position
                    continue
                if found is None:
                    self._check_end_was_readable()
                    break
                holes.append((position, found))
                position = found
        return RecoveredLog(position, self._timeline, tuple(holes), tuple(padding))

    def _check_end_was_readable(self) -> None:
        """Refuse the start if the scan that reached the presumed end had a refused read."""
        if self._unreadable is not None:
            raise UnreadableFile(
                f"{self._unreadable}; the end of the commit log is unknown, and nothing was "
                "changed: " + self._files.data_loss_hint(self._unreadable_at)
            ) from self._unreadable

    def _read(self, position: PhysicalOffset, size: int) -> Buffer:
        """Read bytes, at most to the end of the file; record a refused read and return no bytes."""
        return self._read_or_note(self._files.read, position, size)

    def _read_available(self, position: PhysicalOffset, size: int) -> Buffer:
        """Read bytes up to the first one that the disk does not return.

        If that is the very first byte, record the refused read and return no bytes. After fewer
        bytes than requested, the caller has to request the rest again.
        """
        return self._read_or_note(self._files.read_available, position, size)

    def _read_or_note(
        self, read: Callable[[int, int], Buffer], position: PhysicalOffset, size: int
    ) -> Buffer:
        try:
            return read(position, size)
        except UnreadableFile as error:
            if is_resource_shortage(error):  # such as of memory: this is not a hole
                raise
            self._unreadable, self._unreadable_at = error, position
            return b""

    def _scan_file(self, start: PhysicalOffset) -> PhysicalOffset:
        """Return the end of the valid records of a file from a position on; record their times."""
        position = start
        file_end = start + self._files.space_left(start)
        while position < file_end:
            data = self._read_available(position, CHECK_BYTES)
            sizes = record_sizes(data)
            if not sizes:  # a longer record follows, or the rest is unreadable
                record = self._record_at(position)
                if record is None:
                    break
                data, sizes = record, [len(record)]
            intact_count, times = self._check_records(data, sizes, position)
            for size, time_ms in zip(sizes, times, strict=False):
                if time_ms != self._timeline.last_ms:
                    self._timeline = self._timeline.with_record(time_ms, position)
                position += size
            self._report(position)
            if intact_count < len(sizes):
                break
        return position

    def _check_records(
        self, data: Buffer, sizes: list[int], physical_offset: PhysicalOffset
    ) -> tuple[int, Sequence[int]]:
        if self._checked_one_by_one + len(sizes) <= ONE_BY_ONE_RECORDS_MAX:
            self._checked_one_by_one += len(sizes)
            return self._check.check_one_by_one(data, sizes, physical_offset)
        return self._check.check_columns(data, sizes, physical_offset)

    def _record_at(self, physical_offset: PhysicalOffset) -> Buffer | None:
        """Return the bytes at a position that claim to be a record of this position, or None."""
        head = self._read(physical_offset, layout.RECORD_BYTES_MIN)
        if len(head) < layout.RECORD_BYTES_MIN or bytes(head[_MAGIC_AT:][:4]) not in _MAGICS:
            return None
        size, position = (
            int.from_bytes(head[at : at + width], "big")
            for at, width in ((0, 4), (layout.PHYSICAL_OFFSET_AT, 8))
        )
        if position != physical_offset:
            return None
        if not layout.RECORD_BYTES_MIN <= size <= self._files.space_left(physical_offset):
            return None
        return self._read(physical_offset, size) or None

    def _next_record(self, start: PhysicalOffset, damaged: PhysicalOffset) -> PhysicalOffset | None:
        """Return the first position from ``start`` on with a valid record of the log, or None.

        Records inside the damaged record do not count: a message body may contain one.
        """
        files = self._files
        extent = self._extent_of(damaged)
        position = start
        while True:
            found = files.next_data(position)
            if found is None:
                return None
            position = PhysicalOffset(found)
            window = bytes(self._read_available(position, _SEARCH_BYTES))
            for at in _magic_positions(window):
                candidate = position + at - _MAGIC_AT
                record = self._record_at(candidate) if candidate >= start else None
                if record is None or self._check.decode(record, candidate) is None:
                    continue
                if (
                    candidate == damaged
                    or candidate >= extent.end
                    or self._has_records_beyond(candidate, extent)
                ):
                    return candidate
            if not window:
                position += PAGE_BYTES - position % PAGE_BYTES
            elif len(window) == files.space_left(position):
                position += len(window)
            else:  # a magic may lie across the edge of the window
                position += max(len(window) - BLANK_BYTES, 1)

    def _extent_of(self, damaged: PhysicalOffset) -> _Extent:
        """Return how far a damaged record may reach, by its size and its body's length."""
        head = self._read(damaged, _BODY_AT_MAX)
        room = self._files.space_left(damaged)
        claimed = int.from_bytes(head[:4], "big"), _body_end(head)
        ends = [damaged + size for size in claimed if layout.RECORD_BYTES_MIN <= size <= room]
        return _Extent(min(ends, default=damaged), max(ends, default=damaged), set())

    def _has_records_beyond(self, start: PhysicalOffset, extent: _Extent) -> bool:
        """Return whether a chain of valid records begins at a position and leaves an extent.

        Such records belong to the log, and the extent claims too much. A record inside a message
        body starts no such chain, because the rest of the body follows it. If only zeros follow, a
        record past the nearer end of the extent also belongs to the log.
        """
        position, passed = start, []
        while position < extent.end and position not in extent.dead_ends:
            passed.append(position)
            record = self._record_at(position)
            if record is not None and self._check.decode(record, position) is not None:
                position += len(record)
                continue
            blank = decode_blank(self._read(position, BLANK_BYTES))
            if blank == self._files.space_left(position):
                return True
            is_end = next(nonzero_pieces_after(self._files, position), None) is None
            if is_end and start >= extent.nearer_end:
                return True
            extent.dead_ends.update(passed)
            return False
        return position >= extent.end


class _Extent(NamedTuple):
    """The bytes that a damaged record claims, up to the nearer and the farther of two ends."""

    nearer_end: PhysicalOffset
    end: PhysicalOffset
    dead_ends: set[PhysicalOffset]
    """Positions from which no records lead out of the extent."""


def _body_end(head: Buffer) -> int:
    """Return the end of the body, relative to the record, by the body's length field."""
    flags = int.from_bytes(head[layout.SYS_FLAG_AT :][:4], "big")
    body_at = body_position(flags)
    return body_at + int.from_bytes(head[body_at - 4 : body_at], "big")


def _magic_positions(window: bytes) -> list[int]:
    positions = []
    for magic in _MAGICS:
        at = window.find(magic)
        while at >= 0:
            positions.append(at)
            at = window.find(magic, at + 1)
    return sorted(positions)


def next_record_after(
    files: MappedFileQueue,
    start: PhysicalOffset,
    damaged: PhysicalOffset,
    sealed_from: PhysicalOffset,
) -> PhysicalOffset | None:
    """Return the first position from an offset on that has a valid record of this log, or None.

    The position lies past the damaged record at ``damaged``, unless that is valid again.
    """
    known = Checkpoint(PhysicalOffset(files.first_offset), 0, sealed_from)
    return LogRecovery(files, known)._next_record(start, damaged)  # private to this module


def nonzero_pieces_after(
    files: MappedFileQueue, end_offset: PhysicalOffset
) -> Iterator[tuple[PhysicalOffset, Buffer]]:
    """Yield the pieces past the end of a log that have nonzero bytes, with their positions."""
    found = files.next_data(end_offset)
    while found is not None:
        position = max(PhysicalOffset(found), end_offset)
        piece = files.read_available(position, _WRITE_BYTES)
        if np.frombuffer(piece, np.uint8).any():
            yield position, piece
        found = files.next_data(position + len(piece))


def rewrite_recovered(
    files: MappedFileQueue,
    checkpoint: Checkpoint | None,
    recovered: RecoveredLog,
    report: Callable[[int], object],
) -> None:
    """Write the data found past a checkpoint once more, and flush it.

    If a flush failed before the crash, data may be only in the system's cache, which counts it as
    written: no later flush would bring it to the disk, and a power loss would remove records that
    recovery has accepted. Holes are skipped, and so is the padding after blank records, which has
    no content and takes no room.
    """
    position = checkpoint.safe_offset if checkpoint else PhysicalOffset(files.first_offset)
    if position >= recovered.end_offset:
        return
    end = recovered.end_offset
    for gap_start, gap_end in sorted((*recovered.holes, *recovered.padding, (end, end))):
        while position < gap_start:
            size = min(_WRITE_BYTES, gap_start - position, files.space_left(position))
            files.rewrite(position, size)
            position += size
            report(position)
        position = max(position, gap_end)
    files.flush()


def wipe_after(files: MappedFileQueue, end_offset: PhysicalOffset) -> None:
    """Write zeros from the end of the log to the last byte that has been written."""
    wiped = False
    for position, piece in nonzero_pieces_after(files, end_offset):
        files.write(position, bytes(len(piece)))
        wiped = True
    if wiped:
        files.flush()
