"""BrokerClock: the time of an embedded broker, which its owner can move forward.

The time of day and the monotonic clock move together, and otherwise run with the machine's. The
event loop (`embedded_loop`) makes timers follow, and `broker_thread` runs what falls due on the
way. The clock keeps its offset across restarts of the broker.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Final, NamedTuple

from rmq_spark.errors import excerpt

# ---- Clock offset.


class _OffsetChange(NamedTuple):
    since: float
    """The machine's time of day, in seconds since 1970."""
    seconds: float


class ClockOffset:
    """The lead of a broker's time over the machine's, which only grows.

    Past offsets matter for files, which the system stamps with the machine's time: to the broker, a
    file written before the last move is older than one written after it. One thread moves the time;
    any thread may read it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._changes = [_OffsetChange(float("-inf"), 0.0)]

    def advance(self, seconds: float) -> None:
        """Increase the lead."""
        since = max(time.time(), self._changes[-1].since)
        self._changes.append(_OffsetChange(since, self._changes[-1].seconds + seconds))
        self.seconds = self._changes[-1].seconds

    def now_ms(self) -> int:
        """Return the broker's time of day, in milliseconds since 1970."""
        return time.time_ns() // 1_000_000 + round(self.seconds * 1_000)

    def from_machine(self, seconds: float) -> float:
        """Return the broker's time of day for a machine's time of day, both since 1970."""
        return seconds + next(
            lead.seconds for lead in reversed(self._changes) if lead.since <= seconds
        )

    def to_machine(self, seconds: float) -> float:
        """Return the machine's time for a broker's time; within a jump, the time of the jump."""
        lead = next(
            each for each in reversed(self._changes) if each.since + each.seconds <= seconds
        )
        following = self._changes[self._changes.index(lead) + 1 :]
        return min(seconds - lead.seconds, *(each.since for each in following[:1]), float("inf"))


ADVANCE_MAX: Final = timedelta(days=366)
"""The longest move, because the clock stops at every hour of it."""

_EXAMPLE: Final = "clock.advance(timedelta(hours=1)), or clock.advance(3_600)"


class BrokerClock:
    """The clock of one embedded broker. It only goes forward.

    Example:
        broker.clock.advance(timedelta(hours=1))
    """

    def __init__(self, offset: ClockOffset, advance: Callable[[float], None]) -> None:
        """Store the offset, and a function that moves the time and returns when work is done."""
        self._offset = offset
        self._advance = advance
        self._lock = threading.Lock()

    @property
    def now(self) -> datetime:
        """The broker's time of day, in UTC."""
        return datetime.fromtimestamp(self.now_ms / 1_000, timezone.utc)

    @property
    def now_ms(self) -> int:
        """The broker's time of day in milliseconds since 1970, as in ``store_timestamp``."""
        return self._offset.now_ms()

    def advance(self, by: timedelta | float) -> None:
        """Move the time forward; return when the broker has done everything that fell due.

        Args:
            by: How far, as a timedelta or in seconds.

        Raises:
            EmbeddedBrokerError: The broker does not run, is paused, has a process of its own, or
                belongs to another process.
            NotInTime: The due work takes longer than a minute of the machine's time.
            TypeError: ``by`` is neither a timedelta nor a number.
            ValueError: ``by`` is negative, not finite, or longer than 366 days.
        """
        seconds = _seconds(by)
        with self._lock:
            self._advance(seconds)

    def __repr__(self) -> str:
        lead = timedelta(seconds=round(self._offset.seconds, 3))
        return f"<BrokerClock {self.now:%Y-%m-%d %H:%M:%S} UTC, {lead} ahead of the machine's>"


def _seconds(by: object) -> float:
    if isinstance(by, timedelta):
        seconds = by.total_seconds()
    elif isinstance(by, (int, float)) and not isinstance(by, bool):
        seconds = float(by)
    else:
        found = f"{type(by).__name__} {excerpt(by)}"
        raise TypeError(
            f"by: needed a timedelta or a number of seconds, found {found}; for example: {_EXAMPLE}"
        )
    shown = f"{seconds:g} seconds" if isinstance(by, timedelta) else excerpt(by)
    if seconds < 0:
        raise ValueError(
            f"by: the clock of a broker only goes forward, found {shown}: what has been "
            "delivered or deleted does not come back. For an earlier time, start another broker"
        )
    if not math.isfinite(seconds) or seconds > ADVANCE_MAX.total_seconds():
        raise ValueError(
            f"by: needed at most {ADVANCE_MAX.days} days, found {shown}: the clock stops at "
            "every hour of a move; move it several times"
        )
    return seconds
