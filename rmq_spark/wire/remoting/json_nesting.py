"""JSON nesting: checks the depth of a peer's JSON before it is parsed.

A recursive parser crashes the process when its stack overflows, as releases of orjson before 3.9.15
did at some ten thousand levels. No body of RocketMQ has more than six.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.errors import WireError
from rmq_spark.wire.remoting.framing import Buffer

LEVELS_MAX: Final = 32

_SMALL_BYTES: Final = 1_024
"""The size up to which no text is checked, because any stack has room for that many levels."""

_MARKS: Final = b'[]{}"'
_OTHER_BYTES: Final = bytes(set(range(256)) - set(_MARKS))
_BRACES_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")


def check_nesting(data: Buffer, subject: str, error: type[WireError]) -> None:
    """Raise an error if JSON has too many levels; other faults are left to the parser.

    Nearly all texts have too few brackets, or too few bytes, to have that many levels.
    """
    if len(data) <= _SMALL_BYTES:
        return
    text = bytes(data)
    if _has_many_brackets(text) and _levels(text) > LEVELS_MAX:
        raise error(subject, at="a value", needed=f"at most {LEVELS_MAX} levels", found=text[:60])


def _has_many_brackets(text: bytes) -> bool:
    """Return whether brackets suffice for too many levels, in a tenth of the time of counting."""
    count = 0
    for bracket in (b"{", b"["):
        at = text.find(bracket)
        while at >= 0 and count <= LEVELS_MAX:
            count += 1
            at = text.find(bracket, at + 1)
    return count > LEVELS_MAX


def _levels(text: bytes) -> int:
    """Return the number of levels, at most one above the maximum; meaningless if it is not JSON.

    Only brackets and quotes are kept, and then what lies between quotes is dropped: nearly always
    nothing, so that both quotes go at once. Each further pass removes the innermost pairs of
    brackets, which is one level.
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
