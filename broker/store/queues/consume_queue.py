"""ConsumeQueue: the log offsets of the messages of one queue.

    i64 physicalOffset   of the record
    i32 size             of the record
    i64 tagsCode         Java's hash of its tags; of a delayed message, when it is to be delivered

Entry number = queue offset = position / 20. A queue has blank entries where it does not begin at a
file's start, or where messages are missing because the log has lost them or they were rolled back;
blank entries say which of the two (`record_layout`). They lead to the start of the log file before
that of the next message: RocketMQ treats such an entry as if its log file was deleted, and
continues with the next file.

Everything here can be rebuilt from the log, so writes are not flushed one by one; recovery checks
what a crash leaves. Entries are written as bytes, and read as bytes or as a numpy array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rmq_spark.wire.message.record_layout import BLANK_SIZE, RECORD_BYTES_MIN, ROLLED_BACK
from rmq_spark.wire.names import SCHEDULE_TOPIC
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import lazy_numpy as np
from ..errors import UnreadableFile
from ..files.file_pool import FileGroup
from ..files.local_file import COPIED_BYTES_MAX
from ..files.mapped_file_queue import MappedFileQueue
from ..results import FIRST_IN_QUEUE, LOG_START, PhysicalOffset, QueueOffset

if TYPE_CHECKING:
    import numpy.typing as npt

ENTRY = [("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]
"""The fields of an entry as a dtype of numpy."""
ENTRY_STRUCT = struct.Struct(">qiq")
ENTRY_BYTES = ENTRY_STRUCT.size

_ORDER_CHECKED_ENTRIES = 64
"""Entries read before the found one, to detect a search that damaged entries misled."""
_PAGE = 4096
_RECORDS_OF_A_PAGE_MAX = _PAGE // RECORD_BYTES_MIN + 1
_UNREADABLE_PAGES_MAX = 64
"""Pages of the log that a search finds unreadable before it gives up."""
READ_ENTRIES_MAX = COPIED_BYTES_MAX // ENTRY_BYTES
"""Entries read at a time; queues are not read through a memory map."""

Entries: TypeAlias = "npt.NDArray[Any]"


def blank_entries(
    gap: range, physical_offset: PhysicalOffset, rolled_back_ranges: Iterable[range] = ()
) -> bytes:
    """Return the blank entries of a gap, which lead to ``physical_offset``.

    Those in ``rolled_back_ranges`` are marked as rolled back.
    """
    lost, rolled_back = (
        ENTRY_STRUCT.pack(physical_offset, BLANK_SIZE, code) for code in (0, ROLLED_BACK)
    )
    entries, at = b"", gap.start
    for each in rolled_back_ranges:
        start, stop = max(each.start, at), min(each.stop, gap.stop)
        if start < stop:
            entries += lost * (start - at) + rolled_back * (stop - start)
            at = stop
    return entries + lost * (gap.stop - at)


def first_physical_offset(entries: Buffer) -> PhysicalOffset:
    """Return the position of the first entry's record."""
    return PhysicalOffset(ENTRY_STRUCT.unpack_from(entries)[0])


def last_physical_offset(entries: Buffer) -> PhysicalOffset:
    """Return the position of the last entry's record."""
    return PhysicalOffset(ENTRY_STRUCT.unpack_from(entries, len(entries) - ENTRY_BYTES)[0])


def _rolled_back_tail_start(gap: range, rolled_back: Sequence[range]) -> int:
    """Return where the rolled-back tail of a gap starts; the gap's end if there is no such tail."""
    begin = gap.stop
    for each in reversed(rolled_back):
        if each.start < begin <= each.stop:
            begin = max(each.start, gap.start)
    return begin


class QueueBounds(NamedTuple):
    """The offsets between which a queue's messages lie; both are 0 if it never had any."""

    first: QueueOffset
    """The offset of the queue's first message, or of rolled-back messages directly before it: a
    consumer that begins there misses nothing."""
    next: QueueOffset
    """The offset that the queue's next message gets."""


class ConsumeQueue:
    """One queue of one topic. One writer; any number of readers."""

    __slots__ = ("_files", "has_codes", "max_offset", "min_offset", "unverified_before")

    def __init__(self, group: FileGroup, directory: Path, file_size: int) -> None:
        file_size -= file_size % ENTRY_BYTES
        # A checkpoint has no entry that follows a missing file.
        self._files = MappedFileQueue(group, directory, file_size, may_miss_files=True)
        self.max_offset = FIRST_IN_QUEUE
        self.min_offset = FIRST_IN_QUEUE
        self.unverified_before = FIRST_IN_QUEUE
        """Entries before this offset are from an earlier run, and were not compared with their
        records."""
        self.has_codes = directory.parent.name != SCHEDULE_TOPIC
        """True if entries have tags codes; entries of delayed messages have delivery times
        instead."""

    @property
    def directory(self) -> Path:
        """The directory of the queue's files."""
        return self._files.directory

    def load(self) -> None:
        """Find the files and the last entry, past which all is zero; only tools use this."""
        self._files.load()
        self.min_offset = QueueOffset(self._files.first_offset // ENTRY_BYTES)
        self.max_offset = max(self.end_in_files(), self.min_offset)
        first = self._next_nonblank(self.min_offset, self.max_offset)
        self.min_offset = self.max_offset if first is None else first

    def adopt(self, sizes: Mapping[str, int | None]) -> list[str]:
        """Use the files of the directory by names and sizes; return those that are unusable."""
        return self._files.adopt(sizes)

    def restore(self, min_offset: QueueOffset, max_offset: QueueOffset) -> bool:
        """Restore the bounds of a checkpoint; return False if a file within them is missing.

        Messages after the checkpoint are dispatched again and overwrite the entries past the end,
        because a full disk has no room elsewhere. `delete_files_after_end` deletes the rest.
        """
        files = self._files
        if (
            not files.first_offset
            <= min_offset * ENTRY_BYTES
            <= max_offset * ENTRY_BYTES
            <= files.end_offset
        ):
            return False
        self.min_offset, self.max_offset = min_offset, max_offset
        self.unverified_before = max_offset
        if self.has_files_after_end:
            files.mark_loaded_names_changed()
        return True

    def restart(self) -> bool:
        """Prepare to write all entries again; return False if the first file is missing."""
        if not self._files.files or self._files.first_offset:
            return False
        self._files.mark_loaded_names_changed()
        return True

    @property
    def has_files_after_end(self) -> bool:
        """True if there are files that lie completely past the end."""
        return self._files.has_files_from(self.max_offset * ENTRY_BYTES)

    def delete_files_after_end(self) -> None:
        """Delete the files that lie completely past the end."""
        self._files.delete_from(self.max_offset * ENTRY_BYTES)

    def end_in_files(self) -> QueueOffset:
        """Return the offset past the last entry in the files; 0 without an entry."""
        for mapped in reversed(self._files.files):
            first = QueueOffset(mapped.from_offset // ENTRY_BYTES)
            end = self._end_of_entries(first)
            if end > first:
                return end
        return FIRST_IN_QUEUE

    def last_record_end(self) -> PhysicalOffset:
        """Return the end of the last entry's record in the files; 0 without an entry."""
        end = self.end_in_files()
        if not end:
            return LOG_START
        position, size, _ = ENTRY_STRUCT.unpack(
            self._files.read((end - 1) * ENTRY_BYTES, ENTRY_BYTES)
        )
        return PhysicalOffset(position + size if size != BLANK_SIZE else 0)

    def wipe_after_end(self) -> None:
        """Write zeros past the last entry, because a RocketMQ broker would find leftovers there."""
        position = self.max_offset * ENTRY_BYTES
        at = self._files.next_data(position)
        while at is not None:
            at = max(at, position)
            data = self._files.read(at, COPIED_BYTES_MAX)
            if data != bytes(len(data)):
                self._files.write(at, bytes(len(data)))
            at = self._files.next_data(at + len(data))

    def append(self, queue_offset: QueueOffset, entries: Buffer) -> None:
        """Append entries from a queue offset on, except those that exist already.

        Raises:
            ValueError: There is a gap before the entries: call `skip_to` first.
        """
        known = self.max_offset - queue_offset
        if known < 0:
            raise ValueError(f"entries from {queue_offset} on leave a gap after {self.max_offset}")
        self.max_offset = self.write_hidden(self.max_offset, queue_offset, entries)

    def write_hidden(
        self, end: QueueOffset, queue_offset: QueueOffset, entries: Buffer
    ) -> QueueOffset:
        """Write entries from an offset on, except those before ``end``; return the new end.

        The entries stay hidden until `max_offset` moves past them.
        """
        if queue_offset < end:
            entries = memoryview(entries)[(end - queue_offset) * ENTRY_BYTES :]
            queue_offset = end
        if not len(entries):
            return end
        self._write(queue_offset, entries)
        return queue_offset + len(entries) // ENTRY_BYTES

    def last_entry(self) -> tuple[QueueOffset, PhysicalOffset, int] | None:
        """Return the offset of the last nonblank entry, and its record's place and size."""
        end = self.max_offset
        while end > self.min_offset:
            start = max(self.min_offset, self._file_start(end - 1), end - READ_ENTRIES_MAX)
            entries = self.entries(start, end - start)
            written = np.flatnonzero(entries["size"] != BLANK_SIZE)
            if len(written):
                last = int(written[-1])
                return (
                    start + last,
                    PhysicalOffset(entries[last]["physical_offset"]),
                    int(entries[last]["size"]),
                )
            end = start
        return None

    def clear(self) -> None:
        """Delete all entries; the next entry may have any offset."""
        self.max_offset = self.min_offset = FIRST_IN_QUEUE
        self._files.delete_from(0)

    def skip_to(
        self,
        queue_offset: QueueOffset,
        blank_offset: PhysicalOffset = LOG_START,
        rolled_back: Sequence[range] = (),
    ) -> None:
        """Set the next offset to at least this one; blank entries fill the gap.

        Entries in the ascending ranges ``rolled_back`` are marked as rolled back.
        """
        if queue_offset <= self.max_offset:
            return
        is_new = self.max_offset == self.min_offset
        # A new queue begins at this offset, or at rolled-back messages directly before it: see
        # `QueueBounds.first`.
        begin = QueueOffset(
            _rolled_back_tail_start(range(self.max_offset, queue_offset), rolled_back)
        )
        if is_new and not self._files.files:
            self.min_offset = self.max_offset = self._file_start(begin)
        gap = range(self.max_offset, queue_offset)
        self._write(self.max_offset, blank_entries(gap, blank_offset, rolled_back))
        self.max_offset = queue_offset
        if is_new:
            self.min_offset = begin

    def entries(self, queue_offset: QueueOffset, count: int) -> Entries:
        """Read a number of entries from an offset on, at most to the end of its file."""
        return np.frombuffer(self.read(queue_offset, count), ENTRY)

    def read(self, queue_offset: QueueOffset, count: int) -> Buffer:
        """Read the bytes of entries, as `entries` does."""
        available = self.max_offset - queue_offset
        count = min(count, available)
        return (
            self._files.read(queue_offset * ENTRY_BYTES, count * ENTRY_BYTES) if count > 0 else b""
        )

    def count_in_file(self, queue_offset: QueueOffset, count_max: int) -> int:
        """Return the number of entries from an offset to the end of its file, up to a limit."""
        in_file = self.next_file_offset(queue_offset) - queue_offset
        return min(count_max, in_file, self.max_offset - queue_offset)

    def next_file_offset(self, queue_offset: QueueOffset) -> QueueOffset:
        """Return the first queue offset of the file after the one that contains an offset."""
        position = queue_offset * ENTRY_BYTES
        return QueueOffset((position + self._files.space_left(position)) // ENTRY_BYTES)

    def expire_before(self, physical_offset: PhysicalOffset) -> None:
        """Stop offering entries of records before a log offset."""
        self.min_offset = self._first_at_or_after(physical_offset)

    def has_files_before(self, queue_offset: QueueOffset) -> bool:
        """Return whether any file has only entries before an offset."""
        files = self._files
        return (
            len(files.files) > 1
            and files.first_offset + files.file_size <= queue_offset * ENTRY_BYTES
        )

    def delete_before(self, queue_offset: QueueOffset) -> None:
        """Delete the files that have only entries before an offset."""
        self._files.delete_before(queue_offset * ENTRY_BYTES)

    def search(
        self,
        key: int,
        key_of: Callable[[Any], int],
        *,
        side: str = "left",
        begin: QueueOffset | None = None,
        end: QueueOffset | None = None,
    ) -> QueueOffset:
        """Return the first offset whose key is at least ``key``; with ``side="right"``, above it.

        Keys must not decrease within the searched range, by default the whole queue. Blank entries
        and entries whose key the disk does not return are skipped, by reading the entries that
        follow.

        Raises:
            UnreadableFile: The answer depends on a key that cannot be read, or too many keys cannot
                be read.
        """
        low = self.min_offset if begin is None else begin
        high = last = self.max_offset if end is None else end
        last_below = key if side == "right" else key - 1
        refused: list[UnreadableFile] = []
        while low < high:
            middle = low + (high - low) // 2
            probe, key_found = self._key_from(middle, high, key_of, refused)
            if key_found is not None and key_found <= last_below:
                low = probe + 1
            else:
                high = middle
        # The key of the entry before `low` was read; the entry at `low` may have been skipped.
        found = self._next_nonblank(low, last) if refused else None
        first = None if found is None else self.entries(found, 1)[0]
        if first is not None and key_of(first) <= last_below:
            raise refused[-1]
        return low

    def _key_from(
        self,
        queue_offset: QueueOffset,
        end: QueueOffset,
        key_of: Callable[[Any], int],
        unreadable: list[UnreadableFile],
    ) -> tuple[QueueOffset, int | None]:
        """Return the first entry at or past an offset with a readable key, and its key, or None."""
        while True:
            probe = self._next_nonblank(queue_offset, end)
            if probe is None:
                return end, None
            try:
                return probe, key_of(self.entries(probe, 1)[0])
            except UnreadableFile as error:
                unreadable.append(error)
                if len(unreadable) > _UNREADABLE_PAGES_MAX:  # each failed read may take seconds
                    raise
            near = self.entries(probe, min(end - probe, _RECORDS_OF_A_PAGE_MAX))
            pages = near["physical_offset"] // _PAGE
            on_others = np.flatnonzero(pages > pages[0])
            queue_offset = probe + (int(on_others[0]) if len(on_others) else len(near))

    def set_directory(self, directory: Path) -> None:
        """Continue with the same files in another directory."""
        self._files.set_directory(directory)

    def close(self) -> None:
        """Close the files, without a flush."""
        self._files.close()

    def next_entry(self, queue_offset: QueueOffset) -> Any:
        """Read the first entry from an offset on that is not blank; None if there is none."""
        found = self._next_nonblank(queue_offset, self.max_offset)
        return None if found is None else self.entries(found, 1)[0]

    def _first_at_or_after(self, physical_offset: PhysicalOffset) -> QueueOffset:
        """Return the first offset whose record lies at or past a log offset."""
        found = self.search(physical_offset, lambda entry: int(entry["physical_offset"]))
        start = max(found - _ORDER_CHECKED_ENTRIES, self.min_offset)
        before = self.entries(start, found - start)
        positions = before["physical_offset"][before["size"] != BLANK_SIZE]
        if (
            (before["size"] == 0).any()
            or (positions >= physical_offset).any()
            or (np.diff(positions) <= 0).any()
        ):
            raise UnreadableFile(
                f"entries of {self.directory} from {start} to {found} are damaged: nothing of "
                "that queue expires. To rebuild it, stop the broker, delete that directory, and "
                "start the broker"
            )
        return found

    def _next_nonblank(self, queue_offset: QueueOffset, end: QueueOffset) -> QueueOffset | None:
        step = 1  # usually the first entry is not blank
        while queue_offset < end:
            entries = self.entries(queue_offset, min(end - queue_offset, step))
            written = np.flatnonzero(entries["size"] != BLANK_SIZE)
            if len(written):
                return queue_offset + int(written[0])
            queue_offset += max(len(entries), 1)
            step = READ_ENTRIES_MAX
        return None

    def rolled_back_offsets(self, queue_offset: QueueOffset, count: int) -> set[QueueOffset]:
        """Return which of ``count`` successive offsets belong to rolled-back messages."""
        found: set[QueueOffset] = set()
        end = queue_offset + count
        while queue_offset < end and len(entries := self.entries(queue_offset, end - queue_offset)):
            is_rolled_back = (entries["size"] == BLANK_SIZE) & (entries["tags_code"] == ROLLED_BACK)
            found.update(queue_offset + int(row) for row in np.flatnonzero(is_rolled_back))
            queue_offset += len(entries)
        return found

    def _write(self, queue_offset: QueueOffset, entries: Buffer) -> None:
        position = queue_offset * ENTRY_BYTES
        while len(entries) > (left := self._files.space_left(position)):
            entries = memoryview(entries)
            self._files.write(position, entries[:left])
            position += left
            entries = entries[left:]
        self._files.write(position, entries)

    def _end_of_entries(self, first: QueueOffset) -> QueueOffset:
        """Return the end of a file's entries, without reading parts that were never written."""
        files = self._files
        end, next_file = first, self.next_file_offset(first)
        at = files.next_data(first * ENTRY_BYTES)
        while at is not None and at < next_file * ENTRY_BYTES:
            start = QueueOffset(at // ENTRY_BYTES)
            data = files.read(start * ENTRY_BYTES, READ_ENTRIES_MAX * ENTRY_BYTES)
            written = np.flatnonzero(np.frombuffer(data, ENTRY)["size"])
            if len(written):
                end = start + int(written[-1]) + 1
            at = files.next_data(start * ENTRY_BYTES + len(data))
        return end

    def _file_start(self, queue_offset: QueueOffset) -> QueueOffset:
        entries_per_file = self._files.file_size // ENTRY_BYTES
        return queue_offset - queue_offset % entries_per_file
