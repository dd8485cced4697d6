"""RecallMessageProcessor: recalls messages that wait for their timers.

A recall is a message in the timer topic, in the slot of the recalled message, whose unique id it
names. The broker answers when the recall is stored. As in RocketMQ, it does not check that the
recalled message exists.
"""

from __future__ import annotations

from rmq_spark.wire.codes import MessageSysFlag, RequestCode, ResponseCode, TopicPermission
from rmq_spark.wire.headers.members import RecallMessageRequestHeader, RecallMessageResponseHeader
from rmq_spark.wire.message.message_id import RecallHandle, decode_recall_handle
from rmq_spark.wire.message.properties import PRODUCER_GROUP
from rmq_spark.wire.message.record import StoredMessage
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel
from ...schedule.timer_message import recall_message
from ...store.results import PutMessageResult, PutMessageStatus
from ..processor import BrokerParts, Processor, handles
from ..queues import require_topic
from ..request import (
    RequestRejected,
    header_of,
    no_permission,
    refuse_if_busy,
    reply,
    success_response,
)
from .send_message import CODES, SendParts
from .stored_properties import PropertyRewriter

_WRITE = TopicPermission.WRITE.value


class RecallMessageProcessor(Processor):
    """The responses to recalls of timer messages."""

    def __init__(self, broker: BrokerParts, sends: SendParts, rewriter: PropertyRewriter) -> None:
        super().__init__(broker)
        self._sends = sends
        self._rewriter = rewriter

    @handles(RequestCode.RECALL_MESSAGE)
    def recall(self, connection: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Recall the message that a handle names; answer when the recall is stored."""
        refuse_if_busy(self._broker.busy_reason())
        header: RecallMessageRequestHeader = header_of(request)
        handle, now_ms = self._check(header), self._broker.now_ms()
        timers = self._broker.timers
        delay_ms = handle.deliver_ms - now_ms
        if not 0 < delay_ms < timers.rules.delay_max_ms:
            raise _illegal("timestamp invalid: the message is due, or later than timerMaxDelaySec")
        group = header.producer_group
        text = f"{PRODUCER_GROUP}\x01{group}\x02" if group else ""
        born_host = connection.remote_host
        store_host = self._broker.advertised_host(connection)
        recalled = StoredMessage(
            handle.topic,
            b"",
            self._rewriter.rewrite(text).text,
            sys_flag=(MessageSysFlag.BORN_HOST_V6.value if born_host.is_v6 else 0)
            | (MessageSysFlag.STORE_HOST_V6.value if store_host.is_v6 else 0),
            born_timestamp=now_ms,
            born_host=born_host,
            store_host=store_host,
        )
        message = recall_message(recalled, handle.unique_id, handle.deliver_ms, timers.rules)
        result = self._broker.store.put_message(message)
        if result.status is PutMessageStatus.PUT_OK:
            monotonic_ms = self._broker.monotonic_ms()
            timers.recall(handle.topic, handle.unique_id, handle.deliver_ms, monotonic_ms)
        bare = request.without_content()
        fields = RecallMessageResponseHeader(handle.unique_id, self._broker.config.region_id)
        self._sends.acknowledger.when_stored(
            result, lambda known: reply(connection, bare, _response(bare, fields, known))
        )
        return None

    def _check(self, header: RecallMessageRequestHeader) -> RecallHandle:
        config = self._broker.config
        if not config.recall_message_enable:
            raise no_permission("recall failed, operation is forbidden (recallMessageEnable=false)")
        if not config.broker_permission & _WRITE:
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
            )
        require_topic(self._broker.topics, header.topic)
        try:
            handle = decode_recall_handle(header.recall_handle)
        except ValueError as error:
            raise _illegal(str(error)) from None
        if handle.topic != header.topic:
            raise _illegal("topic not match")
        if handle.broker_name != config.broker_name:
            raise _illegal(f"the handle is of broker {handle.broker_name[:60]}")
        return handle


def _illegal(why: str) -> RequestRejected:
    return RequestRejected(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {why}")


def _response(
    request: RemotingCommand, fields: RecallMessageResponseHeader, result: PutMessageResult
) -> RemotingCommand:
    if result.is_stored:
        return success_response(request, fields)
    return request.respond(CODES[result.status], result.remark)
