"""CRC-32 of many byte strings in one buffer, and of concatenated strings from those of their parts.

ISA-L computes the CRC of a kilobyte in less time than a call from Python takes. So each string gets
one call, and the work around it is done in C: `map` makes the calls, and numpy cuts the strings.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rmq_spark.wire.chunk.buffer_slices import Bytes, Positions, Structures, take_structures
from rmq_spark.wire.isa_l import crc32

Crcs: TypeAlias = npt.NDArray[np.uint32]

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31
"""The polynomial 1: a CRC's highest bit has the lowest power of x."""

_COPIED_BYTES_MAX: Final = 479
"""Up to this length, copying strings of one length takes less time than a view of each.

Python allocates larger objects by ``malloc``, which takes longer.
"""

_COPIED_STRINGS: Final = 512
"""The number of strings copied at a time, into memory that the previous ones have freed."""


def crcs_of_strings(data: Bytes, starts: Positions, lengths: Positions) -> Crcs:
    """Return the CRCs of strings in one buffer."""
    longest = int(lengths.max(initial=0))
    if 0 < longest <= _COPIED_BYTES_MAX and int(lengths.min()) == longest:
        crcs: list[int] = []
        for some in _pieces(data, starts, longest):
            crcs += map(crc32, some.tolist())
    else:
        slices = map(slice, starts.tolist(), (starts + lengths).tolist())
        crcs = [*map(crc32, map(data.data.__getitem__, slices))]
    return np.frombuffer(array("I", crcs), np.uint32)


def _pieces(data: Bytes, starts: Positions, length: int) -> Iterator[Structures]:
    """Yield strings of one length, some at a time; strings at equal distances are not copied."""
    count, kind = len(starts), f"V{length}"
    distance = int(starts[-1] - starts[0]) // max(count - 1, 1)
    if (np.diff(starts) == distance).all():
        table = np.ndarray((count,), kind, data, int(starts[0]), (distance,))
        for first in range(0, count, _COPIED_STRINGS):
            yield table[first : first + _COPIED_STRINGS]
    else:
        for first in range(0, count, _COPIED_STRINGS):
            yield take_structures(data, starts[first : first + _COPIED_STRINGS], kind)


def combine_crcs(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC of two strings in a row, from their CRCs and the length of the second.

    A CRC is the remainder of a polynomial; the following string multiplies it by a power of x.
    """
    for bit in range(second_bytes.bit_length()):
        if second_bytes >> bit & 1:
            first = _multiply(first, _power_of_x(bit))
    return first ^ second


@cache
def _power_of_x(bit: int) -> int:
    """Return the factor by which ``2 ** bit`` following bytes multiply a CRC."""
    if not bit:
        return _ONE >> 8
    half = _power_of_x(bit - 1)
    return _multiply(half, half)


def _multiply(first: int, second: int) -> int:
    """Return the product of two remainders, modulo the polynomial."""
    product = 0
    while first:
        if first & _ONE:
            product ^= second
        first = first << 1 & 0xFFFFFFFF
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
    return product
