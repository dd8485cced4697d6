"""IndexFile: maps the hash of a key to the log offsets of its messages, in RocketMQ's format.

    at                      bytes
    0                           8   beginTimestamp   of the first entry's message, ms
    8                           8   endTimestamp     of the last entry's message, ms
    16                          8   beginPhyOffset
    24                          8   endPhyOffset
    32                          4   hashSlotCount    slots in use
    36                          4   indexCount       number of the next entry; the first is 1
    40          4 x hashSlotNum     slots            newest entry of hash % hashSlotNum, or 0
    ..          20 x indexNum       entries          number 0 is never used
                                4   keyHash
                                8   phyOffset
                                4   timeDiff         seconds since beginTimestamp, 0 .. 2^31 - 1
                                4   previous entry of the same slot; 0: none

All numbers are signed and big-endian. The table of slots stays in memory while the file grows: a
batch changes slots all over it, and a small write for each would cost more than everything else.
Entries are written at once; a flush writes the changed pages of the table, then the header. If a
crash interrupts a flush, slots may lead to entries that the header does not count: `prepare_append`
repairs them from the entries.

One thread appends; any may query, and one flush.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..bulk import lazy_numpy as np
from ..bulk.index_hash import IndexHashes
from ..files.file_pool import FileGroup, PooledFile
from ..results import LOG_START, PhysicalOffset

if TYPE_CHECKING:
    import numpy.typing as npt

Positions: TypeAlias = "npt.NDArray[np.int64]"

INDEX_HOPS_MAX = 4096
"""The maximum number of entries that a query examines; in the worst case, all are of one slot."""

_HEADER = struct.Struct(">4q2i")
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")
_ENTRY_FIELDS = [
    ("key_hash", ">i4"),
    ("physical_offset", ">i8"),
    ("time_diff", ">i4"),
    ("previous", ">i4"),
]
_INT_MAX = (1 << 31) - 1

_PAGE_SLOTS_BITS = 10  # a page of 4096 bytes
_HEADER_SLOTS = _HEADER.size // _SLOT.size
_RESUMED_SLOTS = 1 << 12
_RESTORED_ENTRIES = 1 << 20
"""Entries read at a time to restore slots, 20 MiB."""

HASH_SLOT_NUM_MAX = 1 << 26
"""The maximum number of slots: a quarter of a GiB, kept in memory while a file grows."""
INDEX_NUM_MAX = (_INT_MAX - _HEADER.size - HASH_SLOT_NUM_MAX * _SLOT.size) // _ENTRY.size
"""The maximum number of entries. With it and `HASH_SLOT_NUM_MAX`, RocketMQ can open the file."""


@dataclass(frozen=True)
class IndexSizes:
    """The number of slots and of entries of a file: `maxHashSlotNum` and `maxIndexNum`."""

    hash_slot_num: int = 5_000_000
    index_num: int = 20_000_000

    def __post_init__(self) -> None:
        """Raise ValueError if no entry fits, because an append would create files endlessly."""
        if self.hash_slot_num < 1 or self.index_num < 2:
            raise ValueError(f"needed at least 1 slot and 2 entries, found {self}")

    @property
    def entries_at(self) -> int:
        """The position at which the entries start."""
        return _HEADER.size + self.hash_slot_num * _SLOT.size

    @property
    def file_bytes(self) -> int:
        """The size of the file, in bytes."""
        return self.entries_at + self.index_num * _ENTRY.size


@dataclass(frozen=True)
class IndexHeader:
    """The fields before the slots, in this order."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_physical_offset: PhysicalOffset = LOG_START
    end_physical_offset: PhysicalOffset = LOG_START
    hash_slot_count: int = 0
    index_count: int = 1


class IndexFile:
    """Keys of messages in the order of the log, up to a fixed number."""

    def __init__(self, file: PooledFile, sizes: IndexSizes) -> None:
        """Open an existing file for queries; `create` and `prepare_append` prepare it to grow."""
        self.path = file.path
        self._file = file
        self._sizes = sizes
        header = IndexHeader(*_HEADER.unpack(file.read(0, _HEADER.size)))
        count = min(max(header.index_count, 1), sizes.index_num)
        self.header = replace(header, index_count=count)
        """The header as of the last append, on disk or not."""
        self._flushed_header = self.header
        self._lock = threading.Lock()  # append and flush must not use the table at the same time
        self._table: npt.NDArray[np.int32] | None = None
        last_page = (sizes.hash_slot_num - 1 + _HEADER_SLOTS) >> _PAGE_SLOTS_BITS
        self._dirty_pages = np.zeros(last_page + 1, bool)

    @classmethod
    def create(cls, group: FileGroup, path: Path, sizes: IndexSizes) -> IndexFile:
        """Create a file that is ready to grow."""
        index_file = cls(group.create(path, sizes.file_bytes), sizes)
        index_file._table = np.zeros(sizes.hash_slot_num, np.int32)
        return index_file

    def prepare_append(self) -> bool:
        """Prepare the file to grow; return False if a slot has a number that no entry can have.

        A flush writes slots before the header. A kill in between leaves slots that lead past the
        entries that the header counts: these slots are restored from the entries.
        """
        if self._table is not None:
            return True
        table = self._read_table()
        is_ahead = table.view(np.uint32) >= self.header.index_count
        if is_ahead.any():
            if (table.view(np.uint32) >= self._sizes.index_num).any():
                return False
            self._restore_slots(table, is_ahead)
        self._table = table
        return True

    def _restore_slots(self, table: npt.NDArray[np.int32], is_ahead: npt.NDArray[np.bool_]) -> None:
        """Make slots lead to the last of their entries that the header counts, or to none."""
        table[is_ahead] = 0
        for start in range(1, self.header.index_count, _RESTORED_ENTRIES):
            entries = self._read_entries(
                start, min(self.header.index_count - start, _RESTORED_ENTRIES)
            )
            slots = entries["key_hash"].astype(np.int32) % np.int32(self._sizes.hash_slot_num)
            rows = np.flatnonzero(is_ahead[slots])
            table[slots[rows]] = start + rows  # of several entries of a slot, the last counts
        self._dirty_pages[(np.flatnonzero(is_ahead) + _HEADER_SLOTS) >> _PAGE_SLOTS_BITS] = True

    def _read_table(self) -> npt.NDArray[np.int32]:
        table = np.zeros(self._sizes.hash_slot_num, np.int32)
        # In a young file nearly all slots are a hole, and are neither read nor allocated.
        at = self._file.next_data(_HEADER.size)
        while at is not None and at < self._sizes.entries_at:
            start = (at - _HEADER.size) // _SLOT.size
            part = table[start : start + _RESUMED_SLOTS]
            data = self._file.read(_HEADER.size + start * _SLOT.size, len(part) * _SLOT.size)
            part[:] = np.frombuffer(data, ">i4")
            at = self._file.next_data(_HEADER.size + (start + len(part)) * _SLOT.size)
        return table

    def entries(self) -> npt.NDArray[Any]:
        """Read all entries: hashes, offsets, times, and the previous entries of their slots."""
        return self._read_entries(1, self.header.index_count - 1)

    def _read_entries(self, first: int, count: int) -> npt.NDArray[Any]:
        position = self._sizes.entries_at + first * _ENTRY.size
        return np.frombuffer(self._file.read(position, count * _ENTRY.size), _ENTRY_FIELDS)

    def is_consistent(self, entries: npt.NDArray[Any]) -> bool:
        """Return whether slots and entries are linked as `append` links them."""
        slots = entries["key_hash"].astype(np.int32) % np.int32(self._sizes.hash_slot_num)
        numbers = np.argsort(slots, kind="stable").astype(np.int32)
        in_order = slots[numbers]
        follows = in_order[1:] == in_order[:-1]
        previous = np.zeros(len(entries), np.int32)
        previous[numbers[1:]] = np.where(follows, numbers[:-1] + 1, 0)
        table = np.zeros(self._sizes.hash_slot_num, np.int32)
        table[in_order] = numbers + 1  # of several entries of a slot, the last counts
        own = self._read_table() if self._table is None else self._table
        return bool((previous == entries["previous"]).all() and (table == own).all())

    def time_diffs(self, store_timestamps: Positions) -> npt.NDArray[np.int64]:
        """Return the time differences in entries of messages stored at these times."""
        return _time_diffs(self.header.begin_timestamp, store_timestamps)

    @property
    def is_empty(self) -> bool:
        """True if there is no entry."""
        return self.header.index_count <= 1

    @property
    def is_full(self) -> bool:
        """True if no more entries fit."""
        return self.header.index_count >= self._sizes.index_num

    def append(
        self, key_hashes: IndexHashes, physical_offsets: Positions, store_timestamps: Positions
    ) -> int:
        """Add keys, hashed by `index_hashes`, in log order; return how many fitted."""
        with self._lock:
            table, header = self._table, self.header
            count = min(len(key_hashes), self._sizes.index_num - header.index_count)
            if table is None or count <= 0:
                return 0
            first = header.index_count
            begin = header.begin_timestamp if first > 1 else int(store_timestamps[0])
            slots = key_hashes[:count] % np.int32(self._sizes.hash_slot_num)
            # Sorting slot and position in one number sorts stably, and several times as fast.
            packed = np.sort((slots.astype(np.int64) << 32) | np.arange(count))
            positions, slots = packed & 0xFFFFFFFF, packed >> 32
            is_first = np.append(True, slots[1:] != slots[:-1])
            is_last = np.append(is_first[1:], True)
            previous = np.empty(count, np.int32)
            previous[1:] = first + positions[:-1]
            before = table[slots[is_first]]
            previous[is_first] = before

            entries = np.empty(count, _ENTRY_FIELDS)
            entries["key_hash"] = key_hashes[:count]
            entries["physical_offset"] = physical_offsets[:count]
            entries["time_diff"] = _time_diffs(begin, store_timestamps[:count])
            entries["previous"][positions] = previous
            self._file.write(
                entries.view(np.uint8).data, self._sizes.entries_at + first * _ENTRY.size
            )

            # A query reads a slot, then the header, which must count the slot's entry by then.
            self.header = IndexHeader(
                begin_timestamp=begin,
                end_timestamp=int(store_timestamps[count - 1]),
                begin_physical_offset=header.begin_physical_offset
                if first > 1
                else PhysicalOffset(physical_offsets[0]),
                end_physical_offset=PhysicalOffset(physical_offsets[count - 1]),
                hash_slot_count=header.hash_slot_count + int(np.count_nonzero(before == 0)),
                index_count=first + count,
            )
            table[slots[is_last]] = first + positions[is_last]
            self._dirty_pages[(slots + _HEADER_SLOTS) >> _PAGE_SLOTS_BITS] = True
            return count

    def walk(
        self, key_hash: int, begin_ms: int, end_ms: int, max_num: int, hops_max: int
    ) -> tuple[list[PhysicalOffset], int, int]:
        """Return log offsets that may be stored under a hash in a time span, newest first.

        An entry has the seconds since the file's first one, rounded down, as in RocketMQ: the
        message may have been stored up to a second later. The walk ends after ``max_num`` messages
        that were certainly stored in the span, after ``hops_max`` entries, and at damage.

        Returns:
            The offsets, how many of them are certain, and the number of entries examined.
        """
        found: list[PhysicalOffset] = []
        certain = hops = 0
        number = self._slot(key_hash % self._sizes.hash_slot_num)
        header = self.header
        below = header.index_count  # entry numbers must fall: this prevents loops
        while 0 < number < below and hops < hops_max and certain < max_num:
            below = number
            entry_hash, physical_offset, time_diff, number = self._entry(number)
            hops += 1
            earliest_ms = header.begin_timestamp + time_diff * 1000
            latest_ms = earliest_ms + 999
            if time_diff < 0 or latest_ms < begin_ms:
                break
            if entry_hash == key_hash and earliest_ms <= end_ms:
                found.append(physical_offset)
                certain += begin_ms <= earliest_ms and latest_ms <= end_ms
        return found, certain, hops

    def count_last(self, physical_offset: PhysicalOffset) -> int:
        """Return the number of entries at the very end that belong to a message."""
        number = last = self.header.index_count - 1
        while number > 0 and self._entry(number)[1] == physical_offset:
            number -= 1
        return last - number

    def _entry(self, number: int) -> tuple[int, PhysicalOffset, int, int]:
        position = self._sizes.entries_at + number * _ENTRY.size
        return _ENTRY.unpack(self._file.read(position, _ENTRY.size))

    def _slot(self, slot: int) -> int:
        table = self._table  # `seal` may remove it
        if table is not None:
            return int(table[slot])
        return int(_SLOT.unpack(self._file.read(_HEADER.size + slot * _SLOT.size, _SLOT.size))[0])

    def seal(self) -> None:
        """Write the table of slots and free its memory; nothing will be added."""
        with self._lock:
            self._write_dirty_pages()
            self._table = None

    def flush(self) -> None:
        """Flush everything added, so that RocketMQ can open the file."""
        with self._lock:
            header = self.header
            if header == self._flushed_header:
                return
            self._write_dirty_pages()
        group = self._file.group
        group.flush_file(self._file)
        self._file.write(_HEADER.pack(*astuple(header)), 0)
        group.flush_file(self._file)
        self._flushed_header = header

    def _write_dirty_pages(self) -> None:
        pages = np.flatnonzero(self._dirty_pages)
        if self._table is None or not len(pages):
            return
        for run in np.split(pages, np.flatnonzero(np.diff(pages) > 1) + 1):
            start = max((int(run[0]) << _PAGE_SLOTS_BITS) - _HEADER_SLOTS, 0)
            stop = (int(run[-1]) + 1 << _PAGE_SLOTS_BITS) - _HEADER_SLOTS
            slots = self._table[start:stop].astype(">i4")
            self._file.write(slots.view(np.uint8).data, _HEADER.size + start * _SLOT.size)
        self._dirty_pages[:] = False

    def close(self) -> None:
        """Close the file, without a flush. Queries open it again."""
        self._file.group.close_file(self._file)


def _time_diffs(begin: int, store_timestamps: Positions) -> npt.NDArray[np.int64]:
    seconds = (store_timestamps - begin) // 1000 if begin > 0 else np.zeros_like(store_timestamps)
    return np.clip(seconds, 0, _INT_MAX)
