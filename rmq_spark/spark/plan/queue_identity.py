"""QueueIdentity: detects queues that are no longer the ones read, and finds where to continue.

A position is an offset with the store time and the mark of the message before it. If they do not
match what the broker has (a lost tail, an older copy, a slave that lags, a recreated topic), the
store time decides:

    read so far     everything stored up to that time
    next to read    the first message stored after it; if there is none, the query stays where it is

So nothing is read twice, and nothing of a new topic is skipped. Brokers set store times under a
lock, and only times of the same broker are compared.

If a broker's clock was ahead and was corrected, the time proves less. Then nothing that may be new
is skipped, although some of it may have been read already:

    another message, same time        the clock stands still until real time catches up: next is
                                      the first message stored at that time or later
    another message, earlier time     the clock was set back, with the store or by a new topic: next
                                      is the first message of the queue

The caller decides whether a discontinuity fails the query.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple

from rmq_spark.spark.brokers.queue_client import (
    MessageFingerprint,
    MessagePosition,
    QueueClient,
    TimestampQuery,
)
from rmq_spark.spark.errors import describe_lost_offsets
from rmq_spark.spark.plan.source_offset import QueuePosition, SourceOffset
from rmq_spark.wire.message_queue import MessageQueue

_FROM_THE_FIRST_MS: Final = 0


class OffsetBounds(NamedTuple):
    """The first offset that a queue still has, and the offset of its next message."""

    first_offset: int
    next_offset: int


class BatchRange(NamedTuple):
    """The offsets of a queue that a batch reads: from ``start`` to before ``end``."""

    start: int
    end: int


class Discontinuity(NamedTuple):
    """A break in a queue's history: a description of the loss, and the next offset to read."""

    loss: str
    resume_offset: int


class ReplacedQueue(NamedTuple):
    """A queue that is not the one that was read: why, and since when messages are unread.

    The time is `_FROM_THE_FIRST_MS` if store times prove nothing.
    """

    loss: str
    since_ms: int


class QueueIdentity:
    """Compares a query's positions with the queues that brokers have."""

    def __init__(self, queues: QueueClient) -> None:
        self._queues = queues

    def discontinuities(
        self,
        positions: Mapping[MessageQueue, QueuePosition],
        bounds: Mapping[MessageQueue, OffsetBounds],
    ) -> dict[MessageQueue, Discontinuity]:
        """Return the queues at which a query cannot simply continue, in order.

        If a discontinuity resumes at the end of its queue, no message there was stored after those
        that were read.
        """
        found: dict[MessageQueue, Discontinuity] = {}
        losses: dict[MessageQueue, str] = {}
        inside = {}
        for queue, (first, last) in bounds.items():
            position = positions[queue]
            if position.next_offset < first:
                found[queue] = Discontinuity(
                    describe_lost_offsets(queue, position.next_offset, first), first
                )
            elif position.next_offset > last:
                losses[queue] = _describe_shrunk(queue, last, position.next_offset)
            else:
                inside[queue] = position
        replaced = self.replaced_queues(inside, bounds)
        since = {queue: _unread_since_ms(positions[queue]) for queue in losses}
        since.update({queue: each.since_ms for queue, each in replaced.items()})
        losses.update({queue: each.loss for queue, each in replaced.items()})
        starts = self._resume_offsets(since, bounds)
        for queue, loss in losses.items():
            where = f"those stored later begin at offset {starts[queue]}"
            if starts[queue] == bounds[queue].next_offset:
                where = "none is newer than those that were read"
            elif since[queue] == _FROM_THE_FIRST_MS:
                where = (
                    "all are read, because the broker's clock was ahead and it is unknown which "
                    "were read"
                )
            elif since[queue] == positions[queue].stored_ms:
                where = f"those of that time or later begin at offset {starts[queue]}: all are read"
            found[queue] = Discontinuity(
                f"{loss}; of the messages that it has now, {where}", starts[queue]
            )
        return dict(sorted(found.items()))

    def surviving_ranges(
        self,
        start: SourceOffset,
        end: SourceOffset,
        ranges: Mapping[MessageQueue, BatchRange],
        bounds: Mapping[MessageQueue, OffsetBounds],
    ) -> tuple[dict[MessageQueue, BatchRange], list[str]]:
        """Return the remaining ranges of a batch that was planned before, and its losses."""
        before = {
            queue: start.positions[queue]
            for queue in ranges
            if queue in start.positions and queue not in end.initial_offsets
        }
        behind = {
            queue: end.positions[queue]
            for queue, (_, last) in ranges.items()
            if bounds[queue].first_offset < last <= bounds[queue].next_offset
        }
        replaced = self.replaced_queues(before, bounds)
        others, empty = self._compare_messages(behind)
        ended = others | self._find_emptied(empty, bounds)
        changed = {
            queue: _unread_since_ms(end.positions[queue]) if each.since_ms else _FROM_THE_FIRST_MS
            for queue, each in replaced.items()
        }
        changed.update({queue: each.since_ms for queue, each in ended.items()})
        losses = {
            **{
                position.queue: _describe_missing(position, stored_ms)
                for position, stored_ms in empty.items()
            },
            **{queue: each.loss for queue, each in {**replaced, **ended}.items()},
        }
        for queue, (first, last) in ranges.items():
            low, high = bounds[queue]
            if first < low:
                losses[queue] = describe_lost_offsets(queue, first, min(low, last))
            elif last > high:
                losses[queue] = _describe_shrunk(queue, high, last)
                changed.setdefault(queue, _unread_since_ms(end.positions[queue]))
        since = self._resume_offsets(
            {queue: each.since_ms for queue, each in replaced.items()}, bounds
        )
        until = self._resume_offsets(changed, bounds)
        left = {
            queue: BatchRange(
                since.get(queue, max(first, bounds[queue].first_offset)),
                min(last, until.get(queue, last)),
            )
            for queue, (first, last) in ranges.items()
        }
        return (
            {queue: each for queue, each in left.items() if each.start < each.end},
            [losses[queue] for queue in sorted(losses)],
        )

    def replaced_queues(
        self,
        positions: Mapping[MessageQueue, QueuePosition],
        bounds: Mapping[MessageQueue, OffsetBounds] | None = None,
    ) -> dict[MessageQueue, ReplacedQueue]:
        """Return the queues whose message before a position differs from the one that was read.

        Given bounds, also return queues that have no message there, but unread ones before it. The
        missing message alone proves nothing: the one that was read may be lost, or the offset may
        be that of a rolled-back row in a recreated topic.
        """
        others, empty = self._compare_messages(positions)
        return others | self._find_emptied(empty, bounds or {})

    def _compare_messages(
        self, positions: Mapping[MessageQueue, QueuePosition]
    ) -> tuple[dict[MessageQueue, ReplacedQueue], dict[MessagePosition, int]]:
        """Return the queues whose message before a position differs, and the positions without one.

        Each position without a message comes with the store time of the message that it had.
        """
        known_positions = {
            MessagePosition(queue, position.next_offset - 1): position
            for queue, position in positions.items()
            if position.next_offset and position.stored_ms is not None
        }
        stored = self._queues.fingerprints(known_positions)
        found = {}
        for message_position, message in stored.items():
            if known_positions[message_position].may_follow(message.timestamp_ms, message.mark):
                continue
            since_ms = stored_ms = known_positions[message_position].stored_ms or 0
            how = f"has the same store time, {stored_ms} ms, but is another one than when"
            if message.timestamp_ms != stored_ms:
                how = f"was stored at {message.timestamp_ms} ms, and at {stored_ms} ms when"
                since_ms = stored_ms + 1 if message.timestamp_ms > stored_ms else _FROM_THE_FIRST_MS
            found[message_position.queue] = _replaced_queue(
                message_position.queue,
                f"its message at offset {message_position.queue_offset} {how}",
                since_ms,
            )
        empty = {
            message_position: known_positions[message_position].stored_ms or 0
            for message_position in known_positions.keys() - stored.keys()
        }
        return found, empty

    def _find_emptied(
        self, positions: Mapping[MessagePosition, int], bounds: Mapping[MessageQueue, OffsetBounds]
    ) -> dict[MessageQueue, ReplacedQueue]:
        """Return the queues that have no message at a position, and before it one that is newer.

        A queue that cannot be read at the moment is left out, because that proves nothing.
        """
        queries = {
            position: TimestampQuery(
                stored_ms + 1, bounds[position.queue].first_offset, position.queue_offset
            )
            for position, stored_ms in positions.items()
            if position.queue in bounds
            and bounds[position.queue].first_offset
            < position.queue_offset
            < bounds[position.queue].next_offset
        }
        begins = self._queues.offsets_for_times(
            {position.queue: queries[position] for position in queries}
        )
        later = {
            MessagePosition(position.queue, begins[position.queue]): position
            for position in queries
            if begins[position.queue] < position.queue_offset
        }
        found = self._queues.first_at_or_after(later)
        return {
            position.queue: _replaced_queue(
                position.queue,
                f"it has no message at offset {position.queue_offset}, and had one stored at "
                f"{positions[position]} ms when",
                queries[position].timestamp_ms,
            )
            for begin, position in later.items()
            if found.get(begin, position.queue_offset) < position.queue_offset
        }

    def _resume_offsets(
        self,
        since_ms: Mapping[MessageQueue, int | None],
        bounds: Mapping[MessageQueue, OffsetBounds],
    ) -> dict[MessageQueue, int]:
        """Return the first offsets stored at or after these times; for None, the queue's end."""
        found = {queue: bounds[queue].next_offset for queue in since_ms}
        found.update(
            self._queues.offsets_for_times(
                {
                    queue: TimestampQuery(ms, *bounds[queue])
                    for queue, ms in since_ms.items()
                    if ms is not None
                }
            )
        )
        return found


def bounds_of(
    starts: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    queues: Iterable[MessageQueue],
) -> dict[MessageQueue, OffsetBounds]:
    """Return the bounds of these queues; a queue that just expired may start after its end."""
    return {queue: OffsetBounds(min(starts[queue], ends[queue]), ends[queue]) for queue in queues}


def _replaced_queue(queue: MessageQueue, how: str, since_ms: int) -> ReplacedQueue:
    return ReplacedQueue(
        f"{queue} is not the one that was read: {how} it was read; the topic was "
        "deleted and recreated, or its broker was restored from an older copy",
        since_ms,
    )


def _describe_missing(position: MessagePosition, stored_ms: int) -> str:
    return (
        f"{position.queue} has lost the message at offset "
        f"{position.queue_offset}, stored at {stored_ms} ms, before it was read"
    )


def _unread_since_ms(position: QueuePosition) -> int | None:
    """Return the store time from which messages are unread, if that is known."""
    return None if position.stored_ms is None else position.stored_ms + 1


def _describe_shrunk(queue: MessageQueue, end: int, reached: int) -> str:
    return f"{queue} ends at offset {end}, but its position was {reached} before"


class StoreTimeLookup:
    """Looks up store times and sizes of the messages before offsets; for use by one thread."""

    def __init__(self, queues: QueueClient) -> None:
        self._queues = queues
        self._sizes: dict[MessageQueue, float] = {}

    @property
    def sizes(self) -> Mapping[MessageQueue, float]:
        """The mean message size in bytes of each queue of which a message was seen."""
        return self._sizes

    def positions_at(
        self,
        offsets: Mapping[MessageQueue, int],
        *known: SourceOffset | None,
        excluding: Container[MessageQueue] = (),
    ) -> SourceOffset:
        """Return positions at these offsets.

        Store times come from the ``known`` offsets; later arguments take precedence. Missing times,
        and those of queues in ``excluding``, come from brokers.
        """
        positions = {queue: QueuePosition(offset) for queue, offset in offsets.items()}
        for each in known:
            if each is not None:
                positions.update(
                    (queue, position)
                    for queue, position in each.positions.items()
                    if offsets.get(queue) == position.next_offset and queue not in excluding
                )
        unknown = {
            queue: position.next_offset - 1
            for queue, position in positions.items()
            if position.next_offset and position.stored_ms is None
        }
        for queue, (stored_ms, _, mark) in self.measure(unknown).items():
            positions[queue] = QueuePosition(positions[queue].next_offset, stored_ms, mark)
        return SourceOffset(positions)

    def measure(
        self, offsets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, MessageFingerprint]:
        """Return the fingerprints of these messages, and add their sizes to each queue's mean."""
        found = {}
        for (queue, _), message in self._queues.fingerprints(
            MessagePosition(*each) for each in offsets.items()
        ).items():
            found[queue] = message
            mean = self._sizes.get(queue)
            self._sizes[queue] = message.size if mean is None else (mean * 3 + message.size) / 4
        return found
