"""Histogram: counts durations in buckets, since the start of the broker.

One thread adds, any thread reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper ends of the buckets, in seconds: from a fast flush to a disk that hangs."""


class Histogram:
    """Counts of durations in buckets that include their upper bounds; the last bucket has none."""

    __slots__ = ("_bounds", "_counts", "seconds")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0
        """The sum of all durations, in seconds."""

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.seconds += seconds

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bucket's bound with the number of durations up to it; infinity is last."""
        return zip((*self._bounds, float("inf")), accumulate(tuple(self._counts)), strict=True)
