"""QueryMessageProcessor: finds messages by key, by unique id, and by their offset in the log.

It sends the records as they lie in the log; clients compare keys and topics again.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.headers.operators import QueryMessageRequestHeader, QueryMessageResponseHeader

from ...common.channel import Channel, ResponseSteps
from ..processor import Processor, handles
from ..request import RequestRejected, header_of, success_response

MESSAGES_MAX: Final = 64
"""The maximum number of messages in one answer, whatever is asked for."""
UNIQUE_KEY_MESSAGES: Final = 32
"""For a unique key, RocketMQ ignores the client's number: retries of a message share the key."""
ANSWER_BYTES_MAX: Final = 8 << 20
"""Records beyond are left out, as a client takes no frame over 16 MiB; the first always goes."""

_INDEX_TYPES: Final = ("", "K", "U")


class QueryMessageProcessor(Processor):
    """The responses to people and tools that look messages up."""

    @handles(RequestCode.QUERY_MESSAGE)
    def query(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer QUERY_MESSAGE with the newest messages with a key, the oldest of them first."""
        header: QueryMessageRequestHeader = header_of(request)
        _check(header)
        wanted = (
            UNIQUE_KEY_MESSAGES if header.unique_key_query else min(header.max_num, MESSAGES_MAX)
        )
        records: list[Buffer] = []
        left = ANSWER_BYTES_MAX
        for record in self._broker.store.query_message_in_steps(
            header.topic, header.key, max(wanted, 0), header.begin_timestamp, header.end_timestamp
        ):
            yield None
            if record is not None:
                left -= len(record)
                if left < 0 and records:
                    break
                records.append(record)
        if not records:
            why = (
                "maybe time range not correct"
                if self._broker.config.store.message_index_enable
                else "messageIndexEnable=false"
            )
            raise RequestRejected(ResponseCode.QUERY_NOT_FOUND, f"can not find message, {why}")
        # A query lets the index catch up first: it knows all that is visible, as of now.
        indexed = QueryMessageResponseHeader(
            self._broker.now_ms(), self._broker.store.state().reput_from_offset
        )
        return success_response(request, indexed)._replace(body=b"".join(reversed(records)))

    @handles(RequestCode.VIEW_MESSAGE_BY_ID)
    def view(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer VIEW_MESSAGE_BY_ID with the record that starts at a log offset."""
        physical_offset = header_of(request).offset
        record = self._broker.store.record_at(physical_offset)
        if record is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}"
            )
        return request.respond(ResponseCode.SUCCESS, body=record)


def _check(header: QueryMessageRequestHeader) -> None:
    """Refuse what 5.5 can ask of an index of another kind."""
    if (header.index_type or "") not in _INDEX_TYPES:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"indexType must be K (keys) or U (unique keys), not {header.index_type!r}: tags are "
            "not indexed",
        )
    if header.last_key:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, "lastKey: this index has no pages, leave it out"
        )
