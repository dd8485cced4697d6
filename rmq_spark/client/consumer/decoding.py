"""Decoding of a pull, record by record: messages, unreadable ones, and the offset to go on at.

    a body that cannot be inflated    unreadable: damaged by its sender; asking again is no use
    a record that is damaged          asked for again, if it happened on its way; then unreadable
    one whose length makes no sense   an error, as nobody knows where the next one begins

One such message keeps none of the others from being consumed. Nothing here knows a broker.
"""

from __future__ import annotations

from typing import NamedTuple

from rmq_spark.client.message import MessageExt, decode_messages, received
from rmq_spark.errors import BodyError, RecordError, WireError
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.record import StoredMessage, decode_record, record_size

_DAMAGED_BODY = "compressed body"
"""Subject of errors about a damaged body, unlike those about a codec that is not installed."""


class Decoded(NamedTuple):
    """The messages of one pull; ``stops_at`` is the offset to go on at, if some were not read."""

    messages: list[MessageExt]
    unreadable: list[MessageExt]
    stops_at: int | None = None


def decoded_pull(records: Buffer, broker_name: str) -> Decoded:
    """Return the messages of records that lie back to back.

    Raises:
        WireError: The first one is not a record, or no codec is installed for its body.
    """
    try:
        return Decoded(list(decode_messages(records, broker_name)), [])
    except WireError:
        return _record_by_record(bytes(records), broker_name)


def _record_by_record(data: bytes, broker_name: str) -> Decoded:
    messages: list[MessageExt] = []
    unreadable: list[MessageExt] = []
    at = 0
    while at < len(data):
        try:
            message, is_readable = _message_at(data, at, broker_name)
        except WireError:
            if not messages and not unreadable:
                raise
            reached = max(each[-1].queue_offset for each in (messages, unreadable) if each)
            return Decoded(messages, unreadable, reached + 1)
        (messages if is_readable else unreadable).append(message)
        at += record_size(data, at)
    return Decoded(messages, unreadable)


def _message_at(data: bytes, at: int, broker_name: str) -> tuple[MessageExt, bool]:
    """Return one message, and whether its body is as its sender wrote it."""
    try:
        stored = decode_record(data, at)
    except RecordError:
        if at:  # the next pull begins with it
            raise
        return received(_damaged_record(data), broker_name, is_readable=False), False
    try:
        return received(stored, broker_name), True
    except BodyError as error:
        if error.subject != _DAMAGED_BODY:
            raise
        return received(stored, broker_name, is_readable=False), False


def _damaged_record(data: bytes) -> StoredMessage:
    return decode_record(data, check_crc=False)
