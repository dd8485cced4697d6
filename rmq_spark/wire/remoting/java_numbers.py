"""Java numbers: parses integers and names as Java and its JSON libraries do.

``parseInt`` and ``parseLong`` accept a sign and digits, and nothing else; Python's own ``int`` also
accepts blanks around a number and underscores in it. `int_from_json` adds what fastjson accepts in
place of an integer, and `plain_name` compares the names of members as fastjson does.
"""

from __future__ import annotations

import re
from typing import Final

INT32_MAX: Final = (1 << 31) - 1
"""The largest value of most of RocketMQ's numbers, such as queue ids and counts."""
INT64_MAX: Final = (1 << 63) - 1

_CHARACTERS_MAX = 40  # parsing takes time quadratic in the number of digits


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


_NULLS = ("", "null")
_WORDS = {"true": 1, "false": 0}
_DECIMAL = re.compile(r"[+-]?\d{1,19}(?:\.\d{1,19})?(?:[eE][+-]?\d{1,2})?")


def int_from_json(value: object) -> int | None:
    """Return the 64-bit integer that Java's fastjson reads from a JSON value, or raise ValueError.

    Clients in other languages write numbers as text, as floats (``5.0``) or as booleans. A fraction
    is truncated. None, an empty text and ``"null"`` are None. Where fastjson 1 and 2 differ, the
    more liberal one counts.
    """
    if isinstance(value, str):
        if value in _NULLS:
            return None
        text = value.replace(",", "")  # fastjson reads "1,000"
        word = _WORDS.get(text)
        if word is not None:
            return word
        try:
            return parse_int64(text)
        except ValueError:
            if _DECIMAL.fullmatch(text) is None:
                raise
            value = float(text)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or not -(1 << 63) <= value < 1 << 63:  # NaN included
        raise ValueError
    return int(value)


def plain_name(name: str) -> str:
    """Return a name without case, ``_`` and ``-``, as fastjson compares member names."""
    return name.lower().replace("_", "").replace("-", "")
