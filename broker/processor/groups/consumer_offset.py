"""ConsumerOffsetProcessor: offsets of groups, bounds of queues, and offsets by time.

As in RocketMQ, a group without an offset starts at 0 in a queue whose messages are all still in
memory, and the queues of a topic that does not exist look empty. No offset is stored for them.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers import members as headers
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel, ResponseSteps
from ...state.tables.subscription_group import group_fault
from ..processor import Processor, handles
from ..queues import check_queue, is_whole_queue_in_memory, require_topic
from ..request import (
    RequestRejected,
    header_of,
    success_response,
    success_response_in_steps,
    system_error,
)

_BOUNDARIES: Final = ("", "LOWER", "UPPER")


class ConsumerOffsetProcessor(Processor):
    """The responses to requests about offsets of groups and queues."""

    @handles(RequestCode.QUERY_CONSUMER_OFFSET)
    def query_consumer_offset(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer a group's offset; without one, 0 in a queue that is in memory, else refuse."""
        header: headers.QueryConsumerOffsetRequestHeader = header_of(request)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        queue_offset = self._broker.offsets.query(group, topic, queue_id)
        if queue_offset is None:
            self._check_known(topic, queue_id)
            may_begin_at_0 = (
                topic in self._broker.topics.topics and header.set_zero_if_not_found is not False
            )
            if not may_begin_at_0 or not is_whole_queue_in_memory(self._broker, topic, queue_id):
                raise RequestRejected(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"Not found, group {group} has no offset in queue {queue_id} of topic {topic}; "
                    "maybe it boots first",
                )
            queue_offset = 0
        return success_response(request, headers.OffsetResponseHeader(queue_offset))

    @handles(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update_consumer_offset(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Store a group's offset, forwards or back."""
        header: headers.UpdateConsumerOffsetRequestHeader = header_of(request)
        group = header.consumer_group
        config = require_topic(self._broker.topics, header.topic)
        check_queue(self._broker.store, config, header.queue_id)
        fault = group_fault(group)
        if fault is not None:
            raise system_error(fault)
        if self._broker.groups.find_or_create(group) is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist",
            )
        if header.commit_offset < 0:
            raise system_error(
                f"commitOffset {header.commit_offset} is below zero; nothing was stored"
            )
        # Ignore offsets that members commit before they learn of a reset.
        if self._broker.consumers.is_reset(group, header.topic, header.queue_id):
            return success_response(request)._replace(remark="Offset has been previously reset")
        self._broker.offsets.commit(group, header.topic, header.queue_id, header.commit_offset)
        # messages that were popped in order must not block the queue at its new offset
        self._broker.order_info.clear((header.topic, group, header.queue_id))
        return success_response(request)

    @handles(RequestCode.GET_MAX_OFFSET)
    def get_max_offset(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer the offset of a queue's next message, without unconfirmed messages."""
        header: headers.GetMaxOffsetRequestHeader = header_of(request)
        self._check_known(header.topic, header.queue_id)
        high = self._broker.store.queue_offsets(header.topic, header.queue_id).next
        return success_response(request, headers.OffsetResponseHeader(high))

    @handles(RequestCode.GET_MIN_OFFSET)
    def get_min_offset(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer the first offset that a queue still holds."""
        header: headers.GetMinOffsetRequestHeader = header_of(request)
        self._check_known(header.topic, header.queue_id)
        low, high = self._broker.store.queue_offsets(
            header.topic, header.queue_id, allow_incomplete=True
        )
        if low == high:  # the first offset of a queue without messages is reported if it is known
            low = self._broker.store.queue_offsets(header.topic, header.queue_id).first
        return success_response(request, headers.OffsetResponseHeader(low))

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search_offset_by_timestamp(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer the first offset stored at a time or later; for UPPER, the last up to the time."""
        header: headers.SearchOffsetRequestHeader = header_of(request)
        self._check_known(header.topic, header.queue_id)
        boundary = (header.boundary_type or "").strip().upper()
        if boundary not in _BOUNDARIES:
            raise system_error(
                f"boundaryType must be LOWER or UPPER, not {header.boundary_type!r:.60}"
            )
        queue_offset = self._broker.store.offset_by_time(
            header.topic, header.queue_id, header.timestamp, upper=boundary == "UPPER"
        )
        return success_response(request, headers.OffsetResponseHeader(queue_offset))

    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def get_earliest_msg_storetime(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer the store time of a queue's first message, in milliseconds; -1 if it has none."""
        header: headers.GetEarliestMsgStoretimeRequestHeader = header_of(request)
        self._check_known(header.topic, header.queue_id)
        timestamp = self._broker.store.earliest_timestamp(header.topic, header.queue_id)
        return success_response(request, headers.GetEarliestMsgStoretimeResponseHeader(timestamp))

    @handles(RequestCode.GET_ALL_CONSUMER_OFFSET)
    def get_all_consumer_offset(
        self, connection: Channel, request: RemotingCommand
    ) -> ResponseSteps:
        """Answer the offsets of all topics and groups that the client may see."""
        visible = self._broker.access.visible_to(connection)
        table = yield from self._broker.offsets.wrapper_in_steps(
            lambda topic, group: visible.has_topic(topic) and visible.has_group(group)
        )
        return (yield from success_response_in_steps(request, table))

    def _check_known(self, topic: str, queue_id: int) -> None:
        """Refuse a queue that an existing topic does not have; an unknown topic looks empty."""
        config = self._broker.topics.get(topic)
        if config is not None:
            check_queue(self._broker.store, config, queue_id)
