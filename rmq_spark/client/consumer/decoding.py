"""Decoding of a pull, record by record: messages, unreadable ones, and the offset to go on at.

    a body that cannot be inflated    unreadable: damaged by its sender; asking again is no use
    a record that is damaged          asked for again, if it happened on its way; then unreadable
    one without a record's magic      the same, if its size leads to another record or to the end
    one with an impossible offset     unreadable: offsets grow, and lie in the range that was pulled
    one whose size makes no sense     an error, as nobody knows where the next one begins

One such message keeps none of the others from being consumed. Nothing here knows a broker.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from rmq_spark.client.message import MessageExt, decode_messages, received
from rmq_spark.errors import BodyError, RecordError, WireError
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.record import StoredMessage, decode_record, record_size

_DAMAGED_BODY = "compressed body"
"""Subject of errors about a damaged body, unlike those about a codec that is not installed."""

_HEAD = struct.Struct(layout.struct_format(layout.HEAD))
_SIZE_AND_MAGIC = struct.Struct(layout.struct_format(layout.HEAD[:2]))
_QUEUE_OFFSET = [name for name, _ in layout.HEAD].index("queue_offset")
_MAGICS = (layout.MAGIC_V1, layout.MAGIC_V2)


class Decoded(NamedTuple):
    """The messages of one pull; ``stops_at`` is the offset to go on at, if some were not read."""

    messages: list[MessageExt]
    unreadable: list[MessageExt]
    stops_at: int | None = None


def decoded_pull(records: Buffer, queue: MessageQueue, begin: int, end: int) -> Decoded:
    """Return the messages of records that lie back to back.

    Args:
        records: The answer of a broker.
        queue: The queue that was pulled.
        begin: Offset that was asked for.
        end: Offset that the broker says to go on at, behind the last of them.

    Raises:
        WireError: The first one is not a record, or no codec is installed for its body.
    """
    try:
        messages = list(decode_messages(records, queue.broker_name))
    except WireError:
        return _record_by_record(bytes(records), queue, begin, end)
    offsets = [message.queue_offset for message in messages]
    if offsets == sorted(set(offsets)) and (
        not offsets or begin <= offsets[0] <= offsets[-1] < end
    ):
        return Decoded(messages, [])
    return _record_by_record(bytes(records), queue, begin, end)


def _record_by_record(data: bytes, queue: MessageQueue, begin: int, end: int) -> Decoded:
    places, failure = _places(data)
    offsets = [_HEAD.unpack_from(data, at)[_QUEUE_OFFSET] for at, _ in places]
    possible = _growing(offsets, begin, end)
    if not possible:  # so it may be the answer that is wrong
        raise failure or RecordError(
            "pulled messages", at=0, needed=f"offsets from {begin} to {end}", found=offsets[0]
        )
    messages: list[MessageExt] = []
    unreadable: list[MessageExt] = []
    reached = begin
    for number, (at, size) in enumerate(places):
        offset = offsets[number] if number in possible else reached
        try:
            sound = _sound(data, at, queue.broker_name)
        except BodyError:
            if not number:
                raise
            sound = None
        if sound is not None and number in possible:
            message, is_readable = sound
            (messages if is_readable else unreadable).append(message)
        elif sound is None and number:  # the next pull begins with it
            return Decoded(messages, unreadable, reached)
        else:
            unreadable.append(_damaged(data[at : at + size], queue, offset))
        reached = offset + 1
    return Decoded(messages, unreadable, reached if failure else None)


def _places(data: bytes) -> tuple[list[tuple[int, int]], WireError | None]:
    """Return where records lie, and their sizes; and why it is not known for all of them."""
    places: list[tuple[int, int]] = []
    at = 0
    while at < len(data):
        try:
            size = _size_at(data, at)
        except RecordError as error:
            return places, error
        places.append((at, size))
        at += size
    return places, None


def _growing(offsets: Sequence[int], begin: int, end: int) -> frozenset[int]:
    """Return the positions of as many offsets as possible that grow, from ``begin`` to ``end``."""
    lasts: list[int] = []  # the smallest last offset of a series of each length
    series: list[tuple[int, ...]] = []
    for position, offset in enumerate(offsets):
        length = bisect_left(lasts, offset)
        if begin <= offset < end and lasts[length : length + 1] != [offset]:
            chosen = (*(series[length - 1] if length else ()), position)
            lasts[length : length + 1] = [offset]
            series[length : length + 1] = [chosen]
    return frozenset(series[-1]) if series else frozenset()


def _sound(data: bytes, at: int, broker_name: str) -> tuple[MessageExt, bool] | None:
    """Return a message, and whether its body can be inflated; None if its record is damaged.

    Raises:
        BodyError: No codec is installed for its body.
    """
    try:
        stored = decode_record(data, at)
    except RecordError:
        return None
    try:
        return received(stored, broker_name), True
    except BodyError as error:
        if error.subject != _DAMAGED_BODY:
            raise
        return received(stored, broker_name, is_readable=False), False


def _damaged(record: bytes, queue: MessageQueue, offset: int) -> MessageExt:
    """Return what there is of a damaged record, as the message at an offset of a queue."""
    message = received(_damaged_record(record), queue.broker_name, is_readable=False)
    return replace(message, topic=queue.topic, queue=queue, queue_offset=offset)


def _damaged_record(record: bytes) -> StoredMessage:
    """Return the message of a record whose body, magic or lengths are not what was stored."""
    with suppress(RecordError):
        return decode_record(record, check_crc=False)
    for magic in _MAGICS:
        with suppress(RecordError):
            head = _SIZE_AND_MAGIC.pack(len(record), magic)
            return decode_record(head + record[len(head) :], check_crc=False)
    _, _, _, _, flag, _, physical_offset, *_ = _HEAD.unpack_from(record)
    return StoredMessage("", record, flag=flag, physical_offset=physical_offset)


def _size_at(data: bytes, at: int) -> int:
    """Return the size of a record.

    Of one without a record's magic, if it leads to another or to the end.

    Raises:
        RecordError: Nobody knows where the next one begins.
    """
    try:
        return record_size(data, at)
    except RecordError:
        end = at
        while _lacks_magic(data, end):
            end += _size_and_magic(data, end)[0]
        if end == at or not (end == len(data) or _is_record(data, end)):
            raise
        return _size_and_magic(data, at)[0]


def _is_record(data: bytes, at: int) -> bool:
    try:
        record_size(data, at)
    except RecordError:
        return False
    return True


def _lacks_magic(data: bytes, at: int) -> bool:
    """Return whether something of a record's size begins there, without a record's magic."""
    available = len(data) - at
    if available < layout.RECORD_BYTES_MIN:
        return False
    size, magic = _size_and_magic(data, at)
    return magic not in _MAGICS and layout.RECORD_BYTES_MIN <= size <= available


def _size_and_magic(data: bytes, at: int) -> tuple[int, int]:
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    return size, magic
