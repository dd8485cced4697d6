"""Spans of rows that a manifest names: made where rows are sent, read and checked by tasks.

    sent       where rows are stored ──> spans with the sum of their bodies' CRCs, joined while
               they are small enough to be held in memory
    planned    the spans of a batch ──> pieces for tasks; a span is in one piece
    read       a span's rows ──> are these the rows that were committed? ──> rows for Spark

A CRC is needed as offsets alone tell nothing of a queue that has lost its tail and grown again. It
is of all rows of a span: a record that cannot be read counts in it by the CRC that it states. Where
some are gone, be it by retention, nobody knows whose the others are, and none of them is read.
Tags are compared here, since what a broker leaves out cannot be checked. It knows no manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq_spark.client.manifest import CommittedSpan, added
from rmq_spark.spark.body_options import BINARY_BODIES
from rmq_spark.spark.errors import named, report_losses
from rmq_spark.spark.options import ReadOptions
from rmq_spark.spark.planning import Piece
from rmq_spark.spark.tasks import read_piece
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.client.producer.arrow_sends import SentSpan
    from rmq_spark.wire.chunk import RecordChunk

SPAN_ROWS_MAX: Final = 50_000
SPAN_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bytes of bodies up to which spans are joined: a reader holds a span in memory."""


class SpanPiece(NamedTuple):
    """The spans that one task reads, one after the other; all of one queue."""

    spans: tuple[CommittedSpan, ...]

    @property
    def row_count(self) -> int:
        """The number of its rows."""
        return sum(span.message_count for span in self.spans)


class Sums(NamedTuple):
    """The sums of rows, wherever they lie: their number, the bytes and CRCs of their bodies."""

    rows: int = 0
    body_bytes: int = 0
    crc: int = 0

    def plus(self, other: Sums) -> Sums:
        """Return the sums of both."""
        crc = added(self.crc, other.crc)
        return Sums(self.rows + other.rows, self.body_bytes + other.body_bytes, crc)


def sums_of(bodies: pa.Array) -> Sums:
    """Return what the rows of these bodies come to."""
    import pyarrow.compute as pc  # noqa: PLC0415  # in tasks only

    from rmq_spark.wire.chunk.encode import body_crcs  # noqa: PLC0415  # the same

    size = pc.sum(pc.binary_length(bodies)).as_py() or 0
    return Sums(len(bodies), size, added(int(body_crcs(bodies).sum()), 0))


class NamedSpans:
    """The spans of one task's rows, as they are stored."""

    def __init__(self) -> None:
        self.spans: list[CommittedSpan] = []
        self._last_of: dict[MessageQueue, int] = {}

    def add(self, sent: Iterable[SentSpan], bodies: pa.Array) -> None:
        """Add spans of rows that were stored; ``bodies`` are theirs, in the same order."""
        first = 0
        for queue, queue_offset, count in sent:
            _, size, crc = sums_of(bodies.slice(first, count))
            first += count
            self._join(CommittedSpan(queue, queue_offset, count, crc, size))

    def _join(self, span: CommittedSpan) -> None:
        at = self._last_of.get(span.queue)
        if at is not None:
            last = self.spans[at]
            joined = CommittedSpan(
                span.queue,
                last.queue_offset,
                last.message_count + span.message_count,
                added(last.crc, span.crc),
                last.body_bytes + span.body_bytes,
            )
            if (
                last.queue_offset + last.message_count == span.queue_offset
                and joined.message_count <= SPAN_ROWS_MAX
                and joined.body_bytes <= SPAN_BYTES_MAX
            ):
                self.spans[at] = joined
                return
        self._last_of[span.queue] = len(self.spans)
        self.spans.append(span)


def span_pieces(
    spans: Iterable[CommittedSpan], pieces_min: int | None = None, rows_max: int | None = None
) -> list[SpanPiece]:
    """Divide spans into the pieces that tasks read; the same input gives the same pieces.

    Each queue is one piece, unless more pieces or smaller ones are wanted and spans allow it.
    """
    by_queue: dict[MessageQueue, list[CommittedSpan]] = {}
    for span in spans:
        if span.message_count:
            by_queue.setdefault(span.queue, []).append(span)
    total = sum(span.message_count for each in by_queue.values() for span in each)
    bounds = [rows_max] if rows_max else []
    if pieces_min and pieces_min > len(by_queue):
        bounds.append(max(total // pieces_min, 1))
    if not bounds:
        return [SpanPiece(tuple(by_queue[queue])) for queue in sorted(by_queue)]
    most, found = min(bounds), []
    for queue in sorted(by_queue):
        some: list[CommittedSpan] = []
        rows = 0
        for span in by_queue[queue]:
            if some and rows + span.message_count > most:
                found.append(SpanPiece(tuple(some)))
                some, rows = [], 0
            some.append(span)
            rows += span.message_count
        found.append(SpanPiece(tuple(some)))
    return found


def read_spans(
    options: ReadOptions, schema: pa.Schema, piece: SpanPiece
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece, in order, each span when all of it is known to be right.

    Raises:
        DataLoss: Rows of a span are gone, or are others by now, and that is to end the query.
        RecordFault: A message cannot be read, and that is to end the query.
        BrokersAway: The broker could not be reached for too long.
    """
    # In tasks only. Bodies are decoded when it is known that they are those that were committed.
    from rmq_spark.spark.bad_records import BadRecords  # noqa: PLC0415
    from rmq_spark.spark.typed_batches import body_columns  # noqa: PLC0415

    typed = body_columns(schema, options.body, BadRecords(options.on_bad_record))
    everything = replace(options, expression="*", body=BINARY_BODIES)
    for span in piece.spans:
        end = span.queue_offset + span.message_count
        check = _Check(span)
        batches = list(
            read_piece(
                everything,
                schema if typed is None else typed.raw,
                Piece(span.queue, span.queue_offset, end),
                tags=options.tags,
                observer=check,
            )
        )
        if check.is_passed and typed is None:
            yield from batches
        elif check.is_passed and typed is not None:
            for batch in batches:
                yield from typed.typed(batch, span.queue.topic, span.queue.broker_name)
        else:
            report_losses([check.loss], is_failure=options.fail_on_data_loss)


class _Check:
    """The comparison of the records of a span with what its manifest says."""

    def __init__(self, span: CommittedSpan) -> None:
        self._span = span
        self._crc = 0
        self._count = self._missed = 0
        self._is_known = True

    def see(self, records: RecordChunk) -> None:
        """Take some records of the span, the next ones."""
        if len(records):
            head: Any = records.head
            self._crc = added(self._crc, int(head["body_crc"].astype("int64").sum()))
            self._count += len(records)

    def miss(self, stated_crc: int | None) -> None:
        """Take a record of the span that cannot be read; it may still say which body it had."""
        self._missed += 1
        self._crc = added(self._crc, stated_crc or 0)
        self._is_known = self._is_known and stated_crc is not None

    @property
    def is_passed(self) -> bool:
        """True if these are the rows that were committed, all of them."""
        is_whole = self._count + self._missed == self._span.message_count
        return is_whole and self._is_known and self._crc == self._span.crc

    @property
    def loss(self) -> str:
        """The loss in words, if the check is not passed."""
        queue, first, count, *_ = self._span
        which = f"{named(queue)} has other messages at offsets {first} to {first + count - 1} than"
        if self._missed:
            return (
                f"{which} those that were committed, or damaged ones: {self._missed} of them "
                "cannot be read, and the others are not known to be those without; none of them "
                "is read"
            )
        return (
            f"{which} those that were committed, or not all of them: some have expired, it was "
            "made again or put back from an older copy, or its broker has lost what was not "
            "flushed; none of them is read"
        )
