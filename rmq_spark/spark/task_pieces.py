"""TaskPieces: what the tasks of a batch read: the ranges between two offsets, cut for tasks.

A batch that was planned before a restart is held against the brokers first: what is left of it is
read, and what is gone ends the query, or with failOnDataLoss=false is logged. Each piece says when
the last of its messages was stored, so that a task notices a topic that was made again meanwhile.
This module plans no batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmq_spark.spark.continuity import Continuity, Range, joined_bounds
from rmq_spark.spark.errors import report_losses
from rmq_spark.spark.options import ReadOptions
from rmq_spark.spark.planning import Piece, pieces
from rmq_spark.spark.queues import Place, Queues
from rmq_spark.spark.source_offset import SourceOffset
from rmq_spark.wire.message_queue import MessageQueue


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
        cut = pieces(ranges, self._options.pieces_min, self._options.piece_rows_max)
        return self._timed(cut, end)

    def _timed(self, cut: Sequence[Piece], end: SourceOffset) -> list[Piece]:
        """Tell tasks of their piece's last message what they know the topic by."""
        ends = {queue: each for queue, each in end.positions.items() if each.stored_ms is not None}
        known = {Place(queue, each.next_offset - 1): each[1:] for queue, each in ends.items()}
        lasts = [Place(piece.queue, piece.end - 1) for piece in cut]
        wanted = [last for last in lasts if last not in known]
        asked = self._queues.stored(wanted)
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


def _ranges(start: SourceOffset, end: SourceOffset) -> dict[MessageQueue, Range]:
    """Return the offsets that a batch takes of each queue that it takes any of."""
    ranges = {}
    for queue, position in end.positions.items():
        before = start.positions.get(queue)
        first = end.began.get(queue, position.next_offset if before is None else before.next_offset)
        if first < position.next_offset:
            ranges[queue] = Range(first, position.next_offset)
    return ranges
