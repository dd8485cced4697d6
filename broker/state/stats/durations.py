"""Durations: counts of how long something took, by the minute, in the cells that RocketMQ shows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

_LOWS_MS: Final = (
    0,
    1,
    2,
    3,
    5,
    10,
    20,
    30,
    50,
    100,
    200,
    300,
    500,
    1000,
    2000,
    3000,
    4000,
    5000,
    10000,
)
"""The start of each cell, which is the end of the one before."""

_CELLS_FROM_MS: Final[Mapping[int, str]] = {
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
    """The durations of one kind in the last full minute, or in the first so far."""

    def __init__(self) -> None:
        self._counts = self._last_minute = [0] * len(_LOWS_MS)
        self.max_ms = 0
        """The longest duration since the start, in milliseconds."""

    def add(self, took_ms: int, count: int = 1) -> None:
        """Count one event, or several that took as long."""
        self._counts[max(bisect_right(_LOWS_MS, took_ms) - 1, 0)] += count
        self.max_ms = max(self.max_ms, took_ms)

    def end_minute(self) -> None:
        """Show the counts since the last call, and begin at zero."""
        self._last_minute, self._counts = self._counts, [0] * len(_LOWS_MS)

    def cells(self) -> dict[str, int]:
        """Return the counts by the names of RocketMQ's cells, in their order."""
        cells = dict.fromkeys(_CELLS_FROM_MS.values(), 0)
        name = ""
        for low_ms, count in zip(_LOWS_MS, self._last_minute, strict=True):
            name = _CELLS_FROM_MS.get(low_ms, name)
            cells[name] += count
        return cells

    def within_ms(self, share: float) -> int:
        """Return the end, in milliseconds, of the cell by which this share of all was done."""
        wanted = share * sum(self._last_minute)
        done = 0
        for next_low_ms, count in zip(_LOWS_MS[1:], self._last_minute, strict=False):
            done += count
            if done >= wanted:
                return next_low_ms - 1
        return self.max_ms
