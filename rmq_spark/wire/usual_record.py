"""Usual records, which are nearly all: of the first version, from IPv4 hosts, not compressed.

All fields that stand at fixed places are read at once. Whatever is not as it should be, or only
unusual, is left to `record`, which reads all records and says what is wrong with one.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.hosts import V4_BYTES, Host, decode_host
from rmq_spark.wire.record import body_crc_of
from rmq_spark.wire.record_checksum import without_checksum

PlainRecord: TypeAlias = tuple[
    int, str, bytes, str, int, int, int, int, int, int, Host, int, Host, int, int
]
"""The end of a record, and the fields of its `StoredMessage`, in their order, up to the magic."""

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

    None if it is unusual or damaged, or does not lie wholly within ``data``.
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
