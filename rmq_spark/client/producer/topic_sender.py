"""TopicSender: queue selection, message preparation and the rule for retries of all sends.

    Producer ──> SyncSender    one message, or a batch, and its response
             ──> AsyncSender   many messages, and futures of their responses
             ──> arrow_sender  tables
    each ──────> TopicSender   chooses the queue, prepares the message, decides on retries

All senders of a producer share one.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from rmq_spark.client.arguments import wrong_kind
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    UNREACHABLE_ERRORS,
    AccessDenied,
    AuthenticationFailed,
    BrokerNotFound,
    BrokerRefused,
    NotSupported,
    RequestTimeout,
    RouteNotFound,
    TopicNotFound,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import BUFFERS, CorrelatedMessage, Message
from rmq_spark.client.producer.prepared_message import (
    BatchPart,
    PreparedMessage,
    SendRules,
    UniqueIdGenerator,
    check_queue_of_topic,
    encode_prepared_batch,
    now_ms,
    prepare_batch,
    prepare_message,
    split_batches,
)
from rmq_spark.client.results import SendResult
from rmq_spark.client.serializers import Serializer, encode_value
from rmq_spark.errors import excerpt
from rmq_spark.wire.codes import MASTER_ID, RequestCode, ResponseCode
from rmq_spark.wire.message.properties import java_string_hash
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import reply_topic
from rmq_spark.wire.remoting.command import VERSION_5

RETRY_MS_MIN: Final = 50
"""The shortest attempt in milliseconds; a shorter one would time out while the broker stores."""

RETRY_RESPONSE_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR.value,
        ResponseCode.SERVICE_NOT_AVAILABLE.value,
        ResponseCode.NO_PERMISSION.value,
        ResponseCode.TOPIC_NOT_EXIST.value,
        ResponseCode.NO_BUYER_ID.value,
        ResponseCode.NOT_IN_CURRENT_UNIT.value,
    }
)
"""Response codes after which a send is tried again, as RocketMQ's producer has them."""

Selector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Chooses one of a topic's queues for a message."""


# ---- QueueSelector: the queue of the next message.
#
#     latency of a send, ms     50   100    550   1,000    2,000    3,000   15,000
#     not chosen for, ms         0     0  30,000  60,000  120,000  180,000  600,000
#
# Slow brokers are skipped only if the producer enables that. A broker that has just failed, or
# cannot be reached, is always skipped while there is another.

LATENCIES_MS: Final = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
NOT_AVAILABLE_MS: Final = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
FAILURE_LATENCY_MS: Final = 30_000


def not_available_ms(latency_ms: float) -> int:
    """Return the milliseconds for which a broker is avoided after a send of that latency."""
    return NOT_AVAILABLE_MS[max(bisect_right(LATENCIES_MS, latency_ms) - 1, 0)]


class QueueSelector:
    """Chooses queues for one producer. Methods may be called from any thread."""

    def __init__(
        self,
        clock: Callable[[], float],
        is_silent: Callable[[str], bool],
        *,
        send_latency_fault_enable: bool = False,
    ) -> None:
        """Make a selector; ``is_silent`` returns whether a broker, by name, cannot be reached."""
        self._clock = clock
        self._is_silent = is_silent
        self._is_latency_fault_enabled = send_latency_fault_enable
        self._turns = threading.local()
        self._available_at: dict[str, float] = {}

    def select(
        self,
        queues: Sequence[MessageQueue],
        failed_broker: str | None = None,
        turn: int | None = None,
    ) -> MessageQueue:
        """Return the next of a topic's queues, if possible not on the failed broker.

        ``turn`` is a result of `next_turn`, perhaps from another thread; by default, the next turn.
        """
        turn = self.next_turn() if turn is None else turn
        first: MessageQueue | None = None
        first_available_at = 0.0
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if queue.broker_name == failed_broker:
                continue
            if self.is_available(queue.broker_name):
                return queue
            available_at = self._available_at.get(queue.broker_name, 0.0)
            if first is None or available_at < first_available_at:
                first, first_available_at = queue, available_at
        return first or queues[turn % len(queues)]

    def record_latency(self, broker_name: str, latency_ms: float) -> None:
        """Record the milliseconds that a broker took to answer."""
        if self._is_latency_fault_enabled:
            self._available_at[broker_name] = self._clock() + not_available_ms(latency_ms) / 1000

    def record_failure(self, broker_name: str) -> None:
        """Record that a broker could not be reached, or has not answered."""
        self.record_latency(broker_name, FAILURE_LATENCY_MS)

    def is_available(self, broker_name: str) -> bool:
        """Return whether a broker can be reached, and is not avoided as slow."""
        if self._is_silent(broker_name):
            return False
        return not self._is_latency_fault_enabled or self._clock() >= self._available_at.get(
            broker_name, 0.0
        )

    def next_turn(self) -> int:
        """Return the next index into a topic's queues, which each thread counts for itself."""
        turn: int = getattr(self._turns, "turn", None) or random.randrange(1 << 16)  # noqa: S311  # not for cryptography
        self._turns.turn = turn + 1
        return turn


def queue_for_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """Return the queue of all messages with a key, as chosen by Java's SelectMessageQueueByHash."""
    return queues[abs(java_string_hash(key)) % len(queues)]


class SendTracer(Protocol):
    """Records the sends of a producer; it never waits and never fails."""

    def record_send(
        self, prepared: PreparedMessage, address: str, result: SendResult, cost_ms: int
    ) -> None:
        """Record that a message, or a batch, was sent to a broker."""


class TopicSender:
    """Selects queues and prepares messages for one producer. All methods are thread-safe."""

    def __init__(
        self,
        instance: ClientInstance,
        rules: SendRules,
        *,
        send_latency_fault_enable: bool,
        serializer: Serializer | None = None,
        tracer: SendTracer | None = None,
    ) -> None:
        self.instance = instance
        self.namespace = instance.namespace
        self.tracer = tracer
        self._serializer = serializer
        self.rules = rules
        self.ids = UniqueIdGenerator(instance.local_address)
        self._timer_brokers: set[str] = set()  # addresses of brokers known to have timers
        self._reply_clusters: set[str] = set()  # clusters with known brokers for replies
        self.queue_selector = QueueSelector(
            time.monotonic, self._is_silent, send_latency_fault_enable=send_latency_fault_enable
        )

    def after_fork(self) -> None:
        """Begin a separate series of ids in a child process."""
        self.ids = UniqueIdGenerator(self.instance.local_address)

    def full_topic(self, message: Message) -> str:
        """Return the full name of a message's topic; the topic of replies is in no namespace."""
        if isinstance(message, CorrelatedMessage) and message.is_reply:
            return message.topic
        return self.namespace.wrap(message.topic)

    def strip_result(self, result: SendResult) -> SendResult:
        """Return the result of a send with the topic's name within the namespace."""
        if not self.namespace:
            return result
        return result._replace(queue=self.namespace.strip_queue(result.queue))

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a topic's messages may go to, now or once it is created."""
        rules = self.rules
        return self.instance.routes.sendable_queues(
            topic, rules.create_topic_key, rules.default_topic_queue_nums
        )

    def ensure_registered(self, topic: str, timeout_ms: int) -> None:
        """Make a topic's brokers know this client before it sends a request.

        The reply is pushed to this client by the broker that stores the request or, if the consumer
        is not ours, by any broker of its cluster.
        """
        routes = self.instance.routes
        topic = self.namespace.wrap(topic)
        names = {queue.broker_name for queue in self.publish_queues(topic)}
        clusters = {routes.brokers[name].cluster for name in names if name in routes.brokers}
        for cluster in filter(None, clusters - self._reply_clusters):
            self._reply_clusters.add(cluster)
            with suppress(RouteNotFound):  # a proxy relays replies itself
                routes.require([reply_topic(cluster)])
        brokers = [each for each in routes.brokers.values() if each.cluster in clusters]
        masters = [each.broker_addrs.get(MASTER_ID) for each in brokers]
        self.instance.ensure_registered(filter(None, masters), timeout_ms)

    def fixed_queue(
        self,
        message: Message,
        queue: MessageQueue | Selector | None,
        known: tuple[MessageQueue, ...] = (),
    ) -> MessageQueue | None:
        """Return the queue that a message must go to, None if it may be any of the topic's.

        The topic's queues are fetched if they are needed, unless they are ``known``. A reply goes
        to the broker that has the request, because the client that waits is connected there.
        """
        if not may_need_queue(message, queue):
            return None
        if not isinstance(queue, MessageQueue) and not callable(queue) and queue is not None:
            example = "lambda queues: queues[0]"
            raise wrong_kind("queue", "a MessageQueue or a function", excerpt(queue), example)
        topic, namespace = self.full_topic(message), self.namespace
        queues = known or self.publish_queues(topic)
        if isinstance(queue, MessageQueue):
            return check_queue_of_topic("queue", namespace.wrap_queue(queue), topic)
        if queue is not None:
            if namespace:
                chosen = namespace.wrap_queue(queue([*map(namespace.strip_queue, queues)]))
            else:
                chosen = queue(queues)
            return check_queue_of_topic("what queue= has chosen", chosen, topic)
        if isinstance(message, CorrelatedMessage) and message.is_reply:
            return self._queue_at(message.broker_name, queues)
        return queue_for_key(queues, message.sharding_key or "")

    def _queue_at(
        self, broker_name: str | None, queues: Sequence[MessageQueue]
    ) -> MessageQueue | None:
        """Return a queue of a broker; None if it has none or cannot be reached."""
        found = [queue for queue in queues if queue.broker_name == broker_name]
        if not found or not self.queue_selector.is_available(found[0].broker_name):
            return None
        return self.queue_selector.select(found)

    def prepare(self, message: Message) -> PreparedMessage:
        """Check a message, and return it prepared for sending."""
        message = self._in_namespace(message)
        if self._serializer is not None:
            message = self._serialize_body(message)
        prepared = prepare_message(message, self.rules, self.ids, now_ms())
        if message.has_timer:
            self._check_brokers_have_timers(message.topic)
        return prepared

    def _check_brokers_have_timers(self, topic: str) -> None:
        """Raise an error if a broker of a topic would deliver timer messages at once.

        RocketMQ 4.9 ignores the time. A broker that cannot be reached is not checked: it gets no
        message now.
        """
        routes, connections = self.instance.routes, self.instance.connections
        for name in {queue.broker_name for queue in self.publish_queues(topic)}:
            with suppress(*CONNECTION_FAULTS):
                address = routes.master_address(name)
                if address in self._timer_brokers:
                    continue
                agreement = connections.agreement(address)
                if not agreement.extensions and connections.peer_version(address) < VERSION_5:
                    remark = (
                        "RocketMQ 4.9 delivers a message with deliver_at or deliver_after at once. "
                        "Use delay_level, or brokers of RocketMQ 5"
                    )
                    raise NotSupported(
                        ResponseCode.REQUEST_CODE_NOT_SUPPORTED.value,
                        remark,
                        address,
                        RequestCode.SEND_MESSAGE_V2,
                    )
                self._timer_brokers.add(address)

    def prepare_batches(self, messages: Iterable[Message]) -> list[Sequence[BatchPart]]:
        """Check messages, and return them in as few batches as their sizes allow."""
        if self.namespace:
            messages = map(self._in_namespace, messages)
        if self._serializer is not None:
            messages = map(self._serialize_body, messages)
        parts = prepare_batch(messages, self.rules, self.ids)
        return list(split_batches(parts, self.rules.max_message_bytes))

    def encode_batch(self, parts: Sequence[BatchPart]) -> PreparedMessage:
        """Return a batch prepared for sending."""
        return encode_prepared_batch(parts, self.rules, now_ms())

    def _in_namespace(self, message: Message) -> Message:
        """Return a message with its topic's full name; other objects are refused later."""
        if not self.namespace or not isinstance(message, Message):
            return message
        return replace(message, topic=self.full_topic(message))

    def _serialize_body(self, message: Message) -> Message:
        """Return a message whose body is bytes; other objects than messages are refused later."""
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


def may_need_queue(message: Message, queue: MessageQueue | Selector | None) -> bool:
    """Return whether a message may have to go to one of its topic's queues, and no other."""
    return (
        queue is not None
        or message.sharding_key is not None
        or (isinstance(message, CorrelatedMessage) and message.is_reply)
    )


def is_retryable(error: BaseException) -> bool:
    """Return whether a failed send may succeed at another broker, or later at the same one."""
    if isinstance(error, (AuthenticationFailed, AccessDenied)):  # the same at every broker
        return False
    return isinstance(error, UNREACHABLE_ERRORS) or (
        isinstance(error, BrokerRefused) and error.code in RETRY_RESPONSE_CODES
    )


def has_time_to_retry(deadline: float, now: float) -> bool:
    """Return whether another attempt can end before the deadline; both are in seconds."""
    return deadline - now >= RETRY_MS_MIN / 1000


def is_route_stale(error: BaseException) -> bool:
    """Return whether an error shows that a topic's route is out of date.

    A broker that has fewer queues of the topic than before answers only SYSTEM_ERROR.
    """
    if isinstance(error, (RequestTimeout, AuthenticationFailed, AccessDenied)):
        return False
    if isinstance(error, BrokerRefused) and error.code == ResponseCode.SYSTEM_ERROR:
        return True
    return isinstance(error, (*CONNECTION_FAULTS, TopicNotFound))
