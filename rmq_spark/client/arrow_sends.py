"""Arrow tables to messages, at bulk speed: a row is a message.

    body             what is sent; binary or text, never empty
    topic            where to, unless all go to one
    keys, tags       text
    properties       a map of text to text
    flag             a 32-bit number
    bornTimestamp    when the message was made; now, if it is not given

A broker of ours takes megabytes of ready-encoded records at a time (APPEND_CHUNK), a RocketMQ broker batches.
Several requests are under way at once, each to the next of the topic's queues. Rows of one request stay in
their order; all rows do, if they are given a queue. Bodies are sent as they are, uncompressed, as RocketMQ
does with batches; messages that go as chunks have no UNIQ_KEY, and are known by their offset message ids.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerNotFound,
    BrokerRefused,
    ClientError,
    MessageRejected,
    PartlySent,
    SendFailed,
)
from rmq_spark.client.message import Message
from rmq_spark.client.names import check_topic_to_send_to
from rmq_spark.client.outgoing import BATCH_MESSAGES_MAX, RECORD_OVERHEAD_BYTES, batch_of, batch_parts
from rmq_spark.client.producer import RETRIED_CODES
from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.chunk.sized import encode_sizes
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.headers.send import AppendChunkRequestHeader
from rmq_spark.wire.hosts import parse_host
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.properties import RESERVED_NAMES

if TYPE_CHECKING:
    from rmq_spark.client.producer import Producer

IN_FLIGHT: Final = 4
CHUNK_BYTES: Final = 4 * 1024 * 1024
CHUNK_ROWS: Final = 50_000
CHUNK_TIMEOUT_MS: Final = 30_000
"""Several megabytes wait for those before them."""

COLUMNS: Final = ("body", "topic", "keys", "tags", "properties", "flag", "bornTimestamp")
_ROW_OVERHEAD_BYTES: Final = RECORD_OVERHEAD_BYTES
_BORN_V6: Final = MessageSysFlag.BORN_HOST_V6.value
_STORE_V6: Final = MessageSysFlag.STORE_HOST_V6.value


class SentSpan(NamedTuple):
    """So many messages, at successive offsets of a queue from the first on."""

    queue: MessageQueue
    queue_offset: int
    message_count: int


class BulkResult(NamedTuple):
    """How many messages were stored, and where."""

    message_count: int
    spans: tuple[SentSpan, ...]


@dataclass
class _Piece:
    """Rows of one topic that go out in one request, and what has become of it."""

    rows: pa.RecordBatch
    topic: str
    queue: MessageQueue | None = None
    answer: Future[Any] = field(default_factory=Future)
    tries: list[ClientError] = field(default_factory=list)


def send_batches(
    producer: Producer,
    batches: Iterable[Any],
    topic: str | None = None,
    *,
    queue: MessageQueue | None = None,
    in_flight: int = IN_FLIGHT,
    chunk_bytes: int = CHUNK_BYTES,
    timeout_ms: int = CHUNK_TIMEOUT_MS,
) -> BulkResult:
    """Send all rows of record batches or tables.

    ``queue`` keeps all of them in order in one queue; then, what fails is not tried again. ``timeout_ms``
    holds for each request.

    Raises:
        MessageRejected: A column is unknown, or a row cannot be a message. What was sent before stays sent.
        PartlySent: A request failed for good; ``results`` are the spans that are stored.
        SendFailed: The first request did.
    """
    bulk = _Bulk(producer, queue, timeout_ms)
    bytes_max = min(chunk_bytes, producer.rules.max_message_bytes)
    pending: deque[_Piece] = deque()
    try:
        for rows in _record_batches(batches):
            for piece in _pieces(rows, topic, bytes_max, bulk.rows_max):
                if len(pending) >= (
                    in_flight if queue is None or bulk.takes_chunks(queue.broker_name) else 1
                ):
                    bulk.settle(pending.popleft())
                bulk.start(piece)
                pending.append(piece)
        while pending:
            bulk.settle(pending.popleft())
    finally:
        for piece in pending:  # nobody leaves while answers are under way
            with suppress(ClientError):
                piece.answer.result()
    return BulkResult(bulk.sent, tuple(bulk.spans))


class _Bulk:
    """The requests of one call."""

    def __init__(self, producer: Producer, queue: MessageQueue | None, timeout_ms: int) -> None:
        self._producer = producer
        self._queue = queue
        self._timeout_ms = timeout_ms
        self.spans: list[SentSpan] = []
        self.sent = 0

    def rows_max(self, topic: str) -> int:
        """How many rows fit into one request: a batch holds fewer, and whoever may get one counts."""
        for name in {queue.broker_name for queue in self._producer.publish_queues(topic)}:
            if not self.takes_chunks(name):
                return BATCH_MESSAGES_MAX
        return CHUNK_ROWS

    def takes_chunks(self, broker_name: str) -> bool:
        """Whether a broker takes chunks, and what is under way in its order; RocketMQ's threads race."""
        instance = self._producer.instance
        try:
            agreement = instance.api.agreement(instance.routes.master_address(broker_name))
        except (*CONNECTION_FAULTS, BrokerNotFound):
            return False
        return Extension.APPEND_CHUNK in agreement.extensions

    def start(self, piece: _Piece) -> None:
        """Send it to the next queue, without waiting for the answer."""
        producer = self._producer
        failed = piece.queue.broker_name if piece.queue is not None else None
        queue = self._queue or producer.choice.choose(producer.publish_queues(piece.topic), failed)
        piece.queue = queue
        try:
            address = producer.instance.routes.master_address(queue.broker_name)
            agreement = producer.instance.api.agreement(address)
            if (
                Extension.APPEND_CHUNK in agreement.extensions
                and agreement.store_host
                and agreement.born_host
            ):
                columns = _columns(piece, queue, agreement.born_host, agreement.store_host)
                piece.answer = self._append_chunk(address, queue, columns)
            else:
                piece.answer = self._send_batch(address, queue, piece)
        except (*CONNECTION_FAULTS, BrokerNotFound) as error:
            piece.answer = Future()
            piece.answer.set_exception(error)

    def settle(self, piece: _Piece) -> None:
        """Wait for its answer; what may do better elsewhere is sent again, and what follows waits."""
        while (error := self._outcome(piece)) is not None:
            piece.tries.append(error)
            may_do_better = isinstance(error, (*CONNECTION_FAULTS, BrokerNotFound, _CutShort)) or (
                isinstance(error, BrokerRefused) and error.code in RETRIED_CODES
            )
            if self._queue is not None or not may_do_better or len(piece.tries) > self._producer.retries:
                if self.spans:
                    raise PartlySent(piece.topic, piece.tries, self.spans, self.sent) from error
                raise SendFailed(piece.topic, piece.tries) from error
            self.start(piece)

    def _outcome(self, piece: _Piece) -> ClientError | None:
        """Note what of it is stored; why the rest, which stays in it, is not."""
        try:
            found = piece.answer.result()
        except ClientError as error:
            return error
        count = piece.rows.num_rows
        stored: int = getattr(found, "message_count", count)
        queue = piece.queue
        if queue is None:
            raise AssertionError("an answer came to what was not sent")
        self.spans.append(SentSpan(queue, found.queue_offset, stored))
        self.sent += stored
        if stored == count:
            return None
        piece.rows = piece.rows.slice(stored)
        return _CutShort(piece.topic, stored, count)

    def _append_chunk(self, address: str, queue: MessageQueue, columns: dict[str, Any]) -> Future[Any]:
        rules = self._producer.rules
        try:
            encoded = encode_chunk(columns, has_checksums=True)
        except RecordError as error:
            raise MessageRejected("a row", "one that can be a message", str(error)) from error
        header = AppendChunkRequestHeader(
            rules.producer_group,
            queue.topic,
            queue.queue_id,
            rules.create_topic_key,
            rules.default_topic_queue_nums,
        )
        body = b"".join((encode_sizes(encoded.sizes), encoded.data))
        return self._producer.instance.api.append_chunk(address, header, body, self._timeout_ms)

    def _send_batch(self, address: str, queue: MessageQueue, piece: _Piece) -> Future[Any]:
        producer = self._producer
        parts = batch_parts(_messages(piece), producer.rules, producer.ids)
        prepared = batch_of(parts, producer.rules, _now_ms())
        header = prepared.header(queue)
        return producer.instance.api.send_async(
            address, header, prepared.body, prepared.message_id, self._timeout_ms
        )


class _CutShort(ClientError):
    """A broker's disk filled up in the middle of a chunk."""

    def __str__(self) -> str:
        topic, stored, count = self.args
        return f"only {stored} of {count} messages for {topic} found room"


# ---- rows


def _record_batches(given: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    for rows in given:
        if isinstance(rows, pa.Table):
            yield from rows.to_batches()
        elif isinstance(rows, pa.RecordBatch):
            yield rows
        else:
            raise MessageRejected("rows", "an Arrow table or record batch", type(rows).__name__)


def _pieces(
    rows: pa.RecordBatch, topic: str | None, bytes_max: int, rows_max: Callable[[str], int]
) -> Iterator[_Piece]:
    """Rows, by topic, in the sizes in which they travel."""
    _check_columns(rows)
    if topic is not None:
        yield from _sized(rows, check_topic_to_send_to(topic), bytes_max, rows_max(topic))
        return
    if "topic" not in rows.schema.names:
        raise MessageRejected("topic", "a column of that name, or one topic for all rows", "neither")
    topics = rows.column("topic")
    if topics.null_count:
        raise MessageRejected("topic", "one in each row", "null")
    for each in topics.unique().to_pylist():
        chosen = rows.filter(pc.equal(topics, each))
        yield from _sized(chosen, check_topic_to_send_to(each), bytes_max, rows_max(each))


def _check_columns(rows: pa.RecordBatch) -> None:
    unknown = sorted(set(rows.schema.names) - set(COLUMNS))
    if unknown or "body" not in rows.schema.names:
        needed = f"body, and of the others only {', '.join(COLUMNS[1:])}"
        raise MessageRejected("columns", needed, ", ".join(rows.schema.names))
    if "properties" in rows.schema.names:
        used = set(rows.column("properties").keys.unique().to_pylist()) & RESERVED_NAMES
        if used:
            raise MessageRejected(
                "properties", "names that RocketMQ does not use itself", ", ".join(sorted(used))
            )


def _sized(rows: pa.RecordBatch, topic: str, bytes_max: int, rows_max: int) -> Iterator[_Piece]:
    bodies = rows.column("body")
    if bodies.null_count:
        raise MessageRejected("body", "one in each row", "null")
    lengths = pc.binary_length(bodies).to_numpy(zero_copy_only=False).astype(np.int64)
    if len(lengths) and not lengths.min():
        raise MessageRejected("body", "at least one byte: RocketMQ's consumers fail on empty ones", "none")
    if len(lengths) and lengths.max() > bytes_max:
        raise MessageRejected("body", f"at most {bytes_max} bytes", f"{lengths.max()} bytes")
    ends = np.cumsum(lengths + _property_lengths(rows) + (_ROW_OVERHEAD_BYTES + len(topic)))
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + bytes_max, "right"))
        end = min(max(end, start + 1), start + rows_max)
        yield _Piece(rows.slice(start, end - start), topic)
        start = end


def _property_lengths(rows: pa.RecordBatch) -> Any:
    """About how many bytes the properties of each row take."""
    total = np.zeros(rows.num_rows, np.int64)
    for name in ("keys", "tags"):
        if name in rows.schema.names:
            lengths = pc.fill_null(pc.binary_length(rows.column(name)), 0)
            total += lengths.to_numpy(zero_copy_only=False).astype(np.int64) + len(name) + 2
    if "properties" in rows.schema.names and rows.num_rows:
        maps = rows.column("properties")
        per_row = maps.nbytes // rows.num_rows + 1
        total += 2 * per_row
    return total


def _columns(piece: _Piece, queue: MessageQueue, born_host: str, store_host: str) -> dict[str, Any]:
    """What the chunk codec makes records of."""
    rows = piece.rows
    columns = {name: rows.column(name) for name in rows.schema.names if name != "topic"}
    columns.setdefault("bornTimestamp", pa.scalar(_now_ms(), pa.timestamp("ms", tz="UTC")))
    sys_flag = _BORN_V6 if parse_host(born_host).is_v6 else 0
    sys_flag |= _STORE_V6 if parse_host(store_host).is_v6 else 0
    return {
        **columns,
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "sysFlag": sys_flag,
        "bornHost": born_host,
        "storeHost": store_host,
    }


def _messages(piece: _Piece) -> list[Message]:
    rows = piece.rows
    names = rows.schema.names
    nothing = [None] * rows.num_rows
    body, keys, tags, properties, flags = (
        rows.column(name).to_pylist() if name in names else nothing
        for name in ("body", "keys", "tags", "properties", "flag")
    )
    return [
        Message(
            piece.topic,
            each.encode() if isinstance(each, str) else each,
            tags=tags[row],
            keys=keys[row],
            properties=dict(properties[row] or ()),
            flag=flags[row] or 0,
        )
        for row, each in enumerate(body)
    ]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
