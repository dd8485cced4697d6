"""SendMessageProcessor: single messages and batches, answered or one-way, to topics that may have to be made.

    SEND_MESSAGE, _V2, SEND_BATCH_MESSAGE ─> busy? ─> topic, queue ─> retry or dead letter? ─> delayed?
        ─> store ─> answered now (ASYNC_FLUSH), or when it is on the disk (SYNC_FLUSH)

The answer carries what Java's client reads: ids, queue, offset, region and whether to trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

from broker.config import BrokerConfig
from broker.connection import Connection
from broker.processor.acknowledger import Acknowledger
from broker.processor.admission import TopicAdmission
from broker.processor.request import Handlers, RequestRejected, header_of, reply
from broker.processor.retry_rules import RetryRules
from broker.processor.stored_properties import PropertyRewriter, StoredProperties
from broker.processor.usual_answer import UsualAnswer
from broker.schedule.delayed_message import scheduled
from broker.state.broker_stats import BrokerStats
from broker.store.message_store import MessageStore
from broker.store.record_draft import RecordDraft, draft_of
from broker.store.results import PutMessageResult, PutMessageStatus
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.headers.send import SendMessageRequestHeader
from rmq_spark.wire.hosts import Host, decode_host
from rmq_spark.wire.message_batch import split_batch
from rmq_spark.wire.names import RETRY_PREFIX
from rmq_spark.wire.record import StoredMessage, magic_of

_BORN_V6 = MessageSysFlag.BORN_HOST_V6.value
_STORE_V6 = MessageSysFlag.STORE_HOST_V6.value
_GIVEN = ~(_BORN_V6 | _STORE_V6 | MessageSysFlag.TRANSACTION_MASK.value)
_BATCH = RequestCode.SEND_BATCH_MESSAGE.value
_PUT_OK = PutMessageStatus.PUT_OK

IDS_MAX: Final = 3_000
"""Of a batch's messages, so many are told by their ids: the header of an answer has room for no more."""

CODES: Final = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
}


class _Ends(NamedTuple):
    """Where a connection's messages come from and go to, as records and ids have it."""

    born_host: bytes
    store_host: bytes
    sys_flag: int
    id_start: str


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
        self._batch_bytes_max = config.store.max_message_size
        self._marks = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
        self._sent = UsualAnswer(("msgId", "queueId", "queueOffset"), self._marks)
        self._ends: dict[Connection, _Ends] = {}

    def handlers(self) -> Handlers:
        """All ways to send."""
        return {
            RequestCode.SEND_MESSAGE: self.send_message,
            RequestCode.SEND_MESSAGE_V2: self.send_message,
            RequestCode.SEND_BATCH_MESSAGE: self.send_message,
        }

    def connection_closed(self, connection: Connection) -> None:
        """Forget a client."""
        self._ends.pop(connection, None)

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
        ends = self._ends.get(connection) or self._found_ends(connection)
        if header.batch or request.code == _BATCH:
            result, sizes = self._put_batch(ends, header, queue_id, request.body, properties)
        else:
            draft = self._single(ends, header, queue_id, request, properties)
            if not self._acknowledger.is_sync:
                tell = partial(self._tell, connection, request, header.topic, queue_id, ends)
                self._store.put_later(draft, tell)
                return None
            result, sizes = self._store.put_draft(draft), None
        if not self._acknowledger.is_sync or not properties.waits or result.status is not _PUT_OK:
            return self._answer(connection, request, header.topic, queue_id, ends, sizes, result)

        def stored(known: PutMessageResult) -> None:
            answer = self._answer(connection, request, header.topic, queue_id, ends, sizes, known)
            if answer is not None:
                reply(connection, request, answer)

        self._acknowledger.when_stored(result, stored)
        return None

    def _tell(
        self,
        connection: Connection,
        request: RemotingCommand,
        topic: str,
        queue_id: int,
        ends: _Ends,
        result: PutMessageResult,
    ) -> None:
        """Answer what was written at the end of a turn."""
        answer = self._answer(connection, request, topic, queue_id, ends, None, result)
        if answer is not None:
            reply(connection, request, answer)

    def _found_ends(self, connection: Connection) -> _Ends:
        born_host = connection.remote_host
        store_host = self._advertised_host(connection)
        ends = self._ends[connection] = _Ends(
            born_host.encode(),
            store_host.encode(),
            _BORN_V6 * born_host.is_v6 | _STORE_V6 * store_host.is_v6,
            store_host.encode().hex().upper(),
        )
        return ends

    def _single(
        self,
        ends: _Ends,
        header: SendMessageRequestHeader,
        queue_id: int,
        request: RemotingCommand,
        properties: StoredProperties,
    ) -> RecordDraft:
        if not request.body:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "the message body is empty")
        draft = _draft(ends, header, queue_id, request.body, properties.text, header.flag)
        if not properties.delay_level and not header.topic.startswith(RETRY_PREFIX):
            return draft
        message = _message_of(draft, properties.text)
        retried = self._retries.redirected(message, header.max_reconsume_times, request.version)
        if properties.delay_level and retried is message:  # a dead letter is not delayed any more
            retried = scheduled(message, min(properties.delay_level, self._delay_levels))
        return draft_of(retried)

    def _put_batch(
        self,
        ends: _Ends,
        header: SendMessageRequestHeader,
        queue_id: int,
        body: Buffer,
        properties: StoredProperties,
    ) -> tuple[PutMessageResult, Sequence[int]]:
        if properties.delay_level or header.topic.startswith(RETRY_PREFIX):
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL, "a batch can neither be delayed nor go to a retry topic"
            )
        if len(body) > self._batch_bytes_max:  # taking one apart keeps all others waiting
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch of {len(body)} bytes is over {self._batch_bytes_max} (maxMessageSize)",
            )
        of_batch = self._properties.of_batch(properties.text)
        stored = self._properties.stored_in_batch
        parts = [
            (flag, own_body, stored(own_properties, of_batch))
            for flag, own_body, own_properties in split_batch(body)
        ]
        if not all(own_body for _, own_body, _ in parts):
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "the body of a batched message is empty")
        return self._store.put_uniform(_draft(ends, header, queue_id, b"", "", 0), parts)

    def _answer(
        self,
        connection: Connection,
        request: RemotingCommand,
        topic: str,
        queue_id: int,
        ends: _Ends,
        sizes: Sequence[int] | None,
        result: PutMessageResult,
    ) -> RemotingCommand | None:
        status, physical_offset, queue_offset, end_offset, _, message_count, remark = result
        if end_offset < 0:
            self._stats.put_failed()
            return request.respond(CODES[status], remark)
        self._stats.put(topic, message_count, end_offset - physical_offset)
        ids = f"{ends.id_start}{physical_offset:016X}"
        if sizes is not None:
            places = accumulate(sizes[:-1][: IDS_MAX - 1], initial=physical_offset)
            ids = ",".join([f"{ends.id_start}{place:016X}" for place in places])
        if status is _PUT_OK:
            self._sent.send(connection, request, ids, queue_id, queue_offset)
            return None
        fields = {"msgId": ids, "queueId": str(queue_id), "queueOffset": str(queue_offset)}
        return request.respond(CODES[status], remark, {**fields, **self._marks})


def _draft(
    ends: _Ends,
    header: SendMessageRequestHeader,
    queue_id: int,
    body: Buffer,
    properties_text: str,
    flag: int,
) -> RecordDraft:
    return RecordDraft(
        header.topic,
        queue_id,
        body,
        properties_text.encode(),
        header.born_timestamp,
        ends.born_host,
        ends.store_host,
        flag,
        header.sys_flag & _GIVEN | ends.sys_flag,
        header.reconsume_times or 0,
        0,
        magic_of(header.topic),
    )


def _message_of(draft: RecordDraft, properties_text: str) -> StoredMessage:
    return StoredMessage(
        topic=draft.topic,
        body=bytes(draft.body),
        properties_text=properties_text,
        queue_id=draft.queue_id,
        flag=draft.flag,
        sys_flag=draft.sys_flag,
        born_timestamp=draft.born_timestamp,
        born_host=decode_host(draft.born_host),
        store_host=decode_host(draft.store_host),
        reconsume_times=draft.reconsume_times,
        magic=draft.magic,
    )
