"""ClientRelayProcessor: relays requests that only a consumer can answer.

It forwards them to the consumer, and replies when the consumer has replied, or after a timeout. It
never blocks: the response arrives by a callback, in a later turn of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import decode_body, encode_body_in_steps
from rmq_spark.wire.bodies.operators import GetConsumerStatusBody
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers import operators as headers
from rmq_spark.wire.message.message_id import decode_offset_message_id
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

from ...auth.rights import Action
from ...common.channel import Channel, ResponseSteps
from ...state.members.client_channel_info import ClientChannelInfo
from ...store.results import PhysicalOffset
from ..processor import BrokerParts, Processor, handles
from ..queues import may_read
from ..request import (
    RequestRejected,
    header_of,
    no_permission,
    reply,
    request_command,
    system_error,
)
from .pending_replies import REQUEST_BYTES, PendingReplies

RELAY_TIMEOUT_MS: Final = 10_000
STATUS_TIMEOUT_MS: Final = 3_000
"""Milliseconds in which each member must reply. RocketMQ allows five seconds, which is how long
mqadmin waits for the whole response.
"""
STATUS_BYTES_MAX: Final = 65_536
STATUS_BYTES_TOTAL_MAX: Final = 262_144
"""The maximum bytes of one member's reply, some 600 queues, and of all replies to one request, so
that decoding them does not delay other clients.
"""
_CREDENTIALS: Final = frozenset([ACCESS_KEY, SECURITY_TOKEN, SIGNATURE])
"""Fields that are not relayed: a consumer could reuse the signature with another request code."""
_GROUP_REQUEST_BYTES: Final = REQUEST_BYTES + STATUS_BYTES_TOTAL_MAX
_MEMBER_BYTES: Final = 1_024
"""Bytes that a pending query of a group counts for each member."""
RUNNING_INFO_VERSION_MIN: Final = 62
STATUS_VERSION_MIN: Final = 28
"""V3_1_8_SNAPSHOT and V3_0_7_SNAPSHOT: older clients do not know the requests."""


class ClientRelayProcessor(Processor):
    """The relay of operators' requests to connected consumers."""

    def __init__(self, broker: BrokerParts, pending_replies: PendingReplies) -> None:
        super().__init__(broker)
        self._pending_replies = pending_replies

    @handles(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def get_consumer_running_info(
        self, connection: Channel, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Ask a consumer for its running info, and relay the response."""
        header: headers.GetConsumerRunningInfoRequestHeader = header_of(request)
        channel = self._find_online(header.consumer_group, header.client_id)
        self._relay(connection, request, channel, request.ext_fields)
        return None

    @handles(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    def consume_message_directly(
        self, connection: Channel, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Ask a consumer to process one message now, if the client may read it."""
        header: headers.ConsumeMessageDirectlyResultRequestHeader = header_of(request)
        channel = self._find_online(header.consumer_group, header.client_id or "")
        _, physical_offset = decode_offset_message_id(header.msg_id or "")
        record = self._broker.store.record_at(PhysicalOffset(physical_offset))
        if record is None or not may_read(self._broker, connection, record, Action.SUB):
            raise system_error(f"message [{header.msg_id}] is not in this broker's log")
        if not may_read(self._broker, channel.connection, record, Action.SUB):
            raise no_permission(
                f"The Consumer <{header.consumer_group}> <{header.client_id}> may not consume the "
                f"topic of message [{header.msg_id}]"
            )
        fields = {**request.ext_fields, "brokerName": self._broker.config.broker_name}
        self._relay(connection, request, channel, fields, bytes(record))
        return None

    def _find_online(self, group: str, client_id: str) -> ClientChannelInfo:
        channel = self._broker.consumers.find(group, client_id)
        if channel is None:
            raise system_error(f"The Consumer <{group}> <{client_id}> not online")
        if channel.version < RUNNING_INFO_VERSION_MIN:
            raise system_error(
                f"The Consumer <{group}> <{client_id}> is too old for this request: upgrade it"
            )
        if channel.connection.is_congested:  # its requests would pile up in the broker's memory
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"The Consumer <{group}> <{client_id}> does not read from its connection",
            )
        return channel

    def _relay(
        self,
        connection: Channel,
        request: RemotingCommand,
        channel: ClientChannelInfo,
        ext_fields: Mapping[str, str],
        body: bytes = b"",
    ) -> None:
        fields = {name: text for name, text in ext_fields.items() if name not in _CREDENTIALS}
        forwarded = RemotingCommand(request.code, ext_fields=fields, body=body)
        request = request.without_content()

        def on_response(found: RemotingCommand | None) -> None:
            if found is None:
                remark = (
                    f"consumer <{channel.client_id}> has disconnected, or did not answer "
                    f"within {RELAY_TIMEOUT_MS} ms"
                )
                reply(
                    connection, request, request.respond(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
                )
            elif connection.is_congested:
                remark = "the response was dropped: this client does not read earlier ones"
                reply(connection, request, request.respond(ResponseCode.SYSTEM_BUSY, remark))
            else:
                relayed = request.respond(found.code, found.remark, found.ext_fields, found.body)
                reply(connection, request, relayed)

        self._pending_replies.request(
            connection, channel.connection, forwarded, RELAY_TIMEOUT_MS, on_response
        )

    @handles(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def get_consumer_status(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer with the offsets in the memory of the members that reply in time."""
        header: headers.GetConsumerStatusRequestHeader = header_of(request)
        channels = self._find_members(header)
        command = request_command(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            headers.GetConsumerStatusRequestHeader(header.topic, header.group),
        )
        size = _GROUP_REQUEST_BYTES + _MEMBER_BYTES * len(channels)
        self._pending_replies.acquire(connection, size)
        request = request.without_content()
        results: dict[str, Mapping[MessageQueue, int]] = {}
        outstanding, bytes_left = len(channels), STATUS_BYTES_TOTAL_MAX

        def on_response(client_id: str, found: RemotingCommand | None) -> None:
            nonlocal outstanding, bytes_left
            outstanding -= 1
            is_success = found is not None and found.code == ResponseCode.SUCCESS
            body = found.body if found is not None and is_success else b""
            if 0 < len(body) <= min(STATUS_BYTES_MAX, bytes_left):
                bytes_left -= len(body)
                with suppress(BodyError):
                    status = decode_body(GetConsumerStatusBody, body)
                    results[client_id] = status.message_queue_table
            if not outstanding:
                self._broker.run_steps(reply_to_all())

        def reply_to_all() -> Iterator[None]:
            self._pending_replies.release(connection, size)
            if not results:
                remark = (
                    f"no member of the consumer group <{header.group}> has answered within "
                    f"{STATUS_TIMEOUT_MS} ms"
                )
                timeout = request.respond(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
                reply(connection, request, timeout)
                return
            data = yield from encode_body_in_steps(GetConsumerStatusBody(consumer_table=results))
            reply(connection, request, request.respond(ResponseCode.SUCCESS, body=data))

        try:
            for channel in channels:
                yield None
                callback = partial(on_response, channel.client_id)
                channel.connection.request(command, STATUS_TIMEOUT_MS, callback)
        except BaseException:  # with members left out, `reply_to_all` never runs
            self._pending_replies.release(connection, size)
            raise
        return None

    def _find_members(
        self, header: headers.GetConsumerStatusRequestHeader
    ) -> tuple[ClientChannelInfo, ...]:
        group = self._broker.consumers.group(header.group)
        channels = tuple(
            channel
            for channel in (group.clients.values() if group is not None else ())
            if not header.client_addr or channel.client_id == header.client_addr
        )
        if not channels:
            who = f"client <{header.client_addr}>" if header.client_addr else "consumer"
            raise system_error(f"no {who} online in the consumer group: [{header.group}]")
        for channel in channels:
            if channel.version < STATUS_VERSION_MIN:
                raise system_error(
                    f"the client [{channel.client_id}] is too old for this request: upgrade it"
                )
        return channels
