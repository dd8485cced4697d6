"""GroupProgress: how far brokers believe that a query's consumer group has come.

For observers only: lag in dashboards and tools. A query goes on where its checkpoint says, and a
broker that cannot be told does not stop it: it is told again after a second. This module knows
nothing of batches: whoever has written one says where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rmq_spark.spark.queues import Queues
from rmq_spark.spark.source_offset import SourceOffset
from rmq_spark.wire.message_queue import MessageQueue

_AGAIN_SECONDS: Final = 1.0
"""Seconds until a broker that could not be told of an offset is told of it again."""


class GroupProgress:
    """The progress of one query's group, as far as brokers were told; for use by one thread."""

    def __init__(self, group: str | None, queues: Queues, clock: Callable[[], float]) -> None:
        """Take the name of the group, None if there is none, and a clock that gives seconds."""
        self._group = group
        self._queues = queues
        self._clock = clock
        self._told: Mapping[MessageQueue, int] = {}
        self._untold: Mapping[MessageQueue, int] = {}
        self._again_at = clock()

    def tell(self, reached: SourceOffset) -> None:
        """Tell brokers that everything before an offset has been written."""
        if self._group is None:
            return
        offsets = {queue: position.next_offset for queue, position in reached.positions.items()}
        news = {queue: each for queue, each in offsets.items() if self._told.get(queue) != each}
        if not news or (news == self._untold and self._clock() < self._again_at):
            return
        told = self._queues.commit(self._group, news)
        self._told = {**self._told, **told}
        self._untold = {queue: each for queue, each in news.items() if queue not in told}
        self._again_at = self._clock() + _AGAIN_SECONDS
