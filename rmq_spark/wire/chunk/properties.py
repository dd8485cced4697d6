"""The property strings of many messages at once: values by name, and whole maps.

The rules are those of `rmq_spark.wire.properties`, whose functions do the same for one message.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk.gather import (
    Bytes,
    Positions,
    as_text,
    offsets_of,
    take_bytes,
    take_structures,
)
from rmq_spark.wire.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

_NAME_ENDS = ord(NAME_VALUE_SEPARATOR)
_PIECE_ENDS = ord(PROPERTY_SEPARATOR)
_WORD = np.dtype("<u4")

MAP_TYPE = pa.map_(pa.string(), pa.string())


class PropertyColumns:
    """The properties in the strings of a chunk, scanned for separators only once."""

    def __init__(self, buffer: pa.Buffer, starts: Positions, lengths: Positions) -> None:
        """Scan strings; ``starts`` must not be 0, as the byte before each is read as well."""
        self._rows = len(starts)
        # The byte before a string counts as a separator: then each piece starts behind one.
        strings = take_bytes(buffer, starts - 1, lengths + 1)
        ends = offsets_of(strings)
        self._row_starts = ends[:-1]
        self._buffer = strings.buffers()[2] or pa.py_buffer(b"")
        self._text: Bytes = np.frombuffer(self._buffer, np.uint8)[: ends[-1]]

    @cached_property
    def _separators(self) -> Positions:
        separates = self._text == _PIECE_ENDS
        separates[self._row_starts] = True
        return np.flatnonzero(separates)

    @cached_property
    def _piece_starts(self) -> Positions:
        return self._separators + 1

    @cached_property
    def _piece_ends(self) -> Positions:
        return np.append(self._separators[1:], len(self._text))

    @cached_property
    def _bytes(self) -> bytes:
        return self._text.tobytes()

    @cached_property
    def _first_words(self) -> npt.NDArray[np.uint32]:
        """The first four bytes of each piece and what follows it, with zeros after the text."""
        last = len(self._text) - _WORD.itemsize
        if last < 0:
            return np.zeros(len(self._piece_starts), _WORD)
        words = take_structures(self._text, np.minimum(self._piece_starts, last), _WORD)
        late = int(np.searchsorted(self._piece_starts, last, "right"))
        words[late:] = words[late:] >> (8 * (self._piece_starts[late:] - last)).astype(_WORD)
        return words

    def values(self, name: str) -> pa.StringArray:
        """Return the property's value in each message, null where it has none."""
        if not name or NAME_VALUE_SEPARATOR in name:
            return pa.nulls(self._rows, pa.string())
        pattern = (name + NAME_VALUE_SEPARATOR).encode()
        if pattern not in self._bytes:  # which says so at the speed of memory
            return pa.nulls(self._rows, pa.string())
        word = int.from_bytes(pattern[: _WORD.itemsize], "little")
        words = self._first_words
        if len(pattern) < _WORD.itemsize:
            words = words & np.uint32((1 << 8 * len(pattern)) - 1)
        pieces = np.flatnonzero(words == word)
        value_starts = self._piece_starts[pieces] + len(pattern)
        pieces = pieces[value_starts < self._piece_ends[pieces]]
        for at in range(_WORD.itemsize, len(pattern)):
            pieces = pieces[self._text[self._piece_starts[pieces] + at] == pattern[at]]
        rows = self._row_of(pieces)
        last_of_row = np.append(rows[1:] != rows[:-1], True) if len(rows) else np.zeros(0, bool)
        pieces, rows = pieces[last_of_row], rows[last_of_row]
        starts = self._piece_starts[pieces] + len(pattern)
        found_values = as_text(take_bytes(self._buffer, starts, self._piece_ends[pieces] - starts))
        if len(rows) == self._rows:
            return found_values
        value_of_row = np.zeros(self._rows, np.int64)
        value_of_row[rows] = np.arange(len(rows))
        has_none = np.ones(self._rows, bool)
        has_none[rows] = False
        return found_values.take(pa.array(value_of_row, mask=has_none))

    def maps(self) -> pa.MapArray:
        """Return all properties of each message."""
        name_ends = np.flatnonzero(self._text == _NAME_ENDS)
        first = np.searchsorted(name_ends, self._piece_starts)
        splits = np.append(name_ends, len(self._text))[first]
        is_property = (splits > self._piece_starts) & (splits < self._piece_ends - 1)
        pieces = np.flatnonzero(is_property)
        splits = splits[pieces]
        starts = self._piece_starts[pieces]
        names = as_text(take_bytes(self._buffer, starts, splits - starts))
        rows = self._row_of(pieces)
        kept = _last_of_each_name(rows, names)
        if len(kept) < len(pieces):
            rows, pieces, splits = rows[kept], pieces[kept], splits[kept]
            names = names.take(pa.array(kept))
        values = as_text(
            take_bytes(self._buffer, splits + 1, self._piece_ends[pieces] - splits - 1)
        )
        offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=self._rows))))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values)

    def _row_of(self, pieces: Positions) -> Positions:
        return np.searchsorted(self._row_starts, self._piece_starts[pieces], "left") - 1


def _last_of_each_name(rows: Positions, names: pa.StringArray) -> Positions:
    """Return the last position of each name in each row, in order."""
    codes = names.dictionary_encode()
    count = max(len(codes.dictionary), 1)
    row_and_name = rows * count + codes.indices.to_numpy(zero_copy_only=False)
    _, from_the_end = np.unique(row_and_name[::-1], return_index=True)
    return np.sort(len(row_and_name) - 1 - from_the_end)


def encode_named(name: str, values: pa.Array) -> pa.BinaryArray:
    """Return one property with a value for each message; an empty string for null."""
    _check(values, has_null=False)
    pieces = pc.binary_join_element_wise(
        pa.scalar((name + NAME_VALUE_SEPARATOR).encode()),
        values.cast(pa.binary()),
        pa.scalar(PROPERTY_SEPARATOR.encode()),
        pa.scalar(b""),
    )
    return pc.fill_null(pieces, pa.scalar(b"", pa.binary()))


def encode_maps(maps: pa.MapArray, *, reserved: tuple[str, ...]) -> pa.BinaryArray:
    """Return each map as properties; names that have a column of their own are refused."""
    if maps.null_count:
        maps = maps.take(pa.array(np.arange(len(maps))))  # leaves out what may lie behind a null
    offsets = offsets_of(maps)
    names = maps.keys[offsets[0] : offsets[-1]]
    values = maps.items[offsets[0] : offsets[-1]]
    _check(names, has_null=True)
    _check(values, has_null=True)
    _refuse(pc.match_substring(names, NAME_VALUE_SEPARATOR), "a name without \\x01", names)
    _refuse(
        pc.is_in(names, pa.array(reserved, pa.string())), f"{', '.join(reserved)} only once", names
    )
    pieces = pc.binary_join_element_wise(
        names, values, pa.scalar(NAME_VALUE_SEPARATOR), null_handling="emit_null"
    )
    pieces = pc.binary_join_element_wise(pieces, pa.scalar(PROPERTY_SEPARATOR), pa.scalar(""))
    lists = pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), pieces)
    return pc.binary_join(lists, "").cast(pa.binary())


def lengths_of_maps(maps: pa.MapArray) -> Positions:
    """Return how many bytes each map takes as properties; missing texts count as empty."""
    lengths = np.full(len(maps.keys), len(NAME_VALUE_SEPARATOR + PROPERTY_SEPARATOR), np.int64)
    for texts in (maps.keys, maps.items):
        lengths += np.asarray(pc.fill_null(pc.binary_length(texts), 0))
    before = np.concatenate(([0], np.cumsum(lengths)))
    of_each: Positions = np.diff(before[np.asarray(maps.offsets)])
    return of_each


def _check(texts: pa.Array, *, has_null: bool) -> None:
    """Refuse what would be read back as something else, as `encode_properties` does."""
    _refuse(pc.equal(pc.binary_length(texts), 0), "text that is not empty", texts)
    _refuse(pc.match_substring(texts, PROPERTY_SEPARATOR), "text without \\x02", texts)
    if has_null:
        _refuse(pc.is_null(texts), "text", texts)


def _refuse(bad: pa.BooleanArray, needed: str, texts: pa.Array) -> None:
    first = pc.index(bad, True).as_py()
    if first >= 0:
        raise RecordError(
            "message property", at=f"text {first}", needed=needed, found=texts[first].as_py()
        )
