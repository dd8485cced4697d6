"""Durations: how often something took how long, by the minute, in the cells that RocketMQ shows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

_LOWS_MS: Final = (0, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 4000, 5000, 10000)
"""Where each cell begins; it ends before the next."""

_SHOWN_FROM_MS: Final[Mapping[int, str]] = {
    0: "<=0ms",
    1: "0~10ms",
    10: "10~50ms",
    50: "50~100ms",
    100: "100~200ms",
    200: "200~500ms",
    500: "500ms~1s",
    1000: "1~2s",
    2000: "2~3s",
    3000: "3~4s",
    4000: "4~5s",
    5000: "5~10s",
    10000: "10s~",
}
"""RocketMQ's cells, which are larger, under its own names."""


class Durations:
    """All of one kind in the last minute that is over; in the first minute, those so far."""

    def __init__(self) -> None:
        self._counts = self._shown = [0] * len(_LOWS_MS)
        self.max_ms = 0
        """Since the start."""

    def add(self, took_ms: int, count: int = 1) -> None:
        """Count one more, or several that took as long."""
        self._counts[max(bisect_right(_LOWS_MS, took_ms) - 1, 0)] += count
        self.max_ms = max(self.max_ms, took_ms)

    def end_minute(self) -> None:
        """Show those since the last call, and begin to count anew."""
        self._shown, self._counts = self._counts, [0] * len(_LOWS_MS)

    def cells(self) -> dict[str, int]:
        """Return how many took how long, by the names of RocketMQ's cells, in their order."""
        cells = dict.fromkeys(_SHOWN_FROM_MS.values(), 0)
        name = ""
        for low_ms, count in zip(_LOWS_MS, self._shown, strict=True):
            name = _SHOWN_FROM_MS.get(low_ms, name)
            cells[name] += count
        return cells

    def within_ms(self, share: float) -> int:
        """Return within how many milliseconds this share of all was done: the end of a cell."""
        wanted = share * sum(self._shown)
        done = 0
        for next_low_ms, count in zip(_LOWS_MS[1:], self._shown, strict=False):
            done += count
            if done >= wanted:
                return next_low_ms - 1
        return self.max_ms
