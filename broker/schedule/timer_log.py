"""TimerLog: RocketMQ's log of waiting timers, in files of one size; `TimerWheel` leads into it.

    i32 52, i64 previous, i32 magic, i64 base, i32 slot - base, i64 physical offset, i32 size,
    i32 hash of the real topic, i64 due                                     52 bytes, big-endian

``previous`` is the position of the slot's previous entry, or -1. RocketMQ leaves the last field 0;
here it is the exact time at which the timer is due, so that the message is not read before. A file
ends with a blank of at least 16 bytes: i32 its size, i64 0, i32 its magic.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

from rmq_spark.wire.remoting.java_numbers import INT32_MAX

from ..store.files.file_pool import FileGroup, FilePool
from ..store.files.mapped_file_queue import MappedFileQueue

_ENTRY = struct.Struct(">iqiqiqiiq")
ENTRY_BYTES: Final = _ENTRY.size
_BLANK = struct.Struct(">iqi")
_BLANK_MAGIC: Final = (0xBBCCDDEE ^ (1880681586 + 8)) - (1 << 32)

MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 1 << 1
"""Magic of a message that is stored again at its time, because it is due later."""
MAGIC_DELETE: Final = 1 << 2
"""Magic of a message that recalls another one."""
_MAGIC_MAX: Final = 0xF
_WIPED_BYTES: Final = 1 << 16


class TimerEntry(NamedTuple):
    """One waiting timer."""

    previous: int
    magic: int
    slot_ms: int
    physical_offset: int
    size: int
    topic_hash: int
    due_ms: int
    base_ms: int

    @property
    def is_roll(self) -> bool:
        """True if the message is stored again at its time, instead of delivered."""
        return bool(self.magic & MAGIC_ROLL)

    @property
    def is_recall(self) -> bool:
        """True if the message recalls another one."""
        return self.magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE


class TimerLog:
    """The entries. One thread appends and reads; another may flush."""

    def __init__(self, pool: FilePool, directory: Path, file_size: int) -> None:
        self._disk = pool.disk
        self._files = MappedFileQueue(FileGroup(pool), directory, file_size)
        self.end = 0
        """The position of the next entry."""

    def load(self, end: int) -> None:
        """Open the files, and continue at an end that is known to be on the disk."""
        self._files.load()
        self.end = min(max(end, self._files.first_offset), self._files.end_offset)

    def recover_next(self) -> TimerEntry | None:
        """Return the entry at the end, and move the end past it; None if there is none."""
        entry = self.read(self.end)
        if entry is None and self._is_blank(self.end):
            self.end += self._files.space_left(self.end)
            entry = self.read(self.end)
        if entry is not None:
            self.end += ENTRY_BYTES
        return entry

    def wipe_tail(self) -> None:
        """Remove what a crash may have left past the end."""
        self._files.delete_from(self.end)
        position: int | None = self.end
        while position is not None and position < self._files.end_offset:
            size = min(_WIPED_BYTES, self._files.space_left(position))
            if any(bytes(self._files.read(position, size))):
                self._files.write(position, bytes(size))
            position = self._files.next_data(position + size)

    def _is_blank(self, position: int) -> bool:
        data = self._files.read(position, _BLANK.size)
        return len(data) == _BLANK.size and _BLANK.unpack(data)[2] == _BLANK_MAGIC

    def last(self) -> TimerEntry | None:
        """Return the last entry, or None if there is none."""
        return self.read(self.end - ENTRY_BYTES)

    def append(self, entry: TimerEntry) -> int:
        """Append an entry, and return its position."""
        files = self._files
        left = files.space_left(self.end)
        if left < ENTRY_BYTES + _BLANK.size:
            files.write(self.end, _BLANK.pack(left, 0, _BLANK_MAGIC))
            self.end += left
        position = self.end
        # the field is too short for a timer that was set months after it was due
        base_ms = min(entry.base_ms, entry.slot_ms + INT32_MAX)
        data = _ENTRY.pack(
            ENTRY_BYTES,
            entry.previous,
            entry.magic,
            base_ms,
            entry.slot_ms - base_ms,
            entry.physical_offset,
            entry.size,
            entry.topic_hash,
            entry.due_ms,
        )
        files.write(position, data)
        self.end += ENTRY_BYTES
        return position

    def read(self, position: int) -> TimerEntry | None:
        """Return the entry at a position, or None if there is none."""
        data = self._files.read(position, ENTRY_BYTES) if position >= 0 else b""
        if len(data) != ENTRY_BYTES:
            return None
        size, previous, magic, base, delay, at, message_size, topic_hash, due = _ENTRY.unpack(data)
        if size != ENTRY_BYTES or not 0 < magic <= _MAGIC_MAX:
            return None
        return TimerEntry(previous, magic, base + delay, at, message_size, topic_hash, due, base)

    def flush(self) -> None:
        """Make all entries durable. Any thread may call this."""
        self._files.flush()

    def delete_before(self, physical_offset: int) -> None:
        """Delete the files whose messages all lie before a physical offset of the commit log."""
        while len(self._files.files) > 1:
            start, size = self._files.files[0].from_offset, self._files.file_size
            entries = (size - _BLANK.size) // ENTRY_BYTES
            last = self.read(start + (entries - 1) * ENTRY_BYTES)
            if last is None or last.physical_offset >= physical_offset:
                return
            self._files.delete_before(start + size)

    def delete(self) -> None:
        """Delete all entries."""
        self._files.close()
        for name in self._disk.names(self._files.directory):
            self._disk.delete(self._files.directory / name)
        self.end = 0

    def close(self) -> None:
        """Close all files."""
        self._files.close()
