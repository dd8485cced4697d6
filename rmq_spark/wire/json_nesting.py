"""The depth of a peer's JSON, checked before it is parsed.

A parser that recurses ends the process where its stack ends, as releases of orjson before 3.9.15
did at some ten thousand levels. No body of RocketMQ's has more than six.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.errors import WireError
from rmq_spark.wire.framing import Buffer

LEVELS_MAX: Final = 32

_SMALL_BYTES: Final = 1_024
"""The size up to which no text is checked: any stack has room for as many levels as bytes."""

_MARKS: Final = b'[]{}"'
_OTHER_BYTES: Final = bytes(set(range(256)) - set(_MARKS))
_BRACES_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")


def check_nesting(data: Buffer, subject: str, error: type[WireError]) -> None:
    """Raise an error if JSON has too many levels; other faults are left to the parser.

    Nearly all texts have too few brackets for that, or few enough bytes.
    """
    if len(data) <= _SMALL_BYTES:
        return
    text = bytes(data)
    if _has_many_brackets(text) and _levels(text) > LEVELS_MAX:
        raise error(subject, at="a value", needed=f"at most {LEVELS_MAX} levels", found=text[:60])


def _has_many_brackets(text: bytes) -> bool:
    """Return whether there are enough brackets, in a tenth of the time of counting them."""
    count = 0
    for bracket in (b"{", b"["):
        at = text.find(bracket)
        while at >= 0 and count <= LEVELS_MAX:
            count += 1
            at = text.find(bracket, at + 1)
    return count > LEVELS_MAX


def _levels(text: bytes) -> int:
    """Return the number of levels, or one that is over the maximum; of what is no JSON, any.

    Only brackets and quotes are kept. What lies between quotes does not count; nearly always that
    is nothing, so that both go together. Then the innermost pairs of brackets, of one kind by now,
    are taken away again and again: a level each time.
    """
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = text.translate(_BRACES_AS_BRACKETS, _OTHER_BYTES).replace(b'""', b"")
    brackets = b"".join(marks.split(b'"')[::2])
    for level in range(LEVELS_MAX):
        rest = brackets.replace(b"[]", b"")
        if len(rest) == len(brackets):
            return level + rest.count(b"[")
        brackets = rest
    return LEVELS_MAX + brackets.count(b"[")
