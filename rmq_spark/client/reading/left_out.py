"""Offsets that an answer leaves out, although nobody has asked for fewer.

The messages of a queue have successive offsets. Where a broker answers without some of them, they
are gone, or cannot be read there. Whether that is an error is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable


def left_out(offsets: Iterable[int], start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges between two offsets, the last exclusive, that have no offset of these.

    Args:
        offsets: Offsets of messages, in order.
        start: The offset that was asked for.
        end: The offset at which to go on.
    """
    found = []
    at = start
    for offset in (*offsets, end):
        if offset > at:
            found.append((at, offset))
        at = offset + 1
    return found
