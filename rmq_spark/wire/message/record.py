"""Record: encodes and decodes one stored message; `record_layout` draws the layout.

`chunk` does the same for thousands at once, with the same results.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from rmq_spark.errors import RecordError
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import PLAIN_BYTES_MAX, uncompress_body
from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import V4_BYTES, Host, decode_host
from rmq_spark.wire.message.message_id import encode_offset_message_id
from rmq_spark.wire.message.properties import (
    KEYS,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQ_KEY,
    decode_properties,
)
from rmq_spark.wire.message.record_layout import without_checksum
from rmq_spark.wire.remoting.framing import Buffer

_HEAD = struct.Struct(layout.struct_format(layout.HEAD))
_STORE_TIMESTAMP = struct.Struct(layout.struct_format(layout.STORE_TIMESTAMP))
_TAIL = struct.Struct(layout.struct_format(layout.TAIL))
_BLANK = struct.Struct(layout.struct_format(layout.BLANK))
_TOPIC_LENGTH = {layout.MAGIC_V1: struct.Struct(">B"), layout.MAGIC_V2: struct.Struct(">h")}
_PROPERTIES_LENGTH = struct.Struct(">h")

_BORN_V6 = MessageSysFlag.BORN_HOST_V6.value
_STORE_V6 = MessageSysFlag.STORE_HOST_V6.value

_NO_HOST = Host(bytes(4), 0)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the commit log has it; ``body`` and ``properties_text`` are as stored.

    Decoding drops the checksum of the whole record.

    The two IPv6 bits of ``sys_flag`` follow from the hosts, and the magic from the topic's length:
    a message that contradicts them cannot be written.
    """

    topic: str
    body: bytes
    properties_text: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = _NO_HOST
    store_timestamp: int = 0
    store_host: Host = _NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = layout.MAGIC_V1
    body_crc: int | None = None  # None: computed when encoded

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name."""
        return decode_properties(self.properties_text)

    @property
    def tags(self) -> str | None:
        """The value of the TAGS property, or None."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> str | None:
        """The KEYS property: index keys, separated by spaces."""
        return self.properties.get(KEYS)

    @property
    def offset_message_id(self) -> str:
        """The id made of the broker's host and the physical offset."""
        return encode_offset_message_id(self.store_host, self.physical_offset)

    @property
    def message_id(self) -> str:
        """The id that clients show: the producer's, or else the offset message id."""
        return self.properties.get(UNIQ_KEY) or self.offset_message_id

    def plain_body(self, bytes_max: int = PLAIN_BYTES_MAX) -> bytes:
        """Return the body as the sender gave it, decompressed if the producer compressed it."""
        return bytes(uncompress_body(self.body, self.sys_flag, bytes_max))


def body_crc_of(body: Buffer) -> int:
    """Return the checksum that a record stores for its body."""
    return crc32(body) & layout.BODY_CRC_MASK


def magic_of(topic: str) -> int:
    """Return the magic of a topic's records: MAGIC_V2 if the topic is too long for MAGIC_V1."""
    return layout.MAGIC_V1 if len(topic.encode()) <= layout.TOPIC_BYTES_MAX_V1 else layout.MAGIC_V2


def encode_record(message: StoredMessage) -> bytes:
    """Return the record of a message."""
    topic = _utf8("topic", message.topic)
    properties = _utf8("properties", message.properties_text)
    born_host, store_host = message.born_host.encode(), message.store_host.encode()
    _check_encodable(message, topic, properties)
    body_crc = message.body_crc if message.body_crc is not None else body_crc_of(message.body)
    size = (
        layout.RECORD_BYTES_MIN
        + (len(born_host) + len(store_host) - 2 * layout.HOST_V4_BYTES)
        + (_TOPIC_LENGTH[message.magic].size - layout.TOPIC_LENGTH_V1_BYTES)
        + (len(message.body) + len(topic) + len(properties))
    )
    head = (
        size,
        message.magic,
        body_crc,
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.physical_offset,
        message.sys_flag,
        message.born_timestamp,
    )
    tail = (message.reconsume_times, message.prepared_transaction_offset, len(message.body))
    try:
        return b"".join(
            (
                _HEAD.pack(*head),
                born_host,
                _STORE_TIMESTAMP.pack(message.store_timestamp),
                store_host,
                _TAIL.pack(*tail),
                message.body,
                _TOPIC_LENGTH[message.magic].pack(len(topic)),
                topic,
                _PROPERTIES_LENGTH.pack(len(properties)),
                properties,
            )
        )
    except struct.error as error:
        raise _number_error((*head, message.store_timestamp, *tail)) from error


def decode_record(data: Buffer, position: int = 0, *, check_crc: bool = True) -> StoredMessage:
    """Decode the record that starts at ``position`` and lies wholly within ``data``."""
    return _decode(data, position, record_size(data, position), check_crc=check_crc)


def _decode(data: Buffer, position: int, size: int, *, check_crc: bool) -> StoredMessage:
    end = position + size
    (
        _, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp,
    ) = _HEAD.unpack_from(data, position)  # fmt: skip
    born_host_bytes = layout.HOST_V6_BYTES if sys_flag & _BORN_V6 else layout.HOST_V4_BYTES
    store_host_bytes = layout.HOST_V6_BYTES if sys_flag & _STORE_V6 else layout.HOST_V4_BYTES
    size_min = (
        layout.RECORD_BYTES_MIN + born_host_bytes + store_host_bytes - 2 * layout.HOST_V4_BYTES
    )
    if size < size_min:
        raise _fault(position, f"totalSize {size_min} with these hosts", size)
    try:
        at = position + layout.HEAD_BYTES
        born_host = decode_host(bytes(data[at : at + born_host_bytes]))
        at += born_host_bytes
        (store_timestamp,) = _STORE_TIMESTAMP.unpack_from(data, at)
        at += layout.STORE_TIMESTAMP_BYTES
        store_host = decode_host(bytes(data[at : at + store_host_bytes]))
        at += store_host_bytes
        reconsume_times, prepared_transaction_offset, body_length = _TAIL.unpack_from(data, at)
        body, at = _read_part(data, at + layout.TAIL_BYTES, body_length, end, "bodyLength")
        (length,) = _TOPIC_LENGTH[magic].unpack_from(data, at)
        topic, at = _read_part(data, at + _TOPIC_LENGTH[magic].size, length, end, "topicLength")
        (length,) = _PROPERTIES_LENGTH.unpack_from(data, at)
        properties, at = _read_part(
            data, at + layout.PROPERTIES_LENGTH_BYTES, length, end, "propertiesLength"
        )
    except struct.error as error:
        raise _fault(position, "a whole record", f"{size} bytes") from error
    if at != end:
        raise _fault(position, f"totalSize {at - position}", size)
    if check_crc and body_crc != body_crc_of(body):
        raise _fault(position, f"body CRC {body_crc_of(body)}", body_crc)
    return StoredMessage(
        topic=topic.decode("utf-8", "replace"),
        body=body,
        properties_text=without_checksum(properties).decode("utf-8", "replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        magic=magic,
        body_crc=body_crc,
    )


def decode_records(data: Buffer, *, check_crc: bool = True) -> Iterator[StoredMessage]:
    """Yield the messages of adjacent records, as a pull's body has them."""
    # everything is copied anyway, and slices of bytes are cheaper than slices of views
    data = bytes(data)
    position = 0
    while position < len(data):
        size = record_size(data, position)
        yield _decode(data, position, size, check_crc=check_crc)
        position += size


def record_size(data: Buffer, position: int) -> int:
    """Return the size in bytes of the record at ``position``, or raise RecordError."""
    available = len(data) - position
    if available < layout.RECORD_BYTES_MIN:
        raise _fault(position, f"at least {layout.RECORD_BYTES_MIN} bytes", f"{available} bytes")
    size, magic = _BLANK.unpack_from(data, position)
    if magic not in _TOPIC_LENGTH:
        raise _fault(position + 4, "a record's magic", hex(magic % (1 << 32)))
    if not layout.RECORD_BYTES_MIN <= size <= available:
        raise _fault(position, f"totalSize {layout.RECORD_BYTES_MIN} to {available}", size)
    return int(size)


def encode_blank(size: int) -> bytes:
    """Return the first words of the blank record that fills ``size`` bytes at a file's end."""
    return _BLANK.pack(size, layout.MAGIC_BLANK)


def decode_blank(data: Buffer, position: int = 0) -> int | None:
    """Return the size of the blank record at ``position``, or None if there is no such record."""
    if len(data) - position < _BLANK.size:
        return None
    size, magic = _BLANK.unpack_from(data, position)
    return int(size) if magic == layout.MAGIC_BLANK and size >= _BLANK.size else None


def _fault(at: int | str, needed: str, found: object) -> RecordError:
    return RecordError("stored message", at=at, needed=needed, found=found)


def _read_part(data: Buffer, start: int, length: int, end: int, name: str) -> tuple[bytes, int]:
    if not 0 <= length <= end - start:
        raise _fault(start, f"{name} 0 to {max(end - start, 0)}", length)
    return bytes(data[start : start + length]), start + length


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _fault(name, "text in UTF-8", text) from error


def _number_error(numbers: tuple[object, ...]) -> RecordError:
    """Return the error that names the first number that does not fit its field."""
    fields = zip((*layout.HEAD, *layout.STORE_TIMESTAMP, *layout.TAIL), numbers, strict=True)
    name, bits, number = next(
        (name, bits, number)
        for (name, kind), number in fields
        for bits in [8 * struct.calcsize(f">{kind}")]
        if not isinstance(number, int) or not -(1 << bits - 1) <= number < 1 << bits - 1
    )
    return _fault(name, f"an integer of {bits} bits", number)


def _check_encodable(message: StoredMessage, topic: bytes, properties: bytes) -> None:
    """Check each rule that the layout cannot express by the width of a field."""
    hosts_flag = (_BORN_V6 if message.born_host.is_v6 else 0) | (
        _STORE_V6 if message.store_host.is_v6 else 0
    )
    if message.sys_flag & (_BORN_V6 | _STORE_V6) != hosts_flag:
        raise _fault(
            "sysFlag", f"the IPv6 bits of the hosts, {hosts_flag:#x}", hex(message.sys_flag)
        )
    if message.magic not in _TOPIC_LENGTH:
        raise _fault("magic", "MAGIC_V1 or MAGIC_V2", message.magic)
    if message.magic == layout.MAGIC_V1 and len(topic) > layout.TOPIC_BYTES_MAX_V1:
        raise _fault(
            "topic",
            f"at most {layout.TOPIC_BYTES_MAX_V1} bytes, or MAGIC_V2",
            f"{len(topic)} bytes",
        )
    if len(topic) > layout.TOPIC_BYTES_MAX_V2:
        raise _fault("topic", f"at most {layout.TOPIC_BYTES_MAX_V2} bytes", f"{len(topic)} bytes")
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise _fault(
            "properties", f"at most {PROPERTIES_BYTES_MAX} bytes", f"{len(properties)} bytes"
        )


# ---- Usual records, which are nearly all: of the first version, from IPv4 hosts, not compressed.

PlainRecord: TypeAlias = tuple[
    int, str, bytes, str, int, int, int, int, int, int, Host, int, Host, int, int
]
"""The end of a record, then its `StoredMessage`'s fields up to `prepared_transaction_offset`."""

_FIXED: Final = struct.Struct(
    layout.struct_format(layout.HEAD)
    + f"{V4_BYTES}s"
    + layout.struct_format(layout.STORE_TIMESTAMP).lstrip(">")
    + f"{V4_BYTES}s"
    + layout.struct_format(layout.TAIL).lstrip(">")
)
_FIXED_BYTES: Final = _FIXED.size
_UNSUPPORTED_FLAGS: Final = (
    MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6 | MessageSysFlag.COMPRESSED
).value


def decode_plain_record(data: bytes, position: int) -> PlainRecord | None:
    """Decode the record that starts at ``position``.

    Return None if it is unusual, damaged, or not completely within ``data``.
    """
    if len(data) - position < layout.RECORD_BYTES_MIN:
        return None
    (
        size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
        born_timestamp, born_host, store_timestamp, store_host,
        reconsume_times, prepared_offset, body_length,
    ) = _FIXED.unpack_from(data, position)  # fmt: skip
    end = position + size
    body_at = position + _FIXED_BYTES
    body_end = body_at + body_length
    if (
        magic != layout.MAGIC_V1
        or sys_flag & _UNSUPPORTED_FLAGS
        or body_length < 0
        or not body_end < end <= len(data)
    ):
        return None
    topic_end = body_end + 1 + data[body_end]
    properties_at = topic_end + layout.PROPERTIES_LENGTH_BYTES
    length = int.from_bytes(data[topic_end:properties_at], "big", signed=True)
    if properties_at + length != end or length < 0:
        return None
    body = data[body_at:body_end]
    if body_crc_of(body) != body_crc:
        return None
    return (
        end,
        str(data[body_end + 1 : topic_end], "utf-8", "replace"),
        body,
        str(without_checksum(data[properties_at:end]), "utf-8", "replace"),
        queue_id,
        queue_offset,
        physical_offset,
        flag,
        sys_flag,
        born_timestamp,
        decode_host(born_host),
        store_timestamp,
        decode_host(store_host),
        reconsume_times,
        prepared_offset,
    )
