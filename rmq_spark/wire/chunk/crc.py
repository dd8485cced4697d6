"""CRC-32 of many byte strings at once, and of concatenated strings from the CRCs of their parts.

    crc(a + b) = moved(crc(a), len(b)) ^ crc(b)

A CRC is linear: every bit that differs changes it in a way that depends only on the bit's position.
So strings that differ in few bytes from one to the next, such as the heads of stored records,
numbers with leading zeros or texts of one form, take one lookup for each of these bytes; and adding
n bytes after a string takes four lookups for each bit of n. numpy does that for all records at
once, in a third of the time of one call for each. The others take a call each.
"""

from __future__ import annotations

from functools import cache
from itertools import chain, pairwise
from struct import Struct
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rmq_spark.wire.chunk.buffer_slices import Bytes, Positions, take_structures
from rmq_spark.wire.isa_l import crc32

Crcs: TypeAlias = npt.NDArray[np.uint32]

_POLYNOMIAL = 0xEDB88320
_BYTES = np.arange(256, dtype=np.uint32)
_SAMPLE_ROWS = 32
_UNPACKED_ROWS = 32
"""The number of strings that are cut at a time, to be summed one by one."""

_DIFFERING_MAX = 32
"""The most differing places; with more, or for few strings, a call for each is faster."""


def combine_crcs(first: Crcs, second: Crcs, second_bytes: npt.NDArray[np.integer[Any]]) -> Crcs:
    """Return the CRCs of strings joined from two parts each, given the lengths of the second."""
    crcs = first
    longest = int(second_bytes.max(initial=0))
    shortest = int(second_bytes.min(initial=longest))
    for bit in range(longest.bit_length()):
        step = 1 << bit
        if shortest == longest:
            if longest & step:
                crcs = _append_zeros(crcs, bit)
        else:
            crcs = np.where(second_bytes & step, _append_zeros(crcs, bit), crcs)
    return crcs ^ second


def crcs_of_slices(data: Bytes, starts: Positions, lengths: Positions) -> Crcs:
    """Return the CRCs of slices of one buffer; slices of the same length are computed together."""
    crcs = np.zeros(len(starts), np.uint32)
    by_length = np.argsort(lengths, kind="stable")
    cuts = np.flatnonzero(np.diff(lengths[by_length])) + 1
    for first, end in pairwise([0, *cuts.tolist(), len(starts)]):
        rows = by_length[first:end]
        length = int(lengths[rows[0]]) if len(rows) else 0
        if length:
            pieces = take_structures(data, starts[rows], f"V{length}").view(np.uint8)
            crcs[rows] = crcs_of_rows(pieces.reshape(-1, length))
    return crcs


def crcs_of_strings(data: Bytes, starts: Positions, lengths: Positions) -> Crcs:
    """Return the CRCs of strings in one buffer that mostly have one length, or are very many."""
    longest = int(lengths.max(initial=0))
    if longest and int(lengths.min()) == longest:
        strings = take_structures(data, starts, f"V{longest}").view(np.uint8)
        return crcs_of_rows(strings.reshape(-1, longest))
    whole = data.tobytes()  # slices of bytes are cheaper than views of them
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    slices = (whole[start:end] for start, end in bounds)
    return np.fromiter(map(crc32, slices), np.uint32, len(starts))


def crcs_of_rows(strings: Bytes) -> Crcs:
    """Return the CRCs of strings of one length, at least one byte, which are rows of an array."""
    if (
        len(strings) > _SAMPLE_ROWS
        and len(_differing_columns(strings[:_SAMPLE_ROWS])) <= _DIFFERING_MAX
    ):
        places = _differing_columns(strings)
        if len(places) <= _DIFFERING_MAX:
            return _crcs_by_difference(strings, places)
    return _one_by_one(strings)


def _differing_columns(strings: Bytes) -> list[int]:
    """Return the positions at which not all strings equal the first."""
    places: list[int] = np.flatnonzero((strings != strings[0]).any(axis=0)).tolist()
    return places


def _crcs_by_difference(strings: Bytes, columns: list[int]) -> Crcs:
    """Return the CRC of the first string, adapted by the differences of each other one."""
    crcs = np.full(len(strings), crc32(strings[0].tobytes()), np.uint32)
    behind_last = strings.shape[1] - 1
    for place in columns:
        crcs ^= _change_table(behind_last - place)[strings[:, place] ^ strings[0, place]]
    return crcs


def _one_by_one(strings: Bytes) -> Crcs:
    count, width = strings.shape
    data = np.ascontiguousarray(strings).reshape(-1).data
    whole = count - count % _UNPACKED_ROWS
    cut = Struct(f"{width}s" * _UNPACKED_ROWS).iter_unpack(data[: whole * width])
    rest = (data[row * width : (row + 1) * width] for row in range(whole, count))
    return np.fromiter(map(crc32, chain(chain.from_iterable(cut), rest)), np.uint32, count)


def _append_zeros(crcs: Crcs, bit: int) -> Crcs:
    """Return the CRCs with 2 to the power of ``bit`` zero bytes appended to the strings."""
    low, second, third, high = _append_zeros_tables(bit)
    moved: Crcs = (
        low[crcs & 0xFF] ^ second[crcs >> 8 & 0xFF] ^ third[crcs >> 16 & 0xFF] ^ high[crcs >> 24]
    )
    return moved


@cache
def _append_zeros_tables(bit: int) -> tuple[Crcs, ...]:
    """Return a table for each byte of a CRC, the lowest first."""
    tables = [_BYTES << np.uint32(shift) for shift in (0, 8, 16, 24)]
    if not bit:
        return tuple(map(_append_zero, tables))
    return tuple(_append_zeros(_append_zeros(table, bit - 1), bit - 1) for table in tables)


@cache
def _change_table(following_bytes: int) -> Crcs:
    """Return how each change of a byte changes the CRC, with ``following_bytes`` bytes after it."""
    crcs = _byte_table()
    for bit in range(following_bytes.bit_length()):
        if following_bytes & 1 << bit:
            crcs = _append_zeros(crcs, bit)
    return crcs


def _append_zero(crcs: Crcs) -> Crcs:
    moved: Crcs = (crcs >> 8) ^ _byte_table()[crcs & 0xFF]
    return moved


@cache
def _byte_table() -> Crcs:
    table = _BYTES
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return table
