"""Putting ready-encoded records into the log, many at once: checked, patched with their places, and written.

The order of appends, and the offsets of queues, are `MessageAppender`'s.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from broker.store import chunks
from broker.store import lazy_numpy as np
from broker.store.appender import MessageAppender, illegal, unavailable
from broker.store.commit_log import CommitLog
from broker.store.consume_queue import TRANSACTION_MASK
from broker.store.errors import StoreFailed
from broker.store.fresh_records import Fresh, FreshChunk
from broker.store.lacks import Lacking
from broker.store.large_batch import LargeBatch
from broker.store.queue_table import topic_fault
from broker.store.record_template import RecordTemplate, UniformParts
from broker.store.results import PutMessageResult, PutMessageStatus
from rmq_spark.errors import RecordError
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.properties import DELAY, TIMERS

if TYPE_CHECKING:
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.checksums import Sealing

Sizes: TypeAlias = "npt.ArrayLike"
"""Of records that lie back to back."""


class ChunkAppender:
    """See the module."""

    def __init__(self, log: CommitLog, appender: MessageAppender, fresh: Fresh[FreshChunk]) -> None:
        """``appender`` is the only other writer of the log; ``fresh`` is told what is written."""
        self._log = log
        self._appender = appender
        self._fresh = fresh

    def put_chunk(self, records: Buffer, sizes: Sizes) -> PutMessageResult:
        """Append ready-encoded records of one topic and queue, checking each as if it had come alone.

        They may be spread over two files; then a failure between leaves the first part in the log, and
        the result says how many messages that is.
        """
        try:
            given = chunks.RecordChunk(bytearray(records), sizes)  # theirs stays as it is
            if not len(given):
                return illegal("the chunk is empty")
            chunk = chunks.with_empty_checksums(given)
            chunk.check_crcs()
        except RecordError as error:
            return illegal(str(error))
        longest = int(chunk.sizes.max())
        if longest > min(self._appender.message_bytes_max, self._appender.file_room):
            return illegal(f"a record of {longest} bytes is over {self._appender.message_bytes_max}")
        if (chunk.sys_flag & TRANSACTION_MASK).any():
            return illegal("half messages cannot come in a chunk")
        for name in (DELAY, *TIMERS):
            if chunk.properties.values(name).null_count < len(chunk):
                return illegal(f"messages to be delivered later (property {name}) cannot come in a chunk")
        return self._put_records(chunk)

    def put_large(
        self, template: RecordTemplate, parts: Iterable[UniformParts], born_timestamp: int
    ) -> Generator[None, None, tuple[PutMessageResult, Sequence[int]]]:
        """Append a batch of very many messages, all or none, in steps; and the sizes of its records."""
        batch = LargeBatch(template, born_timestamp)
        try:
            for each in parts:
                batch.add(each)
                yield
        except RecordError as error:
            return illegal(str(error)), []
        chunk, sealing = yield from batch.ready()
        return self._put_batch(batch, chunk, sealing), batch.sizes

    def _put_batch(self, batch: LargeBatch, chunk: RecordChunk, sealing: Sealing) -> PutMessageResult:
        fault = self._appender.fault_in(batch.queue, batch.longest_body, batch.longest_properties)
        if fault is not None:
            return fault
        if batch.size > self._appender.file_room:
            return illegal(f"a batch of {batch.size} bytes does not fit into one file of the log")

        def append(queue_offset: int) -> PutMessageResult:
            offsets = np.arange(queue_offset, queue_offset + len(chunk))
            try:
                position, end_offset, timestamp = self._log.append_many(
                    chunk.data, chunk.sizes, offsets, chunk.store_timestamp_at, sealing.seal
                )
            except (Lacking, StoreFailed) as error:
                return unavailable(error)
            chunk.head["queue_offset"] = offsets
            self._fresh.add(FreshChunk(chunk, position, end_offset))
            return PutMessageResult(
                PutMessageStatus.PUT_OK, position, queue_offset, end_offset, timestamp, len(chunk)
            )

        return self._appender.in_turn(batch.queue, append, len(chunk))

    def _put_records(self, chunk: RecordChunk) -> PutMessageResult:
        """Append records with offsets in their order, in as few pieces as the files allow."""
        topics = chunks.COLUMNS["topic"].build(chunk).unique().to_pylist()
        queue_ids = chunk.head["queue_id"]
        queue_id = int(queue_ids[0])
        if len(topics) != 1 or (queue_ids != queue_id).any():
            return illegal("the records must be of one queue")
        topic = topics[0]
        fault = topic_fault(topic)
        if fault is not None:
            return illegal(fault)
        append = partial(self._append, chunk, chunk.store_timestamp_at - chunk.starts, chunks.Sealing(chunk))
        return self._appender.in_turn((topic, queue_id), append, len(chunk))

    def _append(
        self,
        chunk: RecordChunk,
        timestamps_at: npt.NDArray[np.int64],
        sealing: Sealing,
        queue_offset: int,
    ) -> PutMessageResult:
        first: PutMessageResult | None = None
        done = 0
        while done < len(chunk):
            end = done + self._fitting(chunk.sizes[done:])
            piece = chunk.data[int(chunk.starts[done]) : int(chunk.ends[end - 1])]
            starts = chunk.starts[done:end] - chunk.starts[done]
            offsets = np.arange(queue_offset + done, queue_offset + end)
            try:
                position, end_offset, timestamp = self._log.append_many(
                    piece,
                    chunk.sizes[done:end],
                    offsets,
                    starts + timestamps_at[done:end],
                    partial(sealing.seal, done, end),
                )
            except (Lacking, StoreFailed) as error:
                return first or unavailable(error)
            if end - done == len(chunk):  # one in two files is read from the log
                chunk.head["queue_offset"] = offsets
                self._fresh.add(FreshChunk(chunk, position, end_offset))
            done = end
            first = PutMessageResult(
                PutMessageStatus.PUT_OK,
                first.physical_offset if first else position,
                queue_offset,
                end_offset,
                timestamp,
                done,
            )
        return first or illegal("the chunk is empty")

    def _fitting(self, sizes: npt.NDArray[np.int64]) -> int:
        """How many of the next records fit into the current file; all that fit a new one if none does."""
        room = self._log.room_in_file()
        ends = np.cumsum(sizes)
        count = int(np.searchsorted(ends, room, side="right"))
        if not count:
            count = int(np.searchsorted(ends, self._appender.file_room, side="right"))
        return count
