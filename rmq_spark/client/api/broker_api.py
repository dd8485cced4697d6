"""BrokerApi: a client's requests to brokers, one method each; typed headers in, values out.

Every method takes the broker's address first. A request about a queue also names its broker, as
clients of 5.x do, because behind RocketMQ's proxy all brokers have the proxy's address. If the
broker refuses, a method raises the matching kind of `BrokerRefused`; if no usable response comes,
it raises one of `CONNECTION_FAULTS`. Methods never retry. The requests of operators are in
`admin_api`.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from rmq_spark.client.errors import ProtocolError, refusal
from rmq_spark.client.results import (
    AppendResult,
    PopResult,
    PullResult,
    PullStatus,
    SendResult,
    SendStatus,
)
from rmq_spark.client.subscriptions import ALL
from rmq_spark.client.transport.connection_pool import Agreement
from rmq_spark.client.transport.pending_requests import PendingRequest, ResponseFuture
from rmq_spark.client.transport.remoting_client import (
    REQUEST_TIMEOUT_MS,
    RemotingClient,
    TypedRequests,
    build_request,
    check_response,
    response_body,
    response_header,
)
from rmq_spark.errors import WireError
from rmq_spark.wire.bodies.clients import (
    TAG_EXPRESSION,
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from rmq_spark.wire.codes import PullSysFlag, RequestCode, ResponseCode
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import (
    AckMessageRequestHeader,
    AppendChunkRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    ConsumerGroupRequestHeader,
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    PopMessageRequestHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SearchOffsetRequestHeader,
    SendMessageRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq_spark.wire.message.record import decode_records
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer

if TYPE_CHECKING:
    from rmq_spark.client.api.admin_api import AccessApi, AdminApi, StagingApi
    from rmq_spark.client.transport.connection import RemotingConnection
    from rmq_spark.wire.bodies.pop import BatchAckMessageRequestBody

HOLD_MARGIN_MS: Final = 10_000
"""Milliseconds to wait for a pull's response after the time for which the broker may hold it."""

LOCK_TIMEOUT_MS: Final = 1_000

_POP_STATUSES: Final = frozenset(
    {
        *(ResponseCode.SUCCESS.value, ResponseCode.PULL_NOT_FOUND.value),
        *(ResponseCode.POLLING_FULL.value, ResponseCode.POLLING_TIMEOUT.value),
    }
)
_NONE_STORED: Final = frozenset({ResponseCode.SUCCESS.value, ResponseCode.QUERY_NOT_FOUND.value})
_NO_MEMBERS: Final = frozenset({ResponseCode.SUCCESS.value, ResponseCode.SYSTEM_ERROR.value})
_NO_GROUP: Final = ("no consumer for this group", '"consumerGroupInfo" is null')
"""Remarks of brokers and of RocketMQ's proxy about a group without members."""

_SEND_STATUSES: Final = {status.value: status for status in SendStatus}
_CHUNK_REQUESTS: Final = frozenset([RequestCode.PULL_CHUNK.value, RequestCode.PULL_PLACES.value])
_PULL_STATUSES: Final = frozenset(status.value for status in PullStatus)
_SUBSCRIPTION: Final = PullSysFlag.SUBSCRIPTION.value
_SUSPEND: Final = PullSysFlag.SUSPEND.value


class BrokerApi:
    """The requests that clients make of brokers, one method each, as in RocketMQ's protocol.

    ``timeout_ms`` is the default timeout of a request; ``max_body_bytes`` is for callers that
    decode the records of a response. Methods may be called from any thread.
    """

    def __init__(
        self,
        connections: RemotingClient,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        max_body_bytes: int = PLAIN_BYTES_MAX,
    ) -> None:
        self.requests = TypedRequests(connections.request, timeout_ms)
        self.connections = connections
        self.timeout_ms = timeout_ms
        self.max_body_bytes = max_body_bytes

    @cached_property
    def admin(self) -> AdminApi:
        """Requests of operators; a program that only sends or consumes never loads them."""
        from rmq_spark.client.api.admin_api import AdminApi  # noqa: PLC0415  # for operators only

        return AdminApi(self.requests, self.connections)

    @cached_property
    def access(self) -> AccessApi:
        """Requests about users and access lists."""
        from rmq_spark.client.api.admin_api import AccessApi  # noqa: PLC0415  # for operators only

        return AccessApi(self.requests)

    @cached_property
    def staging(self) -> StagingApi:
        """Requests for staged batches; only programs that write exactly once load them."""
        from rmq_spark.client.api.admin_api import StagingApi  # noqa: PLC0415  # see the docstring

        return StagingApi(self.connections, self.timeout_ms)

    def agreement(self, address: str) -> Agreement:
        """Return the extensions agreed with a broker, connecting if necessary."""
        return self.connections.agreement(address)

    # ---- sending

    def send(
        self,
        address: str,
        header: SendMessageRequestHeader,
        body: Buffer,
        message_id: str,
        timeout_ms: int | None = None,
        *,
        is_reply: bool = False,
    ) -> SendResult:
        """Send a message, or a batch if the header says so, and wait until it is stored.

        ``message_id`` is the id that the sender gave the message; it is returned in the result.
        With ``is_reply``, the broker first pushes the message to the client that waits for it.
        """
        command = build_send_request(header, body, is_reply=is_reply)
        response = self.connections.request(address, command, self._timeout(timeout_ms))
        return send_result(address, command.code, response, header, message_id)

    def recall(
        self, address: str, header: RecallMessageRequestHeader, timeout_ms: int | None = None
    ) -> str:
        """Recall a message that waits for its time of delivery; return its id."""
        code = RequestCode.RECALL_MESSAGE
        response = self.requests.call(address, code, header, timeout_ms=timeout_ms)
        found: RecallMessageResponseHeader = response_header(address, code, response)
        return found.msg_id

    def send_async(
        self,
        address: str,
        header: SendMessageRequestHeader,
        body: Buffer,
        message_id: str,
        timeout_ms: int | None = None,
    ) -> Future[SendResult]:
        """Send a message, or a batch, and return a future of the result; see `send`."""
        command = build_send_request(header, body)

        def interpret(response: RemotingCommand) -> SendResult:
            return send_result(address, command.code, response, header, message_id)

        timeout_ms = self._timeout(timeout_ms)
        return self.connections.request_async(
            address, command, timeout_ms, interpret, may_batch=True
        )

    def submit_send(
        self,
        pending: PendingRequest,
        address: str,
        header: SendMessageRequestHeader,
        body: Buffer,
        *,
        is_reply: bool = False,
    ) -> None:
        """Send a message, a batch or a reply; ``pending`` gets the response, for `send_result`."""
        command = build_send_request(header, body, is_reply=is_reply)
        self.connections.submit(address, pending, command)

    def send_one_way(
        self,
        address: str,
        header: SendMessageRequestHeader,
        body: Buffer,
        *,
        is_reply: bool = False,
    ) -> None:
        """Send a message, a batch or a reply, without a response."""
        command = build_send_request(header, body, is_reply=is_reply)
        self.connections.send_one_way(address, command, self.timeout_ms)

    def end_transaction(
        self, address: str, header: EndTransactionRequestHeader, timeout_ms: int | None = None
    ) -> None:
        """Commit a half message, or roll it back, and wait until that is stored."""
        self.requests.call(
            address, RequestCode.END_TRANSACTION, header, timeout_ms=self._timeout(timeout_ms)
        )

    def end_transaction_one_way(self, address: str, header: EndTransactionRequestHeader) -> None:
        """Report how a transaction has ended, or that this is unknown, without a response."""
        command = build_request(RequestCode.END_TRANSACTION, header)
        self.connections.send_one_way(address, command, self.timeout_ms)

    def append_chunk(
        self,
        address: str,
        header: AppendChunkRequestHeader,
        sized_records: Buffer,
        timeout_ms: int | None = None,
    ) -> Future[AppendResult]:
        """Append encoded records, each preceded by its size; return a future of the result.

        The broker's `agreement` must have APPEND_CHUNK.
        """
        command = build_request(RequestCode.APPEND_CHUNK, header, sized_records)

        def interpret(response: RemotingCommand) -> AppendResult:
            check_response(address, RequestCode.APPEND_CHUNK, response)
            found = response_header(address, RequestCode.APPEND_CHUNK, response)
            return AppendResult(found.queue_offset, found.message_count, found.store_timestamp)

        return self.connections.request_async(
            address, command, self._timeout(timeout_ms), interpret
        )

    def send_back(self, address: str, header: ConsumerSendMsgBackRequestHeader) -> None:
        """Send back an unconsumed message, to be redelivered later or made a dead letter."""
        self.requests.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    # ---- pulling

    def pull(
        self, address: str, header: PullMessageRequestHeader, timeout_ms: int | None = None
    ) -> PullResult:
        """Pull messages of a queue; if the header allows it, the broker holds an empty pull.

        ``timeout_ms`` is by default 10 s more than the broker may hold the request.
        """
        command, timeout_ms = self._pull_command(header, timeout_ms)
        response = self.connections.request(address, command, timeout_ms)
        return pull_result(address, command.code, response)

    def peek(
        self, address: str, group: str, queue: MessageQueue, queue_offset: int, count: int = 1
    ) -> PullResult:
        """Pull messages from an offset on, with any tags, without waiting for any."""
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=count,
            sys_flag=_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=ALL,
            expression_type=TAG_EXPRESSION,
            broker_name=queue.broker_name,
        )
        return self.pull(address, header)

    def pull_async(
        self,
        address: str,
        header: PullMessageRequestHeader,
        timeout_ms: int | None = None,
        *,
        is_chunk: bool = False,
        proven_connection: RemotingConnection | None = None,
    ) -> ResponseFuture[PullResult]:
        """Pull messages of a queue, and return a future of the result; see `pull`.

        With ``is_chunk``, megabytes are pulled at once; the broker's `agreement` must have
        PULL_CHUNK. With ``proven_connection``, the request goes over that connection or fails, and
        the response may contain positions in the log's files instead of messages; the broker must
        have proven on that connection that these files are its own.
        """
        code = RequestCode.PULL_CHUNK if is_chunk else RequestCode.PULL_MESSAGE
        if proven_connection is not None:
            code = RequestCode.PULL_PLACES
        command, timeout_ms = self._pull_command(header, timeout_ms, code)

        def interpret(response: RemotingCommand) -> PullResult:
            return pull_result(address, command.code, response)

        return self.connections.request_async(
            address, command, timeout_ms, interpret, connection_only=proven_connection
        )

    def notifies_topic_deletion(self, address: str) -> bool:
        """Return whether a connected broker answers its held pulls when their topic is deleted.

        RocketMQ's brokers keep holding them, and answer them from a topic that was recreated
        meanwhile.
        """
        return bool(self.connections.known_agreement(address).extensions)

    def supports_chunks(self, address: str) -> bool:
        """Return whether a broker answers pulls in chunks of megabytes."""
        return Extension.PULL_CHUNK in self.agreement(address).extensions

    def _pull_command(
        self,
        header: PullMessageRequestHeader,
        timeout_ms: int | None,
        code: RequestCode = RequestCode.PULL_MESSAGE,
    ) -> tuple[RemotingCommand, int]:
        if timeout_ms is None:
            is_held = header.sys_flag & _SUSPEND
            timeout_ms = (
                header.suspend_timeout_millis + HOLD_MARGIN_MS if is_held else HOLD_MARGIN_MS
            )
        return build_request(code, header), timeout_ms

    # ---- offsets

    def query_consumer_offset(
        self, address: str, group: str, queue: MessageQueue, *, set_zero_if_not_found: bool = True
    ) -> int | None:
        """Return the offset that a group has stored for a queue, or None.

        A broker returns 0 instead of None for a queue that still has its first message and not many
        others, unless ``set_zero_if_not_found`` is False and the broker is a 5.x or rocketpoll's.
        """
        header = QueryConsumerOffsetRequestHeader(
            group,
            queue.topic,
            queue.queue_id,
            None if set_zero_if_not_found else False,
            queue.broker_name,
        )
        code = RequestCode.QUERY_CONSUMER_OFFSET
        response = self.requests.call(address, code, header, accepted=_NONE_STORED)
        if response.code != ResponseCode.SUCCESS:
            return None
        offset: int = response_header(address, code, response).offset
        return None if offset < 0 else offset

    def update_consumer_offset(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        commit_offset: int,
        *,
        is_one_way: bool = False,
    ) -> None:
        """Store a group's offset, forward or back; with ``is_one_way``, without a response."""
        header = UpdateConsumerOffsetRequestHeader(
            group, queue.topic, queue.queue_id, commit_offset, queue.broker_name
        )
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        if is_one_way:
            self.connections.send_one_way(address, build_request(code, header), self.timeout_ms)
        else:
            self.requests.call(address, code, header)

    def max_offset(self, address: str, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        header = GetMaxOffsetRequestHeader(
            queue.topic, queue.queue_id, broker_name=queue.broker_name
        )
        found: int = self.requests.header(address, RequestCode.GET_MAX_OFFSET, header).offset
        return found

    def min_offset(self, address: str, queue: MessageQueue) -> int:
        """Return the first offset that a queue still holds; 0 if it never held any."""
        header = GetMinOffsetRequestHeader(queue.topic, queue.queue_id, queue.broker_name)
        found: int = self.requests.header(address, RequestCode.GET_MIN_OFFSET, header).offset
        return max(found, 0)  # 4.9 answers -1 for a queue that has no file yet

    def search_offset(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at a time (ms since the epoch) or later."""
        header = SearchOffsetRequestHeader(
            queue.topic, queue.queue_id, timestamp_ms, broker_name=queue.broker_name
        )
        found: int = self.requests.header(
            address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header
        ).offset
        return found

    # ---- groups

    def heartbeat(self, address: str, data: HeartbeatData) -> int:
        """Send a heartbeat with this client's groups to a broker; return the broker's version."""
        return self.requests.call(address, RequestCode.HEART_BEAT, None, data).version

    def unregister(
        self,
        address: str,
        client_id: str,
        producer_group: str | None = None,
        consumer_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Unregister this client from a group at a broker."""
        header = UnregisterClientRequestHeader(client_id, producer_group, consumer_group)
        self.requests.call(address, RequestCode.UNREGISTER_CLIENT, header, timeout_ms=timeout_ms)

    def consumer_ids(self, address: str, group: str) -> tuple[str, ...]:
        """Return the client ids of a group's members that are online."""
        code, header = RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupRequestHeader(group)
        response = self.requests.call(address, code, header, accepted=_NO_MEMBERS)
        if response.code != ResponseCode.SUCCESS:
            if any(words in (response.remark or "") for words in _NO_GROUP):
                return ()
            check_response(address, code, response)
        return response_body(address, GetConsumerListByGroupResponseBody, response).consumer_id_list

    def check_client_config(self, address: str, body: CheckClientRequestBody) -> None:
        """Raise an error unless a broker supports a filter and can parse its expression."""
        self.requests.call(address, RequestCode.CHECK_CLIENT_CONFIG, None, body)

    # ---- popping

    def pop_async(self, address: str, header: PopMessageRequestHeader) -> ResponseFuture[PopResult]:
        """Pop messages, or wait for some as long as the header says; the result may be empty."""
        command = build_request(RequestCode.POP_MESSAGE, header)
        timeout_ms = header.poll_time + HOLD_MARGIN_MS
        return self.connections.request_async(
            address, command, timeout_ms, lambda response: pop_result(address, response)
        )

    def ack(self, address: str, header: AckMessageRequestHeader) -> None:
        """Acknowledge a popped message."""
        self.requests.call(address, RequestCode.ACK_MESSAGE, header)

    def batch_ack(self, address: str, body: BatchAckMessageRequestBody) -> None:
        """Acknowledge popped messages of one broker."""
        self.requests.call(address, RequestCode.BATCH_ACK_MESSAGE, None, body)

    def change_invisible_time(
        self, address: str, header: ChangeInvisibleTimeRequestHeader
    ) -> ChangeInvisibleTimeResponseHeader:
        """Change when a popped message is visible again; return the parts of its new receipt."""
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        changed: ChangeInvisibleTimeResponseHeader = self.requests.header(address, code, header)
        return changed

    def change_invisible_time_async(
        self, address: str, header: ChangeInvisibleTimeRequestHeader
    ) -> ResponseFuture[ChangeInvisibleTimeResponseHeader]:
        """Change when a popped message is visible again, without waiting for the response."""
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        return self.connections.request_async(
            address,
            build_request(code, header),
            self.requests.timeout_ms,
            lambda response: response_header(
                address, code, check_response(address, code, response)
            ),
        )

    # ---- queue locks

    def lock(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> frozenset[MessageQueue]:
        """Lock queues for 60 s, to be consumed in order, and return those now locked."""
        body = LockBatchRequestBody(
            consumer_group=group, client_id=client_id, mq_set=frozenset(queues)
        )
        code = RequestCode.LOCK_BATCH_MQ
        response = self.requests.call(address, code, None, body, timeout_ms=LOCK_TIMEOUT_MS)
        return response_body(address, LockBatchResponseBody, response).lock_ok_mq_set

    def unlock(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> None:
        """Unlock queues that a client has locked; locks of other clients stay."""
        body = LockBatchRequestBody(
            consumer_group=group, client_id=client_id, mq_set=frozenset(queues)
        )
        self.requests.call(address, RequestCode.UNLOCK_BATCH_MQ, None, body)

    def _timeout(self, timeout_ms: int | None) -> int:
        return self.timeout_ms if timeout_ms is None else timeout_ms


def build_send_request(
    header: SendMessageRequestHeader, body: Buffer, *, is_reply: bool = False
) -> RemotingCommand:
    """Return the request that sends a message, a batch, or a reply to a client that waits."""
    code = RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2
    if is_reply:
        code = RequestCode.SEND_REPLY_MESSAGE_V2
    return build_request(code, header, body)


def send_result(
    address: str,
    request_code: int,
    response: RemotingCommand,
    header: SendMessageRequestHeader,
    message_id: str,
) -> SendResult:
    """Return the result of a send from its response, or raise the refusal."""
    status = _SEND_STATUSES.get(response.code)
    if status is None:
        raise refusal(response.code, response.remark, address, request_code)
    found = response_header(address, request_code, response)
    return SendResult(
        status,
        message_id,
        MessageQueue(header.topic, header.broker_name or "", found.queue_id),
        found.queue_offset,
        found.msg_id,
        found.transaction_id,
        found.msg_region,
        found.trace_on is not False,
        found.recall_handle,
    )


def pull_result(address: str, request_code: int, response: RemotingCommand) -> PullResult:
    """Return the result of a pull from its response, or raise the refusal."""
    check_response(address, request_code, response, _PULL_STATUSES)
    found = response_header(address, request_code, response)
    status = PullStatus(response.code)
    records: Buffer = response.body
    sizes: Any = None
    physical_offsets: Any = None
    if status is PullStatus.FOUND and request_code in _CHUNK_REQUESTS:
        try:
            if request_code == RequestCode.PULL_PLACES:
                from rmq_spark.wire.chunk.record_locations import decode_located  # noqa: PLC0415  # brings numpy

                physical_offsets, sizes, records = decode_located(records)
            else:
                from rmq_spark.wire.chunk.sized_chunk import decode_sized_chunk  # noqa: PLC0415  # producers do not need it

                sizes, records = decode_sized_chunk(records)
        except WireError as error:
            raise ProtocolError(address, str(error)) from error
    if status is PullStatus.FOUND and not len(
        records if physical_offsets is None else physical_offsets
    ):
        raise ProtocolError(address, "the answer to a pull has status FOUND and no records")
    return PullResult(
        status,
        found.next_begin_offset,
        found.min_offset,
        found.max_offset,
        found.suggest_which_broker_id,
        records,
        sizes,
        physical_offsets,
    )


def pop_result(address: str, response: RemotingCommand) -> PopResult:
    """Return the result of a pop from its response, or raise the refusal."""
    code = RequestCode.POP_MESSAGE
    check_response(address, code, response, _POP_STATUSES)
    if response.code != ResponseCode.SUCCESS:
        return PopResult()
    found = response_header(address, code, response)
    try:
        messages = tuple(decode_records(response.body))
    except WireError as error:
        raise ProtocolError(address, str(error)) from error
    return PopResult(
        messages,
        found.pop_time,
        found.invisible_time,
        found.revive_qid,
        found.start_offset_info,
    )
