"""TaskBundles: pieces that one task reads, one after the other, where tasks are to be few.

    pieces     a0 ------  a1 --  a2 ---  b0 -  b1 -  b2 ------------
    maxPartitions=3
    bundles    (a0)       (a1, a2, b0, b1)             (b2)

A task costs Spark tens of milliseconds, whatever it reads: a thousand queues with a few messages
each are read by a handful of tasks instead. Neighbours stay together, so that a queue's pieces are
in order; each bundle has about as many rows as the others. Arithmetic only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Sized(Protocol):
    """A piece whose number of rows is known."""

    @property
    def row_count(self) -> int:
        """The number of its rows, at most."""


P = TypeVar("P", bound=Sized)


def bundled(pieces: Sequence[P], bundles_max: int | None) -> list[tuple[P, ...]]:
    """Return bundles of pieces, so many at most; without a maximum each piece is one.

    The same pieces give the same bundles.
    """
    if bundles_max is None or len(pieces) <= bundles_max:
        return [(piece,) for piece in pieces]
    total = sum(piece.row_count for piece in pieces)
    bundles: list[list[P]] = [[] for _ in range(bundles_max)]
    before = 0
    for piece in pieces:
        middle = 2 * before + piece.row_count  # of twice as many rows
        bundles[min(middle * bundles_max // (2 * total), bundles_max - 1)].append(piece)
        before += piece.row_count
    return [tuple(bundle) for bundle in bundles if bundle]
