"""Damaged records: turn stored records that cannot be read into messages with a `fault`.

    a body that cannot be inflated        the whole message, with its body as stored
    a record with a wrong CRC or length   the parts that can be read
    a size that leads to no record        RecordError: where the next record begins is unknown

So one damaged message hides no other in a command, a lookup or a page. Consumers and readers share
this module; each decides what to do with such a message.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final, NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.record import StoredMessage, decode_record, record_size
from rmq_spark.wire.message_queue import MessageQueue

_HEAD: Final = struct.Struct(layout.struct_format(layout.HEAD))
_SIZE_AND_MAGIC: Final = struct.Struct(layout.struct_format(layout.HEAD[:2]))
_QUEUE_OFFSET: Final = [name for name, _ in layout.HEAD].index("queue_offset")
_MAGICS: Final = (layout.MAGIC_V1, layout.MAGIC_V2)


class BadRecord(NamedTuple):
    """A stored message that cannot be read: its place, the problem, and its record.

    ``record`` is None if the broker's response does not show where the record ends.
    """

    queue: MessageQueue
    queue_offset: int
    problem: object
    record: bytes | None = None


def read_queue_offset(data: bytes, at: int) -> int:
    """Return the queue offset that the record at ``at`` states, which may be damaged."""
    return int(_HEAD.unpack_from(data, at)[_QUEUE_OFFSET])


def decode_damaged_record(record: bytes) -> StoredMessage:
    """Return the message of a record whose body, magic or lengths are damaged.

    If only the size makes sense, the whole record becomes the message's body.
    """
    with suppress(RecordError):
        return decode_record(record, check_crc=False)
    for magic in _MAGICS:
        with suppress(RecordError):
            head = _SIZE_AND_MAGIC.pack(len(record), magic)
            return decode_record(head + record[len(head) :], check_crc=False)
    _, _, _, _, flag, queue_offset, physical_offset, *_ = _HEAD.unpack_from(record)
    return StoredMessage(
        "", record, flag=flag, queue_offset=queue_offset, physical_offset=physical_offset
    )


def record_size_at(data: bytes, at: int) -> int:
    """Return the size of the record at ``at``.

    The size of a record with a wrong magic counts as well, if it leads to another record or to the
    end.

    Raises:
        RecordError: The place where the next record begins is unknown.
    """
    try:
        return record_size(data, at)
    except RecordError:
        end = at
        while _is_magic_invalid(data, end):
            end += _size_and_magic(data, end)[0]
        if end == at or not (end == len(data) or _is_record(data, end)):
            raise
        return _size_and_magic(data, at)[0]


def record_positions(data: bytes) -> tuple[list[tuple[int, int]], RecordError | None]:
    """Return position and size of each record, and the error if not all can be found."""
    positions: list[tuple[int, int]] = []
    at = 0
    try:
        while at < len(data):
            positions.append((at, record_size_at(data, at)))
            at += positions[-1][1]
    except RecordError as error:
        return positions, error
    return positions, None


def _is_record(data: bytes, at: int) -> bool:
    try:
        record_size(data, at)
    except RecordError:
        return False
    return True


def _is_magic_invalid(data: bytes, at: int) -> bool:
    """Return whether a record's size is plausible at a position, but its magic is wrong."""
    available = len(data) - at
    if available < layout.RECORD_BYTES_MIN:
        return False
    size, magic = _size_and_magic(data, at)
    return magic not in _MAGICS and layout.RECORD_BYTES_MIN <= size <= available


def _size_and_magic(data: bytes, at: int) -> tuple[int, int]:
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    return size, magic
