"""BatchJournal: the changes of a small table, each with one write and one flush.

A file of a fixed size, all of which the disk has before the first change: what is noted in it needs
no room any more. Each entry begins at a page, so that a torn write harms no other one:

        4s   magic
        i64  generation of the table that the entry changes
        i32  number of the entry, from 0 on
        i32  size of the content
        u32  CRC-32 of the content, which goes on from that of the head
             the content

    table, generation 7   ──>   entries 0, 1, 2 .. of generation 7   ──>   what counts

When the file is full, its owner saves the table as a whole, of the next generation, and entries
begin at 0 again; what is left of earlier generations means nothing. An entry that cannot be read
is the end, as a crash leaves it, unless others come behind it, or some are of a later generation:
then a file is damaged or of an older copy, and what is missing is not to be guessed.

This module must not know what the entries say.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final
from zlib import crc32

from rmq_spark.wire.framing import Buffer
from rocketpoll.broker.store.disk import Disk, DiskFile
from rocketpoll.broker.store.errors import DamagedTable

JOURNAL_BYTES: Final = 1 << 20
"""Some hundred small entries: so many commits need no table of their own."""
_PAGE: Final = 4_096
_MAGIC: Final = b"RPBJ"
_HEAD = struct.Struct(">4sqii")
_CRC = struct.Struct(">I")
_HEAD_BYTES: Final = _HEAD.size + _CRC.size


class BatchJournal:
    """The journal of one table. Its methods are called in one thread at a time."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Prepare without touching the disk."""
        self._disk = disk
        self.path = path
        """The file."""
        self._file: DiskFile | None = None
        self._generation = 0
        self._number = 0
        self._position = 0

    def load(self, generation: int) -> list[bytes]:
        """Return what was noted of a generation of the table; 0 is that of a new one.

        Raises:
            DamagedTable: The journal is missing, damaged, or not of this table.
            OSError: The disk refuses.
        """
        self.close()
        size = self._disk.size_of(self.path)
        if size != JOURNAL_BYTES:
            if not generation:  # a new one was cut off before anything was noted
                return []
            raise self.damaged("it is missing" if size is None else f"it has {size} bytes")
        self._file = file = self._disk.open(self.path)
        data = bytes(file.read(0, size))
        self._generation, self._number, self._position = generation, 0, 0
        found: list[bytes] = []
        while (content := self._entry(data, self._position)) is not None:
            found.append(content)
            self._step_over(content)
        for position in range(self._position, size, _PAGE):
            if data.startswith(_MAGIC, position):
                self._refuse_later(data, position)
        if found:
            # What is believed now is there after a power loss, too. It is written once more, as it
            # may be in the system's cache alone, and count as written there, if a flush has failed.
            file.write(data[: self._position], 0)
            file.flush()
        if not generation:  # nothing says that its room was flushed: it is made anew
            self.close()
        return found

    def begin(self, generation: int) -> None:
        """Have entries of a generation begin; the table of that generation is saved by now."""
        self._generation, self._number, self._position = generation, 0, 0

    def make(self) -> None:
        """Make the file, with all of its room, unless it is there.

        Raises:
            OSError: The disk refuses, or has no room.
        """
        if self._file is not None:
            return
        if self._disk.size_of(self.path) is not None:
            self._disk.delete(self.path)
        file = self._disk.create(self.path, JOURNAL_BYTES)
        file.write(bytes(JOURNAL_BYTES), 0)
        file.flush()
        self._disk.flush_directory(self.path.parent)
        self._file = file

    def has_room(self, *sizes: int) -> bool:
        """Return whether entries with contents of such sizes go in before the file is full."""
        needed = sum(_pages(size) for size in sizes)
        return self._file is not None and self._position + needed <= JOURNAL_BYTES

    def append(self, content: bytes) -> None:
        """Note a change; it is on the disk when this returns.

        After an error that is no failed flush, nothing was noted, and the next entry takes its
        place.

        Raises:
            OSError: The disk refuses.
        """
        if self._file is None:
            raise AssertionError("a journal is made before it is written to")
        head = _HEAD.pack(_MAGIC, self._generation, self._number, len(content))
        entry = head + _CRC.pack(crc32(content, crc32(head))) + content
        self._file.write(entry, self._position)
        self._file.flush()
        self._step_over(content)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _step_over(self, content: bytes) -> None:
        self._position += _pages(len(content))
        self._number += 1

    def _entry(self, data: bytes, position: int) -> bytes | None:
        """Return the next entry's content, or None if it is not there."""
        found = _entry_at(data, position)
        if found is None or found[:2] != (self._generation, self._number):
            return None
        return found[2]

    def _refuse_later(self, data: bytes, position: int) -> None:
        found = _entry_at(data, position)
        if found is None:
            return
        generation, number, _ = found
        if generation > self._generation:
            raise self.damaged(
                f"the table beside it is of generation {self._generation} and so an older copy: "
                f"at {position} is an entry of generation {generation}"
            )
        if generation == self._generation and number >= self._number:
            raise self.damaged(
                f"entry {self._number} at {self._position} is damaged: behind it, at {position}, "
                f"is entry {number}"
            )

    def damaged(self, what: str) -> DamagedTable:
        """Compose the error of a journal that is not to be believed, with the remedy."""
        table = self.path.with_suffix(".json")
        return DamagedTable(
            f"{self.path} does not tell which batches are committed: {what}. Nothing was "
            f"changed. To mend it, put {table.name} and {self.path.name} of one copy there; or, "
            "to forget all sinks, whose batches can then be committed twice, move both and "
            f"{table.name}.bak away"
        )


def _entry_at(data: bytes, position: int) -> tuple[int, int, bytes] | None:
    """Return the generation, the number and the content of an entry, or None if it is not whole."""
    if position + _HEAD_BYTES > len(data):
        return None
    magic, generation, number, size = _HEAD.unpack_from(data, position)
    start = position + _HEAD_BYTES
    if magic != _MAGIC or not 0 <= size <= len(data) - start:
        return None
    head: Buffer = data[position : position + _HEAD.size]
    (crc,) = _CRC.unpack_from(data, position + _HEAD.size)
    content = data[start : start + size]
    return (generation, number, content) if crc32(content, crc32(head)) == crc else None


def _pages(size: int) -> int:
    """Return the bytes that an entry takes, in whole pages."""
    return -(-(_HEAD_BYTES + size) // _PAGE) * _PAGE
