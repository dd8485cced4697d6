"""local_time: a moment in this machine's time zone, as hours, dates and names of files are told.

A clock can be set to years that a date cannot tell: such a moment counts as the last that one can,
and nothing fails for it. Pure but for the zone of the machine.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

_LATEST: Final = datetime.max.replace(tzinfo=timezone.utc) - timedelta(days=2)
"""A moment that all time zones still have a date for."""


def local_time(now_ms: int) -> datetime:
    """Return a moment in local time, from milliseconds since 1970."""
    seconds = min(now_ms / 1000, _LATEST.timestamp())
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone()
