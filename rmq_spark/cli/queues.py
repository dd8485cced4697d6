"""Queues as users name them: ``3`` on whichever broker, or ``broker-a:3``."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple

import click

from rmq_spark.cli.failures import Failure
from rmq_spark.wire.message_queue import MessageQueue

_FORM: Final = re.compile(r"(?:(?P<broker>[^:]+):)?(?P<number>[0-9]{1,9})")


class QueueName(NamedTuple):
    """The number of a queue, and the broker that it is on; None for all that have it."""

    broker_name: str | None
    queue_id: int

    def __str__(self) -> str:
        return str(self.queue_id) if self.broker_name is None else ":".join(map(str, self))

    def means(self, queue: MessageQueue) -> bool:
        """Return whether this names a queue."""
        return queue.queue_id == self.queue_id and self.broker_name in (None, queue.broker_name)

    def check_found(self, found: Collection[MessageQueue], topic: str) -> None:
        """Raise an error if no queue of a topic was meant.

        Raises:
            Failure: There was none.
        """
        if not found:
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
        found = _FORM.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is no queue: write 3, or broker-a:3", param, ctx)
        return QueueName(found["broker"], int(found["number"]))


QUEUE: Final = QueueType()
