"""CommittedBatchPlanner: plans the batches of a query that reads what sinks have committed.

    orders_COMMITS    | m | m | m | m |      the query's position is an offset in it
                          └───────┘
                      a batch: the complete manifests between two positions, without repeats: of
                      each batch of a sink's query only the first one is used (`CommitState`)
    orders            their spans ──> groups for tasks

`MicroBatchPlanner`, its base, plans positions in the commits topic as in any topic, with losses,
checkpoints, groups, waiting and AvailableNow. This planner turns positions into rows, to which the
limits apply. A stored manifest never changes, and a batch's offsets contain the state at its
beginning, so a batch that runs again has exactly the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from rmq_spark.client.errors import ManifestError
from rmq_spark.client.manifest import CommitManifest, CommitState, CommittedSpan, decode_manifest
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import (
    CheckpointError,
    DataLoss,
    OptionError,
    isolation_mismatch,
    report_losses,
)
from rmq_spark.spark.exactly_once.committed_reader import SpanGroup, group_spans
from rmq_spark.spark.options.options import BatchLimits, ReadOptions, commits_options
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS, BatchPace, MicroBatchPlanner
from rmq_spark.spark.plan.partition_planner import OffsetRange, batch_ranges
from rmq_spark.spark.plan.source_offset import CommitStates, SourceOffset, with_renamed_broker
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

_OFFSET: Final = "queueOffset"
_BODY: Final = "body"

_NO_STATE: Final = CommitState()


class CommittedBatchPlanner(MicroBatchPlanner):
    """Plans the batches of one query that reads committed rows; for use by one thread."""

    def __init__(
        self,
        options: ReadOptions,
        create_client: Callable[[ReadOptions], QueueClient],
        clock: Callable[[], float],
    ) -> None:
        by_commits = commits_options(options)
        super().__init__(by_commits, create_client(by_commits), clock)
        self._source_options = options
        self._manifests = ManifestReader(by_commits, self._queues)
        self._row_pace = BatchPace(clock)
        self._initial_commits: SourceOffset | None = None
        self._planned: tuple[SourceOffset, tuple[CommitManifest, ...]] | None = None

    def initial_offset(self) -> SourceOffset:
        """Return the start of a query that has no checkpoint yet."""
        if self._initial_commits is None:
            commits_offset = super().initial_offset()
            check_single_queue(commits_offset.positions)
            state = _NO_STATE
            for queue, position in commits_offset.positions.items():
                first = self._manifests.first_complete(queue, position.next_offset)
                state = self._manifests.state_at(queue, first)
                if first != position.next_offset:
                    commits_offset = self._store_times.positions_at({queue: first})
                    self._initial = self._last_planned = commits_offset
            self._initial_commits = replace(commits_offset, committed=CommitStates(state))
        return self._initial_commits

    def latest_offset(self, start: SourceOffset, limits: BatchLimits) -> SourceOffset:
        """Return the end of the next batch; ``start`` itself if there is none yet."""
        commits_offset, state = _split_state(start)
        end = super().latest_offset(commits_offset, NO_LIMITS)
        if end == commits_offset:
            return start
        check_single_queue(end.positions)
        found = self._manifests.read_manifests(super().plan_ranges(commits_offset, end))
        behind, counting = _select_effective(state, found)
        rows = sum(manifest.row_count for _, manifest in counting)
        if not self._row_pace.is_enough(rows, limits, is_closed=self.is_closed):
            ends = {queue: position.next_offset for queue, position in end.positions.items()}
            self._queues.wait(ends, self._options.suspend_ms)
            return start
        cut = _within_limits(counting, limits)
        if len(cut) < len(counting):
            last = cut[-1][0]
            first = min(each.start for each in batch_ranges(commits_offset, end).values())
            end = super().latest_offset(commits_offset, BatchLimits(rows_max=last + 1 - first))
            found = [(at, each) for at, each in found if at <= last]
            behind, counting = _select_effective(state, found)
        self._row_pace.record_batch()
        plan = replace(end, committed=CommitStates(behind, state if end.initial_offsets else None))
        self._planned = plan, tuple(manifest for _, manifest in counting)
        return plan

    def plan_ranges(  # type: ignore[override]  # of the rows that manifests name
        self, start: SourceOffset, end: SourceOffset
    ) -> list[SpanGroup]:
        """Return what tasks read between two offsets; equal offsets give equal groups."""
        if start == end:
            return []
        if self._planned is None or self._planned[0] != end:
            (commits_offset, state), (commits_end, _) = _split_state(start), _split_state(end)
            if end.committed is not None and end.committed.before is not None:
                state = end.committed.before
            ranges = super().plan_ranges(commits_offset, commits_end)
            _, counting = _select_effective(state, self._manifests.read_manifests(ranges))
            self._planned = end, tuple(manifest for _, manifest in counting)
        return span_groups_of(self._source_options, self._planned[1])

    def end_batch(self, end: SourceOffset) -> None:
        """Record that a batch has been written, even one with rows of other sources only."""
        super().end_batch(replace(end, committed=None))


class ManifestReader:
    """Reads the manifests between offsets of a commits topic."""

    def __init__(self, options: ReadOptions, queues: QueueClient) -> None:
        self._options = options
        self._queues = queues

    def read_manifests(self, ranges: Iterable[OffsetRange]) -> list[tuple[int, CommitManifest]]:
        """Return the complete manifests in these ranges, with their offsets."""
        found = []
        for piece in ranges:
            for at, body in self._read_messages(piece):
                try:
                    manifest = self._assemble(piece.queue, body)
                except ManifestError as error:  # noqa: PERF203  # the other manifests are still read
                    problem = (
                        f"the message at offset {at} of {piece.queue} is not a "
                        f"valid manifest: {error}"
                    )
                    if error.version:
                        raise CheckpointError(problem) from error
                    report_losses([problem], is_failure=self._options.fail_on_data_loss)
                else:
                    if manifest is not None:
                        found.append((at, manifest))
        return found

    def first_complete(self, queue: MessageQueue, queue_offset: int) -> int:
        """Return the first offset, at or after this one, from which batches have all their rows.

        Earlier ones have lost rows to retention. An offset that the user gives is left as it is.
        """
        starting = self._options.starting
        if starting is not None and starting.common is None:
            return queue_offset
        (end,) = self._queues.ends([queue]).values()
        for at, body in self._read_messages(OffsetRange(queue, queue_offset, end)):
            try:
                manifest = self._assemble(queue, body)
            except ManifestError:  # the read of the batch reports it
                return queue_offset
            if manifest is None:
                continue
            spans = _renamed_spans([manifest], self._options.broker_names)
            starts = self._queues.starts({span.queue for span in spans})
            if all(span.queue_offset >= starts[span.queue] for span in spans):
                return queue_offset
            _log.info("%s is skipped: some of its rows have expired", manifest.id)
            queue_offset = at + 1
        return queue_offset

    def state_at(self, queue: MessageQueue, queue_offset: int) -> CommitState:
        """Return the commit state at an offset of the commits topic, from its remaining manifests.

        It shows which later manifests are repeats. Damaged manifests are ignored here.
        """
        (first,) = self._queues.starts([queue]).values()
        ids = []
        for at, body in self._read_messages(OffsetRange(queue, first, queue_offset)):
            try:
                manifest = decode_manifest(body)
            except ManifestError:  # the read of the batch reports it
                continue
            if manifest is not None:
                ids.append((at, manifest.id))
        return _NO_STATE.apply(ids)[0]

    def _assemble(self, queue: MessageQueue, body: bytes) -> CommitManifest | None:
        """Return the manifest of a message with all of its parts; None if the message is a part."""
        manifest = decode_manifest(body)
        if manifest is None or not manifest.parts:
            return manifest
        first, last = min(manifest.parts), max(manifest.parts)
        parts: dict[int, bytes] = {}
        with suppress(DataLoss):
            parts = dict(self._read_messages(OffsetRange(queue, first, last + 1)))
        return manifest.join_parts(parts)

    def _read_messages(self, offset_range: OffsetRange) -> Iterator[tuple[int, bytes]]:
        import pyarrow as pa  # noqa: PLC0415  # only to read committed rows

        schema = pa.schema([(_OFFSET, pa.int64()), (_BODY, pa.binary())])
        if offset_range.start < offset_range.end:
            for batch in read_range(self._options, schema, offset_range):
                offsets, bodies = (batch.column(name).to_pylist() for name in (_OFFSET, _BODY))
                yield from zip(offsets, bodies, strict=True)


def plan_batch_read(
    options: ReadOptions, reader: ManifestReader, ranges: Iterable[OffsetRange]
) -> list[SpanGroup]:
    """Return the partitions of a batch read for these ranges of the commits topic."""
    ranges = list(ranges)
    check_single_queue({piece.queue for piece in ranges})
    found = []
    for piece in ranges:
        first = min(reader.first_complete(piece.queue, piece.start), piece.end)
        left = piece._replace(start=first)
        state = reader.state_at(piece.queue, first)
        _, counting = _select_effective(state, reader.read_manifests([left]))
        found += [manifest for _, manifest in counting]
    return span_groups_of(options, found)


def span_groups_of(options: ReadOptions, manifests: Iterable[CommitManifest]) -> list[SpanGroup]:
    """Return the rows that manifests name, as groups for tasks, with the brokers' present names."""
    spans = _renamed_spans(manifests, options.broker_names)
    return group_spans(spans, options.partitions_min, options.partition_rows_max)


def check_single_queue(queues: Iterable[MessageQueue]) -> None:
    """Refuse a commits topic with several queues, because commits would have no order."""
    ordered = sorted(queues)
    if len(ordered) > 1:
        raise OptionError(
            "isolation",
            f"topic {ordered[0].topic} has {len(ordered)} queues, from {ordered[0]} to "
            f"{ordered[-1]}, but batches are ordered within one queue only. Delete "
            "the queues that no sink writes to",
        )


def _select_effective(
    state: CommitState, manifests: Sequence[tuple[int, CommitManifest]]
) -> tuple[CommitState, list[tuple[int, CommitManifest]]]:
    behind, offsets = state.apply((at, manifest.id) for at, manifest in manifests)
    counting = frozenset(offsets)
    return behind, [(at, manifest) for at, manifest in manifests if at in counting]


def _within_limits(
    effective: list[tuple[int, CommitManifest]], limits: BatchLimits
) -> list[tuple[int, CommitManifest]]:
    """Return the manifests that are within the limits; the first one always is."""
    rows = size = count = 0
    for _, manifest in effective:
        rows, size = rows + manifest.row_count, size + manifest.body_bytes
        is_beyond = (limits.rows_max is not None and rows > limits.rows_max) or (
            limits.bytes_max is not None and size > limits.bytes_max
        )
        if count and is_beyond:
            break
        count += 1
    return effective[:count]


def _split_state(offset: SourceOffset) -> tuple[SourceOffset, CommitState]:
    if offset.committed is None:
        raise isolation_mismatch(offset.topics, "uncommitted")
    return replace(offset, committed=None), offset.committed.after


def _renamed_spans(
    manifests: Iterable[CommitManifest], names: Mapping[str, str]
) -> list[CommittedSpan]:
    return [
        span._replace(queue=with_renamed_broker(span.queue, names))
        for manifest in manifests
        for span in manifest.spans
    ]
