"""Lag: the number of messages that a reader of a queue has yet to read.

`messages_behind` computes it for every reader: consumer groups here, in the command line and in the
exporter, and Spark queries in `rmq_spark.spark.monitoring.lag` and ``rocketpoll checkpoint --lag``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rmq_spark.client.errors import RouteNotFound
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.operators import Connection, TopicOffset


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
        in_flight: Number of messages that members have received and not acknowledged: popped ones
            with our broker, pulled ones with RocketMQ 5. None if the broker does not report it
            (RocketMQ 4.9).
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int | None
    last_timestamp: int
    in_flight: int | None = None

    @property
    def messages(self) -> int:
        """Number of messages still to be consumed; all of the queue's, if nothing was committed."""
        return messages_behind(self.broker_offset, self.consumer_offset)


def total_lag(lags: Iterable[Lag]) -> int:
    """Return the lag of a group in several queues together, in messages."""
    return sum(lag.messages for lag in lags)


def total_in_flight(lags: Iterable[Lag]) -> int | None:
    """Return the messages in flight in several queues together; None if no broker says."""
    known = [lag.in_flight for lag in lags if lag.in_flight is not None]
    return sum(known) if known else None


def consumed_topics(progress: Iterable[Lag]) -> set[str]:
    """Return the topics of a group's progress, without its retry topic."""
    return {lag.queue.topic for lag in without_retries(progress)}


def without_retries(progress: Iterable[Lag]) -> list[Lag]:
    """Return a group's progress without the queues of its retry topic."""
    return [lag for lag in progress if not is_retry_queue(lag.queue)]


def is_retry_queue(queue: MessageQueue) -> bool:
    """Return whether a queue belongs to a retry topic."""
    return queue.topic.startswith(RETRY_PREFIX)


class _Topics(Protocol):
    def topic_offsets(self, topic: str, /) -> Mapping[MessageQueue, TopicOffset]: ...
    def lag(self, group: str, topic: str, /) -> Iterable[Lag]: ...


def query_lag(admin: _Topics, group: str, topic: str) -> Iterable[Lag]:
    """Return the progress of a group in a topic; nothing if the topic does not exist."""
    try:
        return admin.lag(group, topic)
    except RouteNotFound:  # deleted since, or never created, because no message has failed
        return ()


def count_messages(admin: _Topics, topic: str) -> int:
    """Return the number of messages in a topic; 0 if the topic does not exist."""
    try:
        offsets = admin.topic_offsets(topic).values()
    except RouteNotFound:
        return 0
    return sum(each.max_offset - each.min_offset for each in offsets)


# ---- The state of a group: its lag, its members and what they report.


class QueueReport(NamedTuple):
    """A group member's report on one of its queues."""

    client_id: str
    messages: int  # pulled from the queue and not finished
    tried_ms: int | None
    """Milliseconds since the epoch at which the member last started or finished a message of the
    queue, or started the queue; None if the member does not report it."""


class QueueState(NamedTuple):
    """The state of a group in one queue.

    Attributes:
        lag: The group's committed offset and its lag.
        next_offset: Offset of the message that the group consumes next; None if there is none.
        waiting_since_ms: Milliseconds since the epoch at which that message was stored, or None.
        member: Client id of the member that has the queue, or None.
        last_tried_ms: Milliseconds since the epoch at which that member last started or finished a
            message of the queue, or None.
    """

    lag: Lag
    next_offset: int | None
    waiting_since_ms: int | None
    member: str | None
    last_tried_ms: int | None


class GroupState(NamedTuple):
    """A consumer group as its brokers and its members report it, online or not.

    Attributes:
        name: The group.
        queues: Its state in each queue that it consumes, without retry queues.
        members: The members that are online.
        reports: What the members report about their queues.
        waiting_for_retry: Number of messages that failed and wait for another delivery.
        dead_letters: Number of messages in the group's dead-letter queue.
        in_flight: Number of messages that members have received and not acknowledged, retries
            included; None if brokers do not report it, as RocketMQ does not for popped messages.
            Our broker counts the messages popped since its start.
        is_popping: Whether the members pop: any member gets messages of any queue.
    """

    name: str
    queues: tuple[QueueState, ...]
    members: tuple[Connection, ...]
    reports: Mapping[MessageQueue, QueueReport]
    waiting_for_retry: int
    dead_letters: int
    in_flight: int | None = None
    is_popping: bool = False

    @property
    def behind(self) -> int:
        """Number of messages that the group has yet to consume, without retries."""
        return total_lag(each.lag for each in self.queues)

    def queues_of(self, client_id: str) -> int:
        """Return the number of queues of the member ``client_id``, without retry queues."""
        return sum(
            held.client_id == client_id and not is_retry_queue(queue)
            for queue, held in self.reports.items()
        )
