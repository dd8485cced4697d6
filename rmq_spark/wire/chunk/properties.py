"""The property strings of many messages at once: values by name, and whole maps.

    values    short strings    piece by piece, of all rows at once   (`property_pieces`)
              the long ones    scanned for every separator           (`property_scan`)
    maps      all strings      scanned for every separator

The rules are those of `rmq_spark.wire.properties`, whose functions do the same for one message.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk.gather import Positions, as_text, offsets_of, take_bytes
from rmq_spark.wire.chunk.property_pieces import LONG_BYTES, ValueRanges, PropertyPieces
from rmq_spark.wire.chunk.property_scan import PropertyScan
from rmq_spark.wire.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

MAP_TYPE = pa.map_(pa.string(), pa.string())


class PropertyColumns:
    """The properties in the strings of a chunk, of which each is looked through only once."""

    def __init__(self, buffer: pa.Buffer, starts: Positions, lengths: Positions) -> None:
        """Take strings; ``starts`` must not be 0, as the byte before each may be read as well."""
        self._buffer = buffer
        self._starts = starts
        self._lengths = lengths

    @cached_property
    def _is_long(self) -> npt.NDArray[np.bool_]:
        is_long: npt.NDArray[np.bool_] = self._lengths > LONG_BYTES
        return is_long

    @cached_property
    def _pieces(self) -> PropertyPieces:
        has_long = bool(self._is_long.any())
        lengths = np.where(self._is_long, 0, self._lengths) if has_long else self._lengths
        return PropertyPieces(np.frombuffer(self._buffer, np.uint8), self._starts, lengths)

    @cached_property
    def _scan(self) -> PropertyScan:
        return PropertyScan(self._buffer, self._starts, self._lengths)

    @cached_property
    def _long_scan(self) -> PropertyScan:
        return PropertyScan(self._buffer, self._starts[self._is_long], self._lengths[self._is_long])

    def values(self, name: str) -> pa.StringArray:
        """Return the property's value in each message, null where it has none."""
        if not name or NAME_VALUE_SEPARATOR in name:
            return pa.nulls(len(self._starts), pa.string())
        found = self._pieces.find((name + NAME_VALUE_SEPARATOR).encode())
        values = _texts(self._buffer, found)
        if self._is_long.any():
            of_long = self._long_scan.values(name)
            values = pc.replace_with_mask(values, pa.array(self._is_long), of_long)
        return values

    def maps(self) -> pa.MapArray:
        """Return all properties of each message."""
        return self._scan.maps()


def _texts(buffer: pa.Buffer, found: ValueRanges) -> pa.StringArray:
    """Return the values that were found, null where there is none."""
    rows = len(found.starts)
    if not found.is_present.any():
        return pa.nulls(rows, pa.string())
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
    """Return each map as properties; names that have a column of their own are refused."""
    if maps.null_count:
        maps = maps.take(pa.array(np.arange(len(maps))))  # leaves out what may lie behind a null
    offsets = offsets_of(maps)
    names = maps.keys[offsets[0] : offsets[-1]]
    values = maps.items[offsets[0] : offsets[-1]]
    _check_texts(names, has_null=True)
    _check_texts(values, has_null=True)
    _reject_separator(NAME_VALUE_SEPARATOR, "a name without \\x01", names)
    _reject(
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


def _check_texts(texts: pa.Array, *, has_null: bool) -> None:
    """Refuse what would be read back as something else, as `encode_properties` does."""
    _reject(pc.equal(pc.binary_length(texts), 0), "text that is not empty", texts)
    _reject_separator(PROPERTY_SEPARATOR, "text without \\x02", texts)
    if has_null:
        _reject(pc.is_null(texts), "text", texts)


def has_no_separator(separator: str, texts: pa.StringArray) -> bool:
    """Return whether no text has this byte: nearly always, and at the speed of memory."""
    offsets = offsets_of(texts)
    data = texts.buffers()[2]
    if data is None:
        return True
    return ord(separator) not in np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def _reject_separator(separator: str, needed: str, texts: pa.StringArray) -> None:
    if not has_no_separator(separator, texts):  # what lies behind a null may have it as well
        _reject(pc.match_substring(texts, separator), needed, texts)


def _reject(bad: pa.BooleanArray, needed: str, texts: pa.Array) -> None:
    first = pc.index(bad, True).as_py()
    if first >= 0:
        raise RecordError(
            "message property", at=f"text {first}", needed=needed, found=texts[first].as_py()
        )
