"""Group state: lag and waiting messages by queue, members, and failures of a consumer group.

``rocketpoll group`` and the console show it, each in its way. Only `apply_seek` changes a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from rmq_spark.cli.shell.failures import Failure, explain_error
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    QueueName,
    TopicPosition,
    is_pattern,
    resolve_ranges,
    select_names,
)
from rmq_spark.client.admin.lag import (
    consumed_topics,
    is_retry_queue,
    messages_behind,
    total_lag,
    without_retries,
)
from rmq_spark.client.errors import ClientError, GroupNotFound, NotSupported
from rmq_spark.errors import format_count, nearest_name
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.admin.lag import GroupState, Lag


def read_group(admin: Admin, name: str, topics: Collection[str] = ()) -> GroupState:
    """Ask all brokers for the state of a group, in all topics that it consumes if none is named."""
    try:
        state = admin.describe_group(name)
    except GroupNotFound:
        check_group_exists(admin, name)
        raise
    return _only_topics(state, topics) if topics else state


def _only_topics(state: GroupState, topics: Collection[str]) -> GroupState:
    consumed = {each.lag.queue.topic for each in state.queues}
    for topic in topics:
        if topic not in consumed:
            raise Failure(
                f"{state.name} has no offsets in {topic}",
                f"It has offsets in {', '.join(sorted(consumed))}"
                if consumed
                else "It has committed none yet",
            )
    queues = tuple(each for each in state.queues if each.lag.queue.topic in topics)
    counts = [each.lag.in_flight for each in queues if each.lag.in_flight is not None]
    return state._replace(queues=queues, in_flight=sum(counts) if counts else None)


class GroupSummary(NamedTuple):
    """A group in a list of groups.

    Attributes:
        name: The group.
        member_count: Number of members online.
        topics: The topics that it consumes.
        behind: Its lag in messages, without retries.
        last_consumed_ms: Milliseconds since the epoch at which the newest message that it has
            consumed was stored; 0 if there is none.
        lags: Its progress in each queue, without the queues of its retry topic.
        waiting_for_retry: Number of failed messages that are due for another try.
    """

    name: str
    member_count: int
    topics: tuple[str, ...]
    behind: int
    last_consumed_ms: int
    lags: tuple[Lag, ...]
    waiting_for_retry: int = 0


def summarize_group(admin: Admin, name: str, *, with_members: bool = True) -> GroupSummary:
    """Ask all brokers for the state of a group, in few requests.

    Without ``with_members``, members are counted only if there is lag.
    """
    progress = admin.progress(name)
    lags = without_retries(progress)
    behind = total_lag(lags)
    return GroupSummary(
        name,
        len(admin.members(name)) if with_members or behind else 0,
        tuple(sorted(consumed_topics(lags))),
        behind,
        max((lag.last_timestamp for lag in lags), default=0),
        tuple(lags),
        total_lag(lag for lag in progress if is_retry_queue(lag.queue)),
    )


def queue_text(queue: MessageQueue) -> str:
    """Return a queue as the command line names it: ``broker-a:3``."""
    return str(QueueName(queue.broker_name, queue.queue_id))


def is_unknown_group(admin: Admin, name: str) -> bool:
    """Return whether no broker knows a group or has offsets of it."""
    short = admin.instance.namespace.strip(name)
    return short not in admin.groups() and not admin.progress(name)


def check_group_exists(admin: Admin, name: str) -> None:
    """Raise a failure, with the nearest name, if no broker knows a group."""
    if is_unknown_group(admin, name):
        known = admin.groups()
        bare = name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
        near = bare if bare in known else nearest_name(name, sorted(known))
        hint = f"Did you mean {near}? " if near else ""
        if bare not in known and name in admin.topics():
            hint = f"{name} is a topic: rocketpoll topic describe {name} lists its groups. "
        raise Failure(f"there is no group {name}", f"{hint}List all with rocketpoll group list")


def match_groups(admin: Admin, names: Iterable[str]) -> list[str]:
    """Return the groups that names and patterns select, each once; each pattern must match one."""
    chosen: dict[str, None] = {}
    for name in names:
        if not is_pattern(name):
            chosen[name] = None
            continue
        users = (each for each in admin.groups() if not is_system_group(each))
        chosen.update(dict.fromkeys(select_names(users, [name], "group")))
    return list(chosen)


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
    """Move a group as planned; ``is_all`` means that the plan has all queues of its topics."""
    for done, move in enumerate(moves):
        try:
            admin.set_offset(name, move.queue, move.target_offset)
        except NotSupported as error:  # noqa: PERF203  # the error says what was done before
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
    lags = {lag.queue: lag for lag in admin.lag(name, topic)}
    strip = admin.instance.namespace.strip_queue
    is_relative = position.kind in (PositionKind.BACKWARD, PositionKind.FORWARD)
    held = {
        strip(bounds.queue): bounds
        for bounds in resolve_ranges(
            admin.instance, topic, TopicPosition(PositionKind.START), queue
        )
    }
    if not is_relative:
        targets = {
            strip(bounds.queue): bounds.start
            for bounds in resolve_ranges(admin.instance, topic, position, queue)
        }
    moves = []
    for each, bounds in held.items():
        committed = lags[each].consumer_offset if each in lags else None
        if not is_relative:
            moves.append(OffsetMove(each, committed, targets[each], bounds.end))
            continue
        if committed is None and bounds.end > bounds.start:
            raise Failure(
                f"{name} has committed no offset in {topic} {each.broker_name}:{each.queue_id} "
                "for a relative move",
                "Seek to start, end, an offset or a time",
            )
        step = position.number if position.kind is PositionKind.FORWARD else -position.number
        to = min(max((committed or 0) + step, bounds.start), bounds.end)
        moves.append(OffsetMove(each, committed, to, bounds.end))
    return moves
