r"""Values by name in many property strings at once, by the order in which their pieces stand.

    strings    KEYS\x01k1\x02TAGS\x01a\x02   KEYS\x01k2\x02   TAGS\x01b\x02    64 bytes of each
                        |          |             |             |
    bits       .........1..........1   .........1    ........1      one number of each

    turn 1     KEYS\x01k1               KEYS\x01k2      TAGS\x01b       up to the lowest bit
    turn 2     TAGS\x01a                -               -               up to the next one
    at last    what lies behind the last bit, where a sender has left out the last \x02

Producers of one kind write properties in one order: so nearly all work is done for all rows at
once, without a list of what belongs to which row. A name is compared by its first eight bytes as
one number, and only then by the others. Strings longer than `LONG_BYTES` are not for this way,
whose turns would be too many.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_spark.wire.chunk.gather import Bytes, Positions, Structures, take_structures
from rmq_spark.wire.properties import PROPERTY_SEPARATOR

LONG_BYTES: Final = 256
"""The longest string, in bytes, whose pieces are found here."""

_WINDOW: Final = 64
"""Bytes looked at in one turn: their separators are the bits of one number."""

_WORD: Final = np.dtype("<u8")
_ONE: Final = np.uint64(1)
_SEPARATOR: Final = ord(PROPERTY_SEPARATOR)
_LOW_BIT_MASKS: Final = np.array([(1 << bits) - 1 for bits in range(_WINDOW + 1)], _WORD)
"""Numbers whose lowest bits are set, by how many."""

_EXPONENT_SHIFT: Final = np.uint64(52)
_EXPONENT_BIAS: Final = 1023

Words = npt.NDArray[np.uint64]


class ValueRanges(NamedTuple):
    """Places of the values of one name; an empty one where ``is_present`` is false."""

    starts: Positions
    lengths: Positions
    is_present: npt.NDArray[np.bool_]


class _Pieces(NamedTuple):
    """A piece of each of these rows (None: of all), and its first eight bytes as a number."""

    rows: Positions | None
    starts: Positions
    ends: Positions
    words: Words


class PropertyPieces:
    """The pieces between the separators of many strings, each no longer than `LONG_BYTES`."""

    def __init__(self, data: Bytes, starts: Positions, lengths: Positions) -> None:
        """Take the bytes in which the strings lie, in order and apart from each other."""
        missing = max(_WINDOW - len(data), 0)
        self._data = np.concatenate([data, np.zeros(missing, np.uint8)]) if missing else data
        self._starts = starts
        self._lengths = lengths

    def find(self, name: bytes) -> ValueRanges:
        r"""Return where the values are of a name that is given with the \x01 behind it."""
        starts = ends = self._starts
        head = name[: _WORD.itemsize]
        wanted = np.uint64(int.from_bytes(head, "little"))
        mask = _LOW_BIT_MASKS[8 * len(head)]
        for pieces in self._pieces:
            is_it = (pieces.words & mask) == wanted
            if not is_it.any():
                continue
            values = pieces.starts + len(name)
            is_it &= values < pieces.ends
            for at in range(len(head), len(name)):
                is_it[is_it] = self._data[pieces.starts[is_it] + at] == name[at]
            if pieces.rows is None and is_it.all():
                starts, ends = values, pieces.ends
                continue
            rows = np.flatnonzero(is_it) if pieces.rows is None else pieces.rows[is_it]
            starts, ends = starts.copy(), ends.copy()
            starts[rows], ends[rows] = values[is_it], pieces.ends[is_it]
        lengths = ends - starts
        return ValueRanges(starts, lengths, lengths > 0)

    @cached_property
    def _pieces(self) -> list[_Pieces]:
        """The pieces, so that those of one row are in their order."""
        found: list[_Pieces] = []
        begins = self._starts.copy()  # where the next piece of each row does
        ends = self._starts + self._lengths
        for window in range(0, int(self._lengths.max(initial=0)), _WINDOW):
            rows = _selected_rows(self._lengths > window)
            at = self._starts[rows] + window
            bits = self._separators(at, self._lengths[rows] - window)
            while bits.any():
                separated = _selected_rows(bits != 0)
                rows, at, bits = _narrow_rows(rows, separated), at[separated], bits[separated]
                stops = at + _lowest_bit(bits)
                found.append(self._create_pieces(rows, begins[rows].copy(), stops))
                begins[rows] = stops + 1
                bits = bits & (bits - _ONE)
        is_unended = begins < ends
        if is_unended.any():
            rows = _selected_rows(is_unended)
            found.append(self._create_pieces(rows, begins[rows], ends[rows]))
        return found

    def _create_pieces(self, rows: Positions | slice, starts: Positions, ends: Positions) -> _Pieces:
        return _Pieces(None if isinstance(rows, slice) else rows, starts, ends, self._words(starts))

    def _separators(self, starts: Positions, lengths: Positions) -> Words:
        """Return the separators of a window as bits, the first byte's lowest."""
        windows, late, back = self._take_within(starts, f"V{_WINDOW}")
        is_one = windows.view(np.uint8) == _SEPARATOR
        bits = np.packbits(is_one, bitorder="little").view(_WORD)
        bits[late:] >>= back.astype(_WORD)
        return bits & _LOW_BIT_MASKS[np.minimum(lengths, _WINDOW)]

    def _words(self, starts: Positions) -> Words:
        """Return the first eight bytes at these places, with zeros behind the last byte."""
        words, late, back = self._take_within(starts, _WORD)
        words[late:] >>= (8 * back).astype(_WORD)
        return words

    def _take_within(
        self, starts: Positions, dtype: np.dtype[Any] | str
    ) -> tuple[Structures, int, Positions]:
        """Return what starts at these places, within the data.

        From a number on, they are moved back from the end, by as many bytes as are told beside it.
        """
        last = len(self._data) - np.dtype(dtype).itemsize
        late = int(np.searchsorted(starts, last, "right"))
        back = starts[late:] - last
        within = np.minimum(starts, last) if len(back) else starts
        return take_structures(self._data, within, dtype), late, back


def _selected_rows(is_one: npt.NDArray[np.bool_]) -> Positions | slice:
    """Return the rows of which this is true; where it is of all, what takes them uncopied."""
    return slice(None) if is_one.all() else np.flatnonzero(is_one)


def _narrow_rows(rows: Positions | slice, selected: Positions | slice) -> Positions | slice:
    return selected if isinstance(rows, slice) else rows[selected]


def _lowest_bit(bits: Words) -> Positions:
    """Return the place of the lowest bit, which a float of it has as its exponent.

    One for all numbers if they are the same.
    """
    if (bits == bits[0]).all():  # strings of one make
        bits = bits[:1]
    lowest = bits & (~bits + _ONE)
    exponents = lowest.astype(np.float64).view(_WORD) >> _EXPONENT_SHIFT
    places: Positions = exponents.astype(np.int64) - _EXPONENT_BIAS
    return places
