"""Pull decoder: decodes a pull into messages, unreadable messages, and the next offset.

    a body that cannot be inflated    unreadable: its sender damaged it, or it inflates to more than
                                      `max_body_bytes`; another pull would not help
    a damaged record                  pulled again, in case transport damaged it; then unreadable
    a record of another queue         likewise: the response or the queue is damaged
    a record with a wrong magic       likewise, if its size leads to another record or to the end
    an offset that is not possible    unreadable: offsets grow, and lie in the range that was pulled
    an offset out of order            pulled again, because no other record has the offset
    a copy instead of a record        an error: no damage makes a copy, so the response is wrong
    a size that is not possible       an error: where the next record begins is unknown

To pull a damaged record again, the messages before it are returned and the next pull begins with
it. If a response begins with a damaged record, it fails with `SuspectRecord`, unless that record
was the `suspect` of the last response. So a damaged message does not block the others.

A few hundred bytes may inflate to 16 MiB, so compressed bodies are inflated until they take more
than the reader has room for, at most `INFLATED_BYTES_MAX` in all; the next pull begins after them.
At least one message is returned, whatever the room.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rmq_spark.client.damaged_records import (
    decode_damaged_record,
    read_queue_offset,
    record_positions,
)
from rmq_spark.client.message import MessageExt, decode_messages, to_message, unreadable_message
from rmq_spark.errors import BodyError, CodecMissing, RecordError, Verbatim, WireError
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.framing import Buffer

_log = logging.getLogger(__name__)

INFLATED_BYTES_MAX: Final = 32 << 20
"""Bytes of inflated bodies after which the rest of a pull is left for the next one."""

_COMPRESSED: Final = MessageSysFlag.COMPRESSED.value


class DecodedRecords(NamedTuple):
    """The messages of one pull; ``next_offset`` is where to resume if some were not read."""

    messages: list[MessageExt]
    unreadable: list[MessageExt]
    next_offset: int | None = None


class SuspectRecord(RecordError):
    """The first record of a response is damaged; transport may have damaged it."""

    def __init__(self, record: bytes, queue: MessageQueue, offset: int) -> None:
        super().__init__(
            f"message at offset {offset} of {queue}",
            at=0,
            needed="an intact record of that queue",
            found=Verbatim("a damaged or foreign record, which is pulled again"),
        )
        self.record = record


def decode_pull(
    records: Buffer,
    queue: MessageQueue,
    begin: int,
    end: int,
    suspect: bytes | None = None,
    max_body_bytes: int = PLAIN_BYTES_MAX,
    room_bytes: int = INFLATED_BYTES_MAX,
) -> DecodedRecords:
    """Return the messages of records that lie back to back.

    No body is inflated once inflated bodies take more than ``room_bytes``, which may be negative.

    Raises:
        SuspectRecord: The first record is damaged, and was not the suspect already.
        WireError: The first record is not a record, or no codec is installed for its body.
    """
    room = min(max(room_bytes, 0), INFLATED_BYTES_MAX)
    found = _decode_valid(records, queue, begin, end, max_body_bytes, room)
    return found or _decode_damaged(
        bytes(records), queue, begin, end, suspect, max_body_bytes, room
    )


def _decode_valid(
    records: Buffer, queue: MessageQueue, begin: int, end: int, max_body_bytes: int, room: int
) -> DecodedRecords | None:
    """Return the messages if all records are sound; None if any is damaged."""
    messages: list[MessageExt] = []
    inflated_bytes, last = 0, begin - 1
    checked = None
    try:
        for message in decode_messages(records, queue.broker_name, max_body_bytes=max_body_bytes):
            offset = message.queue_offset
            if not last < offset < end:
                return None
            if message.queue is not checked:  # messages of one queue share it
                if not queue.is_of(message.queue.topic, message.queue.queue_id):
                    return None
                checked = message.queue
            messages.append(message)
            last = offset
            if message.sys_flag & _COMPRESSED:
                inflated_bytes += len(message.body)
                if inflated_bytes > room:
                    return DecodedRecords(messages, [], last + 1)
    except WireError:
        return None
    return DecodedRecords(messages, [])


def _decode_damaged(  # noqa: C901, PLR0912  # all that may be wrong with a record
    data: bytes,
    queue: MessageQueue,
    begin: int,
    end: int,
    suspect: bytes | None,
    max_body_bytes: int,
    room: int,
) -> DecodedRecords:
    positions, failure = record_positions(data)
    offsets = [read_queue_offset(data, at) for at, _ in positions]
    possible = _longest_increasing(offsets, begin, end)
    if not possible:  # the response itself may be wrong
        raise failure or RecordError(
            "pulled messages", at=0, needed=f"offsets from {begin} to {end}", found=offsets[0]
        )
    of_others = {offsets[number] for number in possible}
    misplaced = {offset for offset in offsets if begin <= offset < end} - of_others
    stop = min(misplaced, default=None)
    first = data[: positions[0][1]]
    if stop == begin:
        if first != suspect:
            raise SuspectRecord(first, queue, begin)
        stop = None  # the queue itself is out of order
    is_shifted = not begin <= offsets[0] < end
    if is_shifted and _decode_record(data, 0, queue, max_body_bytes, is_first=True) is not None:
        if first != suspect:
            raise SuspectRecord(first, queue, begin)
        # The records after it may be shifted as well: resume at the offset that the next one
        # states.
        later = min((offset for offset in of_others if offset > begin), default=begin + 1)
        return DecodedRecords([], [_damaged_message(first, queue, begin)], later)
    messages: list[MessageExt] = []
    faulty: list[MessageExt] = []
    reached = begin
    inflated_bytes = 0
    for number, (at, size) in enumerate(positions):
        offset = offsets[number] if number in possible else reached
        if inflated_bytes > room:
            return DecodedRecords(messages, faulty, reached)
        if stop is not None and stop <= offset:
            break
        message = _decode_record(data, at, queue, max_body_bytes, is_first=not number)
        if message is not None and number in possible:
            (messages if message.fault is None else faulty).append(message)
            if message.sys_flag & _COMPRESSED:
                inflated_bytes += len(message.body)
            reached = offset + 1
            continue
        if message is None and number:  # the next pull begins with it
            return DecodedRecords(messages, faulty, reached)
        record = data[at : at + size]
        if message is not None and reached not in of_others:
            _check_is_no_copy(data, positions, number, queue, reached)
        if not number and first != suspect:
            raise SuspectRecord(first, queue, offset)
        if number not in possible and offset in of_others:
            _log.warning(
                "a message of %s before offset %d is damaged, including its own offset: it is "
                "skipped",
                *(queue, offset),
            )
            continue
        faulty.append(_damaged_message(record, queue, offset))
        reached = offset + 1
    if stop is None and failure is not None:
        stop = reached
    return DecodedRecords(messages, faulty, stop)


def _check_is_no_copy(
    data: bytes,
    positions: Sequence[tuple[int, int]],
    number: int,
    queue: MessageQueue,
    reached: int,
) -> None:
    """Raise a RecordError if another record has the same bytes, including its log position.

    Treating it as a damaged record would lose the message at ``reached``.
    """
    at, size = positions[number]
    record = data[at : at + size]
    if any(
        start != at and length == size and data.startswith(record, start)
        for start, length in positions
    ):
        raise RecordError(
            f"pulled messages of {queue}",
            at=at,
            needed=f"a record of offset {reached}",
            found=Verbatim("a copy of another one"),
        )


def _longest_increasing(offsets: Sequence[int], begin: int, end: int) -> frozenset[int]:
    """Return the positions of the longest increasing series of offsets from ``begin`` to ``end``.

    Of several records with the same offset, the one that fits its neighbours counts.
    """
    fitting: dict[int, int] = {}  # the position of each offset
    around = [begin - 1, *offsets, end]
    for position, offset in enumerate(offsets):
        known = fitting.get(offset)
        if known is None or _neighbor_count(around, position) > _neighbor_count(around, known):
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


def _neighbor_count(around: Sequence[int], position: int) -> int:
    """Return how many neighbours of a record have the offset just before or just after its own."""
    own = around[position + 1]
    return (around[position] == own - 1) + (around[position + 2] == own + 1)


def _decode_record(
    data: bytes, at: int, queue: MessageQueue, max_body_bytes: int, *, is_first: bool
) -> MessageExt | None:
    """Return a message, perhaps with a fault of its body; None if its record is damaged."""
    try:
        stored = decode_record(data, at)
        message = to_message(stored, queue.broker_name, max_body_bytes=max_body_bytes)
    except CodecMissing:
        if is_first:
            raise
        return None
    except BodyError as error:
        message = unreadable_message(stored, queue.broker_name, str(error))
    except RecordError:
        return None
    return message if queue.is_of(message.queue.topic, message.queue.queue_id) else None


def _damaged_message(record: bytes, queue: MessageQueue, offset: int) -> MessageExt:
    """Return the readable parts of a damaged record, as the message at an offset of a queue."""
    try:
        decode_record(record)
        fault = "its record belongs to another queue or offset"
    except RecordError as error:
        fault = str(error)
    message = unreadable_message(decode_damaged_record(record), queue.broker_name, fault)
    return replace(message, topic=queue.topic, queue=queue, queue_offset=offset)
