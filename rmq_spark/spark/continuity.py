"""Continuity: whether a queue is still the one that was read, and where to go on if it is not.

A position is an offset, and the time at which the message before it was stored. Where the two do
not fit what a broker holds (a lost tail, an older copy, a slave that lags, a topic that was made
again), the time counts:

    read so far     everything stored up to that time
    what is next    the first message stored after it; if there is none, the query stays where it is

So nothing is read twice, and nothing of a new topic is left out. Brokers set these times under a
lock, and only their own times are compared. Whether a break ends the query is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rmq_spark.spark.errors import lost, named
from rmq_spark.spark.queues import Place, Queues, Since
from rmq_spark.spark.source_offset import QueuePosition, SourceOffset
from rmq_spark.wire.message_queue import MessageQueue


class Bounds(NamedTuple):
    """The first offset that a queue holds, and the offset of its next message."""

    first: int
    next: int


class Range(NamedTuple):
    """The offsets that a batch takes of a queue, from one to before another."""

    start: int
    end: int


class Break(NamedTuple):
    """A break in a queue's history: what is gone, in words, and the next offset to read."""

    loss: str
    go_on: int


class Continuity:
    """The comparison of a query's positions with the queues that brokers hold."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def breaks(
        self, positions: Mapping[MessageQueue, QueuePosition], bounds: Mapping[MessageQueue, Bounds]
    ) -> dict[MessageQueue, Break]:
        """Return the queues at which a query cannot simply go on, in order.

        A break that goes on at the end of its queue has nothing to read: no message there was
        stored after those that were read.
        """
        found: dict[MessageQueue, Break] = {}
        losses: dict[MessageQueue, str] = {}
        inside = {}
        for queue, (first, last) in bounds.items():
            position = positions[queue]
            if position.next_offset < first:
                found[queue] = Break(lost(queue, position.next_offset, first), first)
            elif position.next_offset > last:
                losses[queue] = _shorter(queue, last, position.next_offset)
            else:
                inside[queue] = position
        losses.update(self._strangers(inside))
        go_on = self._behind({queue: positions[queue].stored_ms for queue in losses}, bounds)
        for queue, loss in losses.items():
            where = (
                "none was stored after those that were read"
                if go_on[queue] == bounds[queue].next
                else f"those stored after what was read begin at offset {go_on[queue]}"
            )
            found[queue] = Break(f"{loss}; of the messages that it has, {where}", go_on[queue])
        return dict(sorted(found.items()))

    def left_of(
        self,
        start: SourceOffset,
        end: SourceOffset,
        ranges: Mapping[MessageQueue, Range],
        bounds: Mapping[MessageQueue, Bounds],
    ) -> tuple[dict[MessageQueue, Range], list[str]]:
        """Return what is still there of a batch that was planned before, and what is gone of it."""
        before = {
            queue: start.positions[queue]
            for queue in ranges
            if queue in start.positions and queue not in end.began
        }
        behind = {
            queue: end.positions[queue]
            for queue, (_, last) in ranges.items()
            if bounds[queue].first < last <= bounds[queue].next
        }
        strangers = self._strangers(before)
        changed = {**strangers, **self._strangers(behind)}
        losses = dict(changed)
        for queue, (first, last) in ranges.items():
            low, high = bounds[queue]
            if first < low:
                losses[queue] = lost(queue, first, min(low, last))
            elif last > high:
                losses[queue] = changed[queue] = _shorter(queue, high, last)
        since = self._behind({queue: before[queue].stored_ms for queue in strangers}, bounds)
        until = self._behind({queue: end.positions[queue].stored_ms for queue in changed}, bounds)
        left = {
            queue: Range(
                since.get(queue, max(first, bounds[queue].first)), min(last, until.get(queue, last))
            )
            for queue, (first, last) in ranges.items()
        }
        return (
            {queue: each for queue, each in left.items() if each.start < each.end},
            [losses[queue] for queue in sorted(losses)],
        )

    def _strangers(
        self, positions: Mapping[MessageQueue, QueuePosition]
    ) -> dict[MessageQueue, str]:
        """Return the queues whose message before a position is another than was read, in words."""
        places = {
            Place(queue, next_offset - 1): stored_ms
            for queue, (next_offset, stored_ms) in positions.items()
            if next_offset and stored_ms is not None
        }
        found = {}
        for place, message in self._queues.stored(places).items():
            if message.timestamp_ms != places[place]:
                found[place.queue] = (
                    f"{named(place.queue)} is not the one that was read: its message at offset "
                    f"{place.queue_offset} was stored at {message.timestamp_ms} ms, and at "
                    f"{places[place]} ms when it was read; the topic was deleted and made again, "
                    "or its broker was put back from an older copy"
                )
        return found

    def _behind(
        self, stored_ms: Mapping[MessageQueue, int | None], bounds: Mapping[MessageQueue, Bounds]
    ) -> dict[MessageQueue, int]:
        """Return the first offsets stored after these times; a queue's end without a time."""
        found = {queue: bounds[queue].next for queue in stored_ms}
        found.update(
            self._queues.first_since(
                {
                    queue: Since(ms + 1, *bounds[queue])
                    for queue, ms in stored_ms.items()
                    if ms is not None
                }
            )
        )
        return found


def joined_bounds(
    starts: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    which: Iterable[MessageQueue],
) -> dict[MessageQueue, Bounds]:
    """Return the bounds of these queues; a queue that just expired may begin after its end."""
    return {queue: Bounds(min(starts[queue], ends[queue]), ends[queue]) for queue in which}


def _shorter(queue: MessageQueue, end: int, reached: int) -> str:
    return f"{named(queue)} ends at offset {end}, and was read, or to be read, to {reached} before"
