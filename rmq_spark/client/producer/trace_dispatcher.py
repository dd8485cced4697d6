"""TraceDispatcher: sends the traces of a producer or consumer, in the background.

    append ──> queue, bounded ──> a thread: trace messages of up to 100 traces ──> trace topic
                 └── full, or the topic cannot be written: dropped, counted, logged

Recording a trace never waits and never fails. The messages have RocketMQ's format
(`rmq_spark.wire.trace`), so that mqadmin and RocketMQ's dashboard show them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, TypeVar

from rmq_spark.client.arguments import check_flag, check_send_topic, check_topic
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.scheduler import ThreadScheduler
from rmq_spark.client.failure_log import FailureLog
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message, MessageExt
from rmq_spark.client.producer.prepared_message import PreparedMessage, SendRules, now_ms
from rmq_spark.client.producer.sync_sender import SyncSender
from rmq_spark.client.producer.topic_sender import TopicSender
from rmq_spark.client.results import SendResult, SendStatus
from rmq_spark.wire.message.message_batch import split_batch
from rmq_spark.wire.message.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    MSG_REGION,
    TAGS,
    TIMER_PROPERTIES,
    TRACE_ON,
    TRAN_MSG,
    UNIQ_KEY,
    decode_properties,
)
from rmq_spark.wire.names import TRACE_TOPIC
from rmq_spark.wire.trace import (
    DEFAULT_REGION,
    ConsumeReturnType,
    MessageTrace,
    TraceMessageType,
    TraceType,
    encode_traces,
)

_log = logging.getLogger(__name__)

PENDING_MAX: Final = 2_048
"""Most traces that wait to be sent; more are dropped."""

BATCH_MAX: Final = 100
"""Most traces of one trace message."""

FLUSH_MS: Final = 1_000
"""Milliseconds after which traces are sent, or earlier if `BATCH_MAX` wait."""

SEND_TIMEOUT_MS: Final = 5_000
STOP_MS: Final = 500
"""Most milliseconds that stopping waits for the traces that are left."""

KEYS_BYTES_MAX: Final = 8_192
"""Most bytes of the keys of one trace message, as its properties are limited."""

_GROUP: Final = "_INNER_TRACE_PRODUCER"

_Context = TypeVar("_Context")
_Status = TypeVar("_Status", bound=Enum)


def check_trace(enable_trace: object, trace_topic: str) -> None:
    """Raise an error if traces cannot be enabled with these arguments."""
    check_flag("enable_trace", enable_trace)
    check_send_topic(check_topic(trace_topic, "trace_topic"))


class TraceDispatcher(ForkAware):
    """The traces of one member of a client. All methods may be called from any thread."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        trace_topic: str = TRACE_TOPIC,
        send: Callable[[Message], object] | None = None,
    ) -> None:
        """Make a dispatcher of a group's traces; ``send`` sends a trace message and waits."""
        self._instance = instance
        self._group = group
        self._what = f"sending traces of {group}"
        self._trace_topic = trace_topic
        self._send = send or self._send_by_instance
        self._sender: SyncSender | None = None
        self._topic_sender: TopicSender | None = None
        self.dropped_count = 0
        """Number of traces that were dropped."""
        self._after_fork()
        ForkAware.__init__(self)

    def _after_fork(self) -> None:
        self._mutex = threading.Lock()
        self._pending: deque[MessageTrace] = deque()
        self._is_flush_scheduled = False
        self._failure_log = FailureLog()
        self._scheduler = ThreadScheduler("rocketpoll traces")
        if self._topic_sender is not None:
            self._topic_sender.after_fork()

    @property
    def thread_count(self) -> int:
        """Number of threads: one, once there was a trace."""
        return self._scheduler.thread_count

    def append(self, traces: Iterable[MessageTrace]) -> None:
        """Send traces soon, or drop those for which there is no room."""
        with self._mutex:
            before = len(self._pending)
            dropped = 0
            for trace in traces:
                if len(self._pending) < PENDING_MAX:
                    self._pending.append(trace)
                else:
                    dropped += 1
            is_full_batch = before < BATCH_MAX <= len(self._pending)
            if is_full_batch or (self._pending and not self._is_flush_scheduled):
                self._is_flush_scheduled = True
                self._scheduler.schedule(self._flush, 0 if is_full_batch else FLUSH_MS)
        if dropped:
            self._drop(dropped, f"{PENDING_MAX} traces wait already")

    def stop(self) -> None:
        """Send the traces that are left, for half a second at most, and end the thread."""
        done = threading.Event()

        def flush() -> None:
            self._flush()
            done.set()

        task = self._scheduler.schedule(flush)
        if self._pending and not task.is_cancelled:
            done.wait(STOP_MS / 1000)
        self._scheduler.stop(0)
        self._scheduler = ThreadScheduler("rocketpoll traces")
        with self._mutex:
            self._is_flush_scheduled = False
            left = len(self._pending)
            self._pending.clear()
        if left:
            self._drop(left, "they were not sent before the end")

    # ---- sending

    def _flush(self) -> None:
        with self._mutex:
            self._is_flush_scheduled = False
        while batch := self._next_batch():
            self._send_batch(batch)

    def _next_batch(self) -> list[MessageTrace]:
        with self._mutex:
            count = min(len(self._pending), BATCH_MAX)
            return [self._pending.popleft() for _ in range(count)]

    def _send_batch(self, batch: Sequence[MessageTrace]) -> None:
        for keys, traces in _by_keys(batch):
            try:
                self._send(Message(self._trace_topic, encode_traces(traces), keys=keys))
            except Exception as error:  # noqa: BLE001, PERF203  # traces must not end the thread
                self._drop(len(traces), str(error))
            else:
                self._failure_log.record_success(self._what, time.monotonic())

    def _send_by_instance(self, message: Message) -> None:
        if self._sender is None or self._topic_sender is None:
            rules = SendRules(_GROUP)
            sender = TopicSender(self._instance, rules, send_latency_fault_enable=False)
            self._topic_sender = sender
            self._sender = SyncSender(sender, retries=2, is_retried_when_not_ok=False)
        self._sender.send(self._topic_sender.prepare(message), SEND_TIMEOUT_MS)

    def _drop(self, count: int, why: str) -> None:
        with self._mutex:
            self.dropped_count += count
        action = "dropping them; sends and consumers are not affected"
        self._failure_log.record_failure(self._what, why, time.monotonic(), action)

    # ---- what is recorded

    def record_send(
        self, prepared: PreparedMessage, address: str, result: SendResult, cost_ms: int
    ) -> None:
        """Record that a message, or a batch, was sent to a broker."""
        if prepared.topic == self._trace_topic or not result.is_trace_on:
            return
        sent_ms = now_ms() - cost_ms
        self.append(
            MessageTrace(
                trace_type=TraceType.PUB,
                timestamp_ms=sent_ms,
                region_id=result.region_id or DEFAULT_REGION,
                group=self._group,
                topic=self._instance.namespace.strip(prepared.topic),
                message_id=message_id,
                tags=properties.get(TAGS),
                keys=properties.get(KEYS),
                store_host=address,
                body_length=length,
                cost_ms=cost_ms,
                message_type=_message_type(properties),
                offset_message_id=offset_message_id,
                is_success=result.send_status is SendStatus.SEND_OK,
            )
            for message_id, offset_message_id, length, properties in _sent(prepared, result)
        )

    def record_end(self, sent: SendResult, address: str, state: str) -> None:
        """Record that a transaction was ended at a broker; ``state`` is RocketMQ's name of it."""
        self.append(
            [
                MessageTrace(
                    trace_type=TraceType.END_TRANSACTION,
                    timestamp_ms=now_ms(),
                    region_id=sent.region_id or DEFAULT_REGION,
                    group=self._group,
                    topic=sent.queue.topic,
                    message_id=sent.message_id,
                    store_host=address,
                    message_type=TraceMessageType.COMMIT,
                    transaction_id=sent.transaction_id or "",
                    transaction_state=state,
                )
            ]
        )

    def record_before(self, messages: Sequence[MessageExt]) -> tuple[MessageTrace, ...]:
        """Record that a consumer begins to process messages; `record_after` takes the result."""
        began_ms = now_ms()
        request_id = f"{self._instance.client_id}-{time.monotonic_ns():X}"
        traces = tuple(
            MessageTrace(
                trace_type=TraceType.SUB_BEFORE,
                timestamp_ms=began_ms,
                region_id=each.properties.get(MSG_REGION, DEFAULT_REGION),
                group=self._group,
                topic=each.topic,
                message_id=each.message_id,
                tags=each.tags,
                keys=each.properties.get(KEYS),
                request_id=request_id,
                retry_times=each.reconsume_times,
            )
            for each in messages
            if each.topic != self._trace_topic and each.properties.get(TRACE_ON) != "false"
        )
        self.append(traces)
        return traces

    def record_after(
        self, before_traces: Sequence[MessageTrace], status: ConsumeReturnType
    ) -> None:
        """Record how the processing of messages ended."""
        ended_ms = now_ms()
        self.append(
            MessageTrace(
                trace_type=TraceType.SUB_AFTER,
                timestamp_ms=ended_ms,
                region_id=each.region_id,
                group=self._group,
                message_id=each.message_id,
                keys=each.keys,
                request_id=each.request_id,
                cost_ms=max(ended_ms - each.timestamp_ms, 0) // len(before_traces),
                is_success=status is ConsumeReturnType.SUCCESS,
                return_type=status,
            )
            for each in before_traces
        )

    def record_poll(self, messages: Sequence[MessageExt]) -> None:
        """Record that a poll has returned messages, as Java's consumer does."""
        self.record_after(self.record_before(messages), ConsumeReturnType.SUCCESS)

    def trace_listener(
        self,
        listener: Callable[[list[MessageExt], _Context], _Status | None],
        success: _Status,
    ) -> Callable[[list[MessageExt], _Context], _Status | None]:
        """Return a listener that calls the given one, and records its calls."""

        def listen(messages: list[MessageExt], context: _Context) -> _Status | None:
            before_traces = self.record_before(messages)
            status = ConsumeReturnType.EXCEPTION
            try:
                returned = listener(messages, context)
                is_success = returned is None or returned is success
                status = ConsumeReturnType.SUCCESS if is_success else ConsumeReturnType.FAILED
            finally:
                self.record_after(before_traces, status)
            return returned

        return listen


def _sent(
    prepared: PreparedMessage, result: SendResult
) -> Iterator[tuple[str, str, int, dict[str, str]]]:
    """Yield the ids, the body's length and the properties of each message of a send."""
    if not prepared.is_batch:
        properties = decode_properties(prepared.properties_text)
        yield prepared.message_id, result.offset_message_id, len(prepared.body), properties
        return
    offset_ids = result.offset_message_id.split(",")
    for number, entry in enumerate(split_batch(prepared.body)):
        properties = decode_properties(entry.properties.decode(errors="replace"))
        offset_id = offset_ids[number] if number < len(offset_ids) else ""
        yield properties.get(UNIQ_KEY, ""), offset_id, len(entry.body), properties


def _message_type(properties: dict[str, str]) -> TraceMessageType:
    if properties.get(TRAN_MSG) == "true":
        return TraceMessageType.HALF
    if not properties.keys().isdisjoint((DELAY, *TIMER_PROPERTIES)):
        return TraceMessageType.DELAY
    return TraceMessageType.NORMAL


def _by_keys(batch: Sequence[MessageTrace]) -> Iterator[tuple[list[str], list[MessageTrace]]]:
    """Yield traces with the keys of their message, which must fit into its properties."""
    keys: dict[str, None] = {}
    traces: list[MessageTrace] = []
    size = 0
    for trace in batch:
        own = [trace.message_id, *(trace.keys or "").split(KEY_SEPARATOR)]
        if sum(map(len, own)) > KEYS_BYTES_MAX // 2:
            own = own[:1]  # the message id alone
        own = [each for each in own if each and each not in keys]
        more = sum(len(each.encode(errors="replace")) + 1 for each in own)
        if traces and size + more > KEYS_BYTES_MAX:
            yield list(keys), traces
            keys, traces, size = {}, [], 0
        keys.update(dict.fromkeys(own))
        traces.append(trace)
        size += more
    if traces:
        yield list(keys), traces
