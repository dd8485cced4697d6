"""Messages of the log: hypothesis strategies with no field at its default, and encoded records with
checksums (the store computes these for whole chunks)."""

from __future__ import annotations

import dataclasses
from zlib import crc32

from hypothesis import strategies as st

from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message.record_layout import (
    CHECKSUM_BYTES,
    encode_checksum,
    with_empty_checksum,
)

MAGICS = [layout.MAGIC_V1, layout.MAGIC_V2]
int32s, int64s = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.builds(
    Host,
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    st.integers(0, 1 << 16),
)
properties = st.lists(
    st.sampled_from(
        ["a\x01b", "KEYS\x01k l", "__CRC32#\x010123456789", "x__CRC32#\x01y", "标\x01签", "7", ""]
    )
).map("\x02".join)


@st.composite
def messages(draw):
    born_host, store_host = draw(hosts), draw(hosts)
    topic = draw(st.text("Ta%é", min_size=1, max_size=100))
    return StoredMessage(
        topic=topic,
        body=draw(st.binary(max_size=50)),
        properties_text=draw(properties),
        queue_id=draw(int32s),
        flag=draw(int32s),
        sys_flag=draw(st.sampled_from([0, 4, 0x100]))
        | 0x10 * born_host.is_v6
        | 0x20 * store_host.is_v6,
        born_timestamp=draw(int64s),
        born_host=born_host,
        store_host=store_host,
        reconsume_times=draw(int32s),
        prepared_transaction_offset=draw(int64s),
        magic=layout.MAGIC_V2 if len(topic.encode()) > 127 else draw(st.sampled_from(MAGICS)),
    )


def has_offset(message):
    """Return whether the store assigns a queue offset: not to prepared and rolled back messages."""
    return message.sys_flag & MessageSysFlag.TRANSACTION_MASK not in (
        MessageSysFlag.TRANSACTION_PREPARED,
        MessageSysFlag.TRANSACTION_ROLLBACK,
    )


plain_messages = messages().filter(has_offset)


def sealed(message: StoredMessage) -> bytes:
    """Encode a message as the store does, with its checksum."""
    text = with_empty_checksum(message.properties_text)
    return with_its_checksum(encode_record(dataclasses.replace(message, properties_text=text)))


def with_its_checksum(record: bytes) -> bytes:
    """Fill in the checksum at the end of a record."""
    watched = record[:-CHECKSUM_BYTES]
    return watched + encode_checksum(crc32(watched))
