"""Seeks of groups: worked out for all queues first, then carried out.

    topics, a place  ──>  plan: a move for each queue  ──>  carry_out

So half of a cluster that does not answer leaves all as it was, and a dry run is the plan alone.
This module must not know how a plan is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from rmq_spark.cli.groups.group_state import check_group, is_unknown, topics_of
from rmq_spark.cli.shell.failures import Failure, line_of
from rmq_spark.cli.shell.positions import Kind, Place
from rmq_spark.cli.shell.queues import QueueName, spans_from
from rmq_spark.client.errors import ClientError, NotSupported
from rmq_spark.errors import counted
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin


class Move(NamedTuple):
    """One queue's part of a seek; ``committed`` is None if the group has committed nothing."""

    queue: MessageQueue
    committed: int | None
    to: int
    end: int

    @property
    def behind(self) -> int:
        """Number of messages that the group has before it when it has moved."""
        return self.end - self.to


def plan(
    admin: Admin, name: str, topics: Collection[str], place: Place, queue: QueueName | None
) -> list[Move]:
    """Work out a seek of a group, in all topics that it consumes if none is named.

    Raises:
        Failure: There is no such group or queue, or nothing that the place is relative to.
    """
    chosen = list(topics) or sorted(topics_of(admin.progress(name)))
    if not chosen:
        check_group(admin, name)
        raise Failure(f"{name} has committed nothing yet: say which --topic")
    if not topics and queue is not None and len(chosen) > 1:
        raise click.UsageError(f"--queue needs --topic: {name} consumes {', '.join(chosen)}")
    if topics and is_unknown(admin, name):
        check_group(admin, name)
    return [move for topic in chosen for move in _plan_of(admin, name, topic, place, queue)]


def carry_out(
    admin: Admin, name: str, moves: Sequence[Move], place: Place, *, is_all: bool
) -> None:
    """Move a group as planned, queue by queue.

    Args:
        admin: An administration object that has been started.
        name: Name of the group.
        moves: The plan.
        place: The place that the plan leads to.
        is_all: Whether the plan has all queues of its topics.

    Raises:
        Failure: A broker did not answer, or cannot do so; the line says how far it went.
    """
    for done, move in enumerate(moves):
        try:
            admin.set_offset(name, move.queue, move.to)
        except NotSupported as error:  # noqa: PERF203  # what was done before has to be told
            # RocketMQ 4.9 tells members only of times: that will do where all queues go to one.
            times = {Kind.START: 0, Kind.END: -1, Kind.TIME: place.number}
            if done or not is_all or place.kind not in times:
                raise Failure(f"{error.remark}") from error
            for topic in sorted({each.queue.topic for each in moves}):
                admin.reset_to_time(name, topic, times[place.kind])
            return
        except ClientError as error:
            queues = counted(len(moves), "queue was", "queues were")
            raise Failure(f"{line_of(error)}; {done} of {queues} moved before") from error


def _plan_of(
    admin: Admin, name: str, topic: str, place: Place, queue: QueueName | None
) -> list[Move]:
    """Work out a seek in one topic, asking all its brokers."""
    lags = {lag.queue: lag for lag in admin.lag(name, topic)}
    is_relative = place.kind in (Kind.BACK, Kind.FORTH)
    held = {
        span.queue: span for span in spans_from(admin.instance, topic, Place(Kind.START), queue)
    }
    if not is_relative:
        targets = {
            span.queue: span.start for span in spans_from(admin.instance, topic, place, queue)
        }
    moves = []
    for each, span in held.items():
        committed = lags[each].consumer_offset if each in lags else None
        if not is_relative:
            moves.append(Move(each, committed, targets[each], span.end))
            continue
        if committed is None and span.end > span.start:
            raise Failure(
                f"{name} has committed nothing in {topic} {each.broker_name}:{each.queue_id}, so "
                "that nothing is relative to it: seek to start, end, an offset or a time"
            )
        step = place.number if place.kind is Kind.FORTH else -place.number
        to = min(max((committed or 0) + step, span.start), span.end)
        moves.append(Move(each, committed, to, span.end))
    return moves
