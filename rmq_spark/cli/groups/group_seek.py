"""Group seek: plans a seek for all queues first, then applies it.

    topics, a position  ──>  plan_seek: a move for each queue  ──>  apply_seek

So nothing changes if half of a cluster does not answer, and a dry run is the plan alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from rmq_spark.cli.groups.group_state import check_group_exists, consumed_topics
from rmq_spark.cli.shell.failures import Failure, explain_error
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    QueueName,
    TopicPosition,
    resolve_ranges,
)
from rmq_spark.client.admin.lag import messages_behind
from rmq_spark.client.errors import ClientError, NotSupported
from rmq_spark.errors import format_count
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin


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
