"""Committed reader: divides the spans in manifests among tasks, reads them, and checks each.

    sent       where rows are stored ──> spans with the sum of their bodies' CRCs, joined while
               they are small enough to be held in memory
    planned    the spans of a batch ──> groups for tasks; a span is in one group
    read       a span's rows ──> are these the rows that were committed? ──> rows for Spark

The CRC is needed because offsets alone do not show that a queue lost its tail and grew again. It
covers all rows of a span: an unreadable record contributes the CRC that it states. If some rows are
gone, for example by retention, the others cannot be verified, and none of them is read. Tags are
compared here, because rows that a broker filters out could not be checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq_spark.client.manifest import CommittedSpan, add_crc
from rmq_spark.spark.errors import report_losses
from rmq_spark.spark.options.bodies import BINARY_BODIES
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read.dead_letters import bad_record_handler
from rmq_spark.spark.read.partition_reader import RecordObserver, read_range
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.wire.chunk import RecordChunk


class SpanGroup(NamedTuple):
    """The spans that one task reads, in order; all of one queue."""

    spans: tuple[CommittedSpan, ...]

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return sum(span.message_count for span in self.spans)


def group_spans(
    spans: Iterable[CommittedSpan], groups_min: int | None = None, rows_max: int | None = None
) -> list[SpanGroup]:
    """Divide spans into the groups that tasks read; the same input gives the same groups.

    Each queue is one group, unless more or smaller ones are requested and spans allow it.
    """
    by_queue: dict[MessageQueue, list[CommittedSpan]] = {}
    for span in spans:
        if span.message_count:
            by_queue.setdefault(span.queue, []).append(span)
    total = sum(span.message_count for each in by_queue.values() for span in each)
    bounds = [rows_max] if rows_max else []
    if groups_min and groups_min > len(by_queue):
        bounds.append(max(total // groups_min, 1))
    if not bounds:
        return [SpanGroup(tuple(by_queue[queue])) for queue in sorted(by_queue)]
    most, found = min(bounds), []
    for queue in sorted(by_queue):
        some: list[CommittedSpan] = []
        rows = 0
        for span in by_queue[queue]:
            if some and rows + span.message_count > most:
                found.append(SpanGroup(tuple(some)))
                some, rows = [], 0
            some.append(span)
            rows += span.message_count
        found.append(SpanGroup(tuple(some)))
    return found


def read_spans(
    options: ReadOptions, schema: pa.Schema, group: SpanGroup
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a group, in order, each span once all of it has been verified."""
    # Imported only in tasks. Bodies are decoded after they were verified as the committed ones.
    from rmq_spark.spark.bodies.decoder import body_columns_for  # noqa: PLC0415  # in tasks only, see above

    with bad_record_handler(options) as bad:
        typed = body_columns_for(schema, options.body, bad)
        everything = replace(options, expression="*", body=BINARY_BODIES)
        for span in group.spans:
            end = span.queue_offset + span.message_count
            check = _SpanCheck(span)
            batches = list(
                read_range(
                    everything,
                    schema if typed is None else typed.raw_schema,
                    OffsetRange(span.queue, span.queue_offset, end),
                    tags=options.tags,
                    observer=check,
                )
            )
            if check.is_passed and typed is None:
                yield from batches
            elif check.is_passed and typed is not None:
                for batch in batches:
                    yield from typed.decode_batch(batch, span.queue, check.records)
            else:
                report_losses([check.loss], is_failure=options.fail_on_data_loss)


class _SpanCheck(RecordObserver):
    def __init__(self, span: CommittedSpan) -> None:
        self._span = span
        self._crc = 0
        self._count = self._unreadable = 0
        self._has_all_crcs = True
        self.records: list[RecordChunk] = []
        """The records of the span that can be read."""

    def on_records(self, records: RecordChunk) -> None:
        if len(records):
            head: Any = records.head
            self._crc = add_crc(self._crc, int(head["body_crc"].astype("int64").sum()))
            self._count += len(records)
            self.records.append(records)

    def on_unreadable(self, recorded_crc: int | None) -> None:
        """Add an unreadable record of the span, which may still state the CRC of its body."""
        self._unreadable += 1
        self._crc = add_crc(self._crc, recorded_crc or 0)
        self._has_all_crcs = self._has_all_crcs and recorded_crc is not None

    @property
    def is_passed(self) -> bool:
        """True if these are exactly the rows that were committed."""
        is_whole = self._count + self._unreadable == self._span.message_count
        return is_whole and self._has_all_crcs and self._crc == self._span.crc

    @property
    def loss(self) -> str:
        queue, first, count, *_ = self._span
        which = f"the rows committed at offsets {first} to {first + count - 1} of {queue}"
        if self._unreadable:
            return (
                f"{which} are damaged or were replaced: {self._unreadable} of them cannot be "
                "read, and without these the others cannot be verified; none is returned"
            )
        return (
            f"{which} are incomplete or were replaced: some have expired, the topic was recreated "
            "or restored from an older copy, or the broker lost unflushed messages; none is "
            "returned"
        )
