"""Java values: compares values as Java does, and reads the numbers in texts as Java does.

A text is converted to the type of the value that it is compared with: Boolean, Integer, Long or
Double. If it cannot be converted, ValueError is raised, and the filtered message does not match.
Python's `int` stands for Integer, if the number fits, and for Long. One value that fits counts as
Long: -2147483648, because in Java it is the negative of the Long 2147483648.

Everything here takes at most linear time in the length of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign, inf, isnan
from typing import Any, TypeAlias, TypeVar

from rmq_spark.wire.message.properties import BLANKS
from rmq_spark.wire.remoting.java_numbers import parse_int32, parse_int64

Value: TypeAlias = "bool | int | float | str | None"

_INTEGER_MAX = (1 << 31) - 1
_Number = TypeVar("_Number", int, float)

_DIGITS_WITHIN_INTEGER = 10  # numbers with fewer digits always fit
_DIGITS_MAX = 40  # characters that java_numbers reads
_BASIC_PLANE_LAST = (
    "\uffff"  # past it, Java sees a digit as two characters, neither of them a digit
)
_DECIMAL_CHARACTERS = "0123456789.eE+-"


def compare(left: Value, right: Value) -> int:
    """Return a number below, equal to or above 0, like Java's ``compareTo``.

    Neither may be None. Java has no order between a boolean and a number: here ``left`` is less.
    """
    if type(left) is not type(right):
        if isinstance(left, str):
            left = _convert(left, right)
        elif isinstance(right, str):
            right = _convert(right, left, boolean=False)
        elif isinstance(left, bool) or isinstance(right, bool):
            return -1
        else:
            left, right = _as_float(left), _as_float(right)
    if isinstance(left, float) and isinstance(right, float):
        return _compare_doubles(left, right)
    if left == right:
        return 0
    return 1 if left > right else -1  # type: ignore[operator]  # both have the same type by now


def _convert(text: str, like: Value, *, boolean: bool = True) -> Value:
    """Convert a text to the type of ``like``, or raise ValueError.

    ``boolean`` is False for a text on the right, which in Java cannot become a boolean.
    """
    if isinstance(like, bool):
        if not boolean:
            raise ValueError
        return parse_boolean(text)
    if isinstance(like, int):
        return parse_integer(text, like)
    return parse_double(text)


def _as_float(number: Value) -> float:
    return float(number)  # type: ignore[arg-type]  # an int or a float


def _compare_doubles(left: float, right: float) -> int:
    """Compare in Java's total order: -0.0 is below 0.0; NaN equals itself and is the greatest."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else int(copysign(1, left) - copysign(1, right))
    return isnan(left) - isnan(right)


def parse_boolean(text: str) -> bool:
    """Return whether a text is "true", in upper or lower case; any other text is False."""
    return len(text) == 4 and text.lower() == "true"


def parse_integer(text: str, like: int) -> int:
    """Return the integer in a text, with as many bits as Java gives ``like``; else ValueError."""
    if not text.isascii() and max(text) > _BASIC_PLANE_LAST:
        raise ValueError
    if len(text) > _DIGITS_MAX:
        text = _without_leading_zeros(text)
    return parse_int32(text) if is_integer(like) else parse_int64(text)


def is_integer(number: int) -> bool:
    """Return whether a number is an Integer in Java rather than a Long."""
    return -_INTEGER_MAX <= number <= _INTEGER_MAX


def _without_leading_zeros(text: str) -> str:
    sign = text[0] if text[0] in "+-" else ""
    return sign + "0" + text[len(sign) :].lstrip("0")


def parse_double(text: str) -> float:
    """Return the number in a text as Java reads it, possibly NaN or infinite, or raise ValueError.

    Python's ``float`` also accepts other names of NaN and infinity, digits of other scripts, and
    underscores; Java also accepts hexadecimal numbers, and type letters after the digits.
    """
    text = text.strip(BLANKS)
    if text and not text.strip(_DECIMAL_CHARACTERS):  # only digits, as nearly always
        return float(text)
    negative = text.startswith("-")
    unsigned = text[1:] if text.startswith(("-", "+")) else text
    if unsigned == "NaN":
        return float("nan")
    if unsigned == "Infinity":
        return -inf if negative else inf
    if unsigned.endswith(("f", "F", "d", "D")):
        text, unsigned = text[:-1], unsigned[:-1]
    if unsigned.startswith(("0x", "0X")) and ("p" in unsigned or "P" in unsigned):
        try:
            return float.fromhex(text)
        except OverflowError:
            return -inf if negative else inf
    if text.strip(_DECIMAL_CHARACTERS):
        raise ValueError
    return float(text)


def parse_numbers(texts: list[str], like: float) -> Sequence[float | None]:
    """Parse each text by `parse_integer` or `parse_double`, with None in place of a ValueError.

    Most columns contain only digits, which one check of the whole column shows.
    """
    all_of_them = "".join(texts)
    if isinstance(like, float):
        if not all_of_them.strip(_DECIMAL_CHARACTERS):
            try:
                return list(map(float, texts))
            except ValueError:
                pass
        return [_parse_or_none(parse_double, text) for text in texts]
    if (
        all_of_them.isascii()
        and all_of_them.isdecimal()
        and max(map(len, texts)) < _DIGITS_WITHIN_INTEGER
    ):
        return list(map(int, texts))
    return [_parse_or_none(parse_integer, text, like) for text in texts]


def _parse_or_none(parse: Callable[..., _Number], *arguments: Any) -> _Number | None:
    try:
        return parse(*arguments)
    except ValueError:
        return None
