"""Chunk properties: parses the property strings of many messages, by name or as maps.

    values    short strings    piece by piece, of all rows at once   (`PropertyPieces`)
              the long ones    from their maps
    maps      all strings      scanned for every separator           (`property_maps`)

The rules are those of `rmq_spark.wire.message.properties`, whose functions work on one message.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk.buffer_slices import (
    Bytes,
    Positions,
    Structures,
    as_text,
    offsets_of,
    take_bytes,
    take_structures,
    to_arrow,
)
from rmq_spark.wire.message.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

# ---- Values by name in many property strings at once: the first pieces of all, the second ones...

LONG_BYTES: Final = 2048
"""The length of the longest string that `PropertyPieces` reads: each piece costs one pass."""

_WINDOW: Final = 64
"""The bytes examined in one pass: their separators are the bits of one number."""

_WORD: Final = np.dtype("<u8")
_ONE: Final = np.uint64(1)
_SEPARATOR: Final = ord(PROPERTY_SEPARATOR)
_LOW_BIT_MASKS: Final = np.array([(1 << bits) - 1 for bits in range(_WINDOW + 1)], _WORD)
"""By index: the number whose lowest ``index`` bits are set."""

_EXPONENT_SHIFT: Final = np.uint64(52)
_EXPONENT_BIAS: Final = 1023

Words = npt.NDArray[np.uint64]


class ValueRanges(NamedTuple):
    """The positions of the values of one name; empty where ``is_present`` is false.

    At least one is present.
    """

    starts: Positions
    lengths: Positions
    is_present: npt.NDArray[np.bool_]


class _Pieces(NamedTuple):
    """One piece of each row in ``rows`` (None: all), and its first eight bytes as a number."""

    rows: Positions | None
    starts: Positions
    ends: Positions
    words: Words
    first_bytes: npt.NDArray[np.bool_]
    """True for each byte that a piece begins with, which rules out most names."""


class PropertyPieces:
    """The pieces between the separators of many strings, each no longer than `LONG_BYTES`."""

    def __init__(self, data: Bytes, starts: Positions, lengths: Positions) -> None:
        """Store the bytes that contain the strings, which are in order and do not overlap."""
        missing = max(_WINDOW - len(data), 0)
        self._data = np.concatenate([data, np.zeros(missing, np.uint8)]) if missing else data
        self._starts = starts
        self._lengths = lengths

    def find(self, name: bytes) -> ValueRanges | None:
        r"""Return the positions of the values of a name, which is given with a trailing \x01.

        None if no string has a value of this name.
        """
        starts = ends = self._starts
        head = name[: _WORD.itemsize]
        wanted = np.uint64(int.from_bytes(head, "little"))
        mask = _LOW_BIT_MASKS[8 * len(head)]
        for pieces in self._pieces:
            if not pieces.first_bytes[name[0]]:
                continue
            is_match = (pieces.words & mask) == wanted
            if not is_match.any():
                continue
            values = pieces.starts + len(name)
            is_match &= values < pieces.ends
            for at in range(len(head), len(name)):
                is_match[is_match] = self._data[pieces.starts[is_match] + at] == name[at]
            if pieces.rows is None and is_match.all():
                starts, ends = values, pieces.ends
                continue
            rows = np.flatnonzero(is_match) if pieces.rows is None else pieces.rows[is_match]
            starts, ends = starts.copy(), ends.copy()
            starts[rows], ends[rows] = values[is_match], pieces.ends[is_match]
        if ends is self._starts:
            return None
        lengths = ends - starts
        is_present = lengths > 0
        return ValueRanges(starts, lengths, is_present) if is_present.any() else None

    @cached_property
    def _pieces(self) -> list[_Pieces]:
        """The pieces, with those of one row in order."""
        found: list[_Pieces] = []
        begins = self._starts.copy()  # the start of the next piece of each row
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

    def _create_pieces(
        self, rows: Positions | slice, starts: Positions, ends: Positions
    ) -> _Pieces:
        words = self._words(starts)
        first_bytes = np.zeros(256, np.bool_)
        found = words.view(np.uint8)[:: _WORD.itemsize]
        is_one = bool((found == found[0]).all())  # one property for all rows
        first_bytes[found[:1] if is_one else found] = True
        return _Pieces(None if isinstance(rows, slice) else rows, starts, ends, words, first_bytes)

    def _separators(self, starts: Positions, lengths: Positions) -> Words:
        """Return the separators in each window as bits; the lowest is that of the first byte."""
        windows, late, back = self._read_within(starts, f"V{_WINDOW}")
        is_one = windows.view(np.uint8) == _SEPARATOR
        bits = np.packbits(is_one, bitorder="little").view(_WORD)
        bits[late:] >>= back.astype(_WORD)
        return bits & _LOW_BIT_MASKS[np.minimum(lengths, _WINDOW)]

    def _words(self, starts: Positions) -> Words:
        """Return the first eight bytes at these positions, with zeros after the last byte."""
        words, late, back = self._read_within(starts, _WORD)
        words[late:] >>= (8 * back).astype(_WORD)
        return words

    def _read_within(
        self, starts: Positions, dtype: np.dtype[Any] | str
    ) -> tuple[Structures, int, Positions]:
        """Return the values of type ``dtype`` at these positions, within the data.

        From the returned index on, positions too near the end were moved back, by the returned
        numbers of bytes.
        """
        last = len(self._data) - np.dtype(dtype).itemsize
        late = int(np.searchsorted(starts, last, "right"))
        back = starts[late:] - last
        within = np.minimum(starts, last) if len(back) else starts
        return take_structures(self._data, within, dtype), late, back


def _selected_rows(is_one: npt.NDArray[np.bool_]) -> Positions | slice:
    """Return the indices of true elements; if all are true, a slice, which copies nothing."""
    return slice(None) if is_one.all() else np.flatnonzero(is_one)


def _narrow_rows(rows: Positions | slice, selected: Positions | slice) -> Positions | slice:
    return selected if isinstance(rows, slice) else rows[selected]


def _lowest_bit(bits: Words) -> Positions:
    """Return the position of the lowest set bit: the exponent of that bit as a float.

    If all numbers are equal, return a single position.
    """
    if (bits == bits[0]).all():  # strings with the same layout
        bits = bits[:1]
    lowest = bits & (~bits + _ONE)
    exponents = lowest.astype(np.float64).view(_WORD) >> _EXPONENT_SHIFT
    bit_numbers: Positions = exponents.astype(np.int64) - _EXPONENT_BIAS
    return bit_numbers


# ---- Whole maps, for which the strings are scanned for all separators.

MAP_TYPE = pa.map_(pa.string(), pa.string())


def property_maps(buffer: pa.Buffer, starts: Positions, lengths: Positions) -> pa.MapArray:
    """Return all properties of each message.

    ``starts`` must not contain 0, because the byte before each string is used as a separator, so
    that each piece follows one.
    """
    rows = len(starts)
    strings = take_bytes(buffer, starts - 1, lengths + 1)
    ends = offsets_of(strings)
    row_starts, end = ends[:-1], ends[-1]
    buffer = strings.buffers()[2] or pa.py_buffer(b"")
    text = np.frombuffer(buffer, np.uint8)[:end]
    separates = text == ord(PROPERTY_SEPARATOR)
    separates[row_starts] = True
    separators = np.flatnonzero(separates)
    piece_starts, piece_ends = separators + 1, np.append(separators[1:], len(text))
    name_ends = np.flatnonzero(text == ord(NAME_VALUE_SEPARATOR))
    splits = np.append(name_ends, len(text))[np.searchsorted(name_ends, piece_starts)]
    pieces = np.flatnonzero((splits > piece_starts) & (splits < piece_ends - 1))
    splits, piece_starts, piece_ends = splits[pieces], piece_starts[pieces], piece_ends[pieces]
    names = as_text(take_bytes(buffer, piece_starts, splits - piece_starts))
    row_of = np.searchsorted(row_starts, piece_starts, "left") - 1
    kept = _last_of_each_name(row_of, names)
    if len(kept) < len(pieces):
        row_of, splits, piece_ends = row_of[kept], splits[kept], piece_ends[kept]
        names = names.take(to_arrow(kept))
    values = as_text(take_bytes(buffer, splits + 1, piece_ends - splits - 1))
    offsets = np.concatenate(([0], np.cumsum(np.bincount(row_of, minlength=rows))))
    return pa.MapArray.from_arrays(to_arrow(offsets.astype(np.int32)), names, values)


def _last_of_each_name(rows: Positions, names: pa.StringArray) -> Positions:
    codes = names.dictionary_encode()
    count = max(len(codes.dictionary), 1)
    row_and_name = rows * count + codes.indices.to_numpy(zero_copy_only=False)
    _, from_the_end = np.unique(row_and_name[::-1], return_index=True)
    return np.sort(len(row_and_name) - 1 - from_the_end)


class PropertyColumns:
    """The properties in the strings of a chunk, each of which is scanned only once."""

    def __init__(self, buffer: pa.Buffer, starts: Positions, lengths: Positions) -> None:
        """Store the strings; ``starts`` must not contain 0, because the byte before may be read."""
        self._buffer = buffer
        self._starts = starts
        self._lengths = lengths

    @cached_property
    def _is_long(self) -> npt.NDArray[np.bool_]:
        is_long: npt.NDArray[np.bool_] = self._lengths > LONG_BYTES
        return is_long

    @cached_property
    def _has_long(self) -> bool:
        return bool(self._is_long.any())

    @cached_property
    def _pieces(self) -> PropertyPieces:
        lengths = np.where(self._is_long, 0, self._lengths) if self._has_long else self._lengths
        return PropertyPieces(np.frombuffer(self._buffer, np.uint8), self._starts, lengths)

    @cached_property
    def _long_maps(self) -> pa.MapArray:
        return property_maps(
            self._buffer, self._starts[self._is_long], self._lengths[self._is_long]
        )

    def values(self, name: str) -> pa.StringArray:
        """Return a property's value in each message, null if it is missing."""
        if not name or NAME_VALUE_SEPARATOR in name:
            return pa.nulls(len(self._starts), pa.string())
        found = self._pieces.find((name + NAME_VALUE_SEPARATOR).encode())
        values = (
            pa.nulls(len(self._starts), pa.string())
            if found is None
            else _texts(self._buffer, found)
        )
        if self._has_long:
            of_long = _values_of_maps(self._long_maps, name)
            values = pc.replace_with_mask(values, pa.array(self._is_long), of_long)
        return values

    def has_any(self, name: str) -> bool:
        """Return whether any message has a value of this property."""
        if self._pieces.find((name + NAME_VALUE_SEPARATOR).encode()) is not None:
            return True
        return self._has_long and self.values(name).null_count < len(self._starts)

    def maps(self) -> pa.MapArray:
        """Return all properties of each message."""
        return property_maps(self._buffer, self._starts, self._lengths)


def _values_of_maps(maps: pa.MapArray, name: str) -> pa.StringArray:
    pieces = np.flatnonzero(pc.equal(maps.keys, name))
    piece_of_row = np.full(len(maps), -1)
    piece_of_row[np.searchsorted(offsets_of(maps), pieces, "right") - 1] = pieces
    return maps.items.take(pa.array(piece_of_row, mask=piece_of_row < 0))


def _texts(buffer: pa.Buffer, found: ValueRanges) -> pa.StringArray:
    rows = len(found.starts)
    texts = as_text(take_bytes(buffer, found.starts, found.lengths))
    if found.is_present.all():
        return texts
    validity = pa.py_buffer(np.packbits(found.is_present, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), rows, [validity, *texts.buffers()[1:]])


def encode_named(name: str, values: pa.Array) -> pa.BinaryArray:
    """Return one property with a value for each message; an empty string for null."""
    _check_texts(values, has_null=False)
    pieces = pc.binary_join_element_wise(
        pa.scalar((name + NAME_VALUE_SEPARATOR).encode()),
        values.cast(pa.binary()),
        pa.scalar(PROPERTY_SEPARATOR.encode()),
        pa.scalar(b""),
    )
    return pc.fill_null(pieces, pa.scalar(b"", pa.binary()))


def encode_maps(maps: pa.MapArray, *, reserved: tuple[str, ...]) -> pa.BinaryArray:
    """Return each map as properties; names that have their own column are refused."""
    if maps.null_count:
        # drops the bytes that the buffer may have for nulls
        maps = maps.take(pa.array(np.arange(len(maps))))
    offsets = offsets_of(maps)
    names = maps.keys[offsets[0] : offsets[-1]]
    values = maps.items[offsets[0] : offsets[-1]]
    _check_texts(names, has_null=True)
    _check_texts(values, has_null=True)
    _check_no_separator(NAME_VALUE_SEPARATOR, "a name without \\x01", names)
    _raise_if_any(
        pc.is_in(names, pa.array(reserved, pa.string())), f"{', '.join(reserved)} only once", names
    )
    separators = pa.scalar(NAME_VALUE_SEPARATOR), pa.scalar(PROPERTY_SEPARATOR)
    pieces = pc.binary_join_element_wise(names, separators[0], values, separators[1], pa.scalar(""))
    if (np.diff(offsets) == 1).all():  # one property in each map, such as the sink's row ids
        return pieces.cast(pa.binary())
    lists = pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), pieces)
    return pc.binary_join(lists, "").cast(pa.binary())


def lengths_of_maps(maps: pa.MapArray) -> Positions:
    """Return the size in bytes of each map as properties; missing texts count as empty."""
    lengths = np.full(len(maps.keys), len(NAME_VALUE_SEPARATOR + PROPERTY_SEPARATOR), np.int64)
    for texts in (maps.keys, maps.items):
        lengths += np.asarray(pc.fill_null(pc.binary_length(texts), 0))
    before = np.concatenate(([0], np.cumsum(lengths)))
    of_each: Positions = np.diff(before[np.asarray(maps.offsets)])
    return of_each


def _check_texts(texts: pa.Array, *, has_null: bool) -> None:
    """Reject text that would be read back differently, as `encode_properties` does."""
    _raise_if_any(pc.equal(pc.binary_length(texts), 0), "text that is not empty", texts)
    _check_no_separator(PROPERTY_SEPARATOR, "text without \\x02", texts)
    if has_null:
        _raise_if_any(pc.is_null(texts), "text", texts)


def has_no_separator(separator: str, texts: pa.StringArray) -> bool:
    """Return whether no text has this byte, which is usual and fast to check."""
    offsets = offsets_of(texts)
    data = texts.buffers()[2]
    if data is None:
        return True
    return ord(separator) not in np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def _check_no_separator(separator: str, needed: str, texts: pa.StringArray) -> None:
    if not has_no_separator(separator, texts):  # the bytes of nulls may have it as well
        _raise_if_any(pc.match_substring(texts, separator), needed, texts)


def _raise_if_any(bad: pa.BooleanArray, needed: str, texts: pa.Array) -> None:
    first = pc.index(bad, True).as_py()
    if first >= 0:
        raise RecordError(
            "message property", at=f"text {first}", needed=needed, found=texts[first].as_py()
        )
