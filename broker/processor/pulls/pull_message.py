"""PullMessageProcessor: checks, filters, reads from the store, and answers; replays held pulls.

    PULL_MESSAGE ─> check topic, group, queue ─> subscription, filter ─> store
        ─> found: unchanged slices of the log
        ─> other: a code and an offset
        ─> nothing yet: hold
    woken ─> the same way, never held again, no offset committed

Rights and settings may have changed when a held pull is woken, so they are checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Final, cast

from rmq_spark.wire.bodies.clients import MessageModel, SubscriptionData
from rmq_spark.wire.codes import PullSysFlag, RequestCode, ResponseCode, TopicPermission
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import PullMessageRequestHeader
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.header import NO_EXT_FIELDS

from ...auth.rights import Action, ResourceType
from ...common.channel import Channel, ResponseSteps
from ...longpolling.pull_request import PullRequest
from ...store.bulk import bulk_tools
from ...store.config import BrokerRole
from ...store.read.entry_selection import DEFAULT_LIMITS
from ...store.results import GetMessageResult, GetMessageStatus, Numbers, QueueOffset
from ..fast_paths import ResponseTemplate
from ..processor import BrokerParts, Processor, handles
from ..queues import require_consuming_group, require_readable_topic
from ..request import HandlerResult, RequestRejected, header_of, no_permission, system_error
from .subscription_filters import SubscriptionFilter, SubscriptionFilters

_COMMIT_OFFSET = PullSysFlag.COMMIT_OFFSET.value
_SUSPEND = PullSysFlag.SUSPEND.value
_SUBSCRIPTION = PullSysFlag.SUBSCRIPTION.value
_READ = TopicPermission.READ.value

_ENTRIES_SCANNED: Final = DEFAULT_LIMITS.scan_max
_EXTENDED_ENTRIES_SCANNED: Final = 300_000
_EXTENDED_ENTRIES_FILTERED: Final = 4_000
"""Entries that a large pull reads, and filters if the filter reads messages; some five ms."""

_CONSTANT_FIELDS: Final = {"suggestWhichBrokerId": "0"}
_VARYING_FIELDS: Final = {"nextBeginOffset": "%d", "minOffset": "%d", "maxOffset": "%d"}

_CODES: Final = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullMessageProcessor(Processor):
    """The responses to pulls, immediate and held ones."""

    def __init__(self, broker: BrokerParts, filters: SubscriptionFilters) -> None:
        super().__init__(broker)
        self._access = broker.access
        self._store = broker.store
        self._topics = broker.topics
        self._groups = broker.groups
        self._consumers = broker.consumers
        self._offsets = broker.offsets
        self._stats = broker.stats
        self._filters = filters
        self._now_ms = broker.monotonic_ms
        self._suspend = broker.suspend
        self._found_response = ResponseTemplate(
            _VARYING_FIELDS, _CONSTANT_FIELDS, GetMessageStatus.FOUND.name
        )
        self._commits = broker.config.store.broker_role is not BrokerRole.SLAVE

    @handles(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    @handles(RequestCode.PULL_CHUNK, extension=Extension.PULL_CHUNK)
    @handles(RequestCode.PULL_PLACES, extension=Extension.READ_FILES)
    def pull_message(self, connection: Channel, request: RemotingCommand) -> HandlerResult:
        """Answer a pull that has just arrived."""
        header: PullMessageRequestHeader = header_of(request)
        if request.code == RequestCode.PULL_PLACES:
            self._access.require_every_topic(connection, Action.SUB)
        self._check(header)
        message_filter = self.message_filter(header)
        needs_messages = message_filter is not None and message_filter.needs_messages
        if (needs_messages or request.code in _BODIES) and not bulk_tools.are_loaded():
            return _when_loaded(partial(self.process, connection, request, header, message_filter))
        return self.process(connection, request, header, message_filter)

    def execute_request_when_wakeup(self, held: PullRequest) -> RemotingCommand | None:
        """Replay a held pull with the same opaque, if its client still has the rights."""
        if self._access.is_enabled:
            self._require_rights(held)
        if held.connection.is_congested:
            # The client leaves responses unread; it sends a new pull when it reads again.
            low, high = self._store.queue_offsets(*held.queue)
            fields = _fields(held.pull_from_this_offset, low, high)
            return held.request.respond(ResponseCode.PULL_NOT_FOUND, "congested", fields)
        self._check(held.header)
        message_filter = self._filter_of(held)
        return self.process(
            held.connection, held.request, held.header, message_filter, may_hold=False
        )

    def _require_rights(self, held: PullRequest) -> None:
        """Refuse a held pull whose client has lost the right to it since it arrived."""
        connection, header = held.connection, held.header
        require = self._access.require
        require(connection, ResourceType.TOPIC, header.topic, Action.SUB)
        require(connection, ResourceType.GROUP, header.consumer_group, Action.SUB)
        if held.request.code == RequestCode.PULL_PLACES:
            self._access.require_every_topic(connection, Action.SUB)

    def is_matched_by_commit_log(
        self, held: PullRequest, from_queue_offset: int
    ) -> Generator[None, None, bool]:
        """Return, in steps, whether a held pull's filter matches any message from an offset on.

        It returns True if there are too many to check: the replay checks some, and the client
        continues from there.
        """
        topic, queue_id = held.queue
        try:
            message_filter = self._filter_of(held)
        except RequestRejected:  # its group has left or changed: the replay will answer that
            return True
        at = QueueOffset(from_queue_offset)
        scan_end = at + _EXTENDED_ENTRIES_FILTERED
        while at < scan_end:
            found = self._store.get_message(
                topic, queue_id, at, count_max=1_024, message_filter=message_filter
            )
            if found.status is GetMessageStatus.FOUND:
                return True
            if found.next_begin_offset <= at:  # the queue's end, or an error for the replay
                return found.status is not GetMessageStatus.OFFSET_OVERFLOW_ONE
            at = found.next_begin_offset
            yield
        return True

    def process(
        self,
        connection: Channel,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        message_filter: SubscriptionFilter,
        *,
        may_hold: bool = True,
    ) -> RemotingCommand | None:
        """Answer or hold a pull that has been checked, and whose filter is known.

        Return the response to send, or None if it was sent or the pull is held.
        """
        members = self._consumers.group(header.consumer_group)
        if members is not None and members.resets and connection in members.clients:
            target = members.resets.pop((header.topic, header.queue_id), None)
            if target is not None:
                low, high = self._store.queue_offsets(header.topic, header.queue_id)
                fields = _fields(target, low, high)
                return request.respond(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", fields)
        if (
            may_hold
            and header.sys_flag & _COMMIT_OFFSET
            and self._commits
            and header.commit_offset >= 0
        ):
            self._offsets.advance(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        body_of = _BODIES.get(request.code)
        started_ms = self._now_ms()
        found = self._get_message(
            header, message_filter, connection.response_bytes_max, request.code
        )
        elapsed_ms = self._now_ms() - started_ms
        self._stats.record_get(
            header.topic, header.consumer_group, found.message_count, found.record_bytes, elapsed_ms
        )
        code = _CODES.get(found.status)
        if code is None:  # the queue has no messages
            is_start = header.queue_offset == 0
            code = ResponseCode.PULL_NOT_FOUND if is_start else ResponseCode.PULL_OFFSET_MOVED
        # Before the end, the client has to continue from there.
        is_end = found.next_begin_offset >= found.max_offset
        can_wait = may_hold and header.sys_flag & _SUSPEND and not connection.is_congested
        if code is ResponseCode.PULL_NOT_FOUND and is_end and can_wait:
            held = PullRequest(
                connection,
                request._replace(remark=None, ext_fields=NO_EXT_FIELDS, body=b""),
                _replay_header(header),
                self._now_ms(),
                self._timeout_ms(header.suspend_timeout_millis),
                message_filter,
                max(found.next_begin_offset, found.max_offset),  # the offset of the next message
            )
            if self._suspend(held):
                return None
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                "no more pulls can be held: raise maxHolds, or pull from fewer queues",
            )
        offsets = (found.next_begin_offset, found.min_offset, found.max_offset)
        if code is not ResponseCode.SUCCESS:
            return request.respond(code, found.status.name, _fields(*offsets))
        body = found.buffers if body_of is None else body_of(found)
        self._found_response.send(connection, request, *offsets, body=body)
        return None

    def _check(self, header: PullMessageRequestHeader) -> None:
        if not self._broker.config.broker_permission & _READ:
            raise no_permission("the broker pulling message is forbidden")
        require_consuming_group(self._groups, header.consumer_group)
        topic = require_readable_topic(self._topics, header.topic)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise system_error(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has readQueueNums "
                f"[{topic.read_queue_nums}]"
            )

    def _filter_of(self, held: PullRequest) -> SubscriptionFilter:
        """Return the filter of a held pull; a subscription in the pull is not parsed again."""
        if held.header.sys_flag & _SUBSCRIPTION:
            return cast("SubscriptionFilter", held.message_filter)  # `process` has put it there
        return self.message_filter(held.header)

    def message_filter(self, header: PullMessageRequestHeader) -> SubscriptionFilter:
        """Return the filter of a pull, or None if it wants all messages.

        Raises:
            RequestRejected: Its group has no such subscription, or an invalid one.
        """
        if header.sys_flag & _SUBSCRIPTION:
            return self._filters.for_text(header.topic, header.subscription, header.expression_type)
        return self._filters.for_subscription(self._subscription_from_heartbeats(header))

    def _subscription_from_heartbeats(self, header: PullMessageRequestHeader) -> SubscriptionData:
        group = self._consumers.group(header.consumer_group)
        subscription = group.subscriptions.get(header.topic) if group is not None else None
        if group is None or subscription is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the group {header.consumer_group} has sent no subscription to {header.topic} yet",
            )
        config = self._groups.get(header.consumer_group)
        if (
            config is not None
            and not config.consume_broadcast_enable
            and group.message_model is MessageModel.BROADCASTING
        ):
            raise no_permission(f"the group {header.consumer_group} may not consume by broadcast")
        if subscription.sub_version < header.sub_version:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of {header.consumer_group} to {header.topic} is not the latest",
            )
        return subscription

    def _get_message(
        self,
        header: PullMessageRequestHeader,
        message_filter: SubscriptionFilter,
        response_bytes_max: int,
        code: int,
    ) -> GetMessageResult:
        config = self._broker.config
        count_max = max(header.max_msg_nums, 1)
        bytes_max = min(
            header.max_msg_bytes or config.max_transfer_bytes_extended, response_bytes_max
        )
        if code in _BODIES:
            filtered = message_filter is not None and message_filter.needs_messages
            scan_max = _EXTENDED_ENTRIES_FILTERED if filtered else _EXTENDED_ENTRIES_SCANNED
            bytes_max = min(bytes_max, config.max_transfer_bytes_extended)
        else:
            count_max = min(count_max, config.max_transfer_count)
            scan_max = _ENTRIES_SCANNED
            bytes_max = min(bytes_max, config.max_transfer_bytes)
        return self._store.get_message(
            header.topic,
            header.queue_id,
            QueueOffset(header.queue_offset),
            count_max=count_max,
            bytes_max=bytes_max,
            scan_max=scan_max,
            message_filter=message_filter,
            wants_offsets_only=_are_contiguous if code == RequestCode.PULL_PLACES else None,
        )

    def _timeout_ms(self, suspend_timeout_ms: int) -> int:
        holds = self._broker.config.holds
        if not holds.long_polling_enable:
            return holds.short_polling_time_ms
        return min(
            max(suspend_timeout_ms, holds.suspend_timeout_min_ms), holds.suspend_timeout_max_ms
        )


def _when_loaded(process: Callable[[], RemotingCommand | None]) -> ResponseSteps:
    """Process a pull once the tools for many messages are loaded."""
    yield from bulk_tools.load_in_steps()
    return process()


def _replay_header(header: PullMessageRequestHeader) -> PullMessageRequestHeader:
    """Return a header with only the fields that a replay needs: others have unlimited length."""
    if header.sys_flag & _SUBSCRIPTION:
        return header._replace(proxy_froward_client_id=None, broker_name=None)
    return header._replace(
        proxy_froward_client_id=None, broker_name=None, subscription=None, expression_type=None
    )


def _fields(*offsets: int) -> dict[str, str]:
    return {**_CONSTANT_FIELDS, **dict(zip(_VARYING_FIELDS, map(str, offsets), strict=True))}


def _with_sizes(found: GetMessageResult) -> tuple[Buffer, ...]:
    from rmq_spark.wire.chunk.sized_chunk import encode_sizes  # noqa: PLC0415  # imports pyarrow

    return (encode_sizes(found.sizes), *found.buffers)


def _with_positions(found: GetMessageResult) -> tuple[Buffer, ...]:
    from rmq_spark.wire.chunk.record_locations import encode_inline, encode_locations  # noqa: PLC0415  # imports pyarrow

    if found.buffers:
        return (encode_inline(found.sizes), *found.buffers)
    return (encode_locations(found.physical_offsets, found.sizes),)


def _are_contiguous(positions: Numbers, sizes: Numbers) -> bool:
    from rmq_spark.wire.chunk.record_locations import has_long_runs  # noqa: PLC0415  # imports pyarrow

    return has_long_runs(positions, sizes)


_BODIES: Final[Mapping[int, Callable[[GetMessageResult], tuple[Buffer, ...]]]] = {
    RequestCode.PULL_CHUNK: _with_sizes,
    RequestCode.PULL_PLACES: _with_positions,
}
"""Functions that encode the bodies of responses to large pulls."""
