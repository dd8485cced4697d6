"""NotificationProcessor: answers when there is something to pop, and counts the pops that wait.

RocketMQ's proxy asks for notifications instead of holding pops of many clients.
"""

from __future__ import annotations

from typing import cast

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import (
    NotificationRequestHeader,
    NotificationResponseHeader,
)
from rmq_spark.wire.headers.operators import PollingInfoRequestHeader, PollingInfoResponseHeader
from rmq_spark.wire.names import RETRY_PREFIX
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel
from ...longpolling.pop_request import PopRequest
from ...store.results import GetMessageStatus, QueueOffset
from ..processor import BrokerParts, Processor, handles
from ..pulls.subscription_filters import SubscriptionFilter
from ..request import header_of, success_response
from .pop_message import PopMessageProcessor
from .pop_offsets import PopOffsets


class NotificationProcessor(Processor):
    """The responses to NOTIFICATION, immediate and held ones, and to POLLING_INFO."""

    def __init__(self, broker: BrokerParts, pops: PopMessageProcessor, offsets: PopOffsets) -> None:
        super().__init__(broker)
        self._pops = pops
        self._offsets = offsets

    @handles(RequestCode.NOTIFICATION)
    def notification(self, connection: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Answer NOTIFICATION at once, if there is something to pop, or hold it."""
        header: NotificationRequestHeader = header_of(request)
        self._pops.check(header)
        message_filter = self._pops.message_filter(header)
        held = self._pops.held(connection, request, header, message_filter, is_notification=True)
        return self._respond_or_suspend(request, header, message_filter, held)

    def execute_request_when_wakeup(self, held: PopRequest) -> RemotingCommand | None:
        """Answer a held request, or hold it again for the rest of its time."""
        header = cast("NotificationRequestHeader", held.header)
        if held.connection.is_closed or held.connection.is_congested:
            self._broker.pop_waiters.wake_next(header.topic, header.consumer_group, header.queue_id)
            return None if held.connection.is_closed else _response(held.request, has_msg=False)
        self._pops.require_rights(held)
        self._pops.check(header)
        return self._respond_or_suspend(
            held.request, header, self._pops.message_filter(header), held
        )

    def _respond_or_suspend(
        self,
        request: RemotingCommand,
        header: NotificationRequestHeader,
        message_filter: SubscriptionFilter,
        held: PopRequest,
    ) -> RemotingCommand | None:
        is_in_order = bool(header.order)
        has_message = any(
            self._has_message(header, topic, queue_id, message_filter)
            for topic, queue_id in self._pops.queues(header, is_in_order=is_in_order)
        )
        is_full = False
        if not has_message and held.deadline_ms > self._broker.monotonic_ms():
            if self._pops.suspend(held):
                return None
            is_full = True
        return _response(request, has_msg=has_message, is_full=is_full)

    def _has_message(
        self,
        header: NotificationRequestHeader,
        topic: str,
        queue_id: int,
        message_filter: SubscriptionFilter,
    ) -> bool:
        queue = topic, header.consumer_group, queue_id
        if header.order and self._broker.order_info.is_blocked(queue, header.attempt_id, 0):
            return False
        low, high = self._broker.store.queue_offsets(topic, queue_id)
        begin = self._offsets.query(queue)
        begin = low if begin is None else max(begin, low)
        if begin >= high:
            return False
        if message_filter is None or topic.startswith(RETRY_PREFIX):
            return True
        found = self._broker.store.get_message(
            topic, queue_id, QueueOffset(begin), count_max=1, message_filter=message_filter
        )
        return found.status is GetMessageStatus.FOUND or found.next_begin_offset < found.max_offset

    @handles(RequestCode.POLLING_INFO)
    def polling_info(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer POLLING_INFO with the number of pops that wait for a queue."""
        header: PollingInfoRequestHeader = header_of(request)
        waiting = self._broker.pop_waiters.waiting(
            header.topic, header.consumer_group, header.queue_id
        )
        return success_response(request, PollingInfoResponseHeader(waiting))


def _response(request: RemotingCommand, *, has_msg: bool, is_full: bool = False) -> RemotingCommand:
    return success_response(request, NotificationResponseHeader(has_msg, is_full))
