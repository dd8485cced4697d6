"""Checks of the bodies of a chunk against their stored CRCs, many at a time.

    XOR of all bodies, ends in line ──> its CRC = XOR of their CRCs?      yes: all are intact
                                                                          no: one by one

A CRC is linear: that of what strings come to under XOR follows from theirs. To put bodies together
in numpy takes a fraction of the time of a call of zlib for each. That misses no damage to one body,
whatever it is. It would miss the very same damage to two bodies at one distance from their ends, in
one part of the chunk.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.chunk.gather import Positions, take_structures

_PARTS: Final = 4
_PART_ROWS_MIN: Final = 64
"""The fewest bodies to check together; of fewer, a call of zlib for each takes less time."""

_ROWS_AT_ONCE: Final = 64
_SHORT: Final = 192
_LONG: Final = 4096
"""Bodies up to this size are put together, in smaller blocks if their mean is below `_SHORT`."""


def damaged_bodies(chunk: RecordChunk) -> Positions:
    """Return the numbers of the records whose bodies do not have their stored CRC, in order."""
    block_bytes = _block_bytes(chunk)
    is_single = (chunk.body_length > _LONG) | (chunk.body_at < block_bytes)
    short = np.flatnonzero(~is_single)
    parts = np.array_split(short, _PARTS)
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


def _are_intact(chunk: RecordChunk, rows: Positions, block_bytes: int) -> bool:
    """Tell whether these bodies come to what their CRCs come to."""
    lengths = chunk.body_length[rows]
    ends = chunk.body_at[rows] + lengths
    whole_blocks, rest = lengths // block_bytes, lengths % block_bytes
    blocks: list[bytes] = []
    for at in range(int(whole_blocks.max()) + 1):
        inside, first = whole_blocks > at, whole_blocks == at
        block = _put_together(_blocks_before(chunk, ends[inside], block_bytes))
        begun = _blocks_before(chunk, ends[first], block_bytes) & _masks(block_bytes)[rest[first]]
        blocks.append((block ^ _put_together(begun)).tobytes())
        ends = ends - block_bytes
    together = b"".join(reversed(blocks))
    found = crc32(together) ^ crc32(bytes(len(together)))
    needed = int(np.bitwise_xor.reduce(chunk.head["body_crc"][rows].astype(np.uint32)))
    needed ^= int(np.bitwise_xor.reduce(_crcs_of_zeros()[lengths]))
    return not (found ^ needed) & layout.BODY_CRC_MASK


def _blocks_before(chunk: RecordChunk, ends: Positions, block_bytes: int) -> npt.NDArray[np.uint64]:
    blocks = take_structures(chunk.data, ends - block_bytes, f"V{block_bytes}").view(np.uint64)
    return blocks.reshape(-1, block_bytes // 8)


def _put_together(blocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the XOR of all rows; many at once, as numpy is slow with rows that are short."""
    whole = len(blocks) - len(blocks) % _ROWS_AT_ONCE
    words = blocks.shape[1]
    wide = np.bitwise_xor.reduce(blocks[:whole].reshape(-1, _ROWS_AT_ONCE * words), axis=0)
    together: npt.NDArray[np.uint64] = np.bitwise_xor.reduce(
        np.concatenate([wide.reshape(-1, words), blocks[whole:]]), axis=0
    )
    return together


@cache
def _masks(block_bytes: int) -> npt.NDArray[np.uint64]:
    """Return for each number of bytes what leaves so many of a block, the last ones."""
    columns: npt.NDArray[Any] = np.arange(block_bytes)
    kept = columns >= block_bytes - columns[:, None]
    masks: npt.NDArray[np.uint64] = np.where(kept, np.uint8(255), np.uint8(0)).view(np.uint64)
    return masks


@cache
def _crcs_of_zeros() -> npt.NDArray[np.uint32]:
    """Return the CRCs of so many zeros, by which a CRC is not linear."""
    return np.fromiter((crc32(bytes(length)) for length in range(_LONG + 1)), np.uint32, _LONG + 1)
