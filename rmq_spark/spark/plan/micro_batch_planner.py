"""MicroBatchPlanner: plans one query's micro-batches, one after the other.

    initial_offset   where a new query starts
    latest_offset    where the next batch ends. If nothing was new, it waits a little first, so that
                     brokers hold its pulls and the first new message starts a batch at once
                     (`IdleWaitPolicy`); then it asks where the queues end (`latest_offsets`), and
                     chooses the end within the limits (`next_batch`)
    plan_ranges      what the tasks of the batch read (`partition_planner`)
    commit_progress, end_batch
                     everything before an offset is written: the planner commits the group's
                     offsets (`GroupProgress`)

All queues that an offset knows must answer before a batch ends past them, unless the user lets the
query continue without brokers that are away. A start that this planner did not make itself comes
from a checkpoint, and is compared with the brokers before anything is read. Lost messages fail the
query, or with failOnDataLoss=false are logged and skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import CheckpointError, OptionError, isolation_mismatch, report_losses
from rmq_spark.spark.options.options import BatchLimits, ReadOptions, selects
from rmq_spark.spark.options.start_positions import LATEST
from rmq_spark.spark.plan.latest_offsets import LatestOffsets
from rmq_spark.spark.plan.next_batch import NextBatch
from rmq_spark.spark.plan.offset_ranges import OffsetRange
from rmq_spark.spark.plan.partition_planner import PartitionPlanner
from rmq_spark.spark.plan.position_resolver import PositionResolver
from rmq_spark.spark.plan.queue_identity import StoreTimeLookup
from rmq_spark.spark.plan.source_offset import SourceOffset
from rmq_spark.wire.message_queue import MessageQueue

# ---- GroupProgress: how far brokers believe that a query's consumer group has come.

_RETRY_SECONDS: Final = 1.0
"""Seconds until a broker that could not be told of an offset is told of it again."""


class GroupProgress:
    """The progress of one query's group, as committed to brokers; for use by one thread."""

    def __init__(self, group: str | None, queues: QueueClient, clock: Callable[[], float]) -> None:
        """Take the group's name, or None if there is none, and a clock that returns seconds."""
        self._group = group
        self._queues = queues
        self._clock = clock
        self._committed: Mapping[MessageQueue, int] = {}
        self._pending: Mapping[MessageQueue, int] = {}
        self._retry_at = clock()

    def commit(self, offset: SourceOffset) -> None:
        """Commit to the brokers that everything before an offset has been written."""
        if self._group is None:
            return
        offsets = {queue: position.next_offset for queue, position in offset.positions.items()}
        news = {
            queue: each for queue, each in offsets.items() if self._committed.get(queue) != each
        }
        if not news or (news == self._pending and self._clock() < self._retry_at):
            return
        told = self._queues.commit(self._group, news)
        self._committed = {**self._committed, **told}
        self._pending = {queue: each for queue, each in news.items() if queue not in told}
        self._retry_at = self._clock() + _RETRY_SECONDS


# ---- Idle wait: how long a source without new messages waits before it says so.

SHARED_WAIT_MS: Final = 50
AFTER_BATCH_WAIT_MS: Final = 1
_OTHER_BATCHES_MAX: Final = 2


class IdleWaitPolicy:
    """Decides how long an idle source waits, by whether it is alone in its query.

    For use by one thread.
    """

    def __init__(self, suspend_ms: int, clock: Callable[[], float]) -> None:
        """Take how long brokers hold pulls, and a clock that returns seconds."""
        self._suspend_ms = suspend_ms
        self._clock = clock
        self._other_batches = 0
        self._is_alone = True
        self._is_after_batch = False
        self._queried_at = clock()

    @property
    def hold_ms(self) -> int:
        """The milliseconds to wait for new messages."""
        if self._is_alone:
            return self._suspend_ms
        moment = AFTER_BATCH_WAIT_MS if self._is_after_batch else SHARED_WAIT_MS
        return min(self._suspend_ms, moment)

    @property
    def is_query_due(self) -> bool:
        """True if the queues' ends should be queried although no held pull has returned."""
        return self._is_alone or self._clock() - self._queried_at >= self._suspend_ms / 1000

    def record_wait(self) -> None:
        """Record that the source waited for new messages since the last batch ended."""
        self._is_after_batch = False

    def record_query(self) -> None:
        """Record that brokers were asked where the queues end."""
        self._queried_at = self._clock()

    def record_batch(self, *, is_ours: bool) -> None:
        """Record a batch of the query, and whether this source had rows in it."""
        self._is_after_batch = True
        self._other_batches = 0 if is_ours else self._other_batches + 1
        if self._other_batches >= _OTHER_BATCHES_MAX:
            self._is_alone = False


NO_LIMITS: Final = BatchLimits()


class MicroBatchPlanner:
    """The planner of the batches of one query; for use by one thread."""

    def __init__(
        self, options: ReadOptions, queues: QueueClient, clock: Callable[[], float]
    ) -> None:
        """Take a clock that returns seconds."""
        self._options = options
        self._queues = queues
        self._store_times = StoreTimeLookup(queues)
        self._latest_offsets = LatestOffsets(options, queues, self._store_times)
        self._idle_wait = IdleWaitPolicy(options.suspend_ms, clock)
        self._next_batch = NextBatch(
            options, queues, self._store_times, self._latest_offsets, clock
        )
        self._partitions = PartitionPlanner(options, queues)
        self._progress = GroupProgress(options.consumer_group, queues, clock)
        self._initial: SourceOffset | None = None
        self._last_planned: SourceOffset | None = None  # or checked here
        self._empty_at: SourceOffset | None = None
        self._ends: Mapping[MessageQueue, int] = {}

    def initial_offset(self) -> SourceOffset:
        """Return the start of a query that has no checkpoint yet.

        Spark calls this repeatedly until there is a first batch. The end of the queues must not
        move meanwhile, or messages that arrive between two calls would never be read.
        """
        if self._initial is None:
            begin = self._resolve_start()
            if begin.is_unverifiable:  # a topic may have been made again between two questions
                begin = self._resolve_start()
            self._initial = self._last_planned = begin
        return self._initial

    def prepare_available_now(self) -> None:
        """Ignore messages that arrive from now on."""
        self._latest_offsets.close()

    @property
    def is_closed(self) -> bool:
        """True if messages that arrive from now on no longer count."""
        return self._latest_offsets.is_closed

    @property
    def newest(self) -> SourceOffset | None:
        """The ends of the queues as `latest_offset` last saw them."""
        return self._latest_offsets.newest

    @property
    def sizes(self) -> Mapping[MessageQueue, float]:
        """The mean message size in bytes of each queue from which messages were seen."""
        return self._store_times.sizes

    def fetch_ends(self, offset: SourceOffset) -> SourceOffset:
        """Return the present ends of the queues in an offset."""
        there = [
            queue for queue in offset.positions if queue.broker_name not in offset.missing_brokers
        ]
        return self._store_times.positions_at(self._queues.ends(there), offset)

    def latest_offset(self, start: SourceOffset, limits: BatchLimits) -> SourceOffset:
        """Return the end of the next batch; ``start`` itself if there is none yet.

        The end of a batch without messages differs from its start if queues are gone for good.

        Raises:
            DataLoss: Messages past the start are gone.
            CheckpointError: The start is of other topics.
            BrokersAway: Queues of the start have not answered for too long.
            OptionError: An end is given for a query that does not end.
        """
        self._check_ending()
        if self._wait_while_idle(start):
            return start
        is_first, is_known = start == self._initial, start == self._last_planned
        self._check_topics(start)
        base, self._ends = self._latest_offsets.fetch(start)
        self._idle_wait.record_query()
        end = self._next_batch.choose_end(
            base, self._ends, limits, is_first=is_first, is_known=is_known
        )
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
        """Record that a batch of the query has been written, even one of other sources only."""
        self._idle_wait.record_batch(is_ours=end != self._empty_at)
        self._progress.commit(end)

    def _resolve_start(self) -> SourceOffset:
        found = self._queues.wait_for_named_brokers(self._options.starting)
        begin = PositionResolver(self._options, self._queues, found).starting_offsets(
            default=LATEST
        )
        return self._store_times.positions_at(begin)

    def _check_ending(self) -> None:
        """Refuse an end that is given for a query that does not end."""
        if self._options.ending is not None and not self._latest_offsets.is_closed:
            raise OptionError(
                self._options.ending.option,
                "a stream ends there only with .trigger(availableNow=True), before Spark 4.2 with "
                "option availableNow=true: add that, or leave this out",
            )

    def _wait_while_idle(self, start: SourceOffset) -> bool:
        """Wait for new messages if there were none before; return True if there are still none."""
        if start != self._empty_at or self._latest_offsets.is_closed:
            return False
        has_news = self._queues.wait(self._ends, self._idle_wait.hold_ms)
        self._idle_wait.record_wait()
        return not has_news and not self._idle_wait.is_query_due

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
                f"the checkpoint is of {', '.join(others)}, and option {option} names {named_by}: "
                "give this query a checkpointLocation of its own, or name the topics that it has "
                "read so far"
            )
        loss = (
            f"the checkpoint also is of {', '.join(others)}, which option {option} does not name "
            "any more"
        )
        report_losses([loss], is_failure=self._options.fail_on_data_loss)
