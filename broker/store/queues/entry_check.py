"""EntryCheck: checks whether queue entries are plausible, and lead to the right records.

Entries have no checksum. The check compares a record's size, queue offset and physical offset,
which are in its first 36 bytes; and offsets must ascend. Where a filter does not read the records,
an entry can still be seen to be wrong: zeros, overlapping records, offsets that the log had used
before, or a tags code that no Java hash can have. It cannot see a flipped bit in the lower half of
a tags code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any

from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.blank_entries import BLANK_SIZE
from rmq_spark.wire.framing import Buffer

from ..bulk import lazy_numpy as np
from ..results import PhysicalOffset
from .consume_queue import ENTRY, ENTRY_BYTES, ENTRY_STRUCT

if TYPE_CHECKING:
    import numpy.typing as npt

    from .consume_queue import Entries

_HEAD = Struct(">i16xqq")
"""The size, queue offset and place of a record."""

HEAD_BYTES = _HEAD.size
_FEW = 64
"""Up to this number, entries are looked at one after the other."""
_CODES = range(-(1 << 31), 1 << 31)
_ANY = range(-(1 << 63), 1 << 63)
_PLACE_MAX = 1 << 62
"""No log goes that far; behind it, the ends of records would be too large for 64 bits."""


class WrongEntry(Exception):
    """An entry leads to another message or to none, or is impossible."""

    def __init__(self, place: int, right_count: int = 0, *, overlapped: int | None = None) -> None:
        """Store what is known of the entries before it.

        ``right_count`` counts the entries before it that are right, as far as that is known;
        ``overlapped`` those that were checked without their records, so that the last of them may
        be the wrong one.
        """
        super().__init__(place, right_count)
        self.place = place
        self.right_count = right_count
        self.overlapped = overlapped


class EntryCheck:
    """A check, piece by piece, of successive entries of one queue."""

    def __init__(self, expired_before: PhysicalOffset, *, has_codes: bool) -> None:
        """Begin a check of successive entries.

        No entry leads before ``expired_before``; ``has_codes`` means that entries have codes of
        tags, not times.
        """
        self._end = expired_before
        self._has_codes = has_codes
        self._count = 0

    def check(self, entries: Buffer) -> None:
        """Check the next entries.

        Raises:
            WrongEntry: An entry cannot be right.
        """
        if len(entries) <= _FEW * ENTRY_BYTES:
            self._check_few(entries)
        else:
            self._check_many(np.frombuffer(entries, ENTRY))

    def _check_few(self, entries: Buffer) -> None:
        end, codes = self._end, _CODES if self._has_codes else _ANY
        for place, size, code in ENTRY_STRUCT.iter_unpack(entries):
            if size != BLANK_SIZE:
                is_there = end <= place < _PLACE_MAX
                if not is_there or size < layout.RECORD_BYTES_MIN or code not in codes:
                    raise WrongEntry(place, overlapped=self._count)
                end = place + size
            self._count += 1
        self._end = end

    def _check_many(self, entries: Entries) -> None:
        is_there = entries["size"] != BLANK_SIZE
        before, self._count = self._count, self._count + len(entries)
        rows = np.arange(len(entries))
        if not is_there.all():
            rows = rows[is_there]
            entries = entries[rows]
        places, sizes = (
            entries["physical_offset"].astype(np.int64),
            entries["size"].astype(np.int64),
        )
        ends = np.append(self._end, np.minimum(places, _PLACE_MAX) + sizes)
        is_wrong = (places < ends[:-1]) | (places >= _PLACE_MAX) | (sizes < layout.RECORD_BYTES_MIN)
        if self._has_codes:
            codes = entries["tags_code"].astype(np.int64)
            is_wrong |= codes != codes.astype(np.int32)
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            raise WrongEntry(int(places[first]), overlapped=before + int(rows[first]))
        self._end = PhysicalOffset(ends[-1])


def matches_entry(head: Buffer, at: int, place: int, size: int, queue_offsets: range) -> bool:
    """Return whether the first bytes of a record are those of an entry's record."""
    own_size, queue_offset, own_place = _HEAD.unpack_from(head, at)
    return bool(own_size == size and own_place == place and queue_offset in queue_offsets)


def run_ends_match(
    records: Sequence[Buffer],
    runs: Sequence[slice],
    places: Sequence[int],
    sizes: Sequence[int],
    queue_offsets: range,
) -> bool:
    """Return whether each run's first and last records are those of their entries, in order."""
    left = queue_offsets
    for data, run in zip(records, runs, strict=True):
        first, last = run.start, run.stop - 1
        for number in (first,) if first == last else (first, last):
            at = 0 if number == first else len(data) - sizes[last]
            own_size, queue_offset, own_place = _HEAD.unpack_from(data, at)
            if (own_size, own_place) != (sizes[number], places[number]) or queue_offset not in left:
                return False
            left = range(queue_offset + 1, queue_offsets.stop)
    return True


def first_wrong_of_few(
    records: Sequence[Buffer], places: Sequence[int], sizes: Sequence[int], queue_offsets: range
) -> int | None:
    """Return the first entry that leads to another record, looking one by one, or None."""
    number, left = 0, queue_offsets
    for piece in records:
        at, end = 0, len(piece)
        while at < end:
            own_size, queue_offset, own_place = _HEAD.unpack_from(piece, at)
            if (own_size, own_place) != (sizes[number], places[number]) or queue_offset not in left:
                return number
            left = range(queue_offset + 1, queue_offsets.stop)
            at += sizes[number]
            number += 1
    return None


def first_wrong(
    records: Sequence[Buffer],
    places: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    queue_offsets: range,
) -> int | None:
    """Return the first entry that leads to another record, or None."""
    starts = np.cumsum(sizes) - sizes
    first = before = 0
    last_ahead = -1
    for piece in records:
        count = int(np.searchsorted(starts, before + len(piece)))
        at = starts[first:count] - before
        data = np.frombuffer(piece, np.uint8)
        heads = _heads(data, at)
        ahead = heads["queue_offset"].astype(np.int64) - queue_offsets.start
        is_right = (
            (heads["size"] == sizes[first:count])
            & (heads["place"] == places[first:count])
            & (ahead >= 0)
            & (ahead < len(queue_offsets))
            & (np.diff(ahead, prepend=last_ahead) > 0)
        )
        if (
            first == count or not is_right.all()
        ):  # a piece of no entry is the wrong size of the one before
            return first + int(np.argmin(is_right)) if len(is_right) else max(first - 1, 0)
        first, before, last_ahead = count, before + len(piece), int(ahead[-1])
    return None


def _heads(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the heads of records that begin at these bytes, without the tools of `chunks`."""
    places = max(len(data) - HEAD_BYTES + 1, 0)
    overlapping = np.ndarray((places,), f"V{HEAD_BYTES}", data, strides=(1,))
    heads: npt.NDArray[Any] = overlapping[at].view(_head_type())
    return heads


@lru_cache(maxsize=1)
def _head_type() -> np.dtype[Any]:
    """Return the type of a record's head, as `_HEAD` draws it, once numpy is needed at all."""
    return np.dtype(
        [("size", ">i4"), ("between", "V16"), ("queue_offset", ">i8"), ("place", ">i8")]
    )
