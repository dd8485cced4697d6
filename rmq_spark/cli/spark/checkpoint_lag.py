"""Checkpoint lag: the lag of a streaming query, from its checkpoint and the ends of the queues.

    checkpoint ──> last committed batch ──> its positions ──> a group's moves to them

The command line and the console share this module. A queue of a deleted topic has no end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from rmq_spark.cli.groups.group_state import OffsetMove
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.admin.lag import Lag, messages_behind
from rmq_spark.client.errors import GroupNotFound, RouteNotFound
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.spark.monitoring.checkpoint import CheckpointedBatch


class QueryPosition(NamedTuple):
    """A query's position in one queue; ``end`` is None if the queue no longer exists."""

    source: int | str
    queue: MessageQueue
    next_offset: int
    stored_ms: int | None
    end: int | None

    @property
    def behind(self) -> int | None:
        """Lag of the query in messages; None if the queue no longer exists."""
        return None if self.end is None else messages_behind(self.end, self.next_offset)


def latest_batch(batches: Sequence[CheckpointedBatch]) -> CheckpointedBatch:
    """Return the last batch that was committed, or the last of all if none was."""
    return next((each for each in reversed(batches) if each.is_committed), batches[-1])


def query_positions(admin: Admin, batch: CheckpointedBatch) -> list[QueryPosition]:
    """Return the positions at the end of a batch, each with the present end of its queue."""
    topics = {queue.topic for offset in batch.offsets.values() for queue in offset.positions}
    ends: dict[MessageQueue, int] = {}
    for topic in sorted(topics):
        try:
            found = admin.topic_offsets(topic)
        except RouteNotFound:  # only this topic is gone
            continue
        ends.update({queue: offset.max_offset for queue, offset in found.items()})
    return [
        QueryPosition(source, queue, at.next_offset, at.stored_ms, ends.get(queue))
        for source, offset in batch.offsets.items()
        for queue, at in sorted(offset.positions.items())
    ]


def total_behind(positions: Sequence[QueryPosition]) -> int:
    """Return the lag of a query in all queues whose end is known, in messages."""
    return sum(each.behind or 0 for each in positions)


def _lag(admin: Admin, group: str, topic: str) -> Iterable[Lag]:
    """Return the lag of a group; empty if the move will create the group."""
    with suppress(GroupNotFound):
        return admin.lag(group, topic)
    return ()


def plan_moves(
    admin: Admin, group: str, positions: Sequence[QueryPosition], source: int | str | None
) -> list[OffsetMove]:
    """Plan the moves of a group to the positions of a query's source."""
    sources = dict.fromkeys(each.source for each in positions)
    names = ", ".join(map(str, sources)) or "none"
    if source is None and len(sources) > 1:
        raise Failure(f"the query has several sources: {names}", "Choose one with --source")
    if source is not None and source not in sources:
        raise Failure(f"source {source} is not a rocketpoll source", f"Use one of: {names}")
    chosen = [each for each in positions if source is None or each.source == source]
    committed = {
        lag.queue: lag.consumer_offset
        for topic in sorted({each.queue.topic for each in chosen if each.end is not None})
        for lag in _lag(admin, group, topic)
    }
    moves = [
        OffsetMove(each.queue, committed.get(each.queue), min(each.next_offset, each.end), each.end)
        for each in chosen
        if each.end is not None
    ]
    if not moves:
        raise Failure(
            "none of the checkpoint's queues exists",
            "Compare them (rocketpoll checkpoint DIR --lag) with the brokers (rocketpoll cluster "
            "info)",
        )
    return moves
