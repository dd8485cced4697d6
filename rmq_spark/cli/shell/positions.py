"""Places in a topic, as users write them: where to begin reading, where a group is to go on.

    start, end        the first message that a queue holds; behind its last
    -10, +5           relative: what to, the command says
    42                an offset
    @-1h, @09:00, @2026-11-23T09:00, @2026-11-23T09:00Z, @1795424400000   a time of storing

Times without a zone are this machine's. This module must not know brokers.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, NamedTuple

import click

_UNITS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_RELATIVE_TIME: Final = re.compile(r"-((?:\d+(?:ms|[smhdw]))+)")
_DURATION_PART: Final = re.compile(r"(\d+)(ms|[smhdw])")
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,6})?)?")
_MS_DIGITS: Final = 13
_TIME_FORMS: Final = (
    "@-1h, @09:00, @2026-11-23T09:00, @2026-11-23T09:00Z or milliseconds, @1795424400000"
)


class PositionKind(Enum):
    """The kinds of places."""

    START = "start"
    END = "end"
    BACKWARD = "-"
    FORWARD = "+"
    OFFSET = "offset"
    TIME = "@"


class TopicPosition(NamedTuple):
    """A place in a topic; ``number`` is a count of messages, an offset or a time in ms."""

    kind: PositionKind
    number: int = 0


class PositionType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """Parses places on the command line."""

    name = "place"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> TopicPosition:
        """Return the place that a text means."""
        if isinstance(value, TopicPosition):
            return value
        text = str(value).strip()
        if text in (PositionKind.START.value, PositionKind.END.value):
            return TopicPosition(PositionKind(text))
        if text.startswith("@"):
            try:
                return TopicPosition(PositionKind.TIME, parse_time_ms(text[1:], time.time()))
            except ValueError as error:
                self.fail(str(error), param, ctx)
        if re.fullmatch(r"[-+]?[0-9]{1,18}", text):
            signs = {"-": PositionKind.BACKWARD, "+": PositionKind.FORWARD}
            return TopicPosition(signs.get(text[0], PositionKind.OFFSET), int(text.lstrip("+-")))
        return self.fail(f"{text!r} is none of start, end, -10, +10, 42 and {_TIME_FORMS}", param, ctx)


POSITION: Final = PositionType()


def parse_time_ms(text: str, now: float) -> int:
    """Return the time that a text means, in ms since the epoch; ``now`` is in seconds.

    Raises:
        ValueError: The text means no time, or one that is still to come.
    """
    text = text.strip()
    ago = _RELATIVE_TIME.fullmatch(text)
    if ago:
        parts = _DURATION_PART.findall(ago[1])
        found = int(now * 1_000) - sum(int(count) * _UNITS[unit] for count, unit in parts)
        if found < 0:
            raise ValueError(f"@{text} is before 1970")
        return found
    if text.isascii() and text.isdigit():
        if len(text) != _MS_DIGITS:
            raise ValueError(f"@{text} needs {_MS_DIGITS} digits, milliseconds since 1970")
        return int(text)
    try:
        moment = (
            _today_at(text, now)
            if _CLOCK.fullmatch(text)
            else datetime.fromisoformat(_with_utc_offset(text))
        )
        found = int(moment.timestamp() * 1_000)  # one without a zone is this machine's
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"@{text} is no time: write {_TIME_FORMS}") from None
    if found > now * 1_000:
        raise ValueError(f"@{text} is still to come; with a date it could be another day's")
    if found < 0:
        raise ValueError(f"@{text} is before 1970")
    return found


def _today_at(text: str, now: float) -> datetime:
    today = datetime.fromtimestamp(now).astimezone().replace(tzinfo=None)
    hours, minutes, *seconds = text.split(":")
    at = today.replace(hour=int(hours), minute=int(minutes), second=0, microsecond=0)
    return at + timedelta(seconds=float(seconds[0]) if seconds else 0)


def _with_utc_offset(text: str) -> str:
    """Return a text in the form that Python 3.10 reads, which knows no Z."""
    return re.sub(r"[zZ]$", "+00:00", text)
