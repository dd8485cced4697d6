"""ConsumerOffsetProcessor: stores and reports offsets of groups, and the bounds of queues.

It also finds offsets by time. As in RocketMQ, a group without an offset starts at 0 in a young
queue, which has not deleted any message yet. The queues of a topic that does not exist look empty,
as in RocketMQ; but no offset is stored for them.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.errors import RecordError
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.headers import members as headers
from rmq_spark.wire.record import decode_record

from ...common.channel import Channel, ResponseSteps
from ...state.tables.subscription_group import group_fault
from ...store.errors import UnreadableFile
from ...store.results import QueueOffset
from ..processor import Processor, handles
from ..queues import check_queue, require_topic
from ..request import (
    RequestRejected,
    header_of,
    success_response,
    success_response_in_steps,
    system_error,
)

MEMORY_RATIO: Final = 0.4
"""The share of memory that RocketMQ assumes for the end of the log that is still cached."""

SCANNED_MAX: Final = 16
"""The maximum number of messages at the start of a queue that are tried to find a readable one."""

_BOUNDARIES: Final = ("", "LOWER", "UPPER")


class ConsumerOffsetProcessor(Processor):
    """The responses to requests about offsets of groups and queues."""

    @handles(RequestCode.QUERY_CONSUMER_OFFSET)
    def query_consumer_offset(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer a group's stored offset, or 0 in a young queue; otherwise refuse the request."""
        header: headers.QueryConsumerOffsetRequestHeader = header_of(request)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        queue_offset = self._broker.offsets.query(group, topic, queue_id)
        if queue_offset is None:
            self._check_known(topic, queue_id)
            may_begin_at_0 = (
                topic in self._broker.topics.topics and header.set_zero_if_not_found is not False
            )
            if not may_begin_at_0 or not self._is_young(topic, queue_id):
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
        self._check_queue(header.topic, header.queue_id)
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
        if self._broker.consumers.is_reset(
            group, header.topic, header.queue_id
        ):  # the offset belongs to a message from before the reset
            return success_response(request)._replace(remark="Offset has been previously reset")
        self._broker.offsets.commit(group, header.topic, header.queue_id, header.commit_offset)
        return success_response(request)

    @handles(RequestCode.GET_MAX_OFFSET)
    def get_max_offset(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer the offset of a queue's next message; unconfirmed messages never count."""
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
        """Answer the first offset at a time or later; for UPPER, the last then or earlier."""
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
        """Answer the whole table of offsets, of the topics and groups that the client may see."""
        visible = self._broker.access.visible_to(connection)
        table = yield from self._broker.offsets.wrapper_in_steps(
            lambda topic, group: visible.has_topic(topic) and visible.has_group(group)
        )
        return (yield from success_response_in_steps(request, table))

    def _check_known(self, topic: str, queue_id: int) -> None:
        """Refuse a queue that an existing topic does not have; any other looks empty."""
        config = self._broker.topics.get(topic)
        if config is not None:
            check_queue(self._broker.store, config, queue_id)

    def _check_queue(self, topic: str, queue_id: int) -> None:
        check_queue(self._broker.store, require_topic(self._broker.topics, topic), queue_id)

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue's first message is so near the log's end that it is in memory.

        A queue that has had no message is young.
        """
        low, high = self._broker.store.queue_offsets(topic, queue_id, allow_incomplete=True)
        if low > 0:
            return False
        if high == 0:
            return self._broker.store.queue_offsets(topic, queue_id) == (0, 0)
        place = self._first_position(topic, queue_id, high)
        cached_bytes = int(self._broker.memory_bytes * MEMORY_RATIO)
        return place is not None and self._broker.store.confirm_offset() - place <= cached_bytes

    def _first_position(self, topic: str, queue_id: int, high: int) -> int | None:
        """Return the log position of a queue's first readable message."""
        places = (self._position(topic, queue_id, at) for at in range(min(high, SCANNED_MAX)))
        return next((place for place in places if place is not None), None)

    def _position(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        try:
            found = self._broker.store.get_message(
                topic, queue_id, QueueOffset(queue_offset), count_max=1, scan_max=1
            )
            if not found.message_count:
                return None
            return decode_record(found.buffers[0], check_crc=False).physical_offset
        except (RecordError, UnreadableFile):  # the consumer that pulls it is notified
            return None
