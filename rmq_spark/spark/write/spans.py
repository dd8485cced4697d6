"""SpanCollector: collects where the rows of one task are stored: spans with their sums and CRCs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.client.manifest import CommittedSpan, add_crc
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.client.producer.tables.arrow_sender import SentSpan

SPAN_ROWS_MAX: Final = 50_000
SPAN_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bytes of bodies up to which spans are joined: a reader holds a span in memory."""


class RowSums(NamedTuple):
    """The sums of rows, wherever they are stored: their number, body bytes and body CRCs."""

    rows: int = 0
    body_bytes: int = 0
    crc: int = 0

    def add(self, other: RowSums) -> RowSums:
        """Return the sums of both."""
        crc = add_crc(self.crc, other.crc)
        return RowSums(self.rows + other.rows, self.body_bytes + other.body_bytes, crc)


def sums_of(bodies: pa.Array) -> RowSums:
    """Return the sums of rows with these bodies."""
    import pyarrow.compute as pc  # noqa: PLC0415  # in tasks only

    from rmq_spark.wire.chunk.encode import body_crcs  # noqa: PLC0415  # the same

    size = pc.sum(pc.binary_length(bodies)).as_py() or 0
    return RowSums(len(bodies), size, add_crc(int(body_crcs(bodies).sum()), 0))


class SpanCollector:
    """The spans of one task's rows, as the rows are stored."""

    def __init__(self) -> None:
        self.spans: list[CommittedSpan] = []
        self._last_index: dict[MessageQueue, int] = {}

    def add(self, sent: Iterable[SentSpan], bodies: pa.Array | None) -> None:
        """Add spans of rows that were stored.

        ``bodies`` are the rows' bodies, in order; without them the sums of a span stay 0.
        """
        first = 0
        for queue, queue_offset, count in sent:
            sums = RowSums() if bodies is None else sums_of(bodies.slice(first, count))
            first += count
            self._join(CommittedSpan(queue, queue_offset, count, sums.crc, sums.body_bytes))

    def _join(self, span: CommittedSpan) -> None:
        at = self._last_index.get(span.queue)
        if at is not None:
            last = self.spans[at]
            joined = CommittedSpan(
                span.queue,
                last.queue_offset,
                last.message_count + span.message_count,
                add_crc(last.crc, span.crc),
                last.body_bytes + span.body_bytes,
            )
            if (
                last.queue_offset + last.message_count == span.queue_offset
                and joined.message_count <= SPAN_ROWS_MAX
                and joined.body_bytes <= SPAN_BYTES_MAX
            ):
                self.spans[at] = joined
                return
        self._last_index[span.queue] = len(self.spans)
        self.spans.append(span)
