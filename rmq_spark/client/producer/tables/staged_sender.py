"""Staged sender: sends rows to a broker that makes them visible when their batch is committed.

    rows ──> pieces ──> records, once, for one queue ──> chunk 0, chunk 1, ...   several in flight
                                                           │
                     the same bytes under the same number ─┘  until the broker has them

All chunks form one attempt. A commit names an attempt by its number of chunks, its rows, and a CRC
over the bytes of all chunks. So a chunk that is sent again must have the same bytes as before: the
broker may have both. `RetryPolicy` decides when to stop retrying.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import pyarrow as pa

from rmq_spark.client.errors import ClientError, NotSupported
from rmq_spark.client.producer.tables.arrow_input import normalize_tables
from rmq_spark.client.producer.tables.arrow_rows import encode_sized_records, split_rows
from rmq_spark.client.producer.tables.arrow_sender import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    CHUNK_TIMEOUT_MS,
    IN_FLIGHT,
)
from rmq_spark.wire.bodies.staged_batches import StagedAttempt
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import BatchRequestHeader, StageChunkRequestHeader
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.client.producer.topic_sender import TopicSender


class RetryPolicy(Protocol):
    """The pauses between the tries of a request, and their end."""

    def wait_or_raise(self, error: ClientError, topic: str) -> object:
        """Wait before the next try for a topic; raise if there must be none."""

    def reset(self) -> object:
        """Note that a try has succeeded."""


@dataclass
class _StagedChunk:
    number: int
    queue: MessageQueue
    body: bytes
    response: Future[bool] = field(default_factory=Future)


class StagedSender:
    """The chunks of one attempt at rows of a batch. Its methods are called from one thread.

    ``is_committed`` is True once the broker says that the batch is committed already: later rows
    are not staged.
    """

    def __init__(
        self,
        sender: TopicSender,
        batch: BatchRequestHeader,
        attempt: str,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        retry_policy: RetryPolicy,
        *,
        in_flight: int = IN_FLIGHT,
        chunk_bytes: int = CHUNK_BYTES,
        timeout_ms: int = CHUNK_TIMEOUT_MS,
    ) -> None:
        """Begin an attempt, by its unique name, at rows of a batch.

        ``queues_of`` returns the queues of a topic, all of them on one broker.
        """
        self.is_committed = False
        self._sender = sender
        self._batch = batch
        self._attempt = attempt
        self._queues_of = queues_of
        self._retry_policy = retry_policy
        self._in_flight = in_flight
        self._bytes_max = min(chunk_bytes, sender.rules.max_message_bytes)
        self._timeout_ms = timeout_ms
        self._pending: deque[_StagedChunk] = deque()
        self._next_number = self._rows = self._crc = 0
        self.staged_bytes = 0

    def stage(self, rows: pa.RecordBatch, topic: str, queue: MessageQueue | None = None) -> None:
        """Stage rows for a queue; by default the topic's queues take turns.

        Raises:
            MessageRejected: A row cannot be a message.
            Exception: Whatever ``retry_policy`` raises.
        """
        for batch in normalize_tables([rows]):
            for piece in split_rows(batch, topic, self._bytes_max, lambda _: CHUNK_ROWS):
                while len(self._pending) >= self._in_flight:
                    self._await_response(self._pending.popleft())
                if self.is_committed:
                    return
                target = queue or self._sender.queue_selector.select(self._queues_of(topic))
                self._add(piece.rows, target)

    def finish(self) -> StagedAttempt:
        """Wait until all is staged, and return the attempt for the commit to name."""
        while self._pending:
            self._await_response(self._pending.popleft())
        return StagedAttempt(
            attempt=self._attempt, chunks=self._next_number, rows=self._rows, crc=self._crc
        )

    def drain(self) -> None:
        """Wait for the pending responses, and ignore their outcomes."""
        while self._pending:
            with suppress(ClientError):
                self._pending.popleft().response.result()

    def _add(self, rows: pa.RecordBatch, queue: MessageQueue) -> None:
        """Make a chunk of rows, the next one, and send it."""
        chunk = _StagedChunk(self._next_number, queue, self._encode(rows, queue))
        self._next_number += 1
        self._rows += rows.num_rows
        self._crc = crc32(chunk.body, self._crc)
        self.staged_bytes += len(chunk.body)
        self._send(chunk)
        self._pending.append(chunk)

    def _encode(self, rows: pa.RecordBatch, queue: MessageQueue) -> bytes:
        instance = self._sender.instance
        while True:
            try:
                address = instance.routes.master_address(queue.broker_name)
                hosts = instance.api.agreement(address)
                if Extension.STAGED_BATCHES not in hosts.extensions or not hosts.store_host:
                    raise _not_supported(address)
                return encode_sized_records(rows, queue, hosts.born_host or "", hosts.store_host)
            except ClientError as error:  # noqa: PERF203  # asked again
                self._retry_policy.wait_or_raise(error, queue.topic)

    def _send(self, chunk: _StagedChunk) -> None:
        sender, batch, queue = self._sender, self._batch, chunk.queue
        header = StageChunkRequestHeader(
            batch.sink,
            batch.batch_id,
            batch.owner,
            self._attempt,
            chunk.number,
            queue.topic,
            queue.queue_id,
            sender.rules.create_topic_key,
            sender.rules.default_topic_queue_nums,
        )
        try:
            address = sender.instance.routes.master_address(queue.broker_name)
            chunk.response = sender.instance.api.staging.stage_chunk(
                address, header, chunk.body, self._timeout_ms
            )
        except ClientError as error:
            chunk.response = Future()
            chunk.response.set_exception(error)

    def _await_response(self, chunk: _StagedChunk) -> None:
        """Wait until a chunk is staged; if that failed, send the same bytes again."""
        while True:
            try:
                self.is_committed = chunk.response.result() or self.is_committed
            except ClientError as error:  # noqa: PERF203  # sent again
                self._retry_policy.wait_or_raise(error, chunk.queue.topic)
                self._send(chunk)
            else:
                self._retry_policy.reset()
                return


def _not_supported(address: str) -> NotSupported:
    code, request = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, RequestCode.STAGE_CHUNK
    return NotSupported(code, "it does not support staged batches", address, request)
