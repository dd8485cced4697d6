"""MicroBatchPlanner: plans one query's micro-batches, one after the other.

    initial_offset   where a new query starts
    latest_offset    where the next batch ends. If nothing was new, it waits a little first, so that
                     brokers hold its pulls and the first new message starts a batch at once
                     (`IdleWaitPolicy`); then it asks where the queues end (`latest_offsets`), and
                     chooses the end within the limits
    plan_ranges      what the tasks of the batch read (`partition_planner`)
    commit_progress, end_batch
                     everything before an offset is written: the planner commits the group's
                     offsets (`GroupProgress`)

How the end of a batch is chosen:

    nothing new    no queue has moved: no further request is made
    first offsets  new queues start at their first message, and queues with a discontinuity
                   (`queue_identity`) at their first unread one: the batch's end records both
    enough rows    the planner waits for a minimum of rows, if the user asks for it (`BatchPace`)
    within limits  rows and bytes are shared among the queues (`offset_ranges`)
    past gaps      no queue ends after an offset that has no message
    once more      queues that changed between two requests gave inconsistent answers:
                   all requests are repeated

All queues that an offset knows must answer before a batch ends past them, unless the user lets the
query continue without brokers that are away. A start that this planner did not make itself comes
from a checkpoint, and is compared with the brokers before anything is read. Lost messages fail the
query, or with failOnDataLoss=false are logged and skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from rmq_spark.spark.brokers.queue_client import MessagePosition, QueueClient
from rmq_spark.spark.errors import CheckpointError, OptionError, isolation_mismatch, report_losses
from rmq_spark.spark.options.options import BatchLimits, ReadOptions, selects
from rmq_spark.spark.options.start_positions import LATEST
from rmq_spark.spark.plan.latest_offsets import LatestOffsets
from rmq_spark.spark.plan.partition_planner import (
    Backlog,
    OffsetRange,
    PartitionPlanner,
    rows_within_bytes,
    share_rows,
)
from rmq_spark.spark.plan.position_resolver import PositionResolver
from rmq_spark.spark.plan.queue_identity import QueueIdentity, StoreTimeLookup, bounds_of
from rmq_spark.spark.plan.source_offset import SourceOffset
from rmq_spark.wire.message_queue import MessageQueue

_RETRY_SECONDS: Final = 1.0
"""Seconds until an offset that could not be committed is sent again."""


class GroupProgress:
    """Commits a query's offsets for its consumer group; for use by one thread."""

    def __init__(self, group: str | None, queues: QueueClient, clock: Callable[[], float]) -> None:
        self._group = group
        self._queues = queues
        self._clock = clock
        self._committed: Mapping[MessageQueue, int] = {}
        self._pending: Mapping[MessageQueue, int] = {}
        self._retry_at = clock()

    def commit(self, offset: SourceOffset) -> None:
        """Commit an offset for the group: everything before it has been written."""
        if self._group is None:
            return
        offsets = {queue: position.next_offset for queue, position in offset.positions.items()}
        changed = {
            queue: each for queue, each in offsets.items() if self._committed.get(queue) != each
        }
        if not changed or (changed == self._pending and self._clock() < self._retry_at):
            return
        committed = self._queues.commit(self._group, changed)
        self._committed = {**self._committed, **committed}
        self._pending = {queue: each for queue, each in changed.items() if queue not in committed}
        self._retry_at = self._clock() + _RETRY_SECONDS


SHARED_WAIT_MS: Final = 50
AFTER_BATCH_WAIT_MS: Final = 1
_OTHER_BATCHES_MAX: Final = 2


class IdleWaitPolicy:
    """Decides how long an idle source waits: longer if no other source of its query has rows.

    For use by one thread.
    """

    def __init__(self, suspend_ms: int, clock: Callable[[], float]) -> None:
        self._suspend_ms = suspend_ms
        self._clock = clock
        self._other_batches = 0
        self._is_only_source = True
        self._is_after_batch = False
        self._queried_at = clock()

    @property
    def hold_ms(self) -> int:
        """The milliseconds to wait for new messages."""
        if self._is_only_source:
            return self._suspend_ms
        wait_ms = AFTER_BATCH_WAIT_MS if self._is_after_batch else SHARED_WAIT_MS
        return min(self._suspend_ms, wait_ms)

    @property
    def is_query_due(self) -> bool:
        """True if the queues' ends should be queried although no held pull has returned."""
        return self._is_only_source or self._clock() - self._queried_at >= self._suspend_ms / 1000

    def record_wait(self) -> None:
        """Record that the source waited for new messages since the last batch ended."""
        self._is_after_batch = False

    def record_query(self) -> None:
        """Record that brokers were asked where the queues end."""
        self._queried_at = self._clock()

    def record_batch(self, *, has_own_rows: bool) -> None:
        """Record a batch of the query, and whether this source had rows in it."""
        self._is_after_batch = True
        self._other_batches = 0 if has_own_rows else self._other_batches + 1
        if self._other_batches >= _OTHER_BATCHES_MAX:
            self._is_only_source = False


NO_LIMITS: Final = BatchLimits()
_COMPARED_SECONDS: Final = 60.0
"""Seconds between comparisons of queues whose ends have not moved: a recreated queue may have the
same end."""

_RECORD_BYTES: Final = 300.0
"""The assumed size of a message in bytes, until the first one was seen."""


class BatchPace:
    """The wait for enough rows, up to a time limit; for use by one thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_batch_at: float | None = None

    def is_enough(self, rows: int, limits: BatchLimits, *, is_closed: bool) -> bool:
        """Return whether a batch has enough rows, or has been waited for long enough.

        A first batch does not wait, nor does a query that reads only what was available at its
        start (``is_closed``).
        """
        if limits.rows_min is None or is_closed or self._last_batch_at is None:
            return True
        waited_seconds = self._clock() - self._last_batch_at
        return rows >= limits.rows_min or waited_seconds >= limits.wait_ms_max / 1000

    def record_batch(self) -> None:
        """Record that a batch was planned: the wait for the next one starts."""
        self._last_batch_at = self._clock()


class MicroBatchPlanner:
    """The planner of the batches of one query; for use by one thread."""

    def __init__(
        self, options: ReadOptions, queues: QueueClient, clock: Callable[[], float]
    ) -> None:
        self._options = options
        self._queues = queues
        self._store_times = StoreTimeLookup(queues)
        self._latest_offsets = LatestOffsets(options, queues, self._store_times)
        self._idle_wait = IdleWaitPolicy(options.suspend_ms, clock)
        self._queue_identity = QueueIdentity(queues)
        self._pace = BatchPace(clock)
        self._clock = clock
        self._compared_at = clock()
        self._known_ends: dict[MessageQueue, int] = {}
        """The ends of queues that have nothing new, but do not end at the query's position."""
        self._partitions = PartitionPlanner(options, queues)
        self._progress = GroupProgress(options.consumer_group, queues, clock)
        self._initial: SourceOffset | None = None
        self._start_error: OptionError | None = None
        self._last_planned: SourceOffset | None = None  # the last offset planned or checked
        self._empty_at: SourceOffset | None = None
        self._ends: Mapping[MessageQueue, int] = {}

    def initial_offset(self) -> SourceOffset:
        """Return the start of a query that has no checkpoint yet.

        Spark calls this repeatedly until there is a first batch. The end of the queues must not
        move meanwhile, or messages that arrive between two calls would never be read.

        Spark also calls it before it runs a first batch again, whose end already has the start. So
        this raises no error if brokers do not have the start: it returns an offset without queues.
        `latest_offset` raises the error, because it gets that offset only if there is no batch yet.
        """
        if self._initial is None:
            try:
                begin = self._resolve_start()
                if begin.is_unverifiable:  # the topic may have been recreated meanwhile
                    begin = self._resolve_start()
            except OptionError as error:
                given = self._options.starting
                if given is None or error.option != given.option:
                    raise
                begin, self._start_error = SourceOffset({}), error
            self._initial = self._last_planned = begin
        return self._initial

    def prepare_available_now(self) -> None:
        """Ignore messages that arrive from now on."""
        self._latest_offsets.close()

    @property
    def is_closed(self) -> bool:
        """True if messages that arrive from now on are not read."""
        return self._latest_offsets.is_closed

    @property
    def newest(self) -> SourceOffset | None:
        """The ends of the queues as `latest_offset` last saw them."""
        return self._latest_offsets.newest

    @property
    def sizes(self) -> Mapping[MessageQueue, float]:
        """The mean message size in bytes of each queue of which a message was seen."""
        return self._store_times.sizes

    def fetch_ends(self, offset: SourceOffset) -> SourceOffset:
        """Return the current ends of the queues in an offset."""
        queues = [
            queue for queue in offset.positions if queue.broker_name not in offset.missing_brokers
        ]
        return self._store_times.positions_at(self._queues.ends(queues), offset)

    def latest_offset(self, start: SourceOffset, limits: BatchLimits) -> SourceOffset:
        """Return the end of the next batch; ``start`` itself if there is none yet.

        The end of a batch without messages differs from its start if queues are gone for good.
        """
        if self._start_error is not None and start == self._initial:
            raise self._start_error
        if self._options.ending is not None and not self.is_closed:
            raise OptionError(
                self._options.ending.option,
                "it has no effect without .trigger(availableNow=True) (before Spark 4.2, option "
                "availableNow=true). Add that, or remove this option",
            )
        if start == self._empty_at and not self.is_closed:
            has_messages = self._queues.wait(self._ends, self._idle_wait.hold_ms)
            self._idle_wait.record_wait()
            if not has_messages and not self._idle_wait.is_query_due:
                return start
        is_first, is_known = start == self._initial, start == self._last_planned
        self._check_topics(start)
        base, self._ends = self._latest_offsets.fetch(start)
        self._idle_wait.record_query()
        end = self._choose_end(base, self._ends, limits, is_first=is_first, is_known=is_known)
        self._empty_at = base if end is None else None
        self._last_planned = base if end is None else end
        return self._last_planned

    def plan_ranges(self, start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
        """Return the ranges for tasks between two offsets; equal offsets give equal ranges."""
        if start == end:
            return []
        if end == self._last_planned:
            return self._partitions.plan(start, end)
        self._check_topics(start)
        self._check_topics(end)
        return self._partitions.plan_surviving(start, end)

    def commit_progress(self, start: SourceOffset) -> None:
        """Record that everything before the start of the next batch has been written."""
        self._progress.commit(start)

    def end_batch(self, end: SourceOffset) -> None:
        """Record that a batch has been written, even one with rows of other sources only."""
        self._idle_wait.record_batch(has_own_rows=end != self._empty_at)
        self._progress.commit(end)

    def _resolve_start(self) -> SourceOffset:
        found = self._queues.wait_for_named_brokers(self._options.starting)
        begin = PositionResolver(self._options, self._queues, found).starting_offsets(
            default=LATEST
        )
        return self._store_times.positions_at(begin)

    def _check_topics(self, start: SourceOffset) -> None:
        """Refuse a checkpoint of other topics; report topics in it that are no longer read."""
        if start == self._last_planned:
            return
        if start.committed is not None:  # a pattern may match the commits topic as well
            raise isolation_mismatch(start.topics, "committed")
        selection = self._options.selection
        option, named_by = selection.option, selection.pattern or ", ".join(selection.topics)
        others = sorted(topic for topic in start.topics if not selects(selection, topic))
        if not others:
            return
        if len(others) == len(start.topics):
            raise CheckpointError(
                f"the checkpoint is of {', '.join(others)}, but option {option} names {named_by}. "
                "Give this query its own checkpointLocation, or name the topics that it has read "
                "so far"
            )
        loss = f"the checkpoint also has {', '.join(others)}, which option {option} no longer names"
        report_losses([loss], is_failure=self._options.fail_on_data_loss)

    # ---- the end of a batch

    def _choose_end(
        self,
        start: SourceOffset,
        ends: Mapping[MessageQueue, int],
        limits: BatchLimits,
        *,
        is_first: bool,
        is_known: bool,
    ) -> SourceOffset | None:
        """Return the end of the next batch; None if there is nothing new, or not enough yet.

        ``ends`` are where the queues of ``start`` end now. If the start ``is_known``, because it
        was made or checked here, queues that end there need no check.
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
        initial = self._initial_offsets(start, ends, changed if is_known else list(ends))
        ends = {  # a replaced queue may resume before its limit
            queue: self._latest_offsets.clamp_to_target(queue, initial[queue], end)
            if queue in initial
            else end
            for queue, end in ends.items()
        }
        first = {
            queue: initial.get(queue, at.get(queue, 0)) for queue in dict.fromkeys([*at, *initial])
        }
        backlogs = {
            queue: Backlog(end - first[queue], start.positions.get(queue, (0, 0))[1] or 0)
            for queue, end in ends.items()
            if queue in first and end > first[queue]
        }
        rows_new = sum(backlog.messages for backlog in backlogs.values())
        is_enough = self._pace.is_enough(rows_new, limits, is_closed=self.is_closed)
        if not (is_enough if backlogs else initial):
            return None
        rows = self._batch_rows_max(backlogs, first, limits)
        shares = share_rows(backlogs, rows_new if rows is None else rows)
        end = {queue: offset + shares.get(queue, 0) for queue, offset in first.items()}
        if end == at and not initial:
            return None
        found = self._store_times.positions_at(end, self.newest, start, excluding=initial)
        behind = self._ends_past_gaps(found, first, ends)
        if behind:
            found = self._store_times.positions_at(
                {**end, **behind}, self.newest, start, excluding=initial
            )
        if self._is_recreated(found, start, initial):
            _, ends = self._latest_offsets.fetch(start)
            return self._choose_end(start, ends, limits, is_first=is_first, is_known=is_known)
        self._pace.record_batch()
        if is_first:
            # Spark does not log where the first batch starts: after a crash it asks for the start
            # again.
            initial = {**at, **initial}
        return replace(
            found, initial_offsets=MappingProxyType(initial), missing_brokers=start.missing_brokers
        )

    def _ends_past_gaps(
        self,
        end: SourceOffset,
        first: Mapping[MessageQueue, int],
        ends: Mapping[MessageQueue, int],
    ) -> dict[MessageQueue, int]:
        """Return later ends for queues whose planned end follows an offset without a message.

        A query recognizes a queue by the message before its position, so the end moves past the
        next message. The batch still has no more rows than planned: a gap has none.
        """
        within = [
            MessagePosition(queue, position.next_offset - 1)
            for queue, position in end.positions.items()
            if position.stored_ms is None
            and first[queue] < position.next_offset < ends.get(queue, 0)
        ]
        found = self._queues.first_at_or_after(within) if within else {}
        return {
            queue: at + 1
            for (queue, queue_offset), at in found.items()
            if queue_offset < at < ends[queue]
        }

    def _is_recreated(
        self, end: SourceOffset, start: SourceOffset, initial_offsets: Mapping[MessageQueue, int]
    ) -> bool:
        """Return whether queues were recreated before brokers returned the store times at an end.

        If so, the times belong to the new queue, and the offsets to the old one. A queue that is
        still the same after that request has reported its own times.
        """
        known = start, self.newest  # the newest was known when the start was checked
        positions = {
            queue: start.positions[queue]
            for queue, position in end.positions.items()
            if queue in start.positions
            and queue not in initial_offsets
            and all(each is None or each.positions.get(queue) != position for each in known)
        }
        return bool(self._queue_identity.replaced_queues(positions)) or self._has_shrunk(end, start)

    def _has_shrunk(self, end: SourceOffset, start: SourceOffset) -> bool:
        """Return whether queues have become shorter since their ends were requested.

        The store time of their last message is then unknown, and the next batch would record that
        of another message.
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
        initial = {
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
                initial[queue] = each.resume_offset
            else:
                self._known_ends[queue] = known[queue].next_offset
        return initial

    def _batch_rows_max(
        self,
        backlogs: Mapping[MessageQueue, Backlog],
        first: Mapping[MessageQueue, int],
        limits: BatchLimits,
    ) -> int | None:
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
