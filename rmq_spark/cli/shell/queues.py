"""Queues as users name them, ``3`` or ``broker-a:3``, and where a place is in each of a topic."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.positions import PositionKind, TopicPosition
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.client.instance.instance import ClientInstance
    from rmq_spark.client.message import MessageExt
    from rmq_spark.client.reading.read_bounds import ReadRange

_QUEUE_FORM: Final = re.compile(r"(?:(?P<broker>[^:]+):)?(?P<number>[0-9]{1,9})")


class QueueName(NamedTuple):
    """The number of a queue, and the broker that it is on; None for all that have it."""

    broker_name: str | None
    queue_id: int

    def __str__(self) -> str:
        return str(self.queue_id) if self.broker_name is None else ":".join(map(str, self))

    def matches(self, queue: MessageQueue) -> bool:
        """Return whether this names a queue."""
        return queue.queue_id == self.queue_id and self.broker_name in (None, queue.broker_name)

    def require_match(self, queues: Collection[MessageQueue], topic: str) -> None:
        """Raise an error if no queue of a topic was meant.

        Raises:
            Failure: There was none.
        """
        if not queues:
            raise Failure(
                f"{topic} has no queue {self}: rocketpoll topic describe {topic} shows them"
            )


class QueueType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """Parses queues on the command line."""

    name = "queue"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> QueueName:
        """Return the queue that a text names."""
        found = _QUEUE_FORM.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is no queue: write 3, or broker-a:3", param, ctx)
        return QueueName(found["broker"], int(found["number"]))


QUEUE: Final = QueueType()


def resolve_ranges(
    instance: ClientInstance, topic: str, position: TopicPosition, name: QueueName | None
) -> list[ReadRange]:
    """Return what each queue of a topic holds from a place to its end; or of one queue alone.

    Relative places count from the ends: -10 before the end, +5 behind the start. None leads out of
    the queue.

    Raises:
        Failure: The topic has no queue of that name.
        RouteNotFound: There is no such topic.
    """
    from rmq_spark.client.reading.read_bounds import EARLIEST, LATEST, resolve_read_ranges  # noqa: PLC0415  # not for help

    kind, number = position
    start = number if kind is PositionKind.TIME else LATEST if kind is PositionKind.END else EARLIEST
    spans = resolve_read_ranges(instance, topic, start, LATEST)
    if name is not None:
        spans = [span for span in spans if name.matches(span.queue)]
        name.require_match([span.queue for span in spans], topic)
    if kind is PositionKind.BACKWARD:
        return [span._replace(start=max(span.end - number, span.start)) for span in spans]
    if kind is PositionKind.FORWARD:
        return [span._replace(start=min(span.start + number, span.end)) for span in spans]
    if kind is PositionKind.OFFSET:
        return [span._replace(start=min(max(number, span.start), span.end)) for span in spans]
    return spans


def store_order_key(message: MessageExt) -> tuple[int, int]:
    """Return what messages of several queues are sorted by: the time, then the place in the log."""
    return message.store_timestamp, message.commit_log_offset
