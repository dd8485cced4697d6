"""Times: the texts in which users write durations, times, and where a read begins or ends.

    duration         500, 500ms, 15m, 10 minutes, 1h30m
    time             2026-01-31, 2026-01-31T12:00:00Z, 2026-01-31 12:00:00.5+01:00
    start, end       earliest, latest, a time, or a duration before now: -1h

The Spark options, the command line, the console, tables and consumers parse their texts here, and
so take the same forms.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from typing import Final, TypeAlias

from rmq_spark.client.arguments import LIKELY_SECONDS, check_kind, check_timestamp_ms
from rmq_spark.client.errors import MessageRejected

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Start: TypeAlias = "str | int | datetime"
"""The start of a read in every queue: a word or a time, as text, a datetime, or milliseconds."""

_UNITS: Final = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "w": 604_800_000,
    "week": 604_800_000,
}
"""Milliseconds of each unit; a text may also have the plural."""
_DURATION: Final = re.compile(r"[0-9]{1,18}\s*[a-z]*|(?:[0-9]{1,18}\s*[a-z]+\s*)+")
_DURATION_PART: Final = re.compile(r"([0-9]+)\s*([a-z]*)")
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[Tt ](\d\d(?::\d\d(?::\d\d(?:[.,]\d+)?)?)?)\s*([Zz]|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
"""An ISO time. Its date needs hyphens, because 20260131 may also be a number such as an offset."""
_MICROS_CHARS: Final = len("12:00:00.123456")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS: Final = timedelta(milliseconds=1)
_DATETIME: Final = "datetime(2026, 1, 31, 12, tzinfo=timezone.utc)"
START_FORMS: Final = (
    '"earliest", "latest", a time such as "2026-01-31T12:00:00Z", "-1h" (an hour ago), a datetime '
    "with a time zone, or milliseconds since 1970"
)


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of a duration, or None if the text is not a duration."""
    text = text.strip().lower()
    if _DURATION.fullmatch(text) is None:
        return None
    total = 0
    for number, unit in _DURATION_PART.findall(text):
        factor = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s") or "?")
        if factor is None:
            return None
        total += int(number) * factor
    return total


def time_in_ms(text: str, *, is_local: bool = False) -> int | None:
    """Return an ISO time as ms since 1970, or None if it is not one.

    Without a zone, the time is in UTC, or with ``is_local`` in this machine's zone. All Python
    versions give the same result: digits beyond microseconds are ignored.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    day, clock, zone = match.groups()
    clock = (clock or "00:00").replace(",", ".")
    if "." in clock:
        clock = clock[:_MICROS_CHARS].ljust(_MICROS_CHARS, "0")
    offset = "" if zone is None and is_local else _zone_offset(zone)
    try:
        return round(datetime.fromisoformat(f"{day}T{clock}{offset}").timestamp() * 1000)
    except (ValueError, OverflowError, OSError):  # there is no such day, hour or zone
        return None


def iso_text(timestamp_ms: int) -> str:
    """Return milliseconds since 1970 as an ISO time in UTC, or as a number past the year 9999."""
    try:
        when = _EPOCH + timestamp_ms * _MS
    except OverflowError:
        return f"{timestamp_ms} ms"
    return f"{when.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _zone_offset(zone: str | None) -> str:
    """Return a zone in the form that Python 3.10 parses."""
    if zone is None or zone in "Zz":
        return "+00:00"
    sign, digits = zone[0], zone[1:].replace(":", "").ljust(4, "0")
    return f"{sign}{digits[:2]}:{digits[2:]}"


def normalize_time(name: str, when: datetime | str) -> int:
    """Return a time as milliseconds since 1970; a part of a millisecond counts as a whole one.

    Raises:
        MessageRejected: It has no time zone, is not a time, or is before 1970.
    """
    needed = f'a time such as "2026-01-31T12:00:00Z", or {_DATETIME}'
    if isinstance(when, str):
        found = time_in_ms(when)
    elif when.utcoffset() is None:
        zoned = f"a datetime with a time zone, for example {_DATETIME}"
        raise MessageRejected(name, zoned, str(when))
    else:
        found = -((_EPOCH - when) // _MS)
    if found is None or found < 0:
        raise MessageRejected(name, needed, str(when))
    return found


def normalize_duration(name: str, duration: timedelta | str) -> int:
    """Return a duration as milliseconds; a part of a millisecond counts as a whole one.

    Raises:
        MessageRejected: It is not a duration, or is negative.
    """
    if isinstance(duration, str):
        found = None if duration.strip().isdigit() else duration_ms(duration)
    else:
        found = -(-duration // _MS)
    if found is None or found < 0:
        needed = 'a timedelta, or a duration with its unit, such as "90s" or "1h30m"'
        raise MessageRejected(name, needed, str(duration))
    return found


def normalize_start(name: str, start: Start, forms: str = START_FORMS) -> str | int:
    """Return a start or an end as EARLIEST, LATEST or milliseconds since 1970.

    Raises:
        MessageRejected: It has none of these ``forms``, or is before 1970.
        TypeError: It has another type.
    """
    check_kind(name, start, (str, int, datetime), forms, f"'-1h' or {_DATETIME}")
    if isinstance(start, datetime):
        if start.utcoffset() is None:
            needed = f"a datetime with a time zone, for example {_DATETIME}"
            raise MessageRejected(name, needed, str(start))
        return int((start - _EPOCH) // _MS)
    if not isinstance(start, str):
        timestamp_ms = check_timestamp_ms(name, start)
        if 0 < timestamp_ms < LIKELY_SECONDS.start:
            needed = "milliseconds since 1970: if this is an offset, write {queue: offset}"
            raise MessageRejected(name, needed, timestamp_ms)
        return timestamp_ms
    word = start.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    found = time_in_ms(word)
    ago = duration_ms(word[1:]) if word.startswith("-") and word[-1].isalpha() else None
    if ago is not None:
        found = time.time_ns() // 1_000_000 - ago
    if found is None or found < 0:
        raise MessageRejected(name, forms, start)
    return found
