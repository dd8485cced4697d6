"""Durations: how often something took how long, in cells, as RocketMQ shows it."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_MS: Final = (0, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10000)
"""Upper bounds of the cells; the last cell has none."""


class Durations:
    """All of one kind since the start."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self.max_ms = 0

    def add(self, took_ms: int, count: int = 1) -> None:
        """Count one more, or several that took as long."""
        self._counts[bisect_left(BOUNDS_MS, took_ms)] += count
        self.max_ms = max(self.max_ms, took_ms)

    def cells(self) -> tuple[tuple[str, int], ...]:
        """How many took how long."""
        lows = ("", *(f"{bound}~" for bound in BOUNDS_MS))
        highs = (*(f"{bound}ms" for bound in BOUNDS_MS), "")
        names = (low + high for low, high in zip(lows, highs, strict=True))
        return tuple(zip(names, self._counts, strict=True))

    def within_ms(self, share: float) -> int:
        """Within how many milliseconds this share of all was done; a cell's upper bound."""
        wanted = share * sum(self._counts)
        done = 0
        for bound, count in zip(BOUNDS_MS, self._counts, strict=False):
            done += count
            if done >= wanted:
                return bound
        return self.max_ms
