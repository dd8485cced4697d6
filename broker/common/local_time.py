"""local_time: converts a timestamp to this machine's time zone, for hours, dates and file names.

A clock can be set to years that a date cannot represent. Such a time becomes the last time that a
date can represent, so that nothing fails.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

_LATEST: Final = datetime.max.replace(tzinfo=timezone.utc) - timedelta(days=2)
"""A moment that a date can represent in every time zone."""


def local_time(now_ms: int) -> datetime:
    """Return a timestamp, in milliseconds since 1970, in local time."""
    seconds = min(now_ms / 1000, _LATEST.timestamp())
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone()


def format_local_time(at_ms: int) -> str:
    """Return a timestamp as date and time in local time."""
    return f"{local_time(at_ms):%Y-%m-%d %H:%M:%S}"
