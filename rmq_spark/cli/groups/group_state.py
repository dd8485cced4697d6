"""Group state: lag and waiting messages by queue, members, and failures of a consumer group.

``rocketpoll group`` and the console show it, each in its way. Only `apply_seek` changes a group.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from rmq_spark.cli.shell.failures import Failure, explain_error
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    QueueName,
    TopicPosition,
    resolve_ranges,
)
from rmq_spark.client.admin.lag import messages_behind, total_lag
from rmq_spark.client.errors import ClientError, NotSupported, RouteNotFound
from rmq_spark.errors import format_count, nearest_name
from rmq_spark.wire.bodies.operators import Connection
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX, dlq_topic, is_system_group, retry_topic

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
        for lag in query_lag(admin, name, topic)
    ]
    return GroupState(
        name,
        tuple(_queue_states(admin, lags, reports)),
        members,
        reports,
        total_lag(query_lag(admin, name, retry_topic(name))),
        count_messages(admin, dlq_topic(name)),
    )


class GroupSummary(NamedTuple):
    """A group in a list of groups, without its retries.

    Attributes:
        name: The group.
        member_count: Number of members online.
        topics: The topics that it consumes.
        behind: Its lag in messages.
        last_consumed_ms: Milliseconds since the epoch at which the newest message that it has
            consumed was stored; 0 if there is none.
        lags: Its progress in each queue.
    """

    name: str
    member_count: int
    topics: tuple[str, ...]
    behind: int
    last_consumed_ms: int
    lags: tuple[Lag, ...]


def summarize_group(admin: Admin, name: str, *, with_members: bool = True) -> GroupSummary:
    """Ask all brokers for the state of a group, in few requests.

    Without ``with_members``, members are counted only if there is lag.
    """
    lags = without_retries(admin.progress(name))
    behind = total_lag(lags)
    return GroupSummary(
        name,
        len(admin.members(name)) if with_members or behind else 0,
        tuple(sorted(consumed_topics(lags))),
        behind,
        max((lag.last_timestamp for lag in lags), default=0),
        tuple(lags),
    )


def consumed_topics(progress: Iterable[Lag]) -> set[str]:
    """Return the topics of a group's progress, without its retry topic."""
    return {lag.queue.topic for lag in without_retries(progress)}


def without_retries(progress: Iterable[Lag]) -> list[Lag]:
    """Return a group's progress without the queues of its retry topic."""
    return [lag for lag in progress if not is_retry_queue(lag.queue)]


def queue_text(queue: MessageQueue) -> str:
    """Return a queue as the command line names it: ``broker-a:3``."""
    return str(QueueName(queue.broker_name, queue.queue_id))


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


def is_pattern(name: str) -> bool:
    """Return whether a text is a pattern, which has characters that no name of a group has."""
    return any(each in name for each in "*?[")


def match_groups(admin: Admin, names: Iterable[str]) -> list[str]:
    """Return the groups that names and patterns mean, each once; a pattern has to match some."""
    chosen: dict[str, None] = {}
    for name in names:
        if not is_pattern(name):
            chosen[name] = None
            continue
        matches = fnmatch.filter(sorted(admin.groups()), name)
        users = [each for each in matches if not is_system_group(each)]
        if not users:
            raise Failure(f"no group matches {name}", "List all with rocketpoll group list")
        chosen.update(dict.fromkeys(users))
    return list(chosen)


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


def query_lag(admin: Admin, name: str, topic: str) -> Iterable[Lag]:
    """Return the progress of a group in a topic; nothing if the topic does not exist."""
    try:
        return admin.lag(name, topic)
    except RouteNotFound:  # deleted since, or never created, because no message has failed
        return ()


# ---- Seeks: a move for each queue is planned first, then all are applied. So nothing changes if
# half of a cluster does not answer, and a dry run is the plan alone.


class OffsetMove(NamedTuple):
    """One queue's part of a seek; ``committed`` is None if the group has committed nothing."""

    queue: MessageQueue
    committed: int | None
    target_offset: int
    end_offset: int

    @property
    def behind(self) -> int:
        """Lag of the group after the move, in messages."""
        return messages_behind(self.end_offset, self.target_offset)


def plan_seek(
    admin: Admin,
    name: str,
    topics: Collection[str],
    position: TopicPosition,
    queue: QueueName | None,
) -> list[OffsetMove]:
    """Plan a seek of a group, in all topics that it consumes if none is named."""
    chosen = list(topics) or sorted(consumed_topics(admin.progress(name)))
    if not chosen:
        check_group_exists(admin, name)
        raise Failure(f"{name} has committed no offsets", "Name a topic with --topic")
    if not topics and queue is not None and len(chosen) > 1:
        raise click.UsageError(
            f"--queue needs --topic: {name} consumes several. Name one of {', '.join(chosen)}"
        )
    if topics:
        check_group_exists(admin, name)
    return [move for topic in chosen for move in _plan_topic(admin, name, topic, position, queue)]


def apply_seek(
    admin: Admin, name: str, moves: Sequence[OffsetMove], position: TopicPosition, *, is_all: bool
) -> None:
    """Move a group to a position as planned; ``is_all`` if that moves all queues of its topics."""
    for done, move in enumerate(moves):
        try:
            admin.set_offset(name, move.queue, move.target_offset)
        except NotSupported as error:  # noqa: PERF203  # what was done before has to be told
            # RocketMQ 4.9 notifies members of times only, which suffices if all queues seek to the
            # same time.
            times = {
                PositionKind.START: 0,
                PositionKind.END: -1,
                PositionKind.TIME: position.number,
            }
            if done or not is_all or position.kind not in times:
                raise Failure(f"{error.remark}") from error
            for topic in sorted({each.queue.topic for each in moves}):
                admin.reset_to_time(name, topic, times[position.kind])
            return
        except ClientError as error:
            queues = format_count(len(moves), "queue was", "queues were")
            explained = explain_error(error)
            raise Failure(
                f"{explained.problem} (after {done} of {queues} moved)", explained.remedy
            ) from error


def _plan_topic(
    admin: Admin, name: str, topic: str, position: TopicPosition, queue: QueueName | None
) -> list[OffsetMove]:
    """Plan a seek in one topic, asking all its brokers."""
    lags = {lag.queue: lag for lag in admin.lag(name, topic)}
    is_relative = position.kind in (PositionKind.BACKWARD, PositionKind.FORWARD)
    held = {
        span.queue: span
        for span in resolve_ranges(admin.instance, topic, TopicPosition(PositionKind.START), queue)
    }
    if not is_relative:
        targets = {
            span.queue: span.start
            for span in resolve_ranges(admin.instance, topic, position, queue)
        }
    moves = []
    for each, span in held.items():
        committed = lags[each].consumer_offset if each in lags else None
        if not is_relative:
            moves.append(OffsetMove(each, committed, targets[each], span.end))
            continue
        if committed is None and span.end > span.start:
            raise Failure(
                f"{name} has committed no offset in {topic} {each.broker_name}:{each.queue_id} "
                "for a relative move",
                "Seek to start, end, an offset or a time",
            )
        step = position.number if position.kind is PositionKind.FORWARD else -position.number
        to = min(max((committed or 0) + step, span.start), span.end)
        moves.append(OffsetMove(each, committed, to, span.end))
    return moves
