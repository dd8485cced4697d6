"""The demo's rate: lowered, and said so, where the machine does not send or read as quickly.

A stream that falls behind for as long as it is watched shows nothing but its backlog. This knows no
clock and no thread: times come as arguments.
"""

from __future__ import annotations

from typing import Final

_ADJUST_SECONDS: Final = 3.0
"""The time between two looks: a batch or two."""
_BACKLOG_SECONDS_MAX: Final = 3.0
"""A backlog of so many seconds is usual while a batch runs and the next one gathers."""
_CATCH_UP_RATIO: Final = 0.7
"""The share of what was read in a second that is sent from then on: the rest is to catch up. Who
sends less than this share of the rate does not keep up with it."""
_RATE_MIN: Final = 200


class AdaptiveRate:
    """The messages to send in a second."""

    def __init__(self, rate: int, now: float) -> None:
        """Begin with a rate that was asked for, at a moment on the program's clock."""
        self.requested = self.rate = rate
        self._adjusted_at = now
        self._sent = self._read = 0

    def adjust(self, now: float, sent: int, read: int) -> bool:
        """Take what was sent and read so far; return whether the rate was lowered."""
        seconds = now - self._adjusted_at
        if seconds < _ADJUST_SECONDS:
            return False
        behind, behind_before = sent - read, self._sent - self._read
        read_per_second = (read - self._read) / seconds
        sent_per_second = (sent - self._sent) / seconds
        self._adjusted_at, self._sent, self._read = now, sent, read
        if sent_per_second < self.rate * _CATCH_UP_RATIO:
            return self._lower(int(sent_per_second))
        if behind <= behind_before or behind <= self.rate * _BACKLOG_SECONDS_MAX:
            return False
        return self._lower(max(int(min(read_per_second, self.rate) * _CATCH_UP_RATIO), self.rate // 4))

    def _lower(self, rate: int) -> bool:
        before, self.rate = self.rate, min(max(rate, _RATE_MIN), self.rate)
        return self.rate < before
