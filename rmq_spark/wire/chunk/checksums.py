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
from rmq_spark.wire.chunk.crc import crcs_of_pieces, joined
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
_WHOLE = np.dtype(f"V{CHECKSUM_BYTES}")


def with_empty_checksums(chunk: RecordChunk) -> RecordChunk:
    """The records with room for a checksum behind their properties: they themselves, if all have it already.

    One that a record has already stays where it is: of two properties with one name the later counts.
    """
    if _have_empty_ones(chunk):
        return chunk
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


class Sealing:
    """Fills in the checksums of a chunk whose records have empty ones and may be written into.

    What of them is known before they have got their places is found out at once: the CRCs of all behind their
    heads. When a record has its place, a few lookups more come to its checksum, instead of going over all of
    its bytes again.
    """

    def __init__(self, chunk: RecordChunk) -> None:
        self._chunk = chunk
        body_ends = chunk.body_at + chunk.body_length
        tail_bytes = chunk.ends - CHECKSUM_BYTES - body_ends
        tail_crcs = crcs_of_pieces(chunk.data, body_ends, tail_bytes)  # the topics and the properties
        self._behind_head = joined(chunk.body_crcs, tail_crcs, tail_bytes)
        self._behind_head_bytes = chunk.body_length + tail_bytes

    def seal(self, first: int = 0, end: int | None = None) -> None:
        """Do so for the records from the first to before the end."""
        chunk = self._chunk
        rows = slice(first, len(chunk) if end is None else end)
        starts = chunk.starts[rows]
        heads = crcs_of_pieces(chunk.data, starts, chunk.body_at[rows] - starts)
        crcs = joined(heads, self._behind_head[rows], self._behind_head_bytes[rows])
        checksums = (crcs & np.uint32(layout.BODY_CRC_MASK)).astype(np.int64)
        digits = (checksums[:, None] // _POWERS % 10 + ord("0")).astype(np.uint8)
        _put(chunk.data, chunk.ends[rows] + DIGITS_AT, digits.view(_DIGITS)[:, 0])


def sealed_records(chunk: RecordChunk) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which records have checksums, and which of these are what their checksums say."""
    head = take_structures(chunk.data, chunk.ends - CHECKSUM_BYTES, _HEAD)
    has_one = (head == np.array(CHECKSUM_HEAD, _HEAD)) & _stands_alone(chunk)
    digits = take_structures(chunk.data, chunk.ends + DIGITS_AT, _DIGITS).view(np.uint8)
    values = digits.reshape(-1, CHECKSUM_DIGITS).astype(np.int64) - ord("0")
    is_number = ((values >= 0) & (values <= 9)).all(axis=1)
    is_ended = chunk.data[chunk.ends - 1] == ord(PROPERTY_SEPARATOR)
    matches = (values @ _POWERS == _checksums(chunk.data, chunk.ends)) & is_number & is_ended
    return has_one, has_one & matches


def _have_empty_ones(chunk: RecordChunk) -> bool:
    if not len(chunk):
        return False
    found = take_structures(chunk.data, chunk.ends - CHECKSUM_BYTES, _WHOLE)
    is_empty = found == np.array(EMPTY_CHECKSUM.encode(), _WHOLE)
    return bool((is_empty & _stands_alone(chunk)).all())


def _stands_alone(chunk: RecordChunk) -> npt.NDArray[np.bool_]:
    """Whether the last bytes, as many as a checksum has, are a property and not the end of one."""
    is_first = chunk.properties_length == CHECKSUM_BYTES
    is_behind = (chunk.properties_length > CHECKSUM_BYTES) & (
        chunk.data[chunk.ends - CHECKSUM_BYTES - 1] == ord(PROPERTY_SEPARATOR)
    )
    stands_alone: npt.NDArray[np.bool_] = is_first | is_behind
    return stands_alone


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
