"""SendMessageProcessor: single messages and batches, answered or one-way, to topics that may have to be made.

    SEND_MESSAGE, _V2, SEND_BATCH_MESSAGE ─> busy? ─> topic, queue ─> retry or dead letter? ─> delayed?
        ─> store ─> answered now (ASYNC_FLUSH), or when it is on the disk (SYNC_FLUSH)

The answer carries what Java's client reads: ids, queue, offset, region and whether to trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from broker.config import BrokerConfig
from broker.connection import Connection
from broker.processor.acknowledger import Acknowledger
from broker.processor.admission import TopicAdmission
from broker.processor.message_back import RetryRules
from broker.processor.request import Handlers, RequestRejected, header_of, reply
from broker.processor.stored_properties import PropertyRewriter, StoredProperties
from broker.schedule.schedule_message_service import scheduled
from broker.state.broker_stats import BrokerStats
from broker.store.message_store import MessageStore
from broker.store.results import PutMessageResult, PutMessageStatus
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.headers.send import SendMessageRequestHeader
from rmq_spark.wire.hosts import Host
from rmq_spark.wire.message_batch import decode_batch
from rmq_spark.wire.message_id import encode_offset_message_id
from rmq_spark.wire.properties import PROPERTY_SEPARATOR
from rmq_spark.wire.record import StoredMessage

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

    @property
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
            messages = self._batch(connection, header, queue_id, request, properties)
            result = self._store.put_batch(messages)
        else:
            messages = [self._single(connection, header, queue_id, request, properties)]
            result = self._store.put_message(messages[0])
        store_host = messages[0].store_host
        waits = properties.waits and self._acknowledger.is_sync
        if result.status is not PutMessageStatus.PUT_OK or not waits:
            return self._answer(request, queue_id, store_host, messages, result)

        def stored(known: PutMessageResult) -> None:
            reply(connection, request, self._answer(request, queue_id, store_host, messages, known))

        self._acknowledger.when_stored(result, stored)
        return None

    def _single(
        self,
        connection: Connection,
        header: SendMessageRequestHeader,
        queue_id: int,
        request: RemotingCommand,
        properties: StoredProperties,
    ) -> StoredMessage:
        if not request.body:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "the message body is empty")
        message = self._message(
            connection, header, queue_id, bytes(request.body), properties.text, header.flag
        )
        retried = self._retries.redirected(message, header.max_reconsume_times, request.version)
        if properties.delay_level and retried is message:  # a dead letter is not delayed any more
            return scheduled(message, min(properties.delay_level, self._delay_levels))
        return retried

    def _batch(
        self,
        connection: Connection,
        header: SendMessageRequestHeader,
        queue_id: int,
        request: RemotingCommand,
        properties: StoredProperties,
    ) -> list[StoredMessage]:
        if properties.delay_level or self._retries.is_retry(header.topic):
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL, "a batch can neither be delayed nor go to a retry topic"
            )
        messages = []
        for each in decode_batch(request.body):
            if not each.body:
                raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "the body of a batched message is empty")
            own = each.properties_text
            if own and not own.endswith(PROPERTY_SEPARATOR):
                own += PROPERTY_SEPARATOR
            text = self._properties.stored(own + (header.properties or "")).text
            messages.append(self._message(connection, header, queue_id, each.body, text, each.flag))
        if not messages:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        return messages

    def _message(
        self,
        connection: Connection,
        header: SendMessageRequestHeader,
        queue_id: int,
        body: bytes,
        properties_text: str,
        flag: int,
    ) -> StoredMessage:
        born_host, store_host = connection.remote_host, self._advertised_host(connection)
        sys_flag = header.sys_flag & _GIVEN
        if born_host.is_v6:
            sys_flag |= _BORN_V6
        if store_host.is_v6:
            sys_flag |= _STORE_V6
        return StoredMessage(
            topic=header.topic,
            body=body,
            properties_text=properties_text,
            queue_id=queue_id,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=born_host,
            store_host=store_host,
            reconsume_times=header.reconsume_times or 0,
        )

    def _answer(
        self,
        request: RemotingCommand,
        queue_id: int,
        store_host: Host,
        messages: Sequence[StoredMessage],
        result: PutMessageResult,
    ) -> RemotingCommand:
        code = CODES[result.status]
        if code not in _STORED:
            return request.respond(code, result.remark)
        size = sum(len(message.body) for message in messages)
        self._stats.put(messages[0].topic, result.message_count, size)
        ids = [encode_offset_message_id(store_host, place) for place in self._places(messages, result)]
        fields = {
            "msgId": ",".join(ids),
            "queueId": str(queue_id),
            "queueOffset": str(result.queue_offset),
            **self._marks,
        }
        return request.respond(code, result.remark, fields)
