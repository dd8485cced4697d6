"""Checks of the bodies of a chunk against their stored CRCs, many at a time.

    XOR of all bodies, ends in line ──> its CRC = XOR of their CRCs?      yes: all are intact
                                                                          no: one by one

A CRC is linear: that of what strings come to under XOR follows from theirs. To put bodies together
in numpy takes a fraction of the time of a call of zlib for each. That misses no damage to one body,
whatever it is. It would miss the very same damage to two bodies at one distance from their ends, in
one part of the chunk.

    |      |        body 1 |    what all have of their ends is put together in one go,
    |   |           body 2 |    the rest block by block, with a mask for the block in which
    | a block | in common  |    a body begins
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.chunk.gather import Bytes, Positions, take_structures

_PARTS: Final = 4
_PART_ROWS_MIN: Final = 64
"""The fewest bodies to check together; of fewer, a call of zlib for each takes less time."""

_BYTES_AT_ONCE: Final = 1 << 18
"""Bytes that are picked out of a chunk and put together while they are in the cache."""

_WIDE_ROW: Final = 4096
"""Bytes that numpy puts together in one go, of as many bodies as that is."""

_SHORT: Final = 192
_MIDDLING: Final = 512
"""The mean length of bodies from which on to put those together that are of nearly one length."""

_LONG: Final = 4096
"""Bodies up to this size are put together, in smaller blocks if their mean is below `_SHORT`."""


def damaged_bodies(chunk: RecordChunk) -> Positions:
    """Return the numbers of the records whose bodies do not have their stored CRC, in order."""
    block_bytes = _block_bytes(chunk)
    is_single = (chunk.body_length > _LONG) | (chunk.body_at < block_bytes)
    parts = np.array_split(_in_turn(chunk, np.flatnonzero(~is_single)), _PARTS)
    suspects = [
        rows
        for rows in parts
        if len(rows) < _PART_ROWS_MIN or not _are_intact(chunk, rows, block_bytes)
    ]
    rows = np.sort(np.concatenate([*suspects, np.flatnonzero(is_single)]))
    starts = chunk.body_at[rows]
    bounds = zip(starts.tolist(), (starts + chunk.body_length[rows]).tolist(), strict=True)
    data = chunk.data.data
    crcs = np.fromiter((crc32(data[start:end]) for start, end in bounds), np.uint32, len(rows))
    damaged: Positions = rows[
        crcs & np.uint32(layout.BODY_CRC_MASK) != chunk.head["body_crc"][rows]
    ]
    return damaged


def _block_bytes(chunk: RecordChunk) -> int:
    """Return how many bytes of a body to put together at a time."""
    return 128 if not len(chunk) or chunk.body_length.mean() < _SHORT else 256


def _in_turn(chunk: RecordChunk, rows: Positions) -> Positions:
    """Return the rows so that long bodies of nearly one length stand in one part."""
    lengths = chunk.body_length[rows]
    if not len(rows) or lengths.min() == lengths.max() or lengths.mean() < _MIDDLING:
        return rows
    in_turn: Positions = rows[np.argsort(lengths.astype(np.int16), kind="stable")]
    return in_turn


def _are_intact(chunk: RecordChunk, rows: Positions, block_bytes: int) -> bool:
    """Tell whether these bodies come to what their CRCs come to.

    What all of them have, counted from their ends, needs no mask, and is put together in one go.
    Of short bodies that differ, that would be two ways for what one block does.
    """
    lengths = chunk.body_length[rows]
    shortest, longest = int(lengths.min()), int(lengths.max())
    common = shortest if shortest == longest or shortest >= block_bytes else 0
    ends = chunk.body_at[rows] + (lengths - common)
    blocks = [_put_together(chunk, ends, common).tobytes()] if common else []
    if longest > common:
        blocks += _blocks_of(chunk, ends, lengths - common, block_bytes)
    together = b"".join(reversed(blocks))
    found = crc32(together) ^ crc32(bytes(len(together)))
    needed = int(np.bitwise_xor.reduce(chunk.head["body_crc"][rows].astype(np.uint32)))
    needed ^= int(np.bitwise_xor.reduce(_crcs_of_zeros()[lengths]))
    return not (found ^ needed) & layout.BODY_CRC_MASK


def _blocks_of(
    chunk: RecordChunk, ends: Positions, lengths: Positions, block_bytes: int
) -> Iterator[bytes]:
    """Yield what bodies of different lengths come to, block by block, the last block first."""
    whole_blocks, rest = lengths // block_bytes, lengths % block_bytes
    for at in range(int(whole_blocks.max()) + 1):
        inside, first = whole_blocks > at, whole_blocks == at
        block = _put_together(chunk, ends[inside] - block_bytes, block_bytes)
        begun = _picked(chunk, ends[first] - block_bytes, block_bytes)
        begun &= _masks(block_bytes).take(rest[first], axis=0)  # five times as fast as []
        yield (block ^ _xor(begun)).tobytes()
        ends = ends - block_bytes


def _put_together(chunk: RecordChunk, starts: Positions, width: int) -> Bytes:
    """Return the XOR of pieces of one width."""
    rows_at_once = max(_BYTES_AT_ONCE // width, _PART_ROWS_MIN)
    parts = [
        _xor(_picked(chunk, starts[first : first + rows_at_once], width))
        for first in range(0, len(starts), rows_at_once)
    ]
    together: Bytes = np.bitwise_xor.reduce(np.array(parts, np.uint8).reshape(-1, width), axis=0)
    return together


def _picked(chunk: RecordChunk, starts: Positions, width: int) -> Bytes:
    pieces: Bytes = take_structures(chunk.data, starts, f"V{width}").view(np.uint8)
    return pieces.reshape(-1, width)


def _xor(rows: Bytes) -> Bytes:
    """Return the XOR of all rows; many at once, as numpy is slow with rows that are short."""
    width = rows.shape[1]
    at_once = max(_WIDE_ROW // width, 1)
    whole = len(rows) - len(rows) % at_once
    wide = np.bitwise_xor.reduce(rows[:whole].reshape(-1, at_once * width), axis=0)
    together: Bytes = np.bitwise_xor.reduce(
        np.concatenate([wide.reshape(-1, width), rows[whole:]]), axis=0
    )
    return together


@cache
def _masks(block_bytes: int) -> Bytes:
    """Return for each number of bytes what leaves so many of a block, the last ones."""
    columns: npt.NDArray[Any] = np.arange(block_bytes)
    kept = columns >= block_bytes - columns[:, None]
    masks: Bytes = np.where(kept, np.uint8(255), np.uint8(0))
    return masks


@cache
def _crcs_of_zeros() -> npt.NDArray[np.uint32]:
    """Return the CRCs of so many zeros, by which a CRC is not linear."""
    return np.fromiter((crc32(bytes(length)) for length in range(_LONG + 1)), np.uint32, _LONG + 1)
