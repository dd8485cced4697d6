"""Message batch: the body of SEND_BATCH_MESSAGE: messages back to back.

    i32 size        the whole entry, this word included
    i32 magic       0
    i32 bodyCRC     0
    i32 flag
    i32 bodyLength, body
    i16 propertiesLength, properties

All messages go to one queue of one topic; the broker makes a record of each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmq_spark.errors import BodyError
from rmq_spark.wire.message.properties import PROPERTIES_BYTES_MAX, decode_properties
from rmq_spark.wire.message.record_layout import struct_format
from rmq_spark.wire.remoting.framing import Buffer

HEAD: Final = (
    ("size", "i"),
    ("magic", "i"),
    ("body_crc", "i"),
    ("flag", "i"),
    ("body_length", "i"),
)

_HEAD = struct.Struct(struct_format(HEAD))
_PROPERTIES_LENGTH = struct.Struct(">h")
_HEAD_BYTES, _LENGTH_BYTES = _HEAD.size, _PROPERTIES_LENGTH.size
ENTRY_BYTES_MIN: Final = _HEAD_BYTES + _LENGTH_BYTES
_FLAG_AT = struct.calcsize(struct_format(HEAD[:3]))
_COPIED_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class BatchedMessage:
    """One message of a batch."""

    body: bytes
    properties_text: str = ""
    flag: int = 0

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name."""
        return decode_properties(self.properties_text)


def encode_batch(messages: Iterable[BatchedMessage]) -> bytes:
    """Return the request body that carries these messages."""
    pieces: list[bytes] = []
    for number, message in enumerate(messages):
        at = f"message {number}"
        try:
            properties = message.properties_text.encode()
        except UnicodeEncodeError as error:
            raise _batch_error(at, "properties in UTF-8", message.properties_text) from error
        if len(properties) > PROPERTIES_BYTES_MAX:
            needed = f"at most {PROPERTIES_BYTES_MAX} bytes of properties"
            raise _batch_error(at, needed, len(properties))
        if not -(1 << 31) <= message.flag < 1 << 31:
            raise _batch_error(at, "a 32-bit flag", message.flag)
        size = ENTRY_BYTES_MIN + len(message.body) + len(properties)
        pieces += (
            _HEAD.pack(size, 0, 0, message.flag, len(message.body)),
            message.body,
            _PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(pieces)


class BatchEntry(NamedTuple):
    """One message of a batch; its body may be a view of the batch."""

    flag: int
    body: Buffer
    properties: bytes


class FixedSizeEntries(NamedTuple):
    """The messages of a batch in which all have bodies and properties of the same lengths."""

    data: bytes
    rows: int
    entry_bytes: int
    first: BatchEntry
    body_at: int = _HEAD_BYTES
    """The place of the body in an entry."""
    flag_at: int = _FLAG_AT
    """The place of the flag in an entry."""


class BatchColumns(NamedTuple):
    """Messages of a batch by columns; a body may be a view of the batch."""

    flags: list[int]
    bodies: list[Buffer]
    properties: list[bytes]


def batch_columns(data: Buffer) -> BatchColumns:
    """Divide a batch into its messages; magic and CRC are ignored, as RocketMQ does."""
    # Pieces of bytes are cheaper than pieces of a view, by a tenth of all that a message costs.
    view = bytes(data) if len(data) <= _COPIED_BYTES_MAX else memoryview(data)
    return _split(view, 0, len(view))[0]


def split_batch(data: Buffer) -> list[BatchEntry]:
    """Return the messages of a batch, one by one."""
    return [BatchEntry._make(each) for each in zip(*batch_columns(data), strict=True)]


def fixed_size_entries(data: Buffer) -> FixedSizeEntries | None:
    """Return the messages of a fixed-size batch, each of which has a body.

    Return None if sizes differ, or if the batch is invalid, which `split_batch` reports.
    """
    data = bytes(data)
    if len(data) < ENTRY_BYTES_MIN:
        return None
    size, _, _, flag, body_length = _HEAD.unpack_from(data)
    if size < ENTRY_BYTES_MIN or len(data) % size or not 0 < body_length <= size - ENTRY_BYTES_MIN:
        return None
    length_at = _HEAD_BYTES + body_length
    properties_at = length_at + _LENGTH_BYTES
    count = len(data) // size
    if _PROPERTIES_LENGTH.unpack_from(data, length_at) != (size - properties_at,):
        return None
    for start, end in ((0, 4), (_HEAD_BYTES - 4, _HEAD_BYTES), (length_at, properties_at)):
        for at in range(start, end):  # one byte of all messages at a time
            if data[at::size].count(data[at]) != count:
                return None
    first = BatchEntry(flag, data[_HEAD_BYTES:length_at], data[properties_at:size])
    return FixedSizeEntries(data, count, size, first)


def split_in_parts(data: Buffer, count_max: int) -> Iterator[BatchColumns]:
    """Yield the messages of a batch, at most ``count_max`` at a time."""
    view = memoryview(data)
    position = 0
    while position < len(view):
        columns, position = _split(view, position, count_max)
        yield columns


def _split(view: Buffer, position: int, count_max: int) -> tuple[BatchColumns, int]:
    """Return at most ``count_max`` messages from ``position``, and the position after them."""
    columns = BatchColumns([], [], [])
    flags, bodies, all_properties = columns
    add_flag, add_body, add_properties = flags.append, bodies.append, all_properties.append
    unpack, unpack_length = _HEAD.unpack_from, _PROPERTIES_LENGTH.unpack_from
    end = len(view)
    while position < end and len(flags) < count_max:
        if end - position < ENTRY_BYTES_MIN:
            raise _batch_error(
                position, f"at least {ENTRY_BYTES_MIN} bytes", f"{end - position} bytes"
            )
        size, _, _, flag, body_length = unpack(view, position)
        if not ENTRY_BYTES_MIN <= size <= end - position:
            raise _batch_error(position, f"size {ENTRY_BYTES_MIN} to {end - position}", size)
        if not 0 <= body_length <= size - ENTRY_BYTES_MIN:
            raise _batch_error(
                position + 16, f"bodyLength 0 to {size - ENTRY_BYTES_MIN}", body_length
            )
        body_at = position + _HEAD_BYTES
        length_at = body_at + body_length
        (properties_length,) = unpack_length(view, length_at)
        properties_at = length_at + _LENGTH_BYTES
        position += size
        if properties_length != position - properties_at:
            raise _batch_error(
                length_at, f"propertiesLength {position - properties_at}", properties_length
            )
        add_flag(flag)
        add_body(view[body_at:length_at])
        add_properties(bytes(view[properties_at:position]))
    return columns, position


def decode_batch(data: Buffer) -> list[BatchedMessage]:
    """Return the messages of a batch."""
    return [
        BatchedMessage(bytes(body), properties.decode("utf-8", "replace"), flag)
        for flag, body, properties in split_batch(data)
    ]


def _batch_error(at: int | str, needed: str, found: object) -> BodyError:
    return BodyError("message batch", at=at, needed=needed, found=found)
