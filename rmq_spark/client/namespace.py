"""Namespace: the names of topics and groups that a client's users see, and those that brokers know.

    users       orders             billing             %RETRY%billing
    brokers     eu%orders          eu%billing          %RETRY%eu%billing

Names are wrapped where users pass them and stripped where users get them, as RocketMQ's clients do;
in between, and in errors and logs, they are full. A full name that a user passes stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rmq_spark.client.arguments import check_text
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.message import MessageExt
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import (
    is_namespace,
    without_namespace,
    wrap_namespace,
)


class Namespace:
    """The namespace of one client; without a name, all names are the same for users and brokers."""

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            name = check_text("namespace", name, "eu")
            if not is_namespace(name):
                needed = "a name of letters, digits and _ - |"
                raise MessageRejected("namespace", needed, name)
        self.name = name

    @staticmethod
    def check_unshared(namespace: str | None, shared: object | None, name: str) -> None:
        """Raise an error if a namespace is given with a shared client, which has its own."""
        if namespace is not None and shared is not None:
            needed = f"none with {name}, which has its own. Give the namespace to the {name}"
            raise MessageRejected("namespace", needed, namespace)

    def __bool__(self) -> bool:
        return self.name is not None

    def wrap(self, name: str) -> str:
        """Return the full name of a topic or group."""
        return name if self.name is None else wrap_namespace(self.name, name)

    def strip(self, name: str) -> str:
        """Return the name of a topic or group within the namespace."""
        return name if self.name is None else without_namespace(self.name, name)

    def own(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the brokers' names that are in the namespace, stripped."""
        return frozenset(map(self.strip, filter(self.has, names)))

    def has(self, name: str) -> bool:
        """Return whether users can name a topic or group, given its full name."""
        return self.wrap(self.strip(name)) == name

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with its topic's full name; leave other objects to later checks."""
        if self.name is None or not isinstance(queue, MessageQueue):
            return queue
        return MessageQueue(self.wrap(queue.topic), queue.broker_name, queue.queue_id)

    def strip_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the topic's name within the namespace."""
        if self.name is None:
            return queue
        return MessageQueue(self.strip(queue.topic), queue.broker_name, queue.queue_id)

    def strip_queues(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Return queues with their topics' names within the namespace."""
        return frozenset(map(self.strip_queue, queues))

    def strip_message(self, message: MessageExt) -> MessageExt:
        """Return a message with its topic's name within the namespace."""
        if self.name is None:
            return message
        return replace(
            message, topic=self.strip(message.topic), queue=self.strip_queue(message.queue)
        )
