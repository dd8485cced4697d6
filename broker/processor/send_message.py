"""SendMessageProcessor: single messages and batches, answered or one-way, to topics that may have to be made.

    SEND_MESSAGE, _V2, SEND_BATCH_MESSAGE ─> busy? ─> topic, queue ─> retry or dead letter? ─> delayed?
        ─> store ─> answered now (ASYNC_FLUSH), or when it is on the disk (SYNC_FLUSH)

The answer carries what Java's client reads: ids, queue, offset, region and whether to trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from broker.config import BrokerConfig
from broker.connection import Connection
from broker.processor.acknowledger import Acknowledger
from broker.processor.admission import TopicAdmission
from broker.state.names import RETRY_PREFIX
from broker.processor.request import Handlers, RequestRejected, header_of, reply
from broker.processor.stored_properties import PropertyRewriter, StoredProperties
from broker.processor.usual_answer import UsualAnswer
from broker.schedule.schedule_message_service import scheduled
from broker.state.broker_stats import BrokerStats
from broker.store.message_store import MessageStore
from broker.store.record_draft import RecordDraft
from broker.store.results import PutMessageResult, PutMessageStatus
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.headers.send import SendMessageRequestHeader
from rmq_spark.wire.hosts import V4_BYTES, Host
from rmq_spark.wire.message_batch import decode_batch
from rmq_spark.wire.properties import PROPERTY_SEPARATOR

_BORN_V6 = MessageSysFlag.BORN_HOST_V6.value
_STORE_V6 = MessageSysFlag.STORE_HOST_V6.value
_GIVEN = ~(_BORN_V6 | _STORE_V6 | MessageSysFlag.TRANSACTION_MASK.value)

CODES: Final = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
}
_STORED: Final = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)


class SendMessageProcessor:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        admission: TopicAdmission,
        retries: RetryRules,
        acknowledger: Acknowledger,
        stats: BrokerStats,
        advertised_host: Callable[[Connection], Host],
        why_busy: Callable[[], str | None],
    ) -> None:
        """``why_busy`` says why no sends are taken now, if so."""
        self._store = store
        self._admission = admission
        self._retries = retries
        self._acknowledger = acknowledger
        self._stats = stats
        self._advertised_host = advertised_host
        self._why_busy = why_busy
        self._properties = PropertyRewriter(config.broker_cluster_name)
        self._delay_levels = len(config.store.message_delay_level_ms)
        self._marks = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
        self._sent = UsualAnswer(("msgId", "queueId", "queueOffset"), self._marks)

    def handlers(self) -> Handlers:
        """All ways to send."""
        return {
            RequestCode.SEND_MESSAGE: self.send_message,
            RequestCode.SEND_MESSAGE_V2: self.send_message,
            RequestCode.SEND_BATCH_MESSAGE: self.send_message,
        }

    def send_message(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Take a message, or a batch of them."""
        busy = self._why_busy()
        if busy is not None:
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, busy)
        header: SendMessageRequestHeader = header_of(request)
        queue_id = self._admission.admit(
            header.topic, header.queue_id, header.default_topic, header.default_topic_queue_nums
        )
        properties = self._properties.stored(header.properties)
        if properties.is_half_message:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, "the broker sending transaction message is forbidden"
            )
        if header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
            drafts = self._batch(connection, header, queue_id, request, properties)
            result = self._store.put_drafts(drafts)
        else:
            drafts = [self._single(connection, header, queue_id, request, properties)]
            result = self._store.put_draft(drafts[0])
        if result.status is not PutMessageStatus.PUT_OK or not (
            properties.waits and self._acknowledger.is_sync
        ):
            return self._answer(connection, request, queue_id, drafts, result)

        def stored(known: PutMessageResult) -> None:
            answer = self._answer(connection, request, queue_id, drafts, known)
            if answer is not None:
                reply(connection, request, answer)

        self._acknowledger.when_stored(result, stored)
        return None

    def _single(
        self,
        connection: Connection,
        header: SendMessageRequestHeader,
        queue_id: int,
        request: RemotingCommand,
        properties: StoredProperties,
    ) -> RecordDraft:
        if not request.body:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "the message body is empty")
        draft = self._draft(connection, header, queue_id, request.body, properties.text, header.flag)
        is_retry = header.topic.startswith(RETRY_PREFIX)
        if not is_retry and not properties.delay_level:
            return draft
        return self._elsewhere(header, request, draft, properties)

    def _elsewhere(
        self,
        header: SendMessageRequestHeader,
        request: RemotingCommand,
        draft: RecordDraft,
        properties: StoredProperties,
    ) -> RecordDraft:
        """A retry whose tries are used up is a dead letter; other retries, and what is delayed, come later."""
        ...

    def _batch(
        self,
        connection: Connection,
        header: SendMessageRequestHeader,
        queue_id: int,
        request: RemotingCommand,
        properties: StoredProperties,
    ) -> list[RecordDraft]:
        if properties.delay_level or header.topic.startswith(RETRY_PREFIX):
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL, "a batch can neither be delayed nor go to a retry topic"
            )
        drafts = []
        for each in decode_batch(request.body):
            if not each.body:
                raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "the body of a batched message is empty")
            own = each.properties_text
            if own and not own.endswith(PROPERTY_SEPARATOR):
                own += PROPERTY_SEPARATOR
            text = self._properties.stored(own + (header.properties or "")).text
            drafts.append(self._draft(connection, header, queue_id, each.body, text, each.flag))
        if not drafts:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        return drafts

    def _draft(
        self,
        connection: Connection,
        header: SendMessageRequestHeader,
        queue_id: int,
        body: Buffer,
        properties_text: str,
        flag: int,
    ) -> RecordDraft:
        born_host = connection.remote_host.encode()
        store_host = self._advertised_host(connection).encode()
        sys_flag = header.sys_flag & _GIVEN
        if len(born_host) > V4_BYTES:
            sys_flag |= _BORN_V6
        if len(store_host) > V4_BYTES:
            sys_flag |= _STORE_V6
        return RecordDraft(
            header.topic,
            queue_id,
            body,
            properties_text.encode(),
            header.born_timestamp,
            born_host,
            store_host,
            flag,
            sys_flag,
            header.reconsume_times or 0,
        )

    def _answer(
        self,
        connection: Connection,
        request: RemotingCommand,
        queue_id: int,
        drafts: Sequence[RecordDraft],
        result: PutMessageResult,
    ) -> RemotingCommand | None:
        code = CODES[result.status]
        if code not in _STORED:
            self._stats.put_failed()
            return request.respond(code, result.remark)
        first = drafts[0]
        self._stats.put(first.topic, result.message_count, result.end_offset - result.physical_offset)
        host = first.store_host.hex().upper()
        ids = f"{host}{result.physical_offset:016X}"
        if len(drafts) > 1:
            places = accumulate((draft.size for draft in drafts[:-1]), initial=result.physical_offset)
            ids = ",".join(f"{host}{place:016X}" for place in places)
        if code is ResponseCode.SUCCESS:
            self._sent.send(connection, request, ids, queue_id, result.queue_offset)
            return None
        fields = {"msgId": ids, "queueId": str(queue_id), "queueOffset": str(result.queue_offset)}
        return request.respond(code, result.remark, {**fields, **self._marks})
