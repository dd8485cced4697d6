"""ConsumeQueue: where in the commit log the messages of one queue lie.

    i64 physicalOffset   of the record
    i32 size             of the record
    i64 tagsCode         Java's hash of its tags; of a delayed message, when it is to be delivered

Entry number = queue offset = position / 20. A queue that does not begin at a file's start, or that misses
a message that the log has lost, has blank entries there: (0, 0x7FFFFFFF, 0). Everything here can be made
again from the log, so writes are not flushed one by one; what a crash leaves is checked by recovery.

Entries are written as bytes and read as views of the files, as bytes or for numpy. The log itself is not
known here, but for a callable in searches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from broker.store import lazy_numpy as np
from broker.store.disk import Disk, DiskFile
from broker.store.mapped_file_queue import MappedFileQueue
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.framing import Buffer

if TYPE_CHECKING:
    import numpy.typing as npt

ENTRY = [("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]
"""As numpy wants it."""
ENTRY_STRUCT = struct.Struct(">qiq")
ENTRY_BYTES = ENTRY_STRUCT.size
BLANK_SIZE = 0x7FFFFFFF
TRANSACTION_MASK = MessageSysFlag.TRANSACTION_MASK.value
STATES_WITHOUT_ENTRY = (
    MessageSysFlag.TRANSACTION_PREPARED.value,
    MessageSysFlag.TRANSACTION_ROLLBACK.value,
)
"""Messages in these states of a transaction get no entry, and so no offset in their queue."""

_BLANK = ENTRY_STRUCT.pack(0, BLANK_SIZE, 0)
_LOOKED_AT = 4096

Entries: TypeAlias = "npt.NDArray[Any]"


class ConsumeQueue:
    """One queue of one topic. One writer; any number of readers."""

    def __init__(self, disk: Disk, directory: Path, file_size: int) -> None:
        """Touches nothing on the disk before it is loaded or appended to."""
        self._files = MappedFileQueue(disk, directory, file_size - file_size % ENTRY_BYTES)
        self.max_offset = 0
        self.min_offset = 0

    def load(self) -> None:
        """Open the files and find the last entry: behind it, all is zero."""
        self._files.load()
        self.max_offset = self.min_offset = self._files.first_offset // ENTRY_BYTES
        for mapped in reversed(self._files.files):
            count = _count_entries(mapped.file)
            if count:
                self.max_offset = mapped.from_offset // ENTRY_BYTES + count
                break
        self._skip_blanks()

    @property
    def is_damaged(self) -> bool:
        """Whether a file had lost its bytes when it was loaded."""
        return self._files.had_empty_files

    def append(self, queue_offset: int, entries: Buffer) -> None:
        """Entries from a queue offset on. Those that are there already are not written again."""
        known = self.max_offset - queue_offset
        if known > 0:
            entries = memoryview(entries)[known * ENTRY_BYTES :]
            queue_offset = self.max_offset
        if not len(entries):
            return
        if known < 0:
            self._fill(queue_offset)
        self._write(queue_offset, entries)
        self.max_offset = queue_offset + len(entries) // ENTRY_BYTES

    def skip_to(self, queue_offset: int) -> None:
        """Give the next message this offset at least."""
        if queue_offset > self.max_offset:
            self._fill(queue_offset)

    def entries(self, queue_offset: int, count: int) -> Entries:
        """Up to so many entries, from an offset to the end of its file at most."""
        return np.frombuffer(self.view(queue_offset, count), ENTRY)

    def view(self, queue_offset: int, count: int) -> memoryview:
        """The bytes of these entries."""
        count = min(count, self.max_offset - queue_offset)
        return self._files.view(queue_offset * ENTRY_BYTES)[: max(count, 0) * ENTRY_BYTES]

    def entries_from(self, physical_offset: int) -> Iterator[tuple[int, memoryview]]:
        """Entries of records from a place in the log on, a file's at a time, with the first's offset."""
        queue_offset = self._first_at_or_after(physical_offset)
        while queue_offset < self.max_offset:
            entries = self.view(queue_offset, self.max_offset - queue_offset)
            yield queue_offset, entries
            queue_offset += len(entries) // ENTRY_BYTES

    def next_file_offset(self, queue_offset: int) -> int:
        """The first queue offset of the file behind the one in which an offset lies."""
        position = queue_offset * ENTRY_BYTES
        return (position + self._files.space_left(position)) // ENTRY_BYTES

    def truncate(self, physical_end: int) -> None:
        """Drop the entries of records that do not end at or before a place in the log."""
        while self.max_offset > self.min_offset:
            start = max(self._file_start(self.max_offset - 1), self.min_offset)
            entries = self.entries(start, self.max_offset - start)
            ends = entries["physical_offset"] + entries["size"].astype(np.int64)
            is_entry = (entries["size"] != BLANK_SIZE) & (entries["size"] > 0)
            kept = np.flatnonzero((ends <= physical_end) & is_entry)
            new_max = start + int(kept[-1]) + 1 if len(kept) else start
            if new_max < self.max_offset:
                self._zero(new_max, self.max_offset)
                self.max_offset = new_max
            if len(kept):
                return

    def forget_before(self, physical_offset: int) -> None:
        """Entries of records before a place in the log are no longer offered; whole files of them go."""
        self.min_offset = self._first_at_or_after(physical_offset)
        self._files.delete_before(self.min_offset * ENTRY_BYTES)

    def search(self, key: int, key_of: Callable[[Any], int], *, side: str = "left") -> int:
        """The first offset whose entry has a key at least (right: beyond) the one sought.

        Keys must not fall from entry to entry. Blank entries are passed over by looking behind them.
        """
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            probe = self._not_blank(middle, high)
            if probe is None:
                high = middle
                continue
            found = key_of(self.entries(probe, 1)[0])
            if found < key or (side == "right" and found == key):
                low = probe + 1
            else:
                high = middle
        return low

    def flush(self) -> None:
        """Return when all entries are on the disk."""
        self._files.flush()

    def close(self) -> None:
        """Close the files, without a flush."""
        self._files.close()

    def _first_at_or_after(self, physical_offset: int) -> int:
        return self.search(physical_offset, lambda entry: int(entry["physical_offset"]))

    def _not_blank(self, queue_offset: int, end: int) -> int | None:
        while queue_offset < end:
            entries = self.entries(queue_offset, min(end - queue_offset, _LOOKED_AT))
            written = np.flatnonzero(entries["size"] != BLANK_SIZE)
            if len(written):
                return queue_offset + int(written[0])
            queue_offset += max(len(entries), 1)
        return None

    def _skip_blanks(self) -> None:
        first = self._not_blank(self.min_offset, self.max_offset)
        self.min_offset = self.max_offset if first is None else first

    def _fill(self, queue_offset: int) -> None:
        """Blank entries up to an offset, so that it has its number; a new queue begins there."""
        is_new = self.max_offset == self.min_offset
        if is_new and not self._files.files:
            self.max_offset = self._file_start(queue_offset)
        self._write(self.max_offset, _BLANK * (queue_offset - self.max_offset))
        self.max_offset = queue_offset
        if is_new:
            self.min_offset = queue_offset

    def _write(self, queue_offset: int, entries: Buffer) -> None:
        position = queue_offset * ENTRY_BYTES
        while len(entries) > (left := self._files.space_left(position)):
            entries = memoryview(entries)
            self._files.write(position, entries[:left])
            position += left
            entries = entries[left:]
        self._files.write(position, entries)

    def _zero(self, start: int, end: int) -> None:
        self._write(start, bytes((end - start) * ENTRY_BYTES))

    def _file_start(self, queue_offset: int) -> int:
        entries_per_file = self._files.file_size // ENTRY_BYTES
        return queue_offset - queue_offset % entries_per_file


def _count_entries(file: DiskFile) -> int:
    """How many entries there are up to the last one; what was never written is not even read."""
    count = 0
    at = file.next_data(0)
    while at is not None:
        first = at // ENTRY_BYTES
        entries = np.frombuffer(file.view[first * ENTRY_BYTES :][: _LOOKED_AT * ENTRY_BYTES], ENTRY)
        written = np.flatnonzero(entries["size"])
        if len(written):
            count = first + int(written[-1]) + 1
        end = (first + len(entries)) * ENTRY_BYTES
        at = file.next_data(end) if end < file.size else None
    return count
