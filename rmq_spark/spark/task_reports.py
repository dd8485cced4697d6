"""TaskReports: what a task of the sink has done with its rows, as the driver is told.

Rows were sent, and then there are spans of queues in which they are; or they were staged, and count
when the driver commits them. The counts are those of both. Nothing is sent here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rmq_spark.client.manifest import CommittedSpan
    from rmq_spark.client.producer.arrow_sends import SentSpan
    from rmq_spark.spark.committed_spans import Sums
    from rmq_spark.wire.bodies.staged_batches import StagedAttempt
    from rmq_spark.wire.headers.staging import BatchRequestHeader


class TaskStaged(NamedTuple):
    """The part of a batch that one task has staged; without topic and broker, if it had no rows.

    ``sums`` are those of its rows if the batch had been committed before it began.
    """

    batch: BatchRequestHeader
    topic: str | None = None
    broker_name: str | None = None
    attempt: StagedAttempt | None = None
    staged_bytes: int = 0
    is_committed: bool = False
    sums: Sums | None = None


class TaskRows(NamedTuple):
    """The rows that a task has sent or staged: how many they are, and where.

    Exactly once the spans are those that a manifest names, each small enough to be held in memory;
    else those of a queue that adjoin are joined.
    """

    row_count: int
    body_bytes: int
    """The size of all bodies."""
    retries: int
    """The number of times that something was tried again, as a broker was away or busy."""
    spans: tuple[SentSpan, ...] | tuple[CommittedSpan, ...] = ()
    staged: TaskStaged | None = None
    """The report of rows that were staged instead of sent."""
