"""FoundEnds: the least end that a queue must have before anybody is told where it ends.

A start finds messages that are still to be carried to consume queues, and where queues have ended.
What is lacking, such as room, may keep it from both for a while. Until then a queue ends too early,
and whoever was told so would begin again, or skip, or take it for cut: it is refused instead, and
asked for again later. What the queues hold and how a message comes to them is not known here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final

from rmq_spark.wire.message_queue import QueueKey
from rocketpoll.broker.store.errors import EndUnknown
from rocketpoll.broker.store.offsets import FIRST_IN_QUEUE, PhysicalOffset, QueueOffset

_UNKNOWN: Final = QueueOffset(sys.maxsize)


class FoundEnds:
    """The findings of one start; none before it has looked, and none when it is finished."""

    def __init__(self, reput_from_offset: Callable[[], PhysicalOffset]) -> None:
        """Take a function that returns up to where the log has been carried to its queues."""
        self._reput_from_offset = reput_from_offset
        self._end_offset: PhysicalOffset | None = None
        self._ends: Mapping[QueueKey, QueueOffset] = {}

    def begin(self, end_offset: PhysicalOffset, ends: Mapping[QueueKey, QueueOffset]) -> None:
        """Note the end of the log, and ends of queues, that were found."""
        self._ends = ends
        self._end_offset = end_offset

    def finish(self) -> None:
        """Note that all queues end where they should."""
        self._end_offset = None
        self._ends = {}

    def least_end(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the least end that may be told of a queue; ask before the queue is looked at."""
        end_offset = self._end_offset
        if end_offset is None:
            return FIRST_IN_QUEUE
        if self._reput_from_offset() < end_offset:
            return _UNKNOWN
        return self._ends.get((topic, queue_id), FIRST_IN_QUEUE)


def end_unknown(topic: str, queue_id: int, hindrance: str | None) -> EndUnknown:
    """Return the refusal of a question about the end of a queue, with what is in the way."""
    return EndUnknown(
        f"where queue {queue_id} of {topic} ends is not known yet, as messages that the start has "
        f"found are not in their consume queues: {hindrance or 'they are just being carried there'}"
    )
