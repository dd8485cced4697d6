"""Lag: how many messages of one queue a consumer group still has to consume.

`group_offsets` computes it.
"""

from __future__ import annotations

from typing import NamedTuple

from rmq_spark.wire.message_queue import MessageQueue


class Lag(NamedTuple):
    """Progress of a consumer group in one queue.

    Attributes:
        queue: The queue.
        broker_offset: Offset past the last message of the queue.
        consumer_offset: Offset at which the group resumes; None if it has committed nothing.
        last_timestamp: Milliseconds since the epoch at which the last consumed message was stored,
            or 0 if the broker does not say.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int | None
    last_timestamp: int

    @property
    def messages(self) -> int:
        """Number of messages still to be consumed; all of the queue's, if nothing was committed."""
        return max(self.broker_offset - (self.consumer_offset or 0), 0)
