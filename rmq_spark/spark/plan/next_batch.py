"""NextBatch: chooses where a batch ends, given its start: all that is new, within the limits.

    nothing new    no queue has moved: no further request is made
    first offsets  new queues start at their first message, and queues with a discontinuity
                   (`queue_identity`) at their first unread one: the batch's end records both
    enough rows    the planner waits for a minimum of rows, if the user asks for it
    within limits  rows and bytes are shared among the queues (`offset_ranges`)
    past gaps      no queue ends after an offset that has no message
    once more      queues that changed between two requests gave inconsistent answers: everything
                   is asked again

Losses fail the query, or with failOnDataLoss=false are logged and skipped.
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
    """The wait for enough rows, up to a time limit; for use by one thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Take a clock that returns seconds."""
        self._clock = clock
        self._last_batch_at: float | None = None

    def is_enough(self, rows: int, limits: BatchLimits, *, is_closed: bool) -> bool:
        """Return whether a batch has enough rows, or has been waited for long enough.

        A first batch does not wait, nor does a query that ends with what was available
        (``is_closed``).
        """
        if limits.rows_min is None or is_closed or self._last_batch_at is None:
            return True
        waited_seconds = self._clock() - self._last_batch_at
        return rows >= limits.rows_min or waited_seconds >= limits.delay_ms / 1000

    def record_batch(self) -> None:
        """Record that a batch was planned: the wait for the next one starts."""
        self._last_batch_at = self._clock()


class NextBatch:
    """Chooses the ends of one query's batches; for use by one thread."""

    def __init__(
        self,
        options: ReadOptions,
        queues: QueueClient,
        store_times: StoreTimeLookup,
        latest_offsets: LatestOffsets,
        clock: Callable[[], float],
    ) -> None:
        """Take a clock that returns seconds."""
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
            start: Where the batch starts, without queues that are gone.
            ends: Where its queues end now, from `LatestOffsets`.
            limits: The maximum of the batch, and the minimum that it should have.
            is_first: Whether no batch of the query has been written yet.
            is_known: Whether the start was made or checked here, so that queues which end there
                need no check.

        Raises:
            DataLoss: Messages past the start are gone.
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
        """Return other ends for queues whose last offset to be read has no message.

        A query recognizes a queue by the message before its position. So the end moves past the
        next message: no more rows than planned are read, because the offset in the gap has none.
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
        """Return whether queues were recreated before their store times at this end were asked for.

        If so, the times belong to the new queue, and the offsets to the old one. Only queues that
        still are the old ones after that request have told the times of the old ones.
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

        Their last messages then have no store time: the next batch would record that of another.
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
        """Return the first offsets of queues that are new, or that have a discontinuity."""
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
        """Return whether a batch has enough rows, or has been waited for long enough."""
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
        """Return the maximum of rows in a batch, or None for no limit."""
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
