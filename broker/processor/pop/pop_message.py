"""PopMessageProcessor: gives members of a group the next messages of all queues of a topic.

    POP_MESSAGE ─> check topic, group, queue ─> for some pops, the retry topic first
        ─> each queue: read from the group's offset ─> check point ─> offset moves
        ─> the rest of the pops, the retry topic
        ─> found: answer when the check points are stored
        ─> nothing: hold, until a message arrives or the poll time is over

In order (FIFO), a queue gives messages only if all earlier ones are acknowledged or visible again;
it has no check point, and its offset stays at the first message that is not acknowledged.

PEEK_MESSAGE reads in the same way and changes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from rmq_spark.wire.bodies.pop import PopCheckPoint
from rmq_spark.wire.codes import RequestCode, ResponseCode, TopicPermission
from rmq_spark.wire.headers.members import PopMessageRequestHeader, PopMessageResponseHeader
from rmq_spark.wire.headers.operators import HEADERS, PeekMessageRequestHeader
from rmq_spark.wire.message.properties import change_properties
from rmq_spark.wire.message.record import decode_record, encode_record, magic_of
from rmq_spark.wire.names import RETRY_PREFIX, topic_fault
from rmq_spark.wire.pop import (
    ANY_QUEUE,
    ORDER_REVIVE_QUEUE,
    POP_CK,
    POP_MESSAGES_MAX,
    PopReceipt,
    encode_message_offsets,
    encode_order_counts,
    encode_start_offsets,
    pop_retry_topic,
    retry_mark,
)
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.header import NO_EXT_FIELDS

from ...auth.rights import Action, ResourceType
from ...common.channel import Channel
from ...longpolling.pop_request import PopHeader, PopRequest
from ...pop.pop_counters import PopQueue
from ...store.results import (
    LOG_START,
    GetMessageResult,
    GetMessageStatus,
    PutMessageResult,
    PutMessageStatus,
    QueueOffset,
)
from ..processor import BrokerParts, Processor, handles
from ..pulls.subscription_filters import SubscriptionFilter, SubscriptionFilters
from ..queues import is_whole_queue_in_memory, require_consuming_group, require_readable_topic
from ..request import HandlerResult, RequestRejected, header_of, no_permission, reply, system_error
from ..sends.acknowledger import Acknowledger
from .order_releases import OrderReleases
from .pop_offsets import PopOffsets

_READ = TopicPermission.READ.value
_QUEUE_OFFSET: Final = struct.Struct(">q")
_QUEUE_OFFSET_AT: Final = 20
_RECEIPT_NAME: Final = POP_CK.encode()
INIT_MODE_MIN: Final = 0
"""With this initMode a new group begins at the first message, with any other at the last one."""

_MOVED: Final = frozenset(
    [
        GetMessageStatus.OFFSET_TOO_SMALL,
        GetMessageStatus.OFFSET_OVERFLOW_BADLY,
        GetMessageStatus.OFFSET_FOUND_NULL,
    ]
)
_SKIPPED: Final = frozenset(
    [
        GetMessageStatus.NO_MATCHED_MESSAGE,
        GetMessageStatus.OFFSET_FOUND_NULL,
        GetMessageStatus.MESSAGE_WAS_REMOVING,
    ]
)


_NOTHING_PUT: Final = PutMessageResult(PutMessageStatus.PUT_OK, end_offset=LOG_START)


@dataclass(slots=True)
class _PopBatch:
    """The messages that one pop has found so far."""

    header: PopMessageRequestHeader
    message_filter: SubscriptionFilter
    pop_time: int
    revive_queue_id: int
    bytes_left: int
    buffers: list[Buffer] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    starts: list[tuple[str, int, int]] = field(default_factory=list)
    offsets: list[tuple[str, int, list[int]]] = field(default_factory=list)
    order_counts: list[str] = field(default_factory=list)
    last_put: PutMessageResult = _NOTHING_PUT
    moved: list[tuple[PopQueue, int]] = field(default_factory=list)
    """Queues whose offsets are stored when the check points are."""
    refusal: str | None = None
    """The reason why the store accepts no check point, or None."""


class PopMessageProcessor(Processor):
    """The responses to pops, immediate and held ones."""

    def __init__(
        self,
        broker: BrokerParts,
        filters: SubscriptionFilters,
        acknowledger: Acknowledger,
        offsets: PopOffsets,
        releases: OrderReleases,
        choose: Callable[[int], int],
    ) -> None:
        """Store the collaborators; ``choose(n)`` returns a random number below ``n``."""
        super().__init__(broker)
        self._settings = broker.config.pop
        self._store = broker.store
        self._filters = filters
        self._acknowledger = acknowledger
        self._offsets = offsets
        self._releases = releases
        self._order = broker.order_info
        self._log = broker.revive_log
        self._counters = broker.pop_counters
        self._waiters = broker.pop_waiters
        self._choose = choose
        self._next_revive_queue = 0

    @handles(RequestCode.POP_MESSAGE)
    def pop_message(self, connection: Channel, request: RemotingCommand) -> HandlerResult:
        """Answer a pop that has just arrived."""
        header: PopMessageRequestHeader = header_of(request)
        if not 0 < header.max_msg_nums <= POP_MESSAGES_MAX:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"maxMsgNums is {header.max_msg_nums}: pop 1 to {POP_MESSAGES_MAX} messages",
            )
        self.check_invisible_time(header.invisible_time, 1)
        self.check(header)
        return self._pop(connection, request, header)

    def execute_request_when_wakeup(self, held: PopRequest) -> RemotingCommand | None:
        """Answer a held pop, or hold it again for the rest of its time."""
        header = cast("PopMessageRequestHeader", held.header)
        if held.is_released:
            remark = GetMessageStatus.NO_MESSAGE_IN_QUEUE.name
            return self._nothing(held.request, header, self._broker.now_ms(), 0, remark)
        if held.connection.is_closed or held.connection.is_congested:
            # this client cannot take the message, so wake another member
            self._waiters.wake_next(header.topic, header.consumer_group, header.queue_id)
            if held.connection.is_closed:
                return None
            return self._nothing(held.request, header, self._broker.now_ms(), 0, "congested")
        self.require_rights(held)
        self.check(header)
        return self._pop(held.connection, held.request, header, held)

    def require_rights(self, held: PopRequest) -> None:
        """Refuse a held request whose client has lost its rights since it arrived."""
        access, header = self._broker.access, held.header
        if access.is_enabled:
            access.require(held.connection, ResourceType.TOPIC, header.topic, Action.SUB)
            access.require(held.connection, ResourceType.GROUP, header.consumer_group, Action.SUB)

    def check(self, header: PopHeader | PeekMessageRequestHeader) -> None:
        """Refuse a request unless its group may pop from its topic and queue."""
        if not self._broker.config.broker_permission & _READ:
            raise no_permission("the broker popping message is forbidden")
        topic = require_readable_topic(self._broker.topics, header.topic)
        if header.queue_id >= topic.read_queue_nums:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has readQueueNums "
                f"[{topic.read_queue_nums}]",
            )
        require_consuming_group(self._broker.groups, header.consumer_group)
        fault = topic_fault(pop_retry_topic(header.topic, header.consumer_group))
        if fault is not None:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"{fault}, as the topic of the group's retries: use a shorter group or topic",
            )

    def message_filter(self, header: PopHeader) -> SubscriptionFilter:
        """Return the filter in a request; None if all messages match."""
        return self._filters.for_text(header.topic, header.exp or "*", header.exp_type)

    def check_invisible_time(self, invisible_ms: int, minimum: int) -> None:
        """Refuse an invisible time that timers cannot keep."""
        if not self._broker.config.store.timer_wheel_enable:
            raise system_error("pop message is forbidden because timerWheelEnable is false")
        maximum = self._log.rules.delay_max_ms
        if not minimum <= invisible_ms <= maximum:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime is {invisible_ms}: set it to {minimum} to {maximum} ms "
                "(timerMaxDelaySec)",
            )

    # ---- one pop

    def _pop(
        self,
        connection: Channel,
        request: RemotingCommand,
        header: PopMessageRequestHeader,
        held: PopRequest | None = None,
    ) -> RemotingCommand | None:
        popped = _PopBatch(
            header,
            self.message_filter(header),
            self._broker.now_ms(),
            self._revive_queue(header),
            min(self._broker.config.max_transfer_bytes, connection.response_bytes_max),
        )
        self._apply_resets(header)
        for topic, queue_id in self.queues(header, is_in_order=bool(header.order)):
            if popped.refusal is None:
                self._pop_queue(popped, topic, queue_id)
        if popped.refusal is not None and not popped.count:
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, popped.refusal)
        if not popped.count:
            return self._hold(connection, request, popped, held)
        bare = request.without_content()
        self._acknowledger.when_stored(
            popped.last_put, lambda result: self._respond(connection, bare, popped, result)
        )
        if popped.rest:
            self._waiters.wake_next(header.topic, header.consumer_group, header.queue_id)
        return None

    def _revive_queue(self, header: PopMessageRequestHeader) -> int:
        if header.order:
            return ORDER_REVIVE_QUEUE
        self._next_revive_queue = (self._next_revive_queue + 1) % self._settings.revive_queue_nums
        return self._next_revive_queue

    def queues(
        self, header: PopHeader | PeekMessageRequestHeader, *, is_in_order: bool
    ) -> Iterator[tuple[str, int]]:
        """Yield the queues to read; those of retry topics come first or last, never in order."""
        is_retry_first = self._choose(100) < self._settings.from_retry_percent
        if is_retry_first and not is_in_order:
            yield from self._retry_queues(header)
        if header.queue_id > ANY_QUEUE:
            yield header.topic, header.queue_id
        else:
            yield from self._queues_of(header.topic)
        if not is_retry_first and not is_in_order:
            yield from self._retry_queues(header)

    def _retry_queues(
        self, header: PopHeader | PeekMessageRequestHeader
    ) -> Iterator[tuple[str, int]]:
        is_v2 = self._settings.retry_topic_v2
        for version in (True, False) if is_v2 else (False,):
            if version == is_v2 or self._settings.retrieve_from_retry_topic_v1:
                topic = pop_retry_topic(header.topic, header.consumer_group, is_v2=version)
                yield from self._queues_of(topic)

    def _queues_of(self, topic: str) -> Iterator[tuple[str, int]]:
        """Yield all queues, a random one first, so that busy queues do not starve the others."""
        config = self._broker.topics.get(topic)
        if config is not None and config.read_queue_nums:
            start = self._choose(config.read_queue_nums)
            for number in range(config.read_queue_nums):
                yield topic, (start + number) % config.read_queue_nums

    def _apply_resets(self, header: PopMessageRequestHeader) -> None:
        """Continue at the offsets to which an operator has reset the group."""
        members = self._broker.consumers.group(header.consumer_group)
        if members is None or not members.resets:
            return
        for topic, queue_id in tuple(members.resets):
            if topic == header.topic and header.queue_id in (ANY_QUEUE, queue_id):
                target = members.resets.pop((topic, queue_id))
                queue = topic, header.consumer_group, queue_id
                self._order.clear(queue)
                self._offsets.store(queue, target)

    def _pop_queue(self, popped: _PopBatch, topic: str, queue_id: int) -> None:
        header = popped.header
        queue = topic, header.consumer_group, queue_id
        low, high = self._store.queue_offsets(topic, queue_id)
        begin = self.begin_offset(queue, low, high, header.init_mode)
        if header.order and self._order.is_blocked(queue, header.attempt_id, header.invisible_time):
            return  # not counted in ``rest``, because nobody can pop them now
        left = header.max_msg_nums - popped.count
        is_over = (
            self._settings.is_threshold_enabled
            and self._counters.in_flight(queue) > self._settings.in_flight_max
        )
        if begin == high or left <= 0 or popped.bytes_left <= 0 or is_over:
            popped.rest += 0 if is_over else max(high - begin, 0)
            return
        is_retry = topic.startswith(RETRY_PREFIX)
        message_filter = None if is_retry else popped.message_filter
        found = self._get(popped, topic, queue_id, begin, message_filter)
        if found.status in _MOVED:
            begin = found.next_begin_offset
            self._offsets.store(queue, begin)
            found = self._get(popped, topic, queue_id, begin, message_filter)
        if found.message_count:
            self._add_popped(popped, queue, begin, found)
        elif found.status in _SKIPPED and found.next_begin_offset > begin:
            if header.order:
                self._offsets.store(queue, found.next_begin_offset)
            else:
                self._offsets.advance(queue, found.next_begin_offset)
                popped.moved.append((queue, found.next_begin_offset))
        if popped.refusal is None:
            popped.rest += max(found.max_offset - found.next_begin_offset, 0)

    def begin_offset(self, queue: PopQueue, low: int, high: int, init_mode: int) -> int:
        """Return where a group continues in a queue; store that if the group is new there."""
        begin = self._offsets.query(queue)
        if begin is not None:
            return begin
        topic, _, queue_id = queue
        is_from_first = init_mode == INIT_MODE_MIN or topic.startswith(RETRY_PREFIX)
        if is_from_first or is_whole_queue_in_memory(self._broker, topic, queue_id):
            begin = low
        else:
            begin = max(high - 1, 0)
        self._offsets.store(queue, begin)
        return begin

    def _get(
        self,
        popped: _PopBatch,
        topic: str,
        queue_id: int,
        begin: int,
        message_filter: SubscriptionFilter,
    ) -> GetMessageResult:
        return self._store.get_message(
            topic,
            queue_id,
            QueueOffset(begin),
            count_max=popped.header.max_msg_nums - popped.count,
            bytes_max=popped.bytes_left,
            message_filter=message_filter,
        )

    def _add_popped(
        self, popped: _PopBatch, queue: PopQueue, begin: int, found: GetMessageResult
    ) -> None:
        """Make messages invisible to other members, and add them to the response."""
        header = popped.header
        topic, group, queue_id = queue
        joined = b"".join(found.buffers)
        data = memoryview(joined)
        ranges = _record_ranges(found.sizes)
        offsets = [_QUEUE_OFFSET.unpack_from(data, at + _QUEUE_OFFSET_AT)[0] for at, _ in ranges]
        if header.order:
            counts = self._order.update(
                queue, header.attempt_id, popped.pop_time, header.invisible_time, offsets
            )
            least = min(counts.values()) if len(counts) == len(offsets) else 0
            popped.order_counts.append(encode_order_counts(topic, queue_id, counts, least))
            self._releases.schedule(queue)
        else:
            put = self._log.put_check_point(
                PopCheckPoint(
                    start_offset=begin,
                    pop_time=popped.pop_time,
                    invisible_time=header.invisible_time,
                    count=len(offsets),
                    queue_id=queue_id,
                    topic=topic,
                    group=group,
                    diffs=tuple(each - begin for each in offsets),
                    broker_name=self._broker.config.broker_name,
                ),
                popped.revive_queue_id,
            )
            if put.status is not PutMessageStatus.PUT_OK:
                popped.refusal = put.remark or put.status.name
                return
            popped.last_put = put
            self._offsets.advance(queue, found.next_begin_offset)
            popped.moved.append((queue, found.next_begin_offset))
        popped.starts.append((topic, queue_id, begin))
        popped.offsets.append((topic, queue_id, offsets))
        # Clients build the receipt unless the message has one; a forwarded message has that of its
        # old pop.
        needs_receipts = topic.startswith(RETRY_PREFIX) or _RECEIPT_NAME in joined
        for (at, end), queue_offset in zip(ranges, offsets, strict=True):
            popped.buffers.append(
                self._with_receipt(popped, topic, begin, queue_offset, data[at:end])
                if needs_receipts
                else data[at:end]
            )
        popped.count += len(offsets)
        popped.bytes_left -= len(data)
        self._counters.pop(queue, len(offsets))
        self._broker.stats.record_get(topic, group, len(offsets), len(data), 0)

    def _with_receipt(
        self, popped: _PopBatch, topic: str, begin: int, queue_offset: int, record: memoryview
    ) -> Buffer:
        """Return a record with the receipt of this pop and its original topic."""
        message = decode_record(record, check_crc=False)
        receipt = PopReceipt(
            begin,
            popped.pop_time,
            popped.header.invisible_time,
            popped.revive_queue_id,
            retry_mark(topic),
            self._broker.config.broker_name,
            message.queue_id,
            queue_offset,
        )
        properties = change_properties(message.properties_text, {POP_CK: receipt.encode()})
        origin = popped.header.topic
        return encode_record(
            replace(message, topic=origin, properties_text=properties, magic=magic_of(origin))
        )

    # ---- answers

    def _respond(
        self,
        connection: Channel,
        request: RemotingCommand,
        popped: _PopBatch,
        result: PutMessageResult,
    ) -> None:
        """Send what a pop has found; its check points are stored."""
        if result.status is not PutMessageStatus.PUT_OK:
            reply(
                connection,
                request,
                request.respond(ResponseCode.SYSTEM_BUSY, result.remark or result.status.name),
            )
            return
        for queue, next_offset in popped.moved:
            self._offsets.confirm(queue, next_offset)
        header = popped.header
        fields = PopMessageResponseHeader(
            pop_time=popped.pop_time,
            invisible_time=header.invisible_time,
            revive_qid=popped.revive_queue_id,
            rest_num=popped.rest,
            start_offset_info=encode_start_offsets(popped.starts),
            msg_offset_info=encode_message_offsets(popped.offsets),
            order_count_info=";".join(popped.order_counts) if header.order else None,
        )
        reply(
            connection,
            request,
            request.respond(
                ResponseCode.SUCCESS,
                GetMessageStatus.FOUND.name,
                _encode(fields),
                b"".join(popped.buffers),
            ),
        )

    def _hold(
        self,
        connection: Channel,
        request: RemotingCommand,
        popped: _PopBatch,
        held: PopRequest | None,
    ) -> RemotingCommand | None:
        """Hold a pop that has found nothing, or answer it if its time is over."""
        for queue, next_offset in popped.moved:  # no popped message is before these offsets
            self._offsets.confirm(queue, next_offset)
        header = popped.header
        code, remark = ResponseCode.POLLING_TIMEOUT, GetMessageStatus.NO_MESSAGE_IN_QUEUE.name
        if held is None:
            held = self.held(connection, request, header, popped.message_filter)
        if held.deadline_ms > self._broker.monotonic_ms() and not connection.is_congested:
            if self.suspend(held):
                if popped.rest:  # more messages than one pop scans
                    self._waiters.wake_next(header.topic, header.consumer_group, header.queue_id)
                return None
            code = ResponseCode.POLLING_FULL
        return self._nothing(request, header, popped.pop_time, popped.rest, remark, code)

    def held(
        self,
        connection: Channel,
        request: RemotingCommand,
        header: PopHeader,
        message_filter: SubscriptionFilter,
        *,
        is_notification: bool = False,
    ) -> PopRequest:
        """Return the `PopRequest` that holds a request from now on."""
        holds = self._broker.config.holds
        if holds.long_polling_enable:
            timeout_ms = min(header.poll_time, holds.suspend_timeout_max_ms)
        else:
            timeout_ms = min(header.poll_time, holds.short_polling_time_ms)
        return PopRequest(
            connection,
            request._replace(remark=None, ext_fields=NO_EXT_FIELDS, body=b""),
            header,
            self._broker.monotonic_ms(),
            timeout_ms,
            # with a filter that reads messages, any arrival wakes the pop, which then filters
            None if message_filter is None or message_filter.needs_messages else message_filter,
            0,
            is_notification,
        )

    def suspend(self, held: PopRequest) -> bool:
        """Hold a request until the next arrival; return False if too many are held."""
        held = replace(held, no_match_before=self._waiters.arrivals)
        if not self._broker.suspend(held):
            return False
        self._waiters.register(held)
        return True

    def _nothing(
        self,
        request: RemotingCommand,
        header: PopMessageRequestHeader,
        pop_time: int,
        rest: int,
        remark: str,
        code: ResponseCode = ResponseCode.POLLING_TIMEOUT,
    ) -> RemotingCommand:
        fields = PopMessageResponseHeader(pop_time, header.invisible_time, 0, rest, "", "")
        return request.respond(code, remark, _encode(fields))

    # ---- peeks

    @handles(RequestCode.PEEK_MESSAGE)
    def peek_message(self, connection: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer PEEK_MESSAGE with the next messages of a group, which stay visible."""
        header: PeekMessageRequestHeader = header_of(request)
        self.check(header)
        left = min(max(header.max_msg_nums, 1), POP_MESSAGES_MAX)
        bytes_left = min(self._broker.config.max_transfer_bytes, connection.response_bytes_max)
        buffers: list[Buffer] = []
        rest = 0
        for topic, queue_id in self.queues(header, is_in_order=False):
            low, high = self._store.queue_offsets(topic, queue_id)
            begin = self._offsets.query((topic, header.consumer_group, queue_id))
            begin = low if begin is None else max(begin, low)
            rest += max(high - begin, 0)
            if begin >= high or left <= 0 or bytes_left <= 0:
                continue
            found = self._store.get_message(
                topic, queue_id, QueueOffset(begin), count_max=left, bytes_max=bytes_left
            )
            buffers += found.buffers
            rest -= found.message_count
            left -= found.message_count
            bytes_left -= found.record_bytes
        code = ResponseCode.SUCCESS if buffers else ResponseCode.PULL_NOT_FOUND
        status = GetMessageStatus.FOUND if buffers else GetMessageStatus.NO_MESSAGE_IN_QUEUE
        fields = PopMessageResponseHeader(self._broker.now_ms(), 0, 0, rest, "", "")
        return request.respond(code, status.name, _encode(fields), b"".join(buffers))


def _record_ranges(sizes: object) -> list[tuple[int, int]]:
    ranges, at = [], 0
    for size in map(int, sizes):  # type: ignore[call-overload]  # numbers of numpy or a list
        ranges.append((at, at + size))
        at += size
    return ranges


def _encode(fields: PopMessageResponseHeader) -> dict[str, str]:
    codec: Any = HEADERS[RequestCode.POP_MESSAGE].response
    fields_of_header: dict[str, str] = codec.encode(fields)
    return fields_of_header
