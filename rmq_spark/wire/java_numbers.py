"""Integers as Java's ``parseInt`` and ``parseLong`` read them: a sign, digits, and nothing else.

Python's own ``int`` also takes blanks around a number and underscores in it. The modules that read
numbers out of text share this one; it knows none of them.
"""

from __future__ import annotations

_CHARACTERS_MAX = 40  # turning digits to a number takes time quadratic in their count


def parse_int32(text: str) -> int:
    """Parse a 32-bit integer, or raise ValueError."""
    if len(text) < 10 and text.isdecimal():  # nearly always, and certainly within 32 bits
        return int(text)
    return _parse(text, 1 << 31)


def parse_int64(text: str) -> int:
    """Parse a 64-bit integer, or raise ValueError."""
    if len(text) < 19 and text.isdecimal():
        return int(text)
    return _parse(text, 1 << 63)


def _parse(text: str, bound: int) -> int:
    digits = text[1:] if text.startswith(("-", "+")) else text
    if len(text) > _CHARACTERS_MAX or not digits.isdecimal():
        raise ValueError
    value = int(text)
    if not -bound <= value < bound:
        raise ValueError
    return value
