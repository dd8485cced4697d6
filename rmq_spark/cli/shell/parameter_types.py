"""Parameter types: positions in a topic as users write them, queues, and numbers.

    start, end        the first message in a queue; the end of the queue
    -10, +5           relative: the command says to what
    42                an offset
    -1h, 09:00, 2026-11-23T09:00, 2026-11-23T09:00Z, @1795424400000   a store time

Times without a zone are in this machine's.
"""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.times import duration_ms, time_in_ms
from rmq_spark.errors import nearest_name
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.client.instance.instance import ClientInstance
    from rmq_spark.client.message import MessageExt
    from rmq_spark.client.reading.read_bounds import ReadRange


# ---- Numbers on the command line: rates and times, finite and within what clocks accept.

_SECONDS_MAX: Final = 1e9
"""The largest number: thirty years in seconds."""


class PositiveFloat(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """Parses a number above 0, or of at least ``minimum``."""

    name = "number"

    def __init__(self, minimum: float = 0.0, maximum: float = _SECONDS_MAX) -> None:
        self._minimum, self._maximum = minimum, maximum

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number in a text."""
        least = f"at least {self._minimum:g}" if self._minimum else "above 0"
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not (number > 0 and self._minimum <= number <= self._maximum):  # NaN fails as well
            self.fail(f"{value} is not {least} and at most {self._maximum:,.0f}", param, ctx)
        return number


_Item = TypeVar("_Item")


def rate_limited(
    items: Iterable[_Item], rate: float | None, size: Callable[[_Item], int] = lambda _: 1
) -> Iterator[_Item]:
    """Yield items, at most ``rate`` a second; ``size`` returns how many an item counts for."""
    started, count = time.monotonic(), 0
    for item in items:
        if rate is not None:
            time.sleep(max(started + count / rate - time.monotonic(), 0))
        count += size(item)
        yield item


def is_pattern(name: str) -> bool:
    """Return whether a text is a pattern, which has characters that no topic or group has."""
    return any(each in name for each in "*?[")


def select_names(known: Iterable[str], patterns: Sequence[str], noun: str) -> list[str]:
    """Return the names that any of the patterns matches, in order, and all without a pattern.

    A pattern that matches none is a failure; ``noun`` is the command that lists the names.
    """
    names = sorted(known)
    chosen: set[str] = set()
    for pattern in patterns:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            near = None if is_pattern(pattern) else nearest_name(pattern, names)
            hint = f"Did you mean {near}? " if near else ""
            raise Failure(
                f"no {noun} matches {pattern}", f"{hint}List all with rocketpoll {noun} list"
            )
        chosen.update(matches)
    return [name for name in names if name in chosen] if patterns else names


def parse_pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Return the values of an option that is ``NAME=VALUE``, by name."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.UsageError(f"{option} {text} has no name or no =. Write NAME=VALUE")
        pairs[name] = value
    return pairs


_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,6})?)?")
_MS_DIGITS: Final = 13
_TIME_FORMS: Final = (
    "-1h, 09:00, 2026-11-23T09:00, 2026-11-23T09:00Z or @1795424400000 (milliseconds)"
)


class PositionKind(Enum):
    """The forms in which users write positions."""

    START = "start"
    END = "end"
    BACKWARD = "-"
    FORWARD = "+"
    OFFSET = "offset"
    TIME = "@"


_WORDS: Final = {
    "start": PositionKind.START,
    "earliest": PositionKind.START,
    "end": PositionKind.END,
    "latest": PositionKind.END,
}


class TopicPosition(NamedTuple):
    """A position in a topic; ``number`` is a count of messages, an offset or a time in ms."""

    kind: PositionKind
    number: int = 0


def parse_position(text: str) -> TopicPosition:
    """Return the position in a text; the type of an option."""
    text = text.strip()
    if text.lower() in _WORDS:
        return TopicPosition(_WORDS[text.lower()])
    if re.fullmatch(rf"[0-9]{{{_MS_DIGITS},18}}", text):
        raise click.BadParameter(
            f"{text} is not an offset that a queue can have. For a time write @{text}"
        )
    if re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        signs = {"-": PositionKind.BACKWARD, "+": PositionKind.FORWARD}
        return TopicPosition(signs.get(text[0], PositionKind.OFFSET), int(text.lstrip("+-")))
    if re.match(r"@|-?[0-9]", text):
        try:
            at = parse_time_ms(text.removeprefix("@"), time.time())
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        return TopicPosition(PositionKind.TIME, at)
    raise click.BadParameter(
        f"{text!r} is not a position. Write start (or earliest), end (or latest), -10, +10, 42, or "
        f"a time: {_TIME_FORMS}"
    )


def parse_time_ms(text: str, now: float) -> int:
    """Return the time in a text, in ms since the epoch; ``now`` is in seconds."""
    text = text.strip()
    ago = duration_ms(text[1:]) if text.startswith("-") and text[-1].isalpha() else None
    if ago is not None:
        return _check_epoch(text, int(now * 1_000) - ago)
    if text.isascii() and text.isdigit():
        if len(text) != _MS_DIGITS:
            raise ValueError(
                f"{text} is not a time in milliseconds since 1970. Write {_MS_DIGITS} digits"
            )
        return int(text)
    found = parse_clock_or_day_ms(text, now)
    if found > now * 1_000:
        is_clock = _CLOCK.fullmatch(text) is not None
        remedy = "Add a date to mean another day, for example 2026-11-23T18:00"
        raise ValueError(
            f"{text} is in the future. {remedy if is_clock else 'Give a time that is over'}"
        )
    return _check_epoch(text, found)


def parse_clock_or_day_ms(text: str, now: float) -> int:
    """Return a time of today or of a named day in ms since the epoch; it may be in the future."""
    day_and_time = text
    if _CLOCK.fullmatch(text):
        hour, minutes = text.split(":", 1)
        day_and_time = f"{datetime.fromtimestamp(now).astimezone().date()}T{hour:0>2}:{minutes}"
    found = time_in_ms(day_and_time, is_local=True)
    if found is None:
        raise ValueError(f"{text} is not a time. Write {_TIME_FORMS}")
    return found


def _check_epoch(text: str, found: int) -> int:
    if found < 0:
        raise ValueError(f"{text} is before 1970")
    return found


# ---- Queues as users name them, ``3`` or ``broker-a:3``, and where a position is in each queue of
# a topic.

_QUEUE_FORM: Final = re.compile(r"(?:(?P<broker>[^:]+):)?(?P<number>[0-9]{1,9})")


class QueueName(NamedTuple):
    """The number of a queue, and its broker; None for all brokers that have it."""

    broker_name: str | None
    queue_id: int

    def __str__(self) -> str:
        return str(self.queue_id) if self.broker_name is None else ":".join(map(str, self))

    def matches(self, queue: MessageQueue) -> bool:
        """Return whether this names a queue."""
        return queue.queue_id == self.queue_id and self.broker_name in (None, queue.broker_name)

    def require_match(self, queues: Collection[MessageQueue], topic: str) -> None:
        """Raise an error if no queue of a topic matched."""
        if not queues:
            raise Failure(
                f"{topic} has no queue {self}", f"List them with rocketpoll topic describe {topic}"
            )


def parse_queue(text: str) -> QueueName:
    """Return the queue that a text names; the type of an option."""
    found = _QUEUE_FORM.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a queue. Write 3, or broker-a:3")
    return QueueName(found["broker"], int(found["number"]))


def resolve_ranges(
    instance: ClientInstance,
    topic: str,
    position: TopicPosition,
    name: QueueName | None,
    end: TopicPosition | None = None,
) -> list[ReadRange]:
    """Return the range of each queue of a topic, or of one queue, from a position to ``end``.

    Without ``end``, ranges reach to the end of the queue, which they never exceed. Relative
    positions count from the ends: -10 before the end, +5 after the start.
    """
    ranges = _ranges_from(instance, topic, position, name)
    if end is None or end.kind is PositionKind.END:
        return ranges
    ends = {bounds.queue: bounds.start for bounds in _ranges_from(instance, topic, end, name)}
    bounded = [bounds._replace(end=min(bounds.end, ends.get(bounds.queue, 0))) for bounds in ranges]
    return [bounds for bounds in bounded if bounds.start < bounds.end]


def _ranges_from(
    instance: ClientInstance, topic: str, position: TopicPosition, name: QueueName | None
) -> list[ReadRange]:
    from rmq_spark.client.reading.read_bounds import resolve_read_ranges  # noqa: PLC0415  # --help does not need it
    from rmq_spark.client.times import EARLIEST, LATEST  # noqa: PLC0415  # --help does not need it

    kind, number = position
    start = (
        number if kind is PositionKind.TIME else LATEST if kind is PositionKind.END else EARLIEST
    )
    ranges = resolve_read_ranges(instance, topic, start, LATEST)
    if name is not None:
        ranges = [bounds for bounds in ranges if name.matches(bounds.queue)]
        name.require_match([bounds.queue for bounds in ranges], topic)
    if kind is PositionKind.BACKWARD:
        return [bounds._replace(start=max(bounds.end - number, bounds.start)) for bounds in ranges]
    if kind is PositionKind.FORWARD:
        return [bounds._replace(start=min(bounds.start + number, bounds.end)) for bounds in ranges]
    if kind is PositionKind.OFFSET:
        return [
            bounds._replace(start=min(max(number, bounds.start), bounds.end)) for bounds in ranges
        ]
    return ranges


def store_order_key(message: MessageExt) -> tuple[int, int]:
    """Return the sort key for messages of several queues: the time, then the physical offset."""
    return message.store_timestamp, message.commit_log_offset
