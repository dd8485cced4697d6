"""TopicSender: queue selection and message preparation, shared by all ways of sending.

    Producer ──> SyncSender    one message, or a batch, and its response
             ──> AsyncSender   many messages, and futures of their responses
             ──> arrow_sender  tables
    each ──────> TopicSender   which queue, and what a message is when it leaves

It sends nothing itself, and does not retry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from rmq_spark.client.arguments import wrong_kind
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerNotFound,
    BrokerRefused,
    RequestTimeout,
    TopicNotFound,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import BUFFERS, Message
from rmq_spark.client.producer.prepared_message import (
    BatchPart,
    PreparedMessage,
    SendRules,
    check_queue_of_topic,
    encode_prepared_batch,
    prepare_batch,
    prepare_message,
    split_batches,
)
from rmq_spark.client.producer.queue_selector import QueueSelector, queue_for_key
from rmq_spark.client.producer.unique_ids import UniqueIdGenerator, now_ms
from rmq_spark.client.serializers import Serializer, encode_value
from rmq_spark.errors import excerpt
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message_queue import MessageQueue

RETRY_MS_MIN: Final = 50
"""The shortest attempt in milliseconds; a shorter one would time out while the broker stores."""

Selector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Chooses one of a topic's queues for a message."""


class TopicSender:
    """Selects queues and prepares messages for one producer.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        instance: ClientInstance,
        rules: SendRules,
        *,
        send_latency_fault_enable: bool,
        serializer: Serializer | None = None,
    ) -> None:
        self.instance = instance
        self._serializer = serializer
        self.rules = rules
        self.ids = UniqueIdGenerator(instance.local_address)
        self.queue_selector = QueueSelector(
            time.monotonic, self._is_silent, send_latency_fault_enable=send_latency_fault_enable
        )

    def after_fork(self) -> None:
        """Begin a series of ids of its own in a child process."""
        self.ids = UniqueIdGenerator(self.instance.local_address)

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a topic's messages may go to, now or once it is created."""
        rules = self.rules
        return self.instance.routes.sendable_queues(
            topic, rules.create_topic_key, rules.default_topic_queue_nums
        )

    def known_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a topic's messages may go to, from the cache."""
        return self.instance.routes.known_publish_queues(topic)

    def fixed_queue(
        self,
        message: Message,
        queue: MessageQueue | Selector | None,
        known: tuple[MessageQueue, ...] = (),
    ) -> MessageQueue | None:
        """Return the queue that a message must go to, None if it may be any of the topic's.

        The topic's queues are fetched if they are needed, unless they are ``known``.

        Raises:
            TypeError, MessageRejected: ``queue`` is, or chooses, no queue of the message's topic.
        """
        if queue is None and message.sharding_key is None:
            return None
        if not isinstance(queue, MessageQueue) and not callable(queue) and queue is not None:
            example = "lambda queues: queues[0]"
            raise wrong_kind("queue", "a MessageQueue or a function", excerpt(queue), example)
        queues = known or self.publish_queues(message.topic)  # and so the broker's address is known
        if isinstance(queue, MessageQueue):
            return check_queue_of_topic("queue", queue, message.topic)
        if queue is not None:
            return check_queue_of_topic("what queue= has chosen", queue(queues), message.topic)
        return queue_for_key(queues, message.sharding_key or "")

    def prepare(self, message: Message) -> PreparedMessage:
        """Check a message, and return it prepared for sending."""
        if self._serializer is not None:
            message = self._serialize_body(message)
        return prepare_message(message, self.rules, self.ids, now_ms())

    def prepare_batches(self, messages: Iterable[Message]) -> list[Sequence[BatchPart]]:
        """Check messages, and return them in as few batches as their sizes allow."""
        if self._serializer is not None:
            messages = map(self._serialize_body, messages)
        parts = prepare_batch(messages, self.rules, self.ids)
        return list(split_batches(parts, self.rules.max_message_bytes))

    def encode_batch(self, parts: Sequence[BatchPart]) -> PreparedMessage:
        """Return a batch prepared for sending."""
        return encode_prepared_batch(parts, self.rules, now_ms())

    def _serialize_body(self, message: Message) -> Message:
        """Return a message whose body is bytes; what is no message is refused later."""
        if self._serializer is None or not isinstance(message, Message):
            return message
        if isinstance(message.body, BUFFERS):
            return message
        return replace(message, body=encode_value(message.body, self._serializer))

    def _is_silent(self, broker_name: str) -> bool:
        connections = self.instance.connections
        if not connections.silent_addresses:  # the usual case, without a look-up
            return False
        try:
            return connections.is_silent(self.instance.routes.master_address(broker_name))
        except BrokerNotFound:
            return False


def has_time_to_retry(deadline: float, now: float) -> bool:
    """Return whether another attempt can end before the deadline; both are in seconds."""
    return deadline - now >= RETRY_MS_MIN / 1000


def is_route_stale(error: BaseException) -> bool:
    """Return whether an error shows that a topic's route is out of date.

    A broker that has fewer queues of the topic than before answers only SYSTEM_ERROR.
    """
    if isinstance(error, RequestTimeout):
        return False
    if isinstance(error, BrokerRefused) and error.code == ResponseCode.SYSTEM_ERROR:
        return True
    return isinstance(error, (*CONNECTION_FAULTS, TopicNotFound))
