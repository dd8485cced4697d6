"""Answers of brokers to sends and pulls, as values, or as the errors that they stand for.

This module knows no connection; `broker_api` asks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from rmq_spark.client.errors import ProtocolError, refusal
from rmq_spark.client.results import PullResult, PullStatus, SendResult, SendStatus
from rmq_spark.client.transport.typed_requests import checked, header_of
from rmq_spark.errors import WireError
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.headers.send import SendMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue

_SENT: Final = {status.value: status for status in SendStatus}
_CHUNKS: Final = frozenset([RequestCode.PULL_CHUNK.value, RequestCode.PULL_PLACES.value])
_PULLED: Final = frozenset(status.value for status in PullStatus)


def sent(
    address: str,
    request_code: int,
    answer: RemotingCommand,
    header: SendMessageRequestHeader,
    message_id: str,
) -> SendResult:
    """Return the result that an answer to a send stands for, or raise the refusal."""
    status = _SENT.get(answer.code)
    if status is None:
        raise refusal(answer.code, answer.remark, address, request_code)
    found = header_of(address, request_code, answer)
    return SendResult(
        status,
        message_id,
        MessageQueue(header.topic, header.broker_name or "", found.queue_id),
        found.queue_offset,
        found.msg_id,
        found.transaction_id,
    )


def pulled(
    address: str, request_code: int, answer: RemotingCommand, accepted: Collection[int] = _PULLED
) -> PullResult:
    """Return the result that an answer to a pull stands for, or raise the refusal."""
    checked(address, request_code, answer, accepted)
    found = header_of(address, request_code, answer)
    status = PullStatus(answer.code)
    records: Buffer = answer.body
    sizes: Any = None
    places: Any = None
    if status is PullStatus.FOUND and request_code in _CHUNKS:
        try:
            if request_code == RequestCode.PULL_PLACES:
                from rmq_spark.wire.chunk.placed import decode_placed  # noqa: PLC0415  # brings numpy

                places, sizes, records = decode_placed(records)
            else:
                from rmq_spark.wire.chunk.sized import decode_sized  # noqa: PLC0415  # not to send

                sizes, records = decode_sized(records)
        except WireError as error:
            raise ProtocolError(address, str(error)) from error
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
