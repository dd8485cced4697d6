"""Lag: the number of messages that a reader of a queue has yet to read.

`messages_behind` computes it for every reader: consumer groups here, in the command line and in the
exporter, and Spark queries in `rmq_spark.spark.lag` and ``rocketpoll checkpoint --lag``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rmq_spark.wire.message_queue import MessageQueue


def messages_behind(end_offset: int, next_offset: int | None) -> int:
    """Return the lag of a reader in one queue, in messages.

    ``next_offset`` is None if the reader has read nothing, and past the end if the queue has lost
    messages since.
    """
    return max(end_offset - (next_offset or 0), 0)


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
        return messages_behind(self.broker_offset, self.consumer_offset)


def total_lag(lags: Iterable[Lag]) -> int:
    """Return the lag of a group in several queues together, in messages."""
    return sum(lag.messages for lag in lags)
