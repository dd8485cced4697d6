"""Sender: sends the rows of a task's partition to brokers, until all of them are stored.

    record batches ──> gathered to megabytes ──> `RowPreparer` ──> `RowRouter` ──> producer
                                                                  │     delayed ones singly,
                                                                  │     others in bulk
                                                                  └── brokers away: wait,
                                                                      send what is left

A producer retries what may succeed on another broker; `SendRetries` waits for brokers that are away
or busy. Only rows that are not known to be stored are sent again, so that rows may be stored twice
(with one id) and are never lost. If a broker refuses for good, the task fails.

The tasks of a Python worker share producers, one for each set of connection options. Spark may kill
the worker at any time: nothing has to be undone, because brokers drop a producer when its
connection closes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta, timezone
from itertools import repeat
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.concurrency.retry_timer import TRANSIENT_ERRORS, RetryTimer
from rmq_spark.client.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerRefused,
    ClientError,
    MessageIllegal,
    NoPermission,
    PartlySent,
    RouteNotFound,
    SendFailed,
    SystemBusy,
    TopicNotFound,
    TopicNotUsable,
)
from rmq_spark.client.message import Message
from rmq_spark.client.producer.arrow_sender import CHUNK_BYTES, CHUNK_TIMEOUT_MS, SentSpan
from rmq_spark.client.producer.prepared_message import SendRules
from rmq_spark.client.producer.producer import Producer, send_sink_rows
from rmq_spark.client.results import SendResult
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.errors import WriteError
from rmq_spark.spark.options import sink_columns as columns
from rmq_spark.spark.options.access import BrokerAccess
from rmq_spark.spark.options.options import WriteOptions
from rmq_spark.spark.options.sink_columns import SinkColumn
from rmq_spark.spark.write.reports import TaskReport, WriteTask
from rmq_spark.spark.write.rows import ROW, RoutedRows, RowPreparer, RowRouter, SpanCollector
from rmq_spark.wire.chunk.encode import ENCODED_PROPERTIES
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 5.0

Remedies: TypeAlias = "Sequence[tuple[type[ClientError] | tuple[type[ClientError], ...], str]]"
"""Errors and what a user can do about them; of several that fit, the first is used."""

_CREATE_TOPIC: Final = (
    "create the topic, for example with mqadmin updateTopic -n ADDRESS -c CLUSTER -t TOPIC"
)
REMEDIES: Final[Remedies] = (
    (
        MessageIllegal,
        (
            "if it is too large, set option maxMessageBytes to the broker's maxMessageSize, and "
            "shorten larger bodies or raise both"
        ),
    ),
    ((AuthenticationFailed, AccessDenied), ""),  # these errors say what to do
    ((NoPermission, TopicNotUsable), "make the topic writable (perm 6)"),
    (TopicNotFound, _CREATE_TOPIC),
    (RouteNotFound, _CREATE_TOPIC),
    (
        SystemBusy,
        "write with fewer tasks, for example with coalesce(), or raise option retryTimeoutMs",
    ),
    (
        TRANSIENT_ERRORS,
        (
            "check that the brokers and the name servers of option namesrvAddr run, or raise "
            "option retryTimeoutMs"
        ),
    ),
)


class SendRetries:
    """The retries of one task's requests. ``stored_rows`` describes the stored rows in errors."""

    def __init__(
        self,
        access: BrokerAccess,
        producer: Producer,
        where: str,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], None] | None = None,
        remedies: Remedies = REMEDIES,
    ) -> None:
        """Prepare the retries. Errors and log lines begin with ``where``: "partition 3"."""
        self.stored_rows = 0
        self.retries = 0
        """The number of retries so far."""
        self._longest: tuple[int, int] | None = None
        self._producer = producer
        self._where = where
        self._remedies = remedies
        self._retry_timer = RetryTimer(
            f"{where}: sending",
            access.retry_timeout_ms,
            pause_seconds=PAUSE_SECONDS,
            pause_seconds_max=PAUSE_SECONDS_MAX,
            clock=clock,
            sleep=sleep,
        )

    def queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues to which a topic's messages may go; wait for a route if necessary."""
        while True:
            try:
                return self._producer.publish_queues(topic)
            except RocketPollError as error:  # noqa: PERF203  # the loop retries
                self.wait_or_raise(error, topic)

    def record_longest_body(self, numbers: pa.Array, bodies: pa.Array) -> None:
        """Record the longest body: an error names it if a broker refuses rows for their size."""
        lengths = pc.binary_length(bodies)
        longest = pc.max(lengths).as_py()
        if longest is not None and (self._longest is None or longest > self._longest[1]):
            self._longest = numbers[pc.index(lengths, longest).as_py()].as_py(), longest

    def reset(self) -> None:
        """Record a success: the next failure counts as the first one."""
        self._retry_timer.reset()

    def wait_or_raise(
        self,
        error: RocketPollError,
        topic: str,
        first_row: int | None = None,
        failed_row: int | None = None,
    ) -> None:
        """Pause before the rows of a topic from ``first_row`` on are sent again.

        ``failed_row`` is the one that the error is about, if that is known.
        """
        is_transient = self._is_transient(_last_error(error), topic)
        if not is_transient or not self._retry_timer.sleep_or_expire(error):
            raise self._failure(error, first_row, failed_row) from error
        self.retries += 1
        routes = self._producer.instance.routes
        try:
            routes.refresh(topic)
        except ClientError as refusal:
            _log.warning(
                "refreshing the route of %s failed, keeping the known one: %s", topic, refusal
            )

    def _is_transient(self, cause: RocketPollError, topic: str) -> bool:
        """Return whether a retry may succeed; routes may be missing while a broker restarts."""
        if isinstance(cause, RouteNotFound):
            return topic in self._producer.instance.routes.topics
        if isinstance(cause, BrokerRefused) and cause.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            return True
        return isinstance(cause, TRANSIENT_ERRORS)

    def _failure(
        self, error: RocketPollError, first_row: int | None, failed_row: int | None
    ) -> WriteError:
        cause = _last_error(error)
        remedy = next((text for kind, text in self._remedies if isinstance(cause, kind)), None)
        illegal = cause if isinstance(cause, MessageIllegal) else None
        if illegal is not None and illegal.has_cause_other_than_size:
            remedy = None  # the error says what to do
        stored = self.stored_rows
        location = self._where
        if illegal is not None and failed_row is not None:
            location += f", row {failed_row}"
        elif (
            illegal is not None
            and not illegal.has_cause_other_than_size
            and self._longest is not None
        ):
            row, size = self._longest
            location += f", the longest body is that of row {row}, with {size} bytes"
        elif first_row is not None:
            location += f", row {first_row} or after it"
        return WriteError(
            f"{location}: {error}"
            + (f"; {remedy}" if remedy else "")
            + (
                f". {stored} rows of this partition were stored before, and stay"
                if stored or first_row is not None
                else ""
            )
        )


def _last_error(error: RocketPollError) -> RocketPollError:
    return error.tries[-1] if isinstance(error, SendFailed) and error.tries else error


COALESCED_BYTES: Final = 8 * 1024 * 1024
"""The bytes handed to the producer at a time, enough for several requests under way at once."""

SINGLE_SENDS_MAX: Final = 1_000

DEFAULT_TOPIC_QUEUES: Final = 4
"""Most queues of a topic that the first row creates, as in other producers."""


_producers: Final[dict[tuple[object, ...], Producer]] = {}


def producer_of(options: WriteOptions, topic_queues: int = DEFAULT_TOPIC_QUEUES) -> Producer:
    """Return the producer that tasks of this process with equal options share.

    A topic that one of its sends creates has ``topic_queues`` queues. A forked process makes its
    own producer.
    """
    access, group = options.access, options.producer_group
    key = (os.getpid(), access, group, options.max_message_bytes, topic_queues)
    if key not in _producers:
        producer = Producer(
            group,
            instance=instance_for(access),
            rules=SendRules(
                group,
                default_topic_queue_nums=topic_queues,
                max_message_bytes=options.max_message_bytes,
            ),
            send_timeout_ms=access.request_timeout_ms,
        )
        producer.start()
        _producers[key] = producer
    return _producers[key]


def send_rows(
    options: WriteOptions,
    sink_columns: Sequence[SinkColumn],
    task: WriteTask,
    batches: Iterable[pa.RecordBatch],
    *,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> TaskReport:
    """Send all rows of a partition, and return when they are stored."""
    where = f"partition {task.partition}"
    sending = _TaskSender(options, producer_of(options), where, clock, sleep)
    counts = send_each(options, sink_columns, task, batches, sending)
    return TaskReport(*counts, sending.retries.retries, tuple(sending.spans.spans))


class RowSink(Protocol):
    """The destination of a task's rows."""

    retries: SendRetries

    def queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues to which messages of a topic may go."""

    def send(self, routed: RoutedRows) -> None:
        """Send rows of one destination."""


def send_each(
    options: WriteOptions,
    sink_columns: Sequence[SinkColumn],
    task: WriteTask,
    batches: Iterable[pa.RecordBatch],
    sink: RowSink,
) -> tuple[int, int]:
    """Send all rows of a partition to their destinations; return their number and body bytes."""
    rows = RowPreparer(
        sink_columns, task, body_bytes_max=options.max_message_bytes, row_ids=options.row_ids
    )
    names = {column.name for column in sink_columns}
    router = RowRouter(names, task.partition, options.topic, sink.queues_of, options.namespace)
    row_count = body_bytes = 0
    for some in coalesce_batches(batches):
        checked = rows.prepare(some, row_count)
        bodies = checked.column(columns.BODY)
        sink.retries.record_longest_body(checked.column(ROW), bodies)
        for routed in router.route(checked):
            sink.send(routed)
        row_count += some.num_rows
        body_bytes += pc.sum(pc.binary_length(bodies)).as_py() or 0
    return row_count, body_bytes


def send_message(options: WriteOptions, message: Message, queue: MessageQueue) -> SendResult:
    """Send a message that is not a row, and return when it is stored; it may be stored twice.

    Its topic has one queue, even if the topic is deleted meanwhile and this send creates it again.
    """
    producer = producer_of(options, topic_queues=1)
    sending = _TaskSender(options, producer, message.topic)
    return sending.send_message(message, queue)


def send_messages(
    options: WriteOptions, messages: Sequence[Message], where: str, remedies: Remedies = REMEDIES
) -> None:
    """Send messages of one topic, and return when all are stored; some may be stored twice.

    ``where`` is the beginning of errors and log lines.
    """
    sending = _TaskSender(options, producer_of(options), where, remedies=remedies)
    sending.send_one_by_one(messages)


def coalesce_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in fewer, larger record batches."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= COALESCED_BYTES:
            yield from _join_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield from _join_batches(waiting)


def _join_batches(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(batches).combine_chunks()
    yield from table.to_batches()


class _TaskSender:
    """The state of one task's sending: where the rows stored so far are, and the retries."""

    def __init__(
        self,
        options: WriteOptions,
        producer: Producer,
        where: str,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], None] | None = None,
        remedies: Remedies = REMEDIES,
    ) -> None:
        self.spans = SpanCollector()
        self._options = options
        self._producer = producer
        self.retries = SendRetries(options.access, producer, where, clock, sleep, remedies)

    def queues_of(self, topic: str) -> Sequence[MessageQueue]:
        return self.retries.queues_of(topic)

    def send(self, routed: RoutedRows) -> None:
        if routed.has_delays:
            messages = list(_to_messages(routed))
            self.send_one_by_one(messages, routed.queue, routed.numbers.to_pylist())
        else:
            self._send_in_bulk(routed)

    def _send_in_bulk(self, routed: RoutedRows) -> None:
        options = self._options
        rows = routed.rows
        while rows.num_rows:
            try:
                result = send_sink_rows(
                    self._producer,
                    rows,
                    routed.topic,
                    queue=routed.queue,
                    chunk_bytes=max(CHUNK_BYTES, options.max_message_bytes),
                    timeout_ms=max(CHUNK_TIMEOUT_MS, options.access.request_timeout_ms),
                )
            except PartlySent as error:  # noqa: PERF203  # what is left is sent again
                self._record_spans(error.results, rows)
                rows = rows.slice(error.messages_sent)
                self.retries.wait_or_raise(error, routed.topic, routed.first_row)
            except RocketPollError as error:
                self.retries.wait_or_raise(error, routed.topic, routed.first_row)
            else:
                self._record_spans(result.spans, rows)
                return

    def send_message(self, message: Message, queue: MessageQueue) -> SendResult:
        timeout_ms = max(CHUNK_TIMEOUT_MS, self._options.access.request_timeout_ms)
        while True:
            try:
                result = self._producer.send(message, queue, timeout_ms)
            except RocketPollError as error:  # noqa: PERF203  # the loop retries
                self.retries.wait_or_raise(error, message.topic)
            else:
                self.retries.reset()
                return result

    def send_one_by_one(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Send messages of one topic, many at once, until all of them are stored.

        ``rows`` are the row numbers of the messages, if they are rows.
        """
        left = list(zip(messages, rows or repeat(None), strict=False))
        while left:
            now, later = left[:SINGLE_SENDS_MAX], left[SINGLE_SENDS_MAX:]
            failed: list[tuple[Message, int | None]] = []
            failure: RocketPollError | None = None
            failed_row: int | None = None
            for each, response in [(each, self._start_send(each[0], queue)) for each in now]:
                try:
                    found = response.result()
                except RocketPollError as error:  # noqa: PERF203  # the other messages may succeed
                    failed.append(each)
                    if failure is None or not isinstance(_last_error(failure), MessageIllegal):
                        failure, failed_row = error, each[1]
                else:
                    self._record_spans([SentSpan(found.queue, found.queue_offset, 1)])
            left = failed + later
            if failure is not None:
                first_row = rows[0] if rows else None
                self.retries.wait_or_raise(failure, messages[0].topic, first_row, failed_row)

    def _start_send(self, message: Message, queue: MessageQueue | None) -> Future[SendResult]:
        try:
            return self._producer.send_async(message, queue)
        except RocketPollError as error:
            failed: Future[SendResult] = Future()
            failed.set_exception(error)
            return failed

    def _record_spans(self, spans: Iterable[Any], rows: pa.RecordBatch | None = None) -> None:
        """Record the spans of messages that were stored, in the order of ``rows``."""
        with_sums = rows if self._options.is_exactly_once else None
        self.spans.add(spans, None if with_sums is None else with_sums.column(columns.BODY))
        for span in spans:
            self.retries.stored_rows += span.message_count
            self.retries.reset()


def _to_messages(routed: RoutedRows) -> Iterator[Message]:
    rows = routed.rows
    nothing = [None] * rows.num_rows
    body, keys, tags, properties, flags, times, encoded = (
        rows.column(name).to_pylist() if name in rows.schema.names else nothing
        for name in (
            *(columns.BODY, columns.KEYS, columns.TAGS, columns.PROPERTIES, columns.FLAG),
            *(columns.DELIVER_AT, ENCODED_PROPERTIES),
        )
    )
    for row, each in enumerate(body):
        yield Message(
            routed.topic,
            each,
            tags=tags[row],
            keys=keys[row],
            properties=dict(properties[row] or ())
            | decode_properties((encoded[row] or b"").decode()),
            delay_level=routed.delay_level,
            flag=flags[row] or 0,
            deliver_at=_time_of(times[row]),
        )


def _time_of(since_1970_ms: int | None) -> datetime | None:
    if since_1970_ms is None:
        return None
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=since_1970_ms)
