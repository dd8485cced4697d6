"""MicroBatches: one query's batches, from its start to the next one, and the losses on the way.

    initial      where a new query begins
    latest       where the next batch ends: what is new, within the limits; where nothing was, it
                 waits a little, so that brokers hold its pulls and the first new message starts a
                 batch at once
    pieces       what the tasks of a batch read
    batch_ended  a batch was written: brokers are told how far a group has come

Queues that an offset knows all have to answer before a batch ends behind them, unless the user has
it go on without brokers that are away. A start that this object has not made itself, since it comes
from a checkpoint, is held against the brokers before anything is read (`continuity`). What is gone
ends the query, or with failOnDataLoss=false is logged and passed over. This module knows neither
Spark nor connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from rmq_spark.spark.continuity import Continuity, Range, joined_bounds
from rmq_spark.spark.discovery import selects
from rmq_spark.spark.errors import CheckpointError, OptionError, report_losses
from rmq_spark.spark.horizon import Horizon
from rmq_spark.spark.idling import Idling
from rmq_spark.spark.options import Limits, ReadOptions
from rmq_spark.spark.planning import Backlog, Piece, pieces, rows_within_bytes, share_rows
from rmq_spark.spark.positions import LATEST
from rmq_spark.spark.queues import Place, Queues
from rmq_spark.spark.source_offset import SourceOffset
from rmq_spark.spark.start_and_end import Span
from rmq_spark.spark.store_times import StoreTimes
from rmq_spark.wire.message_queue import MessageQueue

NO_LIMITS: Final = Limits()
_COMPARED_SECONDS: Final = 60.0
"""Seconds between comparisons of queues that end where they did: others may have come to that."""

_RECORD_BYTES: Final = 300.0
"""The assumed size of a message in bytes, until the first one was seen."""


class MicroBatches:
    """The planner of the batches of one query; for use by one thread."""

    def __init__(self, options: ReadOptions, queues: Queues, clock: Callable[[], float]) -> None:
        """Take a clock that gives seconds."""
        self._options = options
        self._queues = queues
        self._times = StoreTimes(queues)
        self._horizon = Horizon(options, queues, self._times)
        self._continuity = Continuity(queues)
        self._clock = clock
        self._initial: SourceOffset | None = None
        self._mine: SourceOffset | None = None  # the last that was made or checked here
        self._was_empty_at: SourceOffset | None = None
        self._ends: Mapping[MessageQueue, int] = {}
        self._idling = Idling(options.suspend_ms, clock)
        self._last_batch_at: float | None = None
        self._committed: Mapping[MessageQueue, int] = {}
        self._settled: dict[
            MessageQueue, int
        ] = {}  # ends before what was read, with nothing new yet
        self._compared_at = clock()

    # ---- where

    def initial(self) -> SourceOffset:
        """Return the start of a query that has no checkpoint yet.

        Spark asks again and again until there is a first batch. The end of the queues must not move
        on meanwhile, or messages that arrive between two questions would never be read.
        """
        if self._initial is None:
            found = self._queues.discover(now=True)
            begin = Span(self._options, self._queues, found).starting(default=LATEST)
            self._initial = self._mine = self._times.of(begin)
        return self._initial

    def begin_at(self, queue: MessageQueue, queue_offset: int) -> SourceOffset:
        """Return the start of a new query that begins at this offset of a queue."""
        offsets = {each: at.next_offset for each, at in self.initial().positions.items()}
        self._initial = self._mine = self._times.of({**offsets, queue: queue_offset})
        return self._initial

    def prepare_available_now(self) -> None:
        """Let nothing count from now on that arrives later."""
        self._horizon.close()

    @property
    def newest(self) -> SourceOffset | None:
        """The ends of the queues as `latest` last saw them."""
        return self._horizon.newest

    @property
    def sizes(self) -> Mapping[MessageQueue, float]:
        """The mean size of a message in bytes, by queue, for queues with messages seen."""
        return self._times.sizes

    def look(self, known: SourceOffset) -> SourceOffset:
        """Return where the queues end now that an offset knows."""
        there = [queue for queue in known.positions if queue.broker_name not in known.gone]
        return self._times.of(self._queues.ends(there), known)

    def latest(self, start: SourceOffset, limits: Limits) -> SourceOffset:
        """Return the end of the next batch; ``start`` itself if there is none yet.

        The end of a batch without messages differs from its start if queues have gone for good.

        Raises:
            DataLoss: Messages behind the start are gone.
            CheckpointError: The start is of other topics.
            BrokersAway: Queues of the start have not answered for too long.
            OptionError: An end is given for a query that does not end.
        """
        if self._options.ending is not None and not self._horizon.is_closed:
            raise OptionError(
                self._options.ending.option,
                "a stream ends there only with .trigger(availableNow=True), before Spark 4.2 with "
                "option availableNow=true: add that, or leave this out",
            )
        if start == self._was_empty_at and not self._horizon.is_closed:
            has_news = self._queues.wait(self._ends, self._idling.hold_ms)
            if not has_news and not self._idling.is_time_to_look:
                return start
        is_first, is_known = start == self._initial, start == self._mine
        self._check_topics(start)
        base, self._ends = self._horizon.look_from(start)
        self._idling.looked()
        found = self._batch(base, self._ends, limits, is_first=is_first, is_known=is_known)
        self.commit(start)
        self._mine = base if found is None else found
        self._was_empty_at = base if found is None else None
        return self._mine

    # ---- a batch

    def _batch(
        self,
        start: SourceOffset,
        ends: Mapping[MessageQueue, int],
        limits: Limits,
        *,
        is_first: bool,
        is_known: bool,
    ) -> SourceOffset | None:
        """Return the end of a batch; None if there is nothing new, or not enough yet."""
        at = {queue: position.next_offset for queue, position in start.positions.items()}
        changed = [
            queue
            for queue, end in ends.items()
            if end != self._settled.get(queue, at.get(queue, 0))
        ]
        if is_known and self._clock() - self._compared_at >= _COMPARED_SECONDS:
            changed = [queue for queue in ends if queue in changed or queue not in self._settled]
            self._compared_at = self._clock()
        if not changed and is_known:
            return None
        began = self._begun(start, ends, changed if is_known else list(ends))
        first = {
            queue: began.get(queue, at.get(queue, 0)) for queue in dict.fromkeys([*at, *began])
        }
        backlogs = {
            queue: Backlog(end - first[queue], start.positions.get(queue, (0, 0))[1] or 0)
            for queue, end in ends.items()
            if queue in first and end > first[queue]
        }
        if not self._is_enough(backlogs, began, limits):
            return None
        rows = self._rows(backlogs, first, limits)
        taken = share_rows(
            backlogs, sum(each.messages for each in backlogs.values()) if rows is None else rows
        )
        end = {queue: offset + taken.get(queue, 0) for queue, offset in first.items()}
        if end == at and not began:
            return None
        found = self._times.of(end, self._horizon.newest, start, but=began)
        if self._are_others(found, start, began):
            _, ends = self._horizon.look_from(start)
            return self._batch(start, ends, limits, is_first=is_first, is_known=is_known)
        self._last_batch_at = self._clock()
        if is_first:
            # Where the first batch begins is in no log of Spark's: after a crash it asks for it
            # once more.
            began = {**at, **began}
        return replace(found, began=MappingProxyType(began), gone=start.gone)

    def _are_others(
        self, end: SourceOffset, start: SourceOffset, began: Mapping[MessageQueue, int]
    ) -> bool:
        """Return whether queues were made again before their times at this end were asked for.

        Of those, a time would be that of the new queue beside an offset of the old one. Only queues
        that are the old ones behind that question have told of the old ones.
        """
        known = (start, self._horizon.newest)  # the newest was known when the start was checked
        asked = {
            queue: start.positions[queue]
            for queue, position in end.positions.items()
            if queue in start.positions
            and queue not in began
            and all(each is None or each.positions.get(queue) != position for each in known)
        }
        return bool(self._continuity.strangers(asked)) or self._has_lost_ends(end, start)

    def _has_lost_ends(self, end: SourceOffset, start: SourceOffset) -> bool:
        """Return whether queues have lost their ends since these were asked for.

        Their last messages have no time, then: the next batch would take that of another one.
        """
        ends = {
            queue: position.next_offset
            for queue, position in end.positions.items()
            if position.next_offset
            and position.stored_ms is None
            and start.positions.get(queue) != position
        }
        now = self._queues.ends(ends) if ends else {}
        return any(now[queue] < ends[queue] for queue in ends)

    def _begun(
        self, start: SourceOffset, ends: Mapping[MessageQueue, int], which: Sequence[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Return the first offsets of queues that are new to the query, or have broken off."""
        bounds = joined_bounds(self._queues.starts(which), ends, sorted(which))
        began = {
            queue: each.first
            for queue, each in bounds.items()
            if queue not in start.positions and each.first < each.next
        }
        known = {queue: each for queue, each in bounds.items() if queue in start.positions}
        for queue in known:
            self._settled.pop(queue, None)
        breaks = self._continuity.breaks(start.positions, known)
        self._report([each.loss for each in breaks.values()])
        self._horizon.look_anew(breaks)
        for queue, each in breaks.items():
            if each.go_on < known[queue].next or start.positions[queue].stored_ms is None:
                began[queue] = each.go_on
            else:
                self._settled[queue] = known[queue].next
        return began

    def _is_enough(
        self,
        backlogs: Mapping[MessageQueue, Backlog],
        began: Mapping[MessageQueue, int],
        limits: Limits,
    ) -> bool:
        """Tell whether a batch is worth its while, or has been waited for long enough."""
        if not backlogs:
            return bool(began)
        if limits.rows_min is None or self._horizon.is_closed or self._last_batch_at is None:
            return True
        if sum(backlog.messages for backlog in backlogs.values()) >= limits.rows_min:
            return True
        return self._clock() - self._last_batch_at >= limits.delay_ms / 1000

    def _rows(
        self,
        backlogs: Mapping[MessageQueue, Backlog],
        first: Mapping[MessageQueue, int],
        limits: Limits,
    ) -> int | None:
        """Return how many messages a batch may have in all; None for any number."""
        rows = limits.rows
        if limits.bytes is not None and backlogs:
            seen = self._times.sizes
            self._times.measure({queue: first[queue] for queue in backlogs if queue not in seen})
            sizes = {queue: seen.get(queue, _RECORD_BYTES) for queue in backlogs}
            within = rows_within_bytes(backlogs, sizes, limits.bytes)
            rows = within if rows is None else min(rows, within)
        return rows

    # ---- what tasks read

    def pieces(self, start: SourceOffset, end: SourceOffset) -> list[Piece]:
        """Return the ranges between two offsets, cut for tasks; equal offsets give equal pieces."""
        if start == end:
            return []
        ranges = {}
        for queue, position in end.positions.items():
            before = start.positions.get(queue)
            first = end.began.get(
                queue, position.next_offset if before is None else before.next_offset
            )
            if first < position.next_offset:
                ranges[queue] = Range(first, position.next_offset)
        if end != self._mine:
            ranges = self._left_of(start, end, ranges)
        return self._timed(
            pieces(ranges, self._options.pieces_min, self._options.piece_rows_max), end
        )

    def _left_of(
        self, start: SourceOffset, end: SourceOffset, ranges: Mapping[MessageQueue, Range]
    ) -> dict[MessageQueue, Range]:
        """Compare a batch planned before a restart with the brokers; return what is left of it."""
        self._check_topics(start)
        self._check_topics(end)
        self._queues.discover()
        bounds = joined_bounds(self._queues.starts(ranges), self._queues.ends(ranges), ranges)
        left, losses = self._continuity.left_of(start, end, ranges, bounds)
        self._report(losses)
        return left

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

    def batch_ended(self, end: SourceOffset) -> None:
        """Note that a batch of the query has been written, be it of other sources."""
        self._idling.batch_ended(is_ours=end != self._was_empty_at)
        self.commit(end)

    def commit(self, reached: SourceOffset) -> None:
        """Tell brokers how far the group has come, if one was named."""
        group = self._options.consumer_group
        if group is None or not reached.positions:
            return
        offsets = {queue: position.next_offset for queue, position in reached.positions.items()}
        news = {
            queue: offset
            for queue, offset in offsets.items()
            if self._committed.get(queue) != offset
        }
        if news:
            self._committed = {**self._committed, **self._queues.commit(group, news)}

    # ---- what is gone

    def _check_topics(self, start: SourceOffset) -> None:
        """Refuse a checkpoint of other topics; report topics of it that are no longer read."""
        if start == self._mine:
            return
        selection = self._options.selection
        option, named_by = selection.option, selection.pattern or ", ".join(selection.topics)
        others = sorted(topic for topic in start.topics if not selects(selection, topic))
        if not others:
            return
        if len(others) == len(start.topics):
            raise CheckpointError(
                f"the checkpoint is of {', '.join(others)}, and option {option} names {named_by}: "
                "give this query a checkpointLocation of its own, or name the topics that it has "
                "read so far"
            )
        self._report(
            [
                (
                    f"the checkpoint also is of {', '.join(others)}, which option {option} does "
                    "not name any more"
                )
            ]
        )

    def _report(self, losses: Sequence[str]) -> None:
        report_losses(losses, is_failure=self._options.fail_on_data_loss)
