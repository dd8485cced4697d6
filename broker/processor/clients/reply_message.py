"""ReplyMessageProcessor: relays a consumer's reply to the producer that sent the request.

    producer ── a message, with REPLY_TO_CLIENT ──> topic ──────────────────> consumer
    producer <── PUSH_REPLY_MESSAGE_TO_CLIENT ── broker <── SEND_REPLY_MESSAGE ── consumer

The request is a normal message. The broker pushes a reply to the producer that waits for it. Once
the producer has acknowledged it, the broker stores the reply in its topic, and answers as for a
normal send. Nothing here blocks: the producer's response arrives by a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import ReplyMessageRequestHeader, SendMessageRequestHeader
from rmq_spark.wire.message.properties import REPLY_TO_CLIENT, change_properties, decode_properties
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel
from ...state.members.client_channel_info import ClientChannelInfo
from ..processor import BrokerParts, Processor, handles
from ..request import header_of, reply, request_command, size_of, system_error
from .pending_replies import PendingReplies

PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
PUSH_TIMEOUT_MS: Final = 10_000

_SEND_CODES: Final[Mapping[int, RequestCode]] = {
    RequestCode.SEND_REPLY_MESSAGE: RequestCode.SEND_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2: RequestCode.SEND_MESSAGE_V2,
}
"""The send request with the same fields, by the code of the reply."""


class ReplyMessageProcessor(Processor):
    """The relay of replies to the producers that wait for them."""

    def __init__(
        self,
        broker: BrokerParts,
        pending_replies: PendingReplies,
        send: Callable[[Channel, RemotingCommand, int], None],
    ) -> None:
        """Store the parts; ``send`` processes a request as one of the given code."""
        super().__init__(broker)
        self._pending_replies = pending_replies
        self._send = send

    @handles(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    def send_reply_message(self, connection: Channel, request: RemotingCommand) -> None:
        """Push a reply to its producer, and store it once the producer has acknowledged it."""
        header: SendMessageRequestHeader = header_of(request)
        channel = self._find_requester(
            decode_properties(header.properties or "").get(REPLY_TO_CLIENT)
        )
        pushed_header = self._pushed_header(connection, header)
        body = bytes(request.body)  # a copy, because a view would keep the whole receive buffer
        pushed = request_command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed_header, body)
        on_response = partial(
            self._reply_pushed, connection, request._replace(body=body), channel.client_id
        )
        self._pending_replies.request(
            connection,
            channel.connection,
            pushed,
            PUSH_TIMEOUT_MS,
            on_response,
            kept_bytes=size_of(request),
        )

    def _find_requester(self, client_id: str | None) -> ClientChannelInfo:
        if client_id is None:
            raise system_error(f"reply message properties[{REPLY_TO_CLIENT}] is null")
        channel = self._broker.producers.find(client_id)
        if channel is None or not self._broker.access.knows(channel.connection):
            raise system_error(f"push reply message fail, channel of <{client_id}> not found.")
        return channel

    def _pushed_header(
        self, connection: Channel, header: SendMessageRequestHeader
    ) -> ReplyMessageRequestHeader:
        now_ms = self._broker.now_ms()
        return ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=str(connection.remote_host),
            store_host=str(self._broker.advertised_host(connection)),
            store_timestamp=now_ms,
            properties=change_properties(header.properties or "", {PUSH_REPLY_TIME: str(now_ms)}),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )

    def _reply_pushed(
        self,
        connection: Channel,
        request: RemotingCommand,
        client_id: str,
        found: RemotingCommand | None,
    ) -> None:
        """Store the reply if the producer has acknowledged it; otherwise refuse it."""
        if found is None or found.code != ResponseCode.SUCCESS:
            remark = f"push reply message to {client_id} fail."
            reply(connection, request, request.respond(ResponseCode.SYSTEM_ERROR, remark))
        elif not connection.is_closed:
            self._send(connection, request, _SEND_CODES[request.code])
