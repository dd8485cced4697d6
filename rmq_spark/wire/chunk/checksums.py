"""Checksums of many records at once, in the format of `rmq_spark.wire.message.record_layout`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.wire.chunk.buffer_slices import (
    BUFFER_BYTES_MAX,
    Positions,
    chunk_error,
    take_structures,
)
from rmq_spark.wire.chunk.crc import Crcs, crcs_of_strings
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.properties import PROPERTIES_BYTES_MAX, PROPERTY_SEPARATOR
from rmq_spark.wire.message.record_layout import CHECKSUM_BYTES, EMPTY_CHECKSUM, HEX_PIECES

_CHECKSUM = np.dtype(f"V{CHECKSUM_BYTES}")
_HEX_PIECES = np.frombuffer(b"".join(HEX_PIECES), f"V{len(HEX_PIECES[0])}")


def with_empty_checksums(chunk: RecordChunk) -> RecordChunk:
    """Return the records with room for a checksum after their properties.

    The chunk is returned unchanged if all records have a checksum already. If only some have one,
    their old checksum stays among the properties, where readers ignore it.
    """
    if len(chunk) and chunk.has_checksum.all():
        return chunk
    last_bytes = chunk.data[chunk.ends - 1]
    unended = (chunk.properties_length > 0) & (last_bytes != ord(PROPERTY_SEPARATOR))
    _raise_if_any(chunk, unended, "properties that end with byte 2", last_bytes)
    length_max = PROPERTIES_BYTES_MAX - CHECKSUM_BYTES
    too_long = chunk.properties_length > length_max
    _raise_if_any(chunk, too_long, f"propertiesLength 0 to {length_max}", chunk.properties_length)
    sizes = chunk.sizes + CHECKSUM_BYTES
    total = int(sizes.sum())
    if total > BUFFER_BYTES_MAX:
        raise chunk_error("its end", f"at most {BUFFER_BYTES_MAX} bytes with checksums", total)
    offsets = np.append(chunk.starts, len(chunk.data)).astype(np.int32)
    records = pa.Array.from_buffers(
        pa.binary(), len(chunk), [None, pa.py_buffer(offsets), chunk.buffer]
    )
    joined = pc.binary_join_element_wise(
        records, pa.scalar(EMPTY_CHECKSUM), pa.scalar(b"", pa.binary())
    )
    data = bytearray(memoryview(joined.buffers()[2] or b"")[:total])
    starts = np.cumsum(sizes) - sizes
    _write_at(data, starts, sizes.astype(">i4").view("V4"))
    lengths_at = starts + (chunk.properties_at - chunk.starts) - layout.PROPERTIES_LENGTH_BYTES
    lengths = (chunk.properties_length + CHECKSUM_BYTES).astype(">i2")
    _write_at(data, lengths_at, lengths.view("V2"))
    return RecordChunk(data, sizes)


def write_checksums(chunk: RecordChunk, first: int = 0, end: int | None = None) -> None:
    """Fill in the checksums of the records from number ``first`` to before ``end``.

    The chunk is writable, its records have room for checksums, and all other bytes are final.
    """
    rows = slice(first, end)
    starts, contents = chunk.starts[rows], chunk.sizes[rows] - CHECKSUM_BYTES
    checksums = _encode_checksums(crcs_of_strings(chunk.data, starts, contents))
    _write_at(chunk.data, starts + contents, checksums)


def intact_records(chunk: RecordChunk) -> npt.NDArray[np.bool_]:
    """Return, per record, whether it ends with the checksum of the bytes before it."""
    found = take_structures(chunk.data, chunk.ends - CHECKSUM_BYTES, _CHECKSUM)
    crcs = crcs_of_strings(chunk.data, chunk.starts, chunk.sizes - CHECKSUM_BYTES)
    intact: npt.NDArray[np.bool_] = found == _encode_checksums(crcs)
    return intact


def _raise_if_any(
    chunk: RecordChunk, bad: npt.NDArray[np.bool_], needed: str, found: npt.NDArray[np.integer[Any]]
) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        at = int(chunk.starts[row])
        raise chunk_error(at, f"{needed} (record {row})", int(found[row]))


def _encode_checksums(crcs: Crcs) -> npt.NDArray[np.void]:
    byte_by_byte = crcs.astype(">u4").view(np.uint8)
    return _HEX_PIECES[byte_by_byte].view(_CHECKSUM)


def _write_at(
    data: bytearray | npt.NDArray[np.uint8], positions: Positions, values: npt.NDArray[np.void]
) -> None:
    width = values.dtype.itemsize
    cells = np.ndarray((max(len(data) - width + 1, 0),), values.dtype, data, strides=(1,))
    cells[positions] = values
