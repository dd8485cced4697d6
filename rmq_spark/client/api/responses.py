"""Responses: turn brokers' responses to sends and pulls into results, or into errors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from rmq_spark.client.errors import ProtocolError, refusal
from rmq_spark.client.results import PullResult, PullStatus, SendResult, SendStatus
from rmq_spark.client.transport.typed_requests import check_response, response_header
from rmq_spark.errors import WireError
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.headers.send import SendMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue

_SEND_STATUSES: Final = {status.value: status for status in SendStatus}
_CHUNK_REQUESTS: Final = frozenset([RequestCode.PULL_CHUNK.value, RequestCode.PULL_PLACES.value])
_PULL_STATUSES: Final = frozenset(status.value for status in PullStatus)


def send_result(
    address: str,
    request_code: int,
    response: RemotingCommand,
    header: SendMessageRequestHeader,
    message_id: str,
) -> SendResult:
    """Return the result of a send from its response, or raise the refusal."""
    status = _SEND_STATUSES.get(response.code)
    if status is None:
        raise refusal(response.code, response.remark, address, request_code)
    found = response_header(address, request_code, response)
    return SendResult(
        status,
        message_id,
        MessageQueue(header.topic, header.broker_name or "", found.queue_id),
        found.queue_offset,
        found.msg_id,
        found.transaction_id,
    )


def pull_result(
    address: str,
    request_code: int,
    response: RemotingCommand,
    accepted: Collection[int] = _PULL_STATUSES,
) -> PullResult:
    """Return the result of a pull from its response, or raise the refusal."""
    check_response(address, request_code, response, accepted)
    found = response_header(address, request_code, response)
    status = PullStatus(response.code)
    records: Buffer = response.body
    sizes: Any = None
    places: Any = None
    if status is PullStatus.FOUND and request_code in _CHUNK_REQUESTS:
        try:
            if request_code == RequestCode.PULL_PLACES:
                from rmq_spark.wire.chunk.record_locations import decode_located  # noqa: PLC0415  # brings numpy

                places, sizes, records = decode_located(records)
            else:
                from rmq_spark.wire.chunk.sized_chunk import decode_sized_chunk  # noqa: PLC0415  # not to send

                sizes, records = decode_sized_chunk(records)
        except WireError as error:
            raise ProtocolError(address, str(error)) from error
    if status is PullStatus.FOUND and not len(records if places is None else places):
        raise ProtocolError(address, "the answer to a pull has status FOUND and no records")
    return PullResult(
        status,
        found.next_begin_offset,
        found.min_offset,
        found.max_offset,
        found.suggest_which_broker_id,
        records,
        sizes,
        places,
    )
