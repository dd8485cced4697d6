"""The property strings of many messages scanned for all separators: values by name, and whole maps.

That takes strings of any length, with any number of properties. What belongs to which row is found
out for every piece. It knows bytes and positions, and no records.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.wire.chunk.gather import (
    Bytes,
    Positions,
    as_text,
    to_arrow,
    offsets_of,
    take_bytes,
    take_structures,
)
from rmq_spark.wire.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

_NAME_END = ord(NAME_VALUE_SEPARATOR)
_PIECE_END = ord(PROPERTY_SEPARATOR)
_WORD_32 = np.dtype("<u4")


class PropertyScan:
    """The properties in many strings, which are scanned for separators only once."""

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
        separates = self._text == _PIECE_END
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
        last = len(self._text) - _WORD_32.itemsize
        if last < 0:
            return np.zeros(len(self._piece_starts), _WORD_32)
        words = take_structures(self._text, np.minimum(self._piece_starts, last), _WORD_32)
        late = int(np.searchsorted(self._piece_starts, last, "right"))
        words[late:] = words[late:] >> (8 * (self._piece_starts[late:] - last)).astype(_WORD_32)
        return words

    def values(self, name: str) -> pa.StringArray:
        """Return the property's value in each message, null where it has none."""
        if not name or NAME_VALUE_SEPARATOR in name:
            return pa.nulls(self._rows, pa.string())
        pattern = (name + NAME_VALUE_SEPARATOR).encode()
        if pattern not in self._bytes:  # which says so at the speed of memory
            return pa.nulls(self._rows, pa.string())
        word = int.from_bytes(pattern[: _WORD_32.itemsize], "little")
        words = self._first_words
        if len(pattern) < _WORD_32.itemsize:
            words = words & np.uint32((1 << 8 * len(pattern)) - 1)
        pieces = np.flatnonzero(words == word)
        value_starts = self._piece_starts[pieces] + len(pattern)
        pieces = pieces[value_starts < self._piece_ends[pieces]]
        for at in range(_WORD_32.itemsize, len(pattern)):
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
        name_ends = np.flatnonzero(self._text == _NAME_END)
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
            names = names.take(to_arrow(kept))
        values = as_text(
            take_bytes(self._buffer, splits + 1, self._piece_ends[pieces] - splits - 1)
        )
        offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=self._rows))))
        return pa.MapArray.from_arrays(to_arrow(offsets.astype(np.int32)), names, values)

    def _row_of(self, pieces: Positions) -> Positions:
        return np.searchsorted(self._row_starts, self._piece_starts[pieces], "left") - 1


def _last_of_each_name(rows: Positions, names: pa.StringArray) -> Positions:
    """Return the last position of each name in each row, in order."""
    codes = names.dictionary_encode()
    count = max(len(codes.dictionary), 1)
    row_and_name = rows * count + codes.indices.to_numpy(zero_copy_only=False)
    _, from_the_end = np.unique(row_and_name[::-1], return_index=True)
    return np.sort(len(row_and_name) - 1 - from_the_end)
