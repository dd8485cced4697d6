"""Arrow sender: sends Arrow tables at bulk speed; each row is a message (`arrow_rows`).

Our broker takes megabytes of ready-encoded records per request (APPEND_CHUNK), a RocketMQ broker
takes batches. Several requests are in flight at once, each to the next of the topic's queues. The
rows of one request keep their order; if a queue is given, all rows do. Bodies are sent
uncompressed, as RocketMQ sends those of batches. Messages sent as chunks have no UNIQ_KEY and are
identified by their offset message ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from rmq_spark.client.arguments import (
    check_kind,
    check_queue,
    check_range,
    check_time_ms,
)
from rmq_spark.client.errors import (
    UNREACHABLE_ERRORS,
    ClientError,
    MessageRejected,
    NotSupported,
    PartlySent,
    SendFailed,
)
from rmq_spark.client.producer.arrow_rows import (
    COLUMNS,
    SINK_COLUMNS,
    encode_sized_records,
    message_columns,
    normalize_tables,
    split_rows,
    to_message,
    translate_record_errors,
)
from rmq_spark.client.producer.prepared_message import (
    BATCH_MESSAGES_MAX,
    check_batch_topic,
    now_ms,
    prepare_message,
    wrap_encoded_batch,
)
from rmq_spark.client.producer.topic_sender import is_retryable, is_route_stale
from rmq_spark.wire.bodies.staged_batches import StagedAttempt
from rmq_spark.wire.chunk import encode_batch_columns
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import (
    AppendChunkRequestHeader,
    BatchRequestHeader,
    StageChunkRequestHeader,
)
from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.java_numbers import INT32_MAX

if TYPE_CHECKING:
    from rmq_spark.client.producer.topic_sender import TopicSender

IN_FLIGHT: Final = 4
CHUNK_BYTES: Final = 4 * 1024 * 1024
CHUNK_ROWS: Final = 32_768
CHUNK_TIMEOUT_MS: Final = 30_000
"""Timeout of a request: its megabytes may wait until those of earlier requests are sent."""
_ROUTE_SECONDS: Final = 1.0
"""Seconds to wait for a topic's new route; without one, the known queues are tried again."""


class SentSpan(NamedTuple):
    """Messages that are stored at successive offsets of a queue."""

    queue: MessageQueue
    queue_offset: int
    message_count: int


class BulkResult(NamedTuple):
    """Result of sending a table.

    Attributes:
        message_count: Number of messages stored.
        spans: Queue offsets at which they are stored.
    """

    message_count: int
    spans: tuple[SentSpan, ...]


@dataclass
class _TableRequest:
    """One request in flight: its queue, its response, and the tries that failed."""

    topic: str
    rows: pa.RecordBatch
    queue: MessageQueue | None = None
    response: Future[Any] = field(default_factory=Future)
    errors: list[ClientError] = field(default_factory=list)


def send_batches(
    sender: TopicSender,
    retries: int,
    batches: Iterable[Any],
    topic: str | None = None,
    columns: Iterable[str] = COLUMNS,
    *,
    queue: MessageQueue | None = None,
    in_flight: int = IN_FLIGHT,
    chunk_bytes: int = CHUNK_BYTES,
    timeout_ms: int = CHUNK_TIMEOUT_MS,
) -> BulkResult:
    """Send all rows of tables, record batches or DataFrames; see `Producer.send_batches`.

    A request that fails is sent again up to ``retries`` times. With a ``queue``, one request at a
    time is in flight, and none is retried.
    """
    check_kind(
        "batches", batches, Iterable, "several tables", "[pa.table({'body': ['one', 'two']})]"
    )
    check_range("in_flight", in_flight)
    check_range("chunk_bytes", chunk_bytes)
    check_time_ms("timeout_ms", timeout_ms)
    if queue is not None:
        check_queue("queue", queue)
    bulk = _TableSend(sender, queue, timeout_ms, retries)
    bytes_max = min(chunk_bytes, sender.rules.max_message_bytes)
    pending: deque[_TableRequest] = deque()
    try:
        for rows in normalize_tables(batches):
            for piece in split_rows(rows, topic, bytes_max, bulk.rows_max, columns):
                if len(pending) >= (in_flight if queue is None else 1):
                    bulk.await_response(pending.popleft())
                request = _TableRequest(*piece)
                if queue is not None and queue.topic != request.topic:
                    raise MessageRejected("queue", f"a queue of {request.topic}", str(queue))
                bulk.send(request)
                pending.append(request)
        while pending:
            bulk.await_response(pending.popleft())
    finally:
        for request in pending:  # wait for the outstanding responses
            with suppress(ClientError):
                request.response.result()
    return BulkResult(bulk.sent_count, tuple(bulk.spans))


class _TableSend:
    """The requests of one call of `send_batches`."""

    def __init__(
        self, sender: TopicSender, queue: MessageQueue | None, timeout_ms: int, retries: int
    ) -> None:
        self._sender = sender
        self._queue = queue
        self._timeout_ms = timeout_ms
        self._retries = retries
        self.spans: list[SentSpan] = []
        self.sent_count = 0

    def rows_max(self, topic: str) -> int:
        """Return how many rows one request can have: fewer if a broker accepts only batches."""
        for name in sorted({queue.broker_name for queue in self._sender.publish_queues(topic)}):
            if not self._supports_chunks(name):
                return BATCH_MESSAGES_MAX
        return CHUNK_ROWS

    def _supports_chunks(self, broker_name: str) -> bool:
        instance = self._sender.instance
        try:
            agreement = instance.api.agreement(instance.routes.master_address(broker_name))
        except UNREACHABLE_ERRORS:
            return False
        return Extension.APPEND_CHUNK in agreement.extensions

    def send(self, request: _TableRequest) -> None:
        """Send a request to the next queue, without waiting for the response."""
        sender = self._sender
        failed = request.queue.broker_name if request.queue is not None else None
        queue = self._queue or sender.queue_selector.select(
            sender.publish_queues(request.topic), failed
        )
        request.queue = queue
        try:
            address = sender.instance.routes.master_address(queue.broker_name)
            agreement = sender.instance.api.agreement(address)
            if (
                Extension.APPEND_CHUNK in agreement.extensions
                and agreement.store_host
                and agreement.born_host
            ):
                body = encode_sized_records(
                    request.rows, queue, agreement.born_host, agreement.store_host
                )
                request.response = self._append_chunk(address, queue, body)
            else:
                request.response = self._send_batch(address, queue, request)
        except UNREACHABLE_ERRORS as error:
            request.response = Future()
            request.response.set_exception(error)

    def await_response(self, request: _TableRequest) -> None:
        """Wait for the response; retry the request if that may help, while later ones wait."""
        while (error := self._record_outcome(request)) is not None:
            request.errors.append(error)
            may_do_better = is_retryable(error) or isinstance(error, _PartiallyStored)
            if self._queue is not None or not may_do_better or len(request.errors) > self._retries:
                if self.spans:
                    raise PartlySent(
                        request.topic, request.errors, self.spans, self.sent_count
                    ) from error
                raise SendFailed(request.topic, request.errors) from error
            if is_route_stale(error):
                self._sender.instance.routes.refresh_within(request.topic, _ROUTE_SECONDS)
            self.send(request)

    def _record_outcome(self, request: _TableRequest) -> ClientError | None:
        """Record the stored rows; return the error of the rows that are left, if there are any."""
        try:
            found = request.response.result()
        except ClientError as error:
            return error
        count = request.rows.num_rows
        stored: int = getattr(found, "message_count", count)
        queue = request.queue
        if queue is None:
            raise AssertionError("there is an answer to a request that was not sent")
        self.spans.append(SentSpan(queue, found.queue_offset, stored))
        self.sent_count += stored
        if stored == count:
            return None
        request.rows = request.rows.slice(stored)
        return _PartiallyStored(request.topic, stored, count)

    def _append_chunk(self, address: str, queue: MessageQueue, body: Buffer) -> Future[Any]:
        rules = self._sender.rules
        header = AppendChunkRequestHeader(
            rules.producer_group,
            queue.topic,
            queue.queue_id,
            rules.create_topic_key,
            rules.default_topic_queue_nums,
        )
        return self._sender.instance.api.append_chunk(address, header, body, self._timeout_ms)

    def _send_batch(self, address: str, queue: MessageQueue, request: _TableRequest) -> Future[Any]:
        sender, rows = self._sender, request.rows
        check_batch_topic(request.topic)
        ids = sender.ids.next_many(rows.num_rows)
        with translate_record_errors():
            body = encode_batch_columns(message_columns(rows), ids)
        if rows.num_rows == 1 and len(body) > sender.rules.max_message_bytes:
            # Not as a batch, because brokers count its properties as well. Uncompressed, because
            # committed rows are verified by the CRC of the stored body.
            rules = replace(sender.rules, compress_body_bytes=INT32_MAX)
            prepared = prepare_message(to_message(rows, request.topic), rules, sender.ids, now_ms())
        else:
            prepared = wrap_encoded_batch(
                request.topic, memoryview(body), ids, sender.rules, now_ms()
            )
        header = prepared.header(queue)
        return sender.instance.api.send_async(
            address, header, prepared.body, prepared.message_id, self._timeout_ms
        )


class _PartiallyStored(ClientError):
    """A broker's disk filled up in the middle of a chunk."""

    def __str__(self) -> str:
        topic, stored, count = self.args
        return f"the broker had room for only {stored} of {count} messages for {topic}"


# ---- StagedSender: sends rows to a broker that makes them visible when their batch is committed.
#
#     rows ──> pieces ──> records, once, for one queue ──> chunk 0, chunk 1, ...   several in flight
#                                                            │
#                      the same bytes under the same number ─┘  until the broker has them
#
# All chunks form one attempt. A commit names an attempt by its number of chunks, its rows, and a
# CRC over the bytes of all chunks. So a chunk that is sent again must have the same bytes as
# before: the broker may have both. `StagedRetryPolicy` decides when to stop retrying.


class StagedRetryPolicy(Protocol):
    """The pauses between the tries of a request, and their end."""

    def wait_or_raise(self, error: ClientError, topic: str) -> object:
        """Wait before the next try for a topic; raise if there is to be no further try."""

    def reset(self) -> object:
        """Note that a try has succeeded."""


@dataclass
class _StagedChunk:
    number: int
    queue: MessageQueue
    body: memoryview
    response: Future[bool] = field(default_factory=Future)


class StagedSender:
    """Sends the chunks of one attempt to stage rows of a batch. Use it in one thread.

    ``is_committed`` is True once the broker says that the batch is committed already: later rows
    are not staged.
    """

    def __init__(
        self,
        sender: TopicSender,
        batch: BatchRequestHeader,
        attempt: str,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        retry_policy: StagedRetryPolicy,
        *,
        in_flight: int = IN_FLIGHT,
        chunk_bytes: int = CHUNK_BYTES,
        timeout_ms: int = CHUNK_TIMEOUT_MS,
    ) -> None:
        """Begin an attempt, which has a unique name, to stage rows of a batch.

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
            for piece in split_rows(
                batch, topic, self._bytes_max, lambda _: CHUNK_ROWS, SINK_COLUMNS
            ):
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
        chunk = _StagedChunk(self._next_number, queue, self._encode(rows, queue))
        self._next_number += 1
        self._rows += rows.num_rows
        self._crc = crc32(chunk.body, self._crc)
        self.staged_bytes += len(chunk.body)
        self._send(chunk)
        self._pending.append(chunk)

    def _encode(self, rows: pa.RecordBatch, queue: MessageQueue) -> memoryview:
        instance = self._sender.instance
        while True:
            try:
                address = instance.routes.master_address(queue.broker_name)
                hosts = instance.api.agreement(address)
                if Extension.STAGED_BATCHES not in hosts.extensions or not hosts.store_host:
                    raise _not_supported(address)
                return encode_sized_records(rows, queue, hosts.born_host or "", hosts.store_host)
            except ClientError as error:  # noqa: PERF203  # the loop asks again
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
            except ClientError as error:  # noqa: PERF203  # the loop sends it again
                self._retry_policy.wait_or_raise(error, chunk.queue.topic)
                self._send(chunk)
            else:
                self._retry_policy.reset()
                return


def _not_supported(address: str) -> NotSupported:
    code, request = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, RequestCode.STAGE_CHUNK
    return NotSupported(code, "it does not support staged batches", address, request)
