"""MessageQueue: one queue of one topic on one broker, to which offsets belong.

QueueKey names a queue if there is only one broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rmq_spark.wire.names import LIGHT_QUEUE_PREFIX

QueueKey: TypeAlias = tuple[str, int]
"""The topic and number of a queue, where the broker is known from the context."""


@dataclass(frozen=True, order=True, slots=True)
class MessageQueue:
    """A queue, ordered as in Java by topic, broker and number: rebalancing depends on it.

    Attributes:
        topic: Name of the topic.
        broker_name: Name of the broker that has the queue; its master and its slaves share it.
        queue_id: Number of the queue among those of its topic on this broker, from 0.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """Return the queue in words, as in errors and logs: ``queue 3 of orders on broker-a``."""
        topic, broker = map(_printable, (self.topic, self.broker_name))
        return f"queue {self.queue_id} of {topic} on {broker}"

    def is_of(self, topic: str, queue_id: int) -> bool:
        """Return whether a record that states a topic and a ``queue_id`` may be in the queue.

        Records in a light queue state another topic and queue id, because RocketMQ stores a message
        once for all its queues.
        """
        is_same = (topic, queue_id) == (self.topic, self.queue_id)
        return is_same or self.topic.startswith(LIGHT_QUEUE_PREFIX)


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)
