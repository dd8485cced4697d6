"""SendMessageProcessor: stores single messages and batches, and answers unless they are one-way.

    SEND_MESSAGE, _V2, SEND_BATCH_MESSAGE ─> busy? ─> topic, queue ─> retry or dead letter?
        ─> delayed? half? timer? ─> store ─> answered now (ASYNC_FLUSH), or when on the disk (SYNC)

The response has what Java's client reads: ids, queue, offset, region and whether to trace.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Final

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message.message_id import RecallHandle
from rmq_spark.wire.message.properties import MSG_REGION, TIMER_RECALLED_KEY, TRACE_ON, UNIQ_KEY
from rmq_spark.wire.message.record import StoredMessage
from rmq_spark.wire.names import HALF_TOPIC, OP_HALF_TOPIC
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer

from ...common.channel import Channel, ResponseSteps
from ...common.recent_losses import LossKind
from ...schedule.delayed_message import to_schedule_topic
from ...schedule.timer_message import IllegalTimer, to_timer_topic
from ...store.append.record_encoding import draft_of
from ...store.results import PutMessageResult, PutMessageStatus
from ...transaction.half_message import to_half_topic
from ..fast_paths import ResponseTemplate
from ..processor import BrokerParts, Processor, handles
from ..request import RequestRejected, no_permission, refuse_if_busy, reply, system_error
from .acknowledger import Acknowledger
from .admission import RetryRules, TopicAdmission
from .batch_messages import LARGE_BATCH_BYTES, BatchPuts, timer_refusal
from .fast_path.cached_send import CachedSend, SendCache
from .fast_path.fast_send import FastSend, Send
from .stored_properties import PropertyRewriter, StoredProperties

_log = logging.getLogger(__name__)
_PUT_OK = PutMessageStatus.PUT_OK
_NOT_STORED = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
_ILLEGAL = ResponseCode.MESSAGE_ILLEGAL

IDS_MAX: Final = 3_000
"""The maximum number of a batch's ids in a response, whose header has no room for more."""

CODES: Final = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
}


@dataclass(frozen=True)
class SendParts:
    """The parts shared by all processors that store messages."""

    admission: TopicAdmission
    retries: RetryRules
    acknowledger: Acknowledger


class SendMessageProcessor(Processor):
    """The responses to all kinds of sends."""

    def __init__(self, broker: BrokerParts, sends: SendParts) -> None:
        super().__init__(broker)
        config, store = broker.config, broker.store
        self._store = store
        self._admission = sends.admission
        self._retries = sends.retries
        self._acknowledger = sends.acknowledger
        self._stats = broker.stats
        self._busy_reason = broker.busy_reason
        self._delay_levels = len(config.store.message_delay_level_ms)
        self._rejects_half_messages = config.reject_transaction_message
        self._response_fields = {
            MSG_REGION: config.region_id,
            TRACE_ON: "true" if config.trace_on else "false",
        }
        self.properties = PropertyRewriter(config.broker_cluster_name, self._response_fields)
        queue_fields = {"queueId": "%d", "queueOffset": "%d"}
        self._response = ResponseTemplate(
            {"msgId": "%s%016X", **queue_fields}, self._response_fields
        )
        self._batch_response = ResponseTemplate(
            {"msgId": "%s", **queue_fields}, self._response_fields
        )
        self._cache = SendCache(sends.admission, broker.advertised_host)
        batch_bytes_max = config.store.max_message_size
        self._batches = BatchPuts(store, self._cache, self.properties, batch_bytes_max)
        self.fast_path = FastSend(
            broker,
            self._cache,
            self.properties,
            sends.acknowledger,
            self._response,
            self._acknowledge,
            self.put_one,
        )
        self._unacknowledged: list[Send] = []
        """The sends that are written and answered at the end of the turn."""

    def connection_closed(self, connection: Channel) -> None:
        """Discard the cached sends of a disconnected client."""
        self._cache.discard(connection)

    @handles(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    def send_message(self, connection: Channel, request: RemotingCommand) -> ResponseSteps | None:
        """Store a message, or a batch of them."""
        refuse_if_busy(self._busy_reason())
        cached_send, born_timestamp, properties_text = self._cache.for_client(connection).resolve(
            request
        )
        properties = self.properties.rewrite(properties_text)
        send = connection, request, cached_send, properties.waits
        # Clients before 4.6.1 return messages to a retry topic without removing TRAN_MSG.
        if properties.is_half_message and not (
            properties.delay_level and cached_send.template.common.reconsume_times
        ):
            self._put_half(send, properties, born_timestamp)
            return None
        if properties.timer is not None and cached_send.is_batch:
            raise timer_refusal(properties.timer)
        sizes: Sequence[int] = ()
        if cached_send.is_batch:
            self._batches.check(cached_send, request.body, properties)
            if len(request.body) > LARGE_BATCH_BYTES:
                return self._put_large(send, properties, born_timestamp)
            result, sizes = self._batches.put(cached_send, request.body, properties, born_timestamp)
        elif not request.body:
            raise RequestRejected(_ILLEGAL, "the message body is empty")
        elif properties.timer is not None:
            self._put_timer(send, properties, born_timestamp)
            return None
        elif properties.delay_level or cached_send.is_retry:
            result = self._put_redirected(cached_send, request, properties, born_timestamp)
        else:
            self.put_one(send, request.body, properties.text.encode(), born_timestamp)
            return None
        self._acknowledge_when_stored(send, sizes, result)
        return None

    def _put_half(self, send: Send, properties: StoredProperties, born_timestamp: int) -> None:
        connection, request, cached_send, waits = send
        if self._rejects_half_messages:
            raise no_permission("the broker sending transaction message is forbidden")
        if cached_send.is_batch:
            raise RequestRejected(
                _ILLEGAL, "a batch cannot be part of a transaction: send its messages one by one"
            )
        if properties.delay_level or properties.timer is not None:
            raise RequestRejected(
                _ILLEGAL, "a message of a transaction cannot be delayed: send it without a delay"
            )
        if not request.body:
            raise RequestRejected(_ILLEGAL, "the message body is empty")
        for topic in (HALF_TOPIC, OP_HALF_TOPIC):
            self._admission.admit_send_back(topic, 1)
        message = _message_of(cached_send, request, properties, born_timestamp)
        half = to_half_topic(message)
        transaction_id = message.properties.get(UNIQ_KEY)
        acknowledge = partial(
            self._acknowledge_half,
            connection,
            request.without_content(),
            cached_send,
            transaction_id,
        )
        result = self._store.put_draft(draft_of(half))
        self._acknowledger.when_stored(result, acknowledge, waits=waits)

    def _acknowledge_half(
        self,
        connection: Channel,
        request: RemotingCommand,
        cached_send: CachedSend,
        transaction_id: str | None,
        result: PutMessageResult,
    ) -> None:
        """Answer with the queue of the real topic, and the queue offset in the half topic."""
        if result.end_offset < 0:
            self._record_failure(cached_send.topic, result.status, result.remark)
            reply(connection, request, request.respond(CODES[result.status], result.remark))
            return
        self._stats.record_put(HALF_TOPIC, 1, result.end_offset - result.physical_offset)
        more = {"transactionId": transaction_id} if transaction_id else {}
        ids = _ids(cached_send.id_start, [result.physical_offset])
        self._reply(connection, request, cached_send, ids, result, more)

    def _record_failure(self, topic: str, status: PutMessageStatus, remark: str | None) -> None:
        self._stats.record_put_failure()
        if status is PutMessageStatus.SERVICE_NOT_AVAILABLE:  # otherwise the message is refused
            text = f"a send to {topic} was refused: {remark}"
            self._broker.losses.record(LossKind.SEND_REFUSED, text)

    def put_one(self, send: Send, body: Buffer, properties: bytes, born_timestamp: int) -> None:
        """Store a message that is written and answered at the end of the turn, or refused now."""
        # appended before the put, so that puts and unanswered sends have the same order
        self._unacknowledged.append(send)
        fault: PutMessageResult | None = _NOT_STORED
        try:
            fault = self._store.put_buffered(send[2].template, body, properties, born_timestamp)
        finally:
            if fault is not None:
                self._unacknowledged.pop()
        if fault is not None:
            self._acknowledge_when_stored(send, (), fault)

    def end_turn(self) -> None:
        """Write the messages of a turn, then answer them and those of the fast path."""
        results = self._store.write_buffered()
        if results:
            self._acknowledge_all(results)
        if self.fast_path.has_unacknowledged:
            self.fast_path.acknowledge_all()

    def _acknowledge_all(self, results: Sequence[PutMessageResult]) -> None:
        unacknowledged, self._unacknowledged = self._unacknowledged, []
        stored: dict[str, list[int]] = {}
        for send, result in zip(unacknowledged, results, strict=True):
            connection, request, cached_send, _ = send
            status, physical_offset, queue_offset, end_offset, _, _, _ = result
            try:
                if status is not _PUT_OK or self._acknowledger.is_sync:
                    self._acknowledge_when_stored(send, (), result)
                    continue
                stored.setdefault(cached_send.topic, []).append(end_offset - physical_offset)
                queue_id = cached_send.template.queue[1]
                self._response.send(
                    connection,
                    request,
                    cached_send.id_start,
                    physical_offset,
                    queue_id,
                    queue_offset,
                )
            except Exception:  # noqa: BLE001  # an error in one must not keep the others waiting
                _log.exception("a send that ended at %d could not be answered", end_offset)
                connection.close("its send could not be answered")
        for topic, sizes in stored.items():
            self._stats.record_put(topic, len(sizes), sum(sizes), calls=len(sizes))
            self._stats.put_latency.add(0, len(sizes))

    def _put_redirected(
        self,
        cached_send: CachedSend,
        request: RemotingCommand,
        properties: StoredProperties,
        born_timestamp: int,
    ) -> PutMessageResult:
        """Store a delayed message, or a retry, which may become a dead letter."""
        message = _message_of(cached_send, request, properties, born_timestamp)
        retried = self._retries.redirect(
            message, cached_send.header.max_reconsume_times, request.version
        )
        if properties.delay_level and retried is message:  # a dead letter is not delayed any more
            retried = to_schedule_topic(message, min(properties.delay_level, self._delay_levels))
        return self._store.put_draft(draft_of(retried))

    def _put_timer(self, send: Send, properties: StoredProperties, born_timestamp: int) -> None:
        """Store a timer message; one that is due already goes to its topic at once."""
        connection, request, cached_send, waits = send
        if not self._broker.config.store.timer_wheel_enable:
            raise system_error("accurate timer message is not enabled, timerWheelEnable is false")
        message = _message_of(cached_send, request, properties, born_timestamp)
        rules = self._broker.timers.rules
        names = message.properties
        try:
            deliver_ms = rules.deliver_ms(names, self._broker.now_ms())
        except IllegalTimer as error:
            raise RequestRejected(_ILLEGAL, str(error)) from None
        if deliver_ms is None and TIMER_RECALLED_KEY in names:
            raise RequestRejected(_ILLEGAL, "the message to recall is due already")
        stored = self._retries.redirect(
            message, cached_send.header.max_reconsume_times, request.version
        )
        unique_id = names.get(UNIQ_KEY)
        handle = None
        if deliver_ms is not None and stored is message:  # a dead letter does not wait any more
            stored = to_timer_topic(message, deliver_ms, rules)
            if unique_id and not cached_send.is_retry:
                due_ms = rules.slot_ms(deliver_ms) + 1
                name = self._broker.config.broker_name
                handle = RecallHandle(message.topic, name, due_ms, unique_id).encode()
        result = self._store.put_draft(draft_of(stored))
        acknowledge = partial(
            self._acknowledge_timer, connection, request.without_content(), cached_send, handle
        )
        self._acknowledger.when_stored(result, acknowledge, waits=waits)

    def _acknowledge_timer(
        self,
        connection: Channel,
        request: RemotingCommand,
        cached_send: CachedSend,
        handle: str | None,
        result: PutMessageResult,
    ) -> None:
        """Answer a timer message by its result, with a handle to recall it."""
        if handle is None or result.end_offset < 0:
            self._acknowledge(connection, request, cached_send, (), result)
            return
        size = result.end_offset - result.physical_offset
        self._stats.record_put(cached_send.topic, result.message_count, size)
        ids = _ids(cached_send.id_start, [result.physical_offset])
        self._reply(connection, request, cached_send, ids, result, {"recallHandle": handle})

    def _put_large(
        self, send: Send, properties: StoredProperties, born_timestamp: int
    ) -> ResponseSteps:
        """Store, in steps, a batch whose many messages would keep others waiting."""
        _, request, cached_send, _ = send
        result, sizes = yield from self._batches.put_in_steps(
            cached_send, request.body, properties, born_timestamp
        )
        self._acknowledge_when_stored(send, sizes, result)
        return None

    def _acknowledge_when_stored(
        self, send: Send, sizes: Sequence[int], result: PutMessageResult
    ) -> None:
        """Answer an appended message; with SYNC_FLUSH, after its flush if the sender waits."""
        connection, request, cached_send, waits = send
        # the log has the message, so neither the request nor its input buffer is kept
        acknowledge = partial(
            self._acknowledge, connection, request.without_content(), cached_send, sizes
        )
        self._acknowledger.when_stored(result, acknowledge, waits=waits)

    def _acknowledge(
        self,
        connection: Channel,
        request: RemotingCommand,
        cached_send: CachedSend,
        sizes: Sequence[int],
        result: PutMessageResult,
    ) -> None:
        """Answer a send by its result; ``sizes`` are the record sizes of a batch."""
        status, physical_offset, queue_offset, end_offset, _, message_count, remark = result
        if end_offset < 0:
            self._record_failure(cached_send.topic, status, remark)
            reply(connection, request, request.respond(CODES[status], remark))
            return
        topic, (_, queue_id) = cached_send.topic, cached_send.template.queue
        self._stats.record_put(topic, message_count, end_offset - physical_offset)
        if status is _PUT_OK and not sizes:
            self._response.send(
                connection, request, cached_send.id_start, physical_offset, queue_id, queue_offset
            )
            return
        physical_offsets = list(accumulate(sizes[:-1][: IDS_MAX - 1], initial=physical_offset))
        ids = _ids(cached_send.id_start, physical_offsets)
        if status is _PUT_OK:
            self._batch_response.send(connection, request, ids, queue_id, queue_offset)
            return
        self._reply(connection, request, cached_send, ids, result, {})

    def _reply(
        self,
        connection: Channel,
        request: RemotingCommand,
        cached_send: CachedSend,
        ids: str,
        result: PutMessageResult,
        more: Mapping[str, str],
    ) -> None:
        """Answer with ids, queue and offset, and with fields that the template does not have."""
        fields = {
            "msgId": ids,
            "queueId": str(cached_send.template.queue[1]),
            "queueOffset": str(result.queue_offset),
            **more,
            **self._response_fields,
        }
        reply(connection, request, request.respond(CODES[result.status], result.remark, fields))


def _message_of(
    cached_send: CachedSend,
    request: RemotingCommand,
    properties: StoredProperties,
    born_timestamp: int,
) -> StoredMessage:
    draft = replace(cached_send.template.common, body=request.body, born_timestamp=born_timestamp)
    return draft.message(properties.text)


def _ids(start: str, positions: Sequence[int]) -> str:
    ends = struct.pack(f">{len(positions)}q", *positions).hex(",", 8).upper()
    return start + ends.replace(",", f",{start}")
