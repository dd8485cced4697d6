"""Reports: what a task of the sink tells the driver about its rows, and what identifies them.

Spark starts a Python process for each commit, only to read the reports: it loads neither numpy nor
pyarrow for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.client.manifest import CommittedSpan, add_crc

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.staged_batches import StagedAttempt
    from rmq_spark.wire.headers.members import BatchRequestHeader

ROW_ID: Final = "ROCKETPOLL_ROW"
"""The property with a row's id, so that a reader recognizes a row that was sent twice."""


class WriteTask(NamedTuple):
    """The identity of a task's rows; it stays the same if the task or the whole batch is retried.

    ``write_id`` is the id of a streaming query; in foreachBatch, a slash and the name of the write
    follow if it has one. Outside of queries it is the write's name, its txnAppId, or a random id.
    """

    write_id: str
    batch_id: int
    partition: int

    def row_id(self, row: int) -> str:
        """Return the id of a row."""
        return f"{self.write_id}:{self.batch_id}:{self.partition}:{row}"


class RowSums(NamedTuple):
    """The number, body bytes and body CRCs of rows, each summed up."""

    rows: int = 0
    body_bytes: int = 0
    crc: int = 0

    def add(self, other: RowSums) -> RowSums:
        """Return the sums of both."""
        crc = add_crc(self.crc, other.crc)
        return RowSums(self.rows + other.rows, self.body_bytes + other.body_bytes, crc)


class StagedReport(NamedTuple):
    """The part of a batch that one task has staged; without topic and broker if it had no rows.

    ``sums`` has the sums of its rows if the batch was committed before the task started.
    """

    batch: BatchRequestHeader
    topic: str | None = None
    broker_name: str | None = None
    attempt: StagedAttempt | None = None
    staged_bytes: int = 0
    is_committed: bool = False
    sums: RowSums | None = None


class TaskReport(NamedTuple):
    """The rows that a task has sent or staged: how many they are, and where.

    Adjoining spans of a queue are joined, up to a size that can be held in memory. With
    exactly-once delivery, spans have the sums of their bodies, for the manifest.
    """

    row_count: int
    body_bytes: int
    """The size of all bodies."""
    retries: int
    """The number of retries because a broker was away or busy."""
    spans: tuple[CommittedSpan, ...] = ()
    staged: StagedReport | None = None
    """The report of rows that were staged instead of sent."""
