"""ClockOffset: how far a broker's time is ahead of the machine's, now and at all earlier times.

The past matters for files: the system stamps them by the machine's time, and a file that was
written before the last move is older for the broker than one that was written after it. Thread
safe: one thread moves, others read.
"""

from __future__ import annotations

import time
from typing import NamedTuple


class _OffsetChange(NamedTuple):
    since: float
    """The machine's time of day, in seconds since 1970."""
    seconds: float


class ClockOffset:
    """The lead of a broker's time over the machine's. It only grows."""

    def __init__(self) -> None:
        """Start with the machine's time."""
        self.seconds = 0.0
        """The lead now, in seconds."""
        self._changes = [_OffsetChange(float("-inf"), 0.0)]

    def advance(self, seconds: float) -> None:
        """Increase the lead from now on."""
        since = max(time.time(), self._changes[-1].since)
        self._changes.append(_OffsetChange(since, self._changes[-1].seconds + seconds))
        self.seconds = self._changes[-1].seconds

    def now_ms(self) -> int:
        """Return the broker's time of day, in milliseconds since 1970."""
        return time.time_ns() // 1_000_000 + round(self.seconds * 1_000)

    def from_machine(self, seconds: float) -> float:
        """Return the broker's time of day at a time of day of the machine, both since 1970."""
        return seconds + next(
            lead.seconds for lead in reversed(self._changes) if lead.since <= seconds
        )

    def to_machine(self, seconds: float) -> float:
        """Return the machine's time of day at one of the broker's; in a jump, that of the jump."""
        lead = next(
            each for each in reversed(self._changes) if each.since + each.seconds <= seconds
        )
        following = self._changes[self._changes.index(lead) + 1 :]
        return min(seconds - lead.seconds, *(each.since for each in following[:1]), float("inf"))
