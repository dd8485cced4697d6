"""Decoding of a pull, record by record: messages, unreadable ones, and the offset to go on at.

    a body that cannot be inflated    unreadable: damaged by its sender; asking again is no use
    a record that is damaged          asked for again, if it happened on its way; then unreadable
    one of another queue              the same: its answer, or its queue, is not what it was
    one without a record's magic      the same, if its size leads to another record or to the end
    one with an impossible offset     unreadable: offsets grow, and lie in the range that was pulled
    one whose size makes no sense     an error, as nobody knows where the next one begins

To ask again, the messages before a damaged record are taken, and the next pull begins with it; one
that begins an answer fails it, unless it is the one that has failed the last (`doubted`). One such
message keeps none of the others from being consumed. Bodies are inflated up to `PULLED_BYTES_MAX`;
the next pull begins behind them. Nothing here knows a broker.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from rmq_spark.client.message import MessageExt, decode_messages, received
from rmq_spark.errors import BodyError, RecordError, Verbatim, WireError
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.record import StoredMessage, decode_record, record_size

_log = logging.getLogger(__name__)

_DAMAGED_BODY = "compressed body"
"""Subject of errors about a damaged body, unlike those about a codec that is not installed."""

PULLED_BYTES_MAX: Final = 32 << 20
"""Bytes of inflated bodies behind which no more of a pull is taken."""

_HEAD = struct.Struct(layout.struct_format(layout.HEAD))
_SIZE_AND_MAGIC = struct.Struct(layout.struct_format(layout.HEAD[:2]))
_QUEUE_OFFSET = [name for name, _ in layout.HEAD].index("queue_offset")
_MAGICS = (layout.MAGIC_V1, layout.MAGIC_V2)


class Decoded(NamedTuple):
    """The messages of one pull; ``stops_at`` is the offset to go on at, if some were not read."""

    messages: list[MessageExt]
    unreadable: list[MessageExt]
    stops_at: int | None = None


class Doubtful(RecordError):
    """The first record of an answer is damaged, which may have happened on its way."""

    def __init__(self, record: bytes, queue: MessageQueue, offset: int) -> None:
        super().__init__(
            f"message at offset {offset} of {queue}",
            at=0,
            needed="a sound record of that queue",
            found=Verbatim("another, which is asked for again"),
        )
        self.record = record


def decoded_pull(
    records: Buffer, queue: MessageQueue, begin: int, end: int, doubted: bytes | None = None
) -> Decoded:
    """Return the messages of records that lie back to back.

    Args:
        records: The answer of a broker.
        queue: The queue that was pulled.
        begin: Offset that was asked for.
        end: Offset that the broker says to go on at, behind the last of them.
        doubted: The record for which the last answer was `Doubtful`.

    Raises:
        Doubtful: The first one is damaged, and is not the one that was in doubt already.
        WireError: The first one is not a record, or no codec is installed for its body.
    """
    found = _as_they_should_be(records, queue, begin, end)
    return found or _record_by_record(bytes(records), queue, begin, end, doubted)


def _as_they_should_be(
    records: Buffer, queue: MessageQueue, begin: int, end: int
) -> Decoded | None:
    """Return the messages of records that are all sound; None if one is not."""
    messages: list[MessageExt] = []
    plain_bytes, last = 0, begin - 1
    checked = None
    try:
        for message in decode_messages(records, queue.broker_name):
            offset = message.queue_offset
            if not last < offset < end:
                return None
            if message.queue is not checked:  # messages of one queue share it
                if _is_foreign(message, queue):
                    return None
                checked = message.queue
            messages.append(message)
            last = offset
            plain_bytes += len(message.body)
            if plain_bytes > PULLED_BYTES_MAX:
                return Decoded(messages, [], last + 1)
    except WireError:
        return None
    return Decoded(messages, [])


def _is_foreign(message: MessageExt, queue: MessageQueue) -> bool:
    return not queue.is_of(message.queue.topic, message.queue.queue_id)


def _record_by_record(
    data: bytes, queue: MessageQueue, begin: int, end: int, doubted: bytes | None
) -> Decoded:
    places, failure = _places(data)
    offsets = [_HEAD.unpack_from(data, at)[_QUEUE_OFFSET] for at, _ in places]
    possible = _growing(offsets, begin, end)
    if not possible:  # so it may be the answer that is wrong
        raise failure or RecordError(
            "pulled messages", at=0, needed=f"offsets from {begin} to {end}", found=offsets[0]
        )
    of_others = {offsets[number] for number in possible}
    messages: list[MessageExt] = []
    unreadable: list[MessageExt] = []
    reached = begin
    plain_bytes = 0
    for number, (at, size) in enumerate(places):
        if plain_bytes > PULLED_BYTES_MAX:
            return Decoded(messages, unreadable, reached)
        try:
            sound = _sound(data, at, queue)
        except BodyError:
            if not number:
                raise
            sound = None
        if sound is not None and number in possible:
            message, is_readable = sound
            (messages if is_readable else unreadable).append(message)
            plain_bytes += len(message.body)
            reached = offsets[number] + 1
            continue
        if sound is None and number:  # the next pull begins with it
            return Decoded(messages, unreadable, reached)
        record = data[at : at + size]
        offset = offsets[number] if number in possible else reached
        if not number and record != doubted:
            raise Doubtful(record, queue, offset)
        if number not in possible and offset in of_others:
            _log.warning(
                "a message of %s before offset %d is damaged, and its own offset with it: it is "
                "passed over",
                *(queue, offset),
            )
            continue
        unreadable.append(_damaged(record, queue, offset))
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
    """Return the positions of as many offsets as possible that grow, from ``begin`` to ``end``.

    Of several records with one offset it is the one that fits those beside it.
    """
    fitting: dict[int, int] = {}  # the position of each offset
    around = [begin - 1, *offsets, end]
    for position, offset in enumerate(offsets):
        known = fitting.get(offset)
        if known is None or _fit(around, position) > _fit(around, known):
            fitting[offset] = position
    lasts: list[int] = []  # the smallest last offset of a series of each length
    ends: list[int] = []  # the positions of these
    before: dict[int, int] = {}  # the position before each, in its series
    for position, offset in enumerate(offsets):
        if begin <= offset < end and fitting[offset] == position:
            length = bisect_left(lasts, offset)
            lasts[length : length + 1] = [offset]
            ends[length : length + 1] = [position]
            if length:
                before[position] = ends[length - 1]
    series: set[int] = set()
    position_of_last = ends[-1] if ends else None
    while position_of_last is not None:
        series.add(position_of_last)
        position_of_last = before.get(position_of_last)
    return frozenset(series)


def _fit(around: Sequence[int], position: int) -> int:
    """Return how many neighbours have the offset before, or behind, the one at a position."""
    own = around[position + 1]
    return (around[position] == own - 1) + (around[position + 2] == own + 1)


def _sound(data: bytes, at: int, queue: MessageQueue) -> tuple[MessageExt, bool] | None:
    """Return a message, and whether its body can be inflated; None if its record is damaged.

    Raises:
        BodyError: No codec is installed for its body.
    """
    try:
        stored = decode_record(data, at)
        message, is_readable = _received(stored, queue.broker_name)
    except RecordError:
        return None
    return None if _is_foreign(message, queue) else (message, is_readable)


def _received(stored: StoredMessage, broker_name: str) -> tuple[MessageExt, bool]:
    try:
        return received(stored, broker_name), True
    except BodyError as error:
        if error.subject != _DAMAGED_BODY:
            raise
        return received(stored, broker_name, is_readable=False), False


def _damaged(record: bytes, queue: MessageQueue, offset: int) -> MessageExt:
    """Return what there is of a damaged record, as the message at an offset of a queue."""
    stored = _damaged_record(record)
    try:
        message = received(stored, queue.broker_name, is_readable=False)
    except RecordError:  # its hosts are none
        bare = StoredMessage(stored.topic, stored.body, stored.properties_text, flag=stored.flag)
        message = received(bare, queue.broker_name, is_readable=False)
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
