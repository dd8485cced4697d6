"""TimerWheel: RocketMQ's file of time slots, each with a chain of entries in the timer log.

    i64 time / precision, i64 first, i64 last, i32 count, i32 magic        32 bytes, big-endian

A time has the slot (time / precision) % slots. There are slots for fourteen days, so two times that
wait at once never share one. ``last`` is the position of the newest entry in the timer log; each
entry has the position of the one before. RocketMQ opens the file only if it has its full size,
38 MB, most of which is a hole.

In memory are one byte for each slot, and the slots that have changed since the last save. A slot is
cleared when all its entries are delivered.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ..store.files.file_pool import FileGroup, FilePool, PooledFile

SLOTS: Final = 2 * 7 * 24 * 3_600
NO_POSITION: Final = -1
_SLOT = struct.Struct(">qqqii")
WHEEL_BYTES: Final = SLOTS * _SLOT.size
_CHUNK_BYTES: Final = 1 << 15
_OCCUPIED = b"\x01"


class TimerSlot(NamedTuple):
    """One slot: its time, and its chain of entries."""

    time_ms: int
    first: int
    last: int
    timers: int


_CLEARED: Final = TimerSlot(0, 0, 0, 0)


class TimerWheel:
    """The slots. One thread changes them; another may save them."""

    def __init__(self, pool: FilePool, path: Path, precision_ms: int) -> None:
        self._group = FileGroup(pool)
        self._path = path
        self.precision_ms = precision_ms
        self._file: PooledFile | None = None
        self._occupied = bytearray(SLOTS)
        self._changed: dict[int, TimerSlot] = {}
        """Slots that are not in the file yet; those of time 0 are cleared."""
        self._lock = threading.Lock()

    @property
    def span_ms(self) -> int:
        """The time that fits into the wheel."""
        return SLOTS * self.precision_ms

    def load(self, from_ms: int, now_ms: int) -> bool:
        """Find the slots of a time and later ones; return False if there is no usable file.

        Earlier slots are cleared if they are not before ``now_ms``, as after the clock was set
        back.
        """
        if self._group.disk.size_of(self._path) != WHEEL_BYTES:
            return False
        self._file = file = PooledFile(self._group, self._path.parent, self._path.name)
        position: int | None = 0
        while position is not None and position < WHEEL_BYTES:
            position = file.next_data(position)
            if position is None:
                break
            start = position - position % _CHUNK_BYTES
            size = min(_CHUNK_BYTES, WHEEL_BYTES - start)
            for at, slot in self._slots_in(bytes(file.read(start, size)), start // _SLOT.size):
                if slot.time_ms >= from_ms and at == self._index(slot.time_ms):
                    self._occupied[at] = 1
                elif slot.time_ms >= now_ms:
                    self._changed[at] = _CLEARED
            position = start + size
        return True

    def _slots_in(self, data: bytes, at_first: int) -> Iterator[tuple[int, TimerSlot]]:
        if data.count(0) == len(data):
            return
        for at, (time, first, last, timers, _) in enumerate(_SLOT.iter_unpack(data), at_first):
            if time > 0:
                yield at, TimerSlot(time * self.precision_ms, first, last, timers)

    def get(self, time_ms: int) -> TimerSlot | None:
        """Return the slot that begins at a time, or None if it is empty."""
        slot = self.get_at_index(time_ms)
        return slot if slot is not None and slot.time_ms == time_ms else None

    def get_at_index(self, time_ms: int) -> TimerSlot | None:
        """Return the slot at the place of a time: its own, or one that is whole spans away."""
        at = self._index(time_ms)
        if not self._occupied[at]:
            return None
        return self._changed.get(at) or self._read(at)

    def _read(self, at: int) -> TimerSlot:
        if self._file is None:
            return _CLEARED
        time, first, last, timers, _ = _SLOT.unpack(self._file.read(at * _SLOT.size, _SLOT.size))
        return TimerSlot(time * self.precision_ms, first, last, timers)

    def put(self, slot: TimerSlot) -> None:
        """Set a slot."""
        at = self._index(slot.time_ms)
        with self._lock:
            self._changed[at] = slot
        self._occupied[at] = 1

    def clear(self, time_ms: int) -> None:
        """Remove the slot of a time."""
        at = self._index(time_ms)
        if self._occupied[at]:
            with self._lock:
                self._changed[at] = _CLEARED
            self._occupied[at] = 0

    def next_time(self, from_ms: int) -> int | None:
        """Return the time of the first slot at or after a time that has entries, or None."""
        start = self._index(from_ms)
        at = self._occupied.find(_OCCUPIED, start)
        steps = at - start
        if at < 0:
            at = self._occupied.find(_OCCUPIED, 0, start)
            steps = at + SLOTS - start
        return None if at < 0 else self.slot_time(from_ms) + steps * self.precision_ms

    def slot_time(self, time_ms: int) -> int:
        """Return the time at which the slot of a time begins."""
        return time_ms - time_ms % self.precision_ms

    def _index(self, time_ms: int) -> int:
        return time_ms // self.precision_ms % SLOTS

    def changes(self) -> Mapping[int, TimerSlot]:
        """Return the slots that are not in the file yet, for `save`."""
        with self._lock:
            return self._changed.copy()

    def save(self, changes: Mapping[int, TimerSlot]) -> None:
        """Write slots, and make them durable. Any thread may call this."""
        if not changes:
            return
        if self._file is None:
            self._file = self._create()
        for at, slot in changes.items():
            time = slot.time_ms // self.precision_ms
            data = _SLOT.pack(time, slot.first, slot.last, slot.timers, 0)
            self._file.write(data, at * _SLOT.size)
        self._group.flush()
        with self._lock:
            for at, slot in changes.items():
                if self._changed.get(at) is slot:
                    del self._changed[at]

    def _create(self) -> PooledFile:
        self._group.disk.delete(self._path)  # it has another size
        file = self._group.create(self._path, WHEEL_BYTES)
        self._group.mark_names_changed(self._path.parent)
        return file

    def delete(self) -> None:
        """Delete all slots."""
        if self._file is not None:
            self._group.close_file(self._file)
            self._file = None
        if self._group.disk.size_of(self._path) is not None:  # a read-only disk refuses to delete
            self._group.disk.delete(self._path)
        self._occupied = bytearray(SLOTS)
        self._changed = {}

    def close(self) -> None:
        """Close the file."""
        self._group.close()
