"""Group state: lag and waiting messages by queue, members, and failures of a consumer group.

``rocketpoll group`` and the console show it, each in its own way. Nothing here changes a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.admin.lag import total_lag
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.errors import nearest_name
from rmq_spark.wire.bodies.operators import Connection
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX, dlq_topic, retry_topic

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.admin.lag import Lag
    from rmq_spark.client.admin.lookups import QueueReport


class QueueState(NamedTuple):
    """The state of a group in one queue.

    Attributes:
        lag: What the group has committed, and its lag.
        next_offset: Offset of the message that the group consumes next; None if it has all.
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
    """A group as its brokers report it, online or not."""

    name: str
    queues: tuple[QueueState, ...]
    members: tuple[Connection, ...]
    reports: Mapping[MessageQueue, QueueReport]
    waiting_for_retry: int
    dead_letters: int

    @property
    def behind(self) -> int:
        """Number of messages that the group has yet to consume, without retries."""
        return total_lag(each.lag for each in self.queues)

    def queues_of(self, client_id: str) -> int:
        """Return the number of queues that a member has, without those of retries."""
        return sum(
            held.client_id == client_id and not is_retry_queue(queue)
            for queue, held in self.reports.items()
        )


def read_group(admin: Admin, name: str) -> GroupState:
    """Ask all brokers for the state of a group."""
    members = admin.members(name)
    reports = admin.queue_reports(name) if members else {}
    topics = {*consumed_topics(admin.progress(name)), *(queue.topic for queue in reports)}
    if not topics and not members:
        check_group_exists(admin, name)
    lags = [
        lag
        for topic in sorted(topics)
        if not topic.startswith(RETRY_PREFIX)
        for lag in _query_lag(admin, name, topic)
    ]
    return GroupState(
        name,
        tuple(_queue_states(admin, lags, reports)),
        members,
        reports,
        total_lag(_query_lag(admin, name, retry_topic(name))),
        count_messages(admin, dlq_topic(name)),
    )


class GroupSummary(NamedTuple):
    """A group in a list of groups; ``behind`` is its lag in messages, without retries."""

    member_count: int
    topics: tuple[str, ...]
    behind: int
    last_consumed_ms: int


def summarize_group(admin: Admin, name: str) -> GroupSummary:
    """Ask all brokers for the state of a group, in few requests."""
    progress = admin.progress(name)
    return GroupSummary(
        len(admin.members(name)),
        tuple(sorted(consumed_topics(progress))),
        total_lag(without_retries(progress)),
        max((lag.last_timestamp for lag in progress), default=0),
    )


def consumed_topics(progress: Iterable[Lag]) -> set[str]:
    """Return the topics of a group's progress, without its retry topic."""
    return {lag.queue.topic for lag in without_retries(progress)}


def without_retries(progress: Iterable[Lag]) -> list[Lag]:
    """Return a group's progress without the queues of its retry topic."""
    return [lag for lag in progress if not is_retry_queue(lag.queue)]


def is_retry_queue(queue: MessageQueue) -> bool:
    """Return whether a queue has messages that are redelivered to a group."""
    return queue.topic.startswith(RETRY_PREFIX)


def count_messages(admin: Admin, topic: str) -> int:
    """Return the number of messages in a topic; 0 if the topic does not exist."""
    try:
        offsets = admin.topic_offsets(topic).values()
    except RouteNotFound:
        return 0
    return sum(each.max_offset - each.min_offset for each in offsets)


def is_unknown_group(admin: Admin, name: str) -> bool:
    """Return whether no broker knows a group or has offsets of it."""
    return name not in admin.groups() and not admin.progress(name)


def check_group_exists(admin: Admin, name: str) -> None:
    """Raise a failure, with the nearest name, if no broker knows a group."""
    if is_unknown_group(admin, name):
        known = admin.groups()
        bare = name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
        near = bare if bare in known else nearest_name(name, sorted(known))
        hint = f"Did you mean {near}? " if near else ""
        raise Failure(f"there is no group {name}", f"{hint}List all with rocketpoll group list")


def _queue_states(
    admin: Admin, lags: Iterable[Lag], reports: Mapping[MessageQueue, QueueReport]
) -> Iterator[QueueState]:
    firsts: dict[MessageQueue, int] = {}
    for lag in lags:
        if lag.queue not in firsts:
            held = admin.topic_offsets(lag.queue.topic)
            firsts.update({queue: offsets.min_offset for queue, offsets in held.items()})
        place = waiting = None
        if lag.messages:  # its next messages may be deleted by now
            place = max(lag.consumer_offset or 0, firsts.get(lag.queue, 0))
            waiting = admin.message_at(lag.queue, place)
        report = reports.get(lag.queue)
        yield QueueState(
            lag,
            place,
            None if waiting is None else waiting.store_timestamp,
            None if report is None else report.client_id,
            None if report is None else report.tried_ms,
        )


def _query_lag(admin: Admin, name: str, topic: str) -> Iterable[Lag]:
    try:
        return admin.lag(name, topic)
    except RouteNotFound:  # deleted since, or never created, because no message has failed
        return ()
