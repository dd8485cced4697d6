"""NextBatch: where a batch ends that begins at a given start: what is new, within the limits.

    nothing new    no queue has moved: no broker is asked for more
    begun          queues that are new begin at their first message, and those that have broken off
                   (`continuity`) where what was not read begins: both say so in the end
    enough         few messages are waited for, as the user wishes
    within limits  rows and bytes are shared among the queues (`planning`)
    behind gaps    no queue ends behind an offset that has no message
    made again     queues that changed while they were asked have told two stories: all is asked
                   for once more

Losses end the query, or with failOnDataLoss=false are logged and passed over. Where queues end is
given; this module neither waits for messages nor knows what tasks read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from rmq_spark.spark.brokers.queue_client import MessagePosition, QueueClient
from rmq_spark.spark.errors import report_losses
from rmq_spark.spark.options.options import BatchLimits, ReadOptions
from rmq_spark.spark.plan.latest_offsets import LatestOffsets
from rmq_spark.spark.plan.offset_ranges import Backlog, rows_within_bytes, share_rows
from rmq_spark.spark.plan.queue_identity import QueueIdentity, StoreTimeLookup, bounds_of
from rmq_spark.spark.plan.source_offset import SourceOffset
from rmq_spark.wire.message_queue import MessageQueue

_COMPARED_SECONDS: Final = 60.0
"""Seconds between comparisons of queues that end where they did: others may have come to that."""

_RECORD_BYTES: Final = 300.0
"""The assumed size of a message in bytes, until the first one was seen."""


class BatchPace:
    """The wait for enough rows, for as long as the user allows; for use by one thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Take a clock that gives seconds."""
        self._clock = clock
        self._last_batch_at: float | None = None

    def is_enough(self, rows: int, limits: BatchLimits, *, is_closed: bool) -> bool:
        """Tell whether a batch of so many rows is worth planning, or was waited for long enough.

        A first batch, and those of a query that ends with what there was (``is_closed``), wait for
        nothing.
        """
        if limits.rows_min is None or is_closed or self._last_batch_at is None:
            return True
        waited_seconds = self._clock() - self._last_batch_at
        return rows >= limits.rows_min or waited_seconds >= limits.delay_ms / 1000

    def record_batch(self) -> None:
        """Note that a batch was planned: the wait for the next one begins."""
        self._last_batch_at = self._clock()


class NextBatch:
    """The choice of the ends of one query's batches; for use by one thread."""

    def __init__(
        self,
        options: ReadOptions,
        queues: QueueClient,
        store_times: StoreTimeLookup,
        latest_offsets: LatestOffsets,
        clock: Callable[[], float],
    ) -> None:
        """Take a clock that gives seconds."""
        self._options = options
        self._queues = queues
        self._store_times = store_times
        self._latest_offsets = latest_offsets
        self._queue_identity = QueueIdentity(queues)
        self._clock = clock
        self._pace = BatchPace(clock)
        self._compared_at = clock()
        self._known_ends: dict[MessageQueue, int] = {}
        """Ends of queues that lie before what was read of them, with nothing new up to there."""

    def choose_end(
        self,
        start: SourceOffset,
        ends: Mapping[MessageQueue, int],
        limits: BatchLimits,
        *,
        is_first: bool,
        is_known: bool,
    ) -> SourceOffset | None:
        """Return the end of the next batch; None if there is nothing new, or not enough yet.

        Args:
            start: Where the batch begins, without queues that are gone.
            ends: Where its queues end now, as the horizon has them.
            limits: How much the batch may have, and how much it should.
            is_first: Whether no batch of the query has been written yet.
            is_known: Whether the start was made or checked here, so that queues which end where
                it is need not be looked at.

        Raises:
            DataLoss: Messages behind the start are gone.
            BrokersAway: Queues of the start have not answered for too long.
        """
        at = {queue: position.next_offset for queue, position in start.positions.items()}
        changed = [
            queue
            for queue, end in ends.items()
            if end != self._known_ends.get(queue, at.get(queue, 0))
        ]
        if is_known and self._clock() - self._compared_at >= _COMPARED_SECONDS:
            changed = [queue for queue in ends if queue in changed or queue not in self._known_ends]
            self._compared_at = self._clock()
        if not changed and is_known:
            return None
        began = self._initial_offsets(start, ends, changed if is_known else list(ends))
        ends = {  # what broke off goes on before the place up to which it counted
            queue: self._latest_offsets.clamp_to_target(queue, began[queue], end)
            if queue in began
            else end
            for queue, end in ends.items()
        }
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
        rows = self._batch_rows_max(backlogs, first, limits)
        taken = share_rows(
            backlogs, sum(each.messages for each in backlogs.values()) if rows is None else rows
        )
        end = {queue: offset + taken.get(queue, 0) for queue, offset in first.items()}
        if end == at and not began:
            return None
        found = self._store_times.positions_at(
            end, self._latest_offsets.newest, start, excluding=began
        )
        behind = self._ends_past_gaps(found, first, ends)
        if behind:
            found = self._store_times.positions_at(
                {**end, **behind}, self._latest_offsets.newest, start, excluding=began
            )
        if self._is_recreated(found, start, began):
            _, ends = self._latest_offsets.fetch(start)
            return self.choose_end(start, ends, limits, is_first=is_first, is_known=is_known)
        self._pace.record_batch()
        if is_first:
            # Where the first batch begins is in no log of Spark's: after a crash it asks for it
            # once more.
            began = {**at, **began}
        return replace(
            found, initial_offsets=MappingProxyType(began), missing_brokers=start.missing_brokers
        )

    def _ends_past_gaps(
        self,
        end: SourceOffset,
        first: Mapping[MessageQueue, int],
        ends: Mapping[MessageQueue, int],
    ) -> dict[MessageQueue, int]:
        """Return where queues are to end instead whose last offset to be read has no message.

        A query knows a queue again by the message before its place. So its end is the one behind
        the next message: of no more rows than were to be read, as an offset among them has none.
        """
        within = [
            MessagePosition(queue, position.next_offset - 1)
            for queue, position in end.positions.items()
            if position.stored_ms is None
            and first[queue] < position.next_offset < ends.get(queue, 0)
        ]
        found = self._queues.first_at_or_after(within) if within else {}
        return {queue: at + 1 for (queue, place), at in found.items() if place < at < ends[queue]}

    def _is_recreated(
        self, end: SourceOffset, start: SourceOffset, initial_offsets: Mapping[MessageQueue, int]
    ) -> bool:
        """Return whether queues were made again before their times at this end were asked for.

        Of those, a time would be that of the new queue beside an offset of the old one. Only queues
        that are the old ones behind that question have told of the old ones.
        """
        known = (
            start,
            self._latest_offsets.newest,
        )  # the newest was known when the start was checked
        asked = {
            queue: start.positions[queue]
            for queue, position in end.positions.items()
            if queue in start.positions
            and queue not in initial_offsets
            and all(each is None or each.positions.get(queue) != position for each in known)
        }
        return bool(self._queue_identity.replaced_queues(asked)) or self._has_shrunk(end, start)

    def _has_shrunk(self, end: SourceOffset, start: SourceOffset) -> bool:
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

    def _initial_offsets(
        self, start: SourceOffset, ends: Mapping[MessageQueue, int], changed: Sequence[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Return the first offsets of queues that are new to the query, or have broken off."""
        bounds = bounds_of(self._queues.starts(changed), ends, sorted(changed))
        began = {
            queue: each.first_offset
            for queue, each in bounds.items()
            if queue not in start.positions and each.first_offset < each.next_offset
        }
        known = {queue: each for queue, each in bounds.items() if queue in start.positions}
        for queue in known:
            self._known_ends.pop(queue, None)
        breaks = self._queue_identity.discontinuities(start.positions, known)
        losses = [each.loss for each in breaks.values()]
        report_losses(losses, is_failure=self._options.fail_on_data_loss)
        self._latest_offsets.refresh_store_times(breaks)
        for queue, each in breaks.items():
            if (
                each.resume_offset < known[queue].next_offset
                or start.positions[queue].stored_ms is None
            ):
                began[queue] = each.resume_offset
            else:
                self._known_ends[queue] = known[queue].next_offset
        return began

    def _is_enough(
        self,
        backlogs: Mapping[MessageQueue, Backlog],
        initial_offsets: Mapping[MessageQueue, int],
        limits: BatchLimits,
    ) -> bool:
        """Tell whether a batch is worth its while, or has been waited for long enough."""
        if not backlogs:
            return bool(initial_offsets)
        rows = sum(backlog.messages for backlog in backlogs.values())
        return self._pace.is_enough(rows, limits, is_closed=self._latest_offsets.is_closed)

    def _batch_rows_max(
        self,
        backlogs: Mapping[MessageQueue, Backlog],
        first: Mapping[MessageQueue, int],
        limits: BatchLimits,
    ) -> int | None:
        """Return how many messages a batch may have in all; None for any number."""
        rows = limits.rows_max
        if limits.bytes_max is not None and backlogs:
            seen = self._store_times.sizes
            self._store_times.measure(
                {queue: first[queue] for queue in backlogs if queue not in seen}
            )
            sizes = {queue: seen.get(queue, _RECORD_BYTES) for queue in backlogs}
            within = rows_within_bytes(backlogs, sizes, limits.bytes_max)
            rows = within if rows is None else min(rows, within)
        return rows
