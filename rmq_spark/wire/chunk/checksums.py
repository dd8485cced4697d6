"""The checksums of many records at once; see `rmq_spark.wire.record_checksum`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import RecordError
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.chunk.gather import BUFFER_BYTES_MAX, Positions, take_structures
from rmq_spark.wire.properties import PROPERTIES_BYTES_MAX, PROPERTY_SEPARATOR
from rmq_spark.wire.record_checksum import (
    CHECKSUM_BYTES,
    CHECKSUM_DIGITS,
    CHECKSUM_HEAD,
    DIGITS_AT,
    EMPTY_CHECKSUM,
)

_POWERS = 10 ** np.arange(CHECKSUM_DIGITS, dtype=np.int64)
_HEAD = np.dtype(f"V{len(CHECKSUM_HEAD)}")
_DIGITS = np.dtype(f"V{CHECKSUM_DIGITS}")


def with_empty_checksums(chunk: RecordChunk) -> RecordChunk:
    """The records with room for a checksum behind their properties; a copy that may be written into.

    One that a record has already stays where it is: of two properties with one name the later counts.
    """
    last_bytes = chunk.data[chunk.ends - 1]
    unended = (chunk.properties_length > 0) & (last_bytes != ord(PROPERTY_SEPARATOR))
    _refuse(chunk, unended, "properties that end with byte 2", last_bytes)
    length_max = PROPERTIES_BYTES_MAX - CHECKSUM_BYTES
    too_long = chunk.properties_length > length_max
    _refuse(chunk, too_long, f"propertiesLength 0 to {length_max}", chunk.properties_length)
    sizes = chunk.sizes + CHECKSUM_BYTES
    total = int(sizes.sum())
    if total > BUFFER_BYTES_MAX:
        raise RecordError(
            "chunk", at="its end", needed=f"at most {BUFFER_BYTES_MAX} bytes with checksums", found=total
        )
    offsets = np.append(chunk.starts, len(chunk.data)).astype(np.int32)
    records = pa.Array.from_buffers(pa.binary(), len(chunk), [None, pa.py_buffer(offsets), chunk.buffer])
    joined = pc.binary_join_element_wise(
        records, pa.scalar(EMPTY_CHECKSUM.encode()), pa.scalar(b"", pa.binary())
    )
    data = bytearray(memoryview(joined.buffers()[2] or b"")[:total])
    starts = np.cumsum(sizes) - sizes
    _put(data, starts, sizes.astype(">i4").view("V4"))
    lengths_at = starts + (chunk.properties_at - chunk.starts) - layout.PROPERTIES_LENGTH_BYTES
    lengths = (chunk.properties_length + CHECKSUM_BYTES).astype(">i2")
    _put(data, lengths_at, lengths.view("V2"))
    return RecordChunk(data, sizes)


def seal_records(data: npt.NDArray[np.uint8], ends: Positions) -> None:
    """Fill in the checksums of records back to back that end at these places with empty ones."""
    checksums = _checksums(data, ends)
    digits = (checksums[:, None] // _POWERS % 10 + ord("0")).astype(np.uint8)
    _put(data, ends + DIGITS_AT, digits.view(_DIGITS)[:, 0])


def sealed_records(chunk: RecordChunk) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which records have checksums, and which of these are what their checksums say."""
    starts = chunk.ends - CHECKSUM_BYTES
    is_first = chunk.properties_length == CHECKSUM_BYTES
    is_behind = (chunk.properties_length > CHECKSUM_BYTES) & (
        chunk.data[starts - 1] == ord(PROPERTY_SEPARATOR)
    )
    head = take_structures(chunk.data, starts, _HEAD)
    has_one = (head == np.array(CHECKSUM_HEAD, _HEAD)) & (is_first | is_behind)
    digits = take_structures(chunk.data, chunk.ends + DIGITS_AT, _DIGITS).view(np.uint8)
    values = digits.reshape(-1, CHECKSUM_DIGITS).astype(np.int64) - ord("0")
    is_number = ((values >= 0) & (values <= 9)).all(axis=1)
    is_ended = chunk.data[chunk.ends - 1] == ord(PROPERTY_SEPARATOR)
    matches = (values @ _POWERS == _checksums(chunk.data, chunk.ends)) & is_number & is_ended
    return has_one, has_one & matches


def _refuse(
    chunk: RecordChunk, bad: npt.NDArray[np.bool_], needed: str, found: npt.NDArray[np.integer[Any]]
) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        at = int(chunk.starts[row])
        raise RecordError("chunk", at=at, needed=f"{needed} (record {row})", found=int(found[row]))


def _checksums(data: npt.NDArray[np.uint8], ends: Positions) -> npt.NDArray[np.int64]:
    """One at a time, as zlib does it; slices of bytes are cheaper than views of them."""
    whole = data.tobytes()
    bounds = pairwise([0, *ends.tolist()])
    slices = (whole[start : end - CHECKSUM_BYTES] for start, end in bounds)
    return np.fromiter(map(crc32, slices), np.int64, len(ends)) & layout.BODY_CRC_MASK


def _put(data: bytearray | npt.NDArray[np.uint8], places: Positions, values: npt.NDArray[np.void]) -> None:
    """Write values of one width at these places."""
    width = values.dtype.itemsize
    cells = np.ndarray((max(len(data) - width + 1, 0),), values.dtype, data, strides=(1,))
    cells[places] = values
