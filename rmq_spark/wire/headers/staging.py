"""Staging headers: rows are staged, then committed or aborted as one batch.

A sink is a writer of batches with increasing numbers; the client chooses its name.
"""

from __future__ import annotations

from typing import NamedTuple

from rmq_spark.wire.headers.codec import Int32, Int64


class StageChunkRequestHeader(NamedTuple):
    """The place of a chunk among those of its attempt, and the queue of the records in the body."""

    sink: str
    batch_id: Int64
    owner: str
    attempt: str
    number: Int32
    topic: str
    queue_id: Int32
    default_topic: str | None = None
    default_topic_queue_nums: Int32 = 4


class StageChunkResponseHeader(NamedTuple):
    """The response to a chunk; it is omitted if the batch has been committed already."""

    is_committed: bool


class BatchRequestHeader(NamedTuple):
    """The batch to be committed or aborted; the owner is the query that writes it."""

    sink: str
    batch_id: Int64
    owner: str


class LastBatchRequestHeader(NamedTuple):
    """The sink whose last committed batch is requested."""

    sink: str


class ForgetSinkRequestHeader(NamedTuple):
    """The sink whose state is deleted: its last batch, and what it has staged."""

    sink: str
