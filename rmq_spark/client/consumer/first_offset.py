"""FirstOffset: the offset to begin a queue at: the group's own, or else where it was told to begin.

An error is raised, never taken for "nothing stored": a group that has come far would begin again at
the start, or skip all.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from rmq_spark.client.consumer.offset_table import OffsetStore, ReadOffsetType
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX

_TO_THE_FIRST = frozenset(
    [ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET]
)


class QueueEnds(Protocol):
    """Answers questions about the offsets of a queue."""

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that is still kept."""

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at a time (ms since the epoch) or later."""


class FirstOffset(NamedTuple):
    """The rule of a group for queues in which it has no offset."""

    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int

    def of(self, queue: MessageQueue, store: OffsetStore, ends: QueueEnds) -> int:
        """Return the offset at which to begin a queue."""
        stored = store.read_offset(queue, ReadOffsetType.MEMORY_FIRST_THEN_STORE)
        return stored if stored is not None else self._without_any(queue, ends)

    def _without_any(self, queue: MessageQueue, ends: QueueEnds) -> int:
        if queue.topic.startswith(RETRY_PREFIX):
            # These are the group's own, and none of them may be passed over.
            return ends.min_offset(queue)
        if self.consume_from_where in _TO_THE_FIRST:
            return ends.min_offset(queue)
        if self.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            return ends.search_offset(queue, self.consume_timestamp_ms)
        return ends.max_offset(queue)
