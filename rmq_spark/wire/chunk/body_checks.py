"""Body checks: compares the bodies of a chunk with their stored CRCs, many at a time.

    XOR of many bodies, ends in line ──> its CRC = XOR of their CRCs?     yes: all are intact
                                                                          no: one by one

A CRC is linear: the CRC of an XOR of strings follows from their CRCs. Combining bodies in numpy
takes a fraction of the time of one CRC call per body. Any damage to one body is detected. Only the
very same damage to two bodies of one sum, at the same distance from their ends, would go unnoticed;
therefore neighboring bodies go into different sums.

    |  body 0  |  body 1  |  body 2  |    bodies of one length are rows, used in place in their
    |  body 3  |  body 4  |  body 5  |    column, without a copy; others are padded with zeros in
    |  sum 0   |  sum 1   |  sum 2   |    front

If lengths differ and some bodies are long, one CRC call per body takes less time than padding.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.wire.chunk.buffer_slices import Bytes, Positions, offsets_of
from rmq_spark.wire.chunk.crc import Crcs, crcs_of_strings
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.message import record_layout as layout

_ROWS_MIN: Final = 16
"""The fewest bodies that are combined; fewer are checked faster one by one."""

_COMBINED_BYTES_MAX: Final = 4096
"""The most bytes of a row that numpy combines; short bodies share one row with their neighbors."""

_SLICE_BYTES: Final = 1 << 20
"""Bytes of bodies to copy and sum at a time, so that they stay in the CPU's cache.

Bodies that need no copy are summed in one pass, because each call costs some ten microseconds.
"""

_PADDED_BYTES_MAX: Final = 1_024
"""The length up to which padding a body (0.13 ns a byte) takes less time than a CRC call for it."""

_LONG_BYTES: Final = 1 << 15
"""The length up to which bodies of one length are combined."""


def damaged_bodies(chunk: RecordChunk) -> Positions:
    """Return the numbers of the records whose bodies do not match their stored CRC, in order."""
    rows = _suspect_rows(chunk)
    crcs = crcs_of_strings(chunk.data, chunk.body_at[rows], chunk.body_length[rows])
    damaged: Positions = rows[
        crcs & np.uint32(layout.BODY_CRC_MASK) != chunk.head["body_crc"][rows]
    ]
    return damaged


def _suspect_rows(chunk: RecordChunk) -> Positions:
    """Return the numbers of the records whose bodies must be checked one by one, in order."""
    lengths = chunk.body_length
    width = int(lengths.max(initial=1))
    is_shorter = bool((lengths < width).any())
    if width > (_PADDED_BYTES_MAX if is_shorter else _LONG_BYTES):
        return np.arange(len(chunk))
    bodies, crcs = chunk.stored_bodies, chunk.head["body_crc"].astype(np.uint32)
    linear = crcs ^ (_zero_crcs()[lengths] if is_shorter else _zero_crc(width))
    step = max(_SLICE_BYTES // width, _ROWS_MIN) if is_shorter else max(len(bodies), 1)
    suspect = [np.zeros(0, np.int64)]
    for first in range(0, len(bodies), step):
        part = bodies.slice(first, step)
        in_line = _as_rows(_pad_left(part, width) if is_shorter else part, width)
        suspect.append(first + _mismatched_rows(in_line, linear[first : first + step]))
    return np.concatenate(suspect)


def _pad_left(bodies: pa.BinaryArray, width: int) -> pa.StringArray:
    as_text = pa.Array.from_buffers(
        pa.string(), len(bodies), bodies.buffers(), offset=bodies.offset
    )
    return pc.ascii_lpad(as_text, width, "\0")


def _as_rows(bodies: pa.Array, width: int) -> Bytes:
    first = int(offsets_of(bodies)[0])
    data = np.frombuffer(bodies.buffers()[2], np.uint8, len(bodies) * width, first)
    return data.reshape(-1, width)


def _mismatched_rows(in_line: Bytes, linear: Crcs) -> Positions:
    count, width = in_line.shape
    sums = max(min(_COMBINED_BYTES_MAX // width, count // _ROWS_MIN), 1)
    whole = count - count % sums if count >= _ROWS_MIN else 0
    together = np.bitwise_xor.reduce(in_line[:whole].reshape(-1, sums * width), axis=0)
    found = np.fromiter(map(crc32, together.reshape(sums, width)), np.uint32, sums)
    needed = np.bitwise_xor.reduce(linear[:whole].reshape(-1, sums), axis=0)
    differ = (found ^ _zero_crc(width) ^ needed) & np.uint32(layout.BODY_CRC_MASK)
    fit = np.zeros(count, np.bool_)
    fit[:whole].reshape(-1, sums)[:] = differ == 0
    return np.flatnonzero(~fit)


def _zero_crc(count: int) -> np.uint32:
    """Return the CRC of ``count`` zeros: the constant that a CRC has besides its linear part."""
    crc: np.uint32 = np.uint32(crc32(bytes(count)))
    return crc


@cache
def _zero_crcs() -> Crcs:
    """Return the CRCs of runs of zeros, by their length up to that of the longest padded body."""
    return np.fromiter(map(_zero_crc, range(_PADDED_BYTES_MAX + 1)), np.uint32)
