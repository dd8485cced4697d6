"""TaskPieces: what the tasks of a batch read: the ranges between two offsets, cut for tasks.

A batch that was planned before a restart is held against the brokers first: what is left of it is
read, and what is gone ends the query, or with failOnDataLoss=false is logged. Each piece says when
the last of its messages was stored, so that a task notices a topic that was made again meanwhile.
This module plans no batch.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Protocol, TypeVar

from rmq_spark.spark.brokers.queue_client import Place, Queues, Stored
from rmq_spark.spark.errors import report_losses
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.plan.queue_identity import Continuity, Range, joined_bounds
from rmq_spark.spark.plan.rate_limit import Piece, pieces
from rmq_spark.spark.plan.source_offset import SourceOffset
from rmq_spark.wire.message_queue import MessageQueue

# ---- TaskBundles: pieces that one task reads, one after the other, where tasks are to be few.


class Sized(Protocol):
    """A piece whose number of rows is known."""

    @property
    def row_count(self) -> int:
        """The number of its rows, at most."""


P = TypeVar("P", bound=Sized)


def bundled(pieces: Sequence[P], bundles_max: int | None) -> list[tuple[P, ...]]:
    """Return bundles of pieces, so many at most; without a maximum each piece is one.

    The same pieces give the same bundles.
    """
    if bundles_max is None or len(pieces) <= bundles_max:
        return [(piece,) for piece in pieces]
    total = sum(piece.row_count for piece in pieces)
    bundles: list[list[P]] = [[] for _ in range(bundles_max)]
    before = 0
    for piece in pieces:
        middle = 2 * before + piece.row_count  # of twice as many rows
        bundles[min(middle * bundles_max // (2 * total), bundles_max - 1)].append(piece)
        before += piece.row_count
    return [tuple(bundle) for bundle in bundles if bundle]


class TaskPieces:
    """The pieces of one query's batches; for use by one thread."""

    def __init__(self, options: ReadOptions, queues: Queues) -> None:
        self._options = options
        self._queues = queues
        self._continuity = Continuity(queues)

    def between(self, start: SourceOffset, end: SourceOffset) -> list[Piece]:
        """Return the pieces of a batch that has just been planned."""
        return self._cut(_ranges(start, end), end)

    def left_of(self, start: SourceOffset, end: SourceOffset) -> list[Piece]:
        """Return the pieces of what is left of a batch that was planned before a restart.

        Raises:
            DataLoss: Messages of the batch are gone, and that is to end the query.
        """
        ranges = _ranges(start, end)
        self._queues.discover()  # which brokers have the queues, before these are asked
        bounds = joined_bounds(self._queues.starts(ranges), self._queues.ends(ranges), ranges)
        left, losses = self._continuity.left_of(start, end, ranges, bounds)
        report_losses(losses, is_failure=self._options.fail_on_data_loss)
        return self._cut(left, end)

    def _cut(self, ranges: Mapping[MessageQueue, Range], end: SourceOffset) -> list[Piece]:
        """Cut ranges, and tell tasks of their piece's last message what they know the topic by."""
        ends = {queue: each for queue, each in end.positions.items() if each.stored_ms is not None}
        known = {Place(queue, each.next_offset - 1): each[1:] for queue, each in ends.items()}
        cut = pieces(ranges, self._options.pieces_min, self._options.piece_rows_max)
        cut, asked = ending_with_messages(self._queues, cut, known)
        lasts = [last_of(piece) for piece in cut]
        wanted = [last for last in lasts if last not in known]
        # Where the end is another message by now, or none, so may be those that were found: no
        # task is to take messages of a new queue for those that were planned.
        again = self._queues.stored(
            Place(queue, ends[queue].next_offset - 1)
            for queue in dict.fromkeys(each.queue for each in wanted)
            if queue in ends
        )
        unchanged = {
            at.queue
            for at, found in again.items()
            if ends[at.queue].may_be_behind(found.timestamp_ms, found.mark)
        }
        for place in wanted:
            if place.queue in ends and place.queue not in unchanged:
                known[place] = ends[place.queue][1:]
            elif place in asked:
                known[place] = asked[place].timestamp_ms, asked[place].mark
        return [
            Piece(*piece[:3], *known.get(last, ())) for piece, last in zip(cut, lasts, strict=True)
        ]


def ending_with_messages(
    queues: Queues, cut: Sequence[Piece], known: Container[Place] = ()
) -> tuple[list[Piece], dict[Place, Stored]]:
    """Return pieces that end behind a message, where brokers have one, and these last messages.

    A task knows a topic by its piece's last message. So a piece that would end within a gap goes up
    to the next message: it has no more rows for that, as an offset of it has none. What is
    ``known`` is not asked for.
    """
    lasts = [last for last in map(last_of, cut) if last not in known]
    stored = queues.stored(lasts)
    within = [last for last in lasts if last not in stored]
    behind = queues.first_at_or_behind(within) if within else {}
    if not behind:
        return list(cut), stored
    moved = _moved(cut, behind)
    more = {last_of(piece) for piece in moved} - stored.keys()
    return moved, stored | queues.stored(last for last in more if last not in known)


def _moved(cut: Sequence[Piece], behind: Mapping[Place, int]) -> list[Piece]:
    """Return pieces of which some end behind other messages; those are left out that are empty."""
    ends = {piece.queue: piece.end for piece in cut}
    starts: dict[MessageQueue, int] = {}
    moved = []
    for piece in cut:
        queue, start, end = piece.queue, starts.get(piece.queue, piece.start), piece.end
        end = min(max(end, behind.get(last_of(piece), 0) + 1), ends[queue])
        if start < end:
            moved.append(piece._replace(start=start, end=end))
            starts[queue] = end
    return moved


def last_of(piece: Piece) -> Place:
    """Return the last place of a piece, which a task knows its topic by."""
    return Place(piece.queue, piece.end - 1)


def _ranges(start: SourceOffset, end: SourceOffset) -> dict[MessageQueue, Range]:
    """Return the offsets that a batch takes of each queue that it takes any of."""
    ranges = {}
    for queue, position in end.positions.items():
        before = start.positions.get(queue)
        first = end.began.get(queue, position.next_offset if before is None else before.next_offset)
        if first < position.next_offset:
            ranges[queue] = Range(first, position.next_offset)
    return ranges
