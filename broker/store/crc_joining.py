"""The CRC-32 of two texts, one behind the other, from those of each: neither is read again.

To append n zero bits to a text multiplies its CRC by x to the n, modulo the CRC's polynomial; bits
of a number stand for coefficients, the highest bit for that of x to the 0.
"""

from __future__ import annotations

from typing import Final

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31


def crc_of_both(crc: int, next_crc: int, next_size: int) -> int:
    """Return the CRC-32 of a text with another behind it, of which the size is in bytes."""
    return _product(_power(8 * next_size), crc) ^ next_crc


def _product(left: int, right: int) -> int:
    found = 0
    bit = _ONE
    while bit:
        if left & bit:
            found ^= right
        right = (right >> 1) ^ _POLYNOMIAL if right & 1 else right >> 1
        bit >>= 1
    return found


def _powers() -> tuple[int, ...]:
    """Return x to the 1, 2, 4, 8 and so on."""
    found = [_ONE >> 1]
    for _ in range(63):
        found.append(_product(found[-1], found[-1]))
    return tuple(found)


_POWERS: Final = _powers()


def _power(exponent: int) -> int:
    found = _ONE
    for number, power in enumerate(_POWERS):
        if exponent >> number & 1:
            found = _product(power, found)
    return found
