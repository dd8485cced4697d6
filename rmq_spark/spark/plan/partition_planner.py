"""PartitionPlanner: divides the range between two offsets among the tasks of a batch.

A batch that was planned before a restart is first compared with the brokers: tasks read the
messages that remain, and lost ones fail the query, or with failOnDataLoss=false are logged. Each
range has the store time of its last message, so that a task notices a topic recreated in the
meantime.

A batch's limit is shared among queues in proportion to each queue's backlog, and no queue starves:
if there are more queues than messages to read, the queues whose next message has waited longest go
first.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from rmq_spark.spark.brokers.queue_client import MessageFingerprint, MessagePosition, QueueClient
from rmq_spark.spark.errors import report_losses
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.plan.queue_identity import BatchRange, QueueIdentity, bounds_of
from rmq_spark.spark.plan.source_offset import SourceOffset
from rmq_spark.wire.message_queue import MessageQueue


class Backlog(NamedTuple):
    """The unread messages of a queue: their number, and about when the oldest was stored."""

    messages: int
    since_ms: int = 0


class OffsetRange(NamedTuple):
    """The offsets of one queue that one task reads: from ``start`` to before ``end``.

    ``last_stored_ms`` is the store time of the message before the end, and ``last_mark`` its mark
    (`mark_of`), if they are known.
    """

    queue: MessageQueue
    start: int
    end: int
    last_stored_ms: int | None = None
    last_mark: int | None = None

    @property
    def row_count(self) -> int:
        """The number of rows, if every message becomes a row."""
        return self.end - self.start


def share_rows(backlogs: Mapping[MessageQueue, Backlog], rows: int) -> dict[MessageQueue, int]:
    """Return how many messages to read from each queue: ``rows`` in all, or the whole backlog."""
    waiting = {
        queue: backlog.messages for queue, backlog in backlogs.items() if backlog.messages > 0
    }
    total = sum(waiting.values())
    if total <= rows:
        return waiting
    in_order = sorted(waiting, key=lambda queue: (backlogs[queue].since_ms, queue))
    if rows <= len(in_order):
        return dict.fromkeys(in_order[:rows], 1)
    # Each queue gets one row. The other rows are shared in proportion to the backlogs, rounded
    # down; the queues that have waited longest get what is left.
    rest, remaining = rows - len(in_order), total - len(in_order)
    shares = {queue: 1 + (waiting[queue] - 1) * rest // remaining for queue in in_order}
    left = rows - sum(shares.values())
    for queue in in_order:
        if not left:
            break
        more = min(left, waiting[queue] - shares[queue])
        shares[queue] += more
        left -= more
    return shares


def rows_within_bytes(
    backlogs: Mapping[MessageQueue, Backlog], sizes: Mapping[MessageQueue, float], bytes_max: int
) -> int:
    """Return about how many messages of the queues fit into ``bytes_max``; at least one."""
    total = sum(backlog.messages for backlog in backlogs.values())
    size = sum(backlog.messages * sizes[queue] for queue, backlog in backlogs.items())
    return total if size <= bytes_max else max(int(total * bytes_max / size), 1)


def divide_ranges(
    ranges: Mapping[MessageQueue, tuple[int, int]],
    ranges_min: int | None = None,
    rows_max: int | None = None,
) -> list[OffsetRange]:
    """Divide ranges of offsets into the ranges that tasks read.

    Each queue stays one range, unless more or smaller ones are requested. Empty ranges are left
    out. The same input gives the same ranges.
    """
    sizes = {queue: end - start for queue, (start, end) in ranges.items() if end > start}
    counts = {queue: -(-size // rows_max) if rows_max else 1 for queue, size in sizes.items()}
    short = (ranges_min or 0) - sum(counts.values())
    if short > 0:
        total = sum(sizes.values())
        for queue, size in sizes.items():
            wanted = max(round((ranges_min or 0) * size / total), 1)
            counts[queue] = min(max(counts[queue], wanted), size)
        # Rounding may leave too few ranges: divide the largest again.
        while sum(counts.values()) < min(ranges_min or 0, total):
            largest = max(counts, key=lambda queue: (sizes[queue] / counts[queue], queue))
            counts[largest] += 1
    found = []
    for queue in sorted(sizes):
        start, end = ranges[queue]
        cuts = [start + sizes[queue] * i // counts[queue] for i in range(counts[queue])] + [end]
        found += [OffsetRange(queue, cuts[i], cuts[i + 1]) for i in range(counts[queue])]
    return found


# ---- Groups of ranges that one task reads in turn, where tasks are limited.


class CountedRange(Protocol):
    """A range of which the maximum number of rows is known."""

    @property
    def row_count(self) -> int:
        """The maximum number of rows."""


P = TypeVar("P", bound=CountedRange)


def group_ranges(ranges: Sequence[P], groups_max: int | None) -> list[tuple[P, ...]]:
    """Return at most ``groups_max`` groups of ranges; without a maximum each range is a group.

    The same ranges give the same groups.
    """
    if groups_max is None or len(ranges) <= groups_max:
        return [(piece,) for piece in ranges]
    total = sum(piece.row_count for piece in ranges)
    groups: list[list[P]] = [[] for _ in range(groups_max)]
    before = 0
    for piece in ranges:
        middle = 2 * before + piece.row_count  # the row in its middle, times 2 to stay an integer
        groups[min(middle * groups_max // (2 * total), groups_max - 1)].append(piece)
        before += piece.row_count
    return [tuple(group) for group in groups if group]


class PartitionPlanner:
    """The offset ranges of one query's batches; for use by one thread."""

    def __init__(self, options: ReadOptions, queues: QueueClient) -> None:
        self._options = options
        self._queues = queues
        self._queue_identity = QueueIdentity(queues)

    def plan(self, start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
        """Return the ranges of a batch that has just been planned."""
        return self._divide(batch_ranges(start, end), end)

    def plan_surviving(self, start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
        """Return the ranges that remain of a batch planned before a restart."""
        ranges = batch_ranges(start, end)
        self._queues.discover()  # find the queues' brokers before sending requests to them
        bounds = bounds_of(self._queues.starts(ranges), self._queues.ends(ranges), ranges)
        left, losses = self._queue_identity.surviving_ranges(start, end, ranges, bounds)
        report_losses(losses, is_failure=self._options.fail_on_data_loss)
        return self._divide(left, end)

    def _divide(
        self, ranges: Mapping[MessageQueue, BatchRange], end: SourceOffset
    ) -> list[OffsetRange]:
        """Divide ranges, and add to each the fingerprint by which a task recognizes the topic."""
        ends = {queue: each for queue, each in end.positions.items() if each.stored_ms is not None}
        known = {
            MessagePosition(queue, each.next_offset - 1): each[1:] for queue, each in ends.items()
        }
        cut = divide_ranges(ranges, self._options.partitions_min, self._options.partition_rows_max)
        cut, stored = align_to_messages(self._queues, cut, known)
        last_positions = [last_position(offset_range) for offset_range in cut]
        wanted = [last for last in last_positions if last not in known]
        # If the end now has another message or none, the other messages found may be new as well:
        # no task may read messages of a recreated queue as the planned ones.
        confirmed = self._queues.fingerprints(
            MessagePosition(queue, ends[queue].next_offset - 1)
            for queue in dict.fromkeys(each.queue for each in wanted)
            if queue in ends
        )
        unchanged = {
            at.queue
            for at, found in confirmed.items()
            if ends[at.queue].may_follow(found.timestamp_ms, found.mark)
        }
        for position in wanted:
            if position.queue in ends and position.queue not in unchanged:
                known[position] = ends[position.queue][1:]
            elif position in stored:
                known[position] = stored[position].timestamp_ms, stored[position].mark
        return [
            OffsetRange(*offset_range[:3], *known.get(last, ()))
            for offset_range, last in zip(cut, last_positions, strict=True)
        ]


def align_to_messages(
    queues: QueueClient, ranges: Sequence[OffsetRange], known: Container[MessagePosition] = ()
) -> tuple[list[OffsetRange], dict[MessagePosition, MessageFingerprint]]:
    """Return ranges that end after an existing message, and the fingerprints of these messages.

    A task recognizes a topic by its range's last message. So a range that would end within a gap is
    extended to the next message. It still has at most as many rows as planned, because the gap has
    none. Brokers are not asked for ``known`` messages.
    """
    last_positions = [last for last in map(last_position, ranges) if last not in known]
    stored = queues.fingerprints(last_positions)
    missing = [last for last in last_positions if last not in stored]
    first_after = queues.first_at_or_after(missing) if missing else {}
    if not first_after:
        return list(ranges), stored
    moved = _extend_to_messages(ranges, first_after)
    more = {last_position(piece) for piece in moved} - stored.keys()
    return moved, stored | queues.fingerprints(last for last in more if last not in known)


def _extend_to_messages(
    ranges: Sequence[OffsetRange], first_after: Mapping[MessagePosition, int]
) -> list[OffsetRange]:
    """Return ranges that end after the messages in ``first_after``; empty ranges are left out."""
    ends = {piece.queue: piece.end for piece in ranges}
    starts: dict[MessageQueue, int] = {}
    moved = []
    for piece in ranges:
        queue, start, end = piece.queue, starts.get(piece.queue, piece.start), piece.end
        end = min(max(end, first_after.get(last_position(piece), 0) + 1), ends[queue])
        if start < end:
            moved.append(piece._replace(start=start, end=end))
            starts[queue] = end
    return moved


def last_position(offset_range: OffsetRange) -> MessagePosition:
    """Return the last position of a range, by whose message a task recognizes its topic."""
    return MessagePosition(offset_range.queue, offset_range.end - 1)


def batch_ranges(start: SourceOffset, end: SourceOffset) -> dict[MessageQueue, BatchRange]:
    """Return the range of offsets of a batch in each queue that has messages in it."""
    ranges = {}
    for queue, position in end.positions.items():
        before = start.positions.get(queue)
        first = end.initial_offsets.get(
            queue, position.next_offset if before is None else before.next_offset
        )
        if first < position.next_offset:
            ranges[queue] = BatchRange(first, position.next_offset)
    return ranges
