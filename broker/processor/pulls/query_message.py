"""Queries: messages by key, by unique id and by their offset in the log; entries of a queue.

Responses contain unchanged records of the log; clients compare keys and topics again. An entry of a
queue says whether a group would receive its message; an offset without a message is a blank entry,
as in the queue's file.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Final

from rmq_spark.errors import RecordError
from rmq_spark.wire.bodies.clients import SubscriptionData
from rmq_spark.wire.bodies.operators import ConsumeQueueData, QueryConsumeQueueResponseBody
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.operators import (
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
)
from rmq_spark.wire.message.properties import tags_code
from rmq_spark.wire.message.record import StoredMessage, decode_record
from rmq_spark.wire.message.record_layout import BLANK_SIZE, ROLLED_BACK
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer

from ...auth.rights import Action
from ...common.channel import Channel, ResponseSteps
from ...store.errors import IndexLimitReached
from ...store.read.entry_selection import MessageFilter
from ...store.results import QueueOffset
from ..processor import BrokerParts, Processor, handles
from ..queues import may_read
from ..request import RequestRejected, header_of, success_response, system_error

MESSAGES_MAX: Final = 64
"""The maximum number of messages in a response, whatever the request says."""
UNIQUE_KEY_MESSAGES: Final = 32
"""The maximum for a unique key, which retries of a message share, whatever the request says."""
RESPONSE_BYTES_MAX: Final = 8 << 20
"""The maximum bytes of records, because clients accept frames up to 16 MiB; the first is always
sent.
"""

_INDEX_TYPES: Final = ("", "K", "U")


class QueryMessageProcessor(Processor):
    """The responses to queries of messages."""

    @handles(RequestCode.QUERY_MESSAGE)
    def query(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer QUERY_MESSAGE with the newest messages with a key, the oldest of them first.

        The index finds messages by a hash, so some may be of other topics.
        """
        header: QueryMessageRequestHeader = header_of(request)
        _check(header)
        wanted = (
            UNIQUE_KEY_MESSAGES if header.unique_key_query else min(header.max_num, MESSAGES_MAX)
        )
        records: list[Buffer] = []
        left = RESPONSE_BYTES_MAX
        try:
            for record in self._broker.store.query_message_in_steps(
                header.topic,
                header.key,
                max(wanted, 0),
                header.begin_timestamp,
                header.end_timestamp,
            ):
                yield None
                if record is not None and may_read(
                    self._broker, connection, record, Action.SUB, Action.GET
                ):
                    left -= len(record)
                    if left < 0 and records:
                        break
                    records.append(record)
        except IndexLimitReached as error:  # the search is incomplete: the message may exist
            raise system_error(str(error)) from error
        if not records:
            why = (
                "maybe time range not correct"
                if self._broker.config.store.message_index_enable
                else "messageIndexEnable=false"
            )
            raise RequestRejected(ResponseCode.QUERY_NOT_FOUND, f"can not find message, {why}")
        # The index catches up first: a query must find everything visible now.
        indexed = QueryMessageResponseHeader(
            self._broker.now_ms(), self._broker.store.state().reput_from_offset
        )
        return success_response(request, indexed)._replace(body=b"".join(reversed(records)))

    @handles(RequestCode.VIEW_MESSAGE_BY_ID)
    def view(self, connection: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer VIEW_MESSAGE_BY_ID with the record at a log offset, if the client may read it."""
        physical_offset = header_of(request).offset
        record = self._broker.store.record_at(physical_offset)
        if record is None or not may_read(self._broker, connection, record, Action.SUB, Action.GET):
            raise system_error(f"can not find message by the offset, {physical_offset}")
        return request.respond(ResponseCode.SUCCESS, body=record)


def _check(header: QueryMessageRequestHeader) -> None:
    """Refuse options of RocketMQ 5.5 that this index does not support."""
    if (header.index_type or "") not in _INDEX_TYPES:
        raise system_error(
            f"indexType must be K (keys) or U (unique keys), not {header.index_type!r}: tags are "
            "not indexed"
        )
    if header.last_key:
        raise system_error("this index has no pages: leave out lastKey")


ENTRIES_MAX: Final = 256
SCAN_BYTES_MAX: Final = 8 << 20
"""The maximum bytes of messages that a response examines; further entries are left out."""


class QueryConsumeQueueProcessor(Processor):
    """The responses that list entries of a queue, and whether a group's filter accepts each."""

    def __init__(
        self, broker: BrokerParts, filter_for: Callable[[SubscriptionData], MessageFilter | None]
    ) -> None:
        super().__init__(broker)
        self._filter_for = filter_for

    @handles(RequestCode.QUERY_CONSUME_QUEUE)
    def query(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer QUERY_CONSUME_QUEUE with entries from an index on."""
        header: QueryConsumeQueueRequestHeader = header_of(request)
        topic, queue_id = header.topic or "", header.queue_id
        low, high = self._broker.store.queue_offsets(topic, queue_id)
        if not high:
            raise system_error(f"{queue_id}@{topic} is not exist!")
        group = header.consumer_group
        subscription = self._broker.consumers.subscription(group, topic) if group else None
        message_filter = self._filter_for(subscription) if subscription else None
        count = min(max(header.entry_count, 0), ENTRIES_MAX)
        start = QueueOffset(max(header.from_index, 0))
        rolled_back = self._broker.store.staged_batches.rolled_back_offsets(
            topic, queue_id, start, count
        )
        if start not in rolled_back:
            start = max(start, low)
        end = min(start + count, high)
        matching = set()
        for message, _size in self._messages(topic, queue_id, start, end, message_filter):
            if isinstance(message, StoredMessage):
                matching.add(message.queue_offset)
            yield None
        entries: list[ConsumeQueueData] = []
        for message, size in self._messages(topic, queue_id, start, end, None):
            if isinstance(message, StoredMessage):
                gap = range(start + len(entries), min(message.queue_offset, end))
                entries += [_blank_entry(is_rolled_back=each in rolled_back) for each in gap]
            while start + len(entries) in rolled_back:  # a damaged record's position is unknown
                entries.append(_blank_entry(is_rolled_back=True))
            entries.append(_entry(message, size, matching))
            yield None
        while start + len(entries) in rolled_back:
            entries.append(_blank_entry(is_rolled_back=True))
        body = QueryConsumeQueueResponseBody(
            subscription_data=subscription,
            filter_data=f"{group}@{topic} is not online!"
            if group and subscription is None
            else None,
            queue_data=tuple(entries),
            max_queue_index=high,
            min_queue_index=low,
        )
        return success_response(request, body=body)

    def _messages(
        self, topic: str, queue_id: int, start: int, end: int, message_filter: MessageFilter | None
    ) -> Iterator[tuple[StoredMessage | RecordError, int]]:
        """Yield each message between two offsets, or its fault, with the size of its record."""
        left = SCAN_BYTES_MAX
        while start < end and left > 0:
            count = end - start
            found = self._broker.store.get_message(
                topic,
                queue_id,
                QueueOffset(start),
                count_max=count,
                scan_max=count,
                message_filter=message_filter,
            )
            for record in found.each_record():
                left -= len(record)
                yield _decoded(record), len(record)
            if found.next_begin_offset <= start:
                return
            start = found.next_begin_offset


def _decoded(record: Buffer) -> StoredMessage | RecordError:
    try:
        return decode_record(record, check_crc=False)
    except RecordError as error:
        return error


def _blank_entry(*, is_rolled_back: bool) -> ConsumeQueueData:
    return ConsumeQueueData(physic_size=BLANK_SIZE, tags_code=ROLLED_BACK if is_rolled_back else 0)


def _entry(
    message: StoredMessage | RecordError, size: int, matching: Container[int]
) -> ConsumeQueueData:
    if isinstance(message, RecordError):  # the operator may be looking for exactly this message
        return ConsumeQueueData(physic_size=size, msg=str(message))
    return ConsumeQueueData(
        physic_offset=message.physical_offset,
        physic_size=size,
        tags_code=tags_code(message.tags),
        eval=message.queue_offset in matching,
    )
