"""Record layout: every offset and width of a stored message that other modules use.

    part     field                      bytes
    HEAD     totalSize                  i32    the whole record, this word included
             magic                      i32    states the width of the topic's length
             bodyCRC                    i32    CRC-32 of the body as stored, top bit cleared
             queueId                    i32
             flag                       i32    the user's
             queueOffset                i64    entry number in the consume queue
             physicalOffset             i64    where in the commit log this record starts
             sysFlag                    i32    `MessageSysFlag`
             bornTimestamp              i64    ms, the producer's clock
             bornHost                   8, or 20 with sysFlag BORN_HOST_V6
             storeTimestamp             i64    ms, the broker's clock
             storeHost                  8, or 20 with sysFlag STORE_HOST_V6
    TAIL     reconsumeTimes             i32
             preparedTransactionOffset  i64
             bodyLength                 i32
             body
             topicLength                u8, or i16 under MAGIC_V2
             topic
             propertiesLength           i16
             properties                 see `properties.py`; they may end with a checksum of the
                                        record, which is drawn below

If a file has no room for the next record, a blank one fills it: i32 remaining bytes, i32
MAGIC_BLANK.

All numbers are big-endian. `record.py` reads and writes one record, and `chunk` many at a time.
"""

from __future__ import annotations

import struct
from typing import Final

from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.message import hosts
from rmq_spark.wire.message.properties import PROPERTY_SEPARATOR
from rmq_spark.wire.remoting.framing import Buffer

FILE_NAME_DIGITS: Final = 20
"""The digits in the name of a file of the log or of a queue: the position of its first byte."""

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
MAGIC_BLANK: Final = 0xCBD43194 - (1 << 32)

HEAD: Final = (
    ("total_size", "i"),
    ("magic", "i"),
    ("body_crc", "i"),
    ("queue_id", "i"),
    ("flag", "i"),
    ("queue_offset", "q"),
    ("physical_offset", "q"),
    ("sys_flag", "i"),
    ("born_timestamp", "q"),
)
STORE_TIMESTAMP: Final = (("store_timestamp", "q"),)
TAIL: Final = (
    ("reconsume_times", "i"),
    ("prepared_transaction_offset", "q"),
    ("body_length", "i"),
)
BLANK: Final = (("total_size", "i"), ("magic", "i"))


def struct_format(*parts: tuple[tuple[str, str], ...]) -> str:
    """Return the format of `struct` for these parts in a row."""
    return ">" + "".join(kind for part in parts for _, kind in part)


def _bytes_before(name: str) -> int:
    names = [field for field, _ in HEAD]
    return struct.calcsize(struct_format(HEAD[: names.index(name)]))


BODY_CRC_AT: Final = _bytes_before("body_crc")
QUEUE_ID_AT: Final = _bytes_before("queue_id")
QUEUE_OFFSET_AT: Final = _bytes_before("queue_offset")
PHYSICAL_OFFSET_AT: Final = _bytes_before("physical_offset")
SYS_FLAG_AT: Final = _bytes_before("sys_flag")
HEAD_BYTES: Final = struct.calcsize(struct_format(HEAD))
STORE_TIMESTAMP_BYTES: Final = struct.calcsize(struct_format(STORE_TIMESTAMP))
TAIL_BYTES: Final = struct.calcsize(struct_format(TAIL))
HOST_V4_BYTES: Final = hosts.V4_BYTES
HOST_V6_BYTES: Final = hosts.V6_BYTES
TOPIC_LENGTH_V1_BYTES: Final = 1
TOPIC_LENGTH_V2_BYTES: Final = 2
PROPERTIES_LENGTH_BYTES: Final = 2

RECORD_BYTES_MIN: Final = (
    HEAD_BYTES
    + HOST_V4_BYTES
    + STORE_TIMESTAMP_BYTES
    + HOST_V4_BYTES
    + TAIL_BYTES
    + TOPIC_LENGTH_V1_BYTES
    + PROPERTIES_LENGTH_BYTES
)
"""The size with IPv4 hosts, the first magic, and empty body, topic and properties."""

BODY_CRC_MASK: Final = 0x7FFFFFFF
TOPIC_BYTES_MAX_V1: Final = 127
"""The longest topic of a record of the first version: its length byte is signed in Java."""
TOPIC_BYTES_MAX_V2: Final = 32_767


# ---- Blank entries of consume queues, at offsets without a message. Their size is one that no
# record has. Their tags code states the reason: the log has lost the message, or its batch was
# rolled back. RocketMQ knows neither reason, and skips both.

BLANK_SIZE: Final = 0x7FFFFFFF
"""The size in a blank entry."""

ROLLED_BACK: Final = 1 << 62
"""The tags code of a blank entry whose message was rolled back with its batch, not lost."""


# ---- Checksum of a whole record; RocketMQ's CRC covers only the body. The checksum is the last 16
# bytes of the properties: the CRC-32 of all bytes before it, as eight hexadecimal digits, each with
# a separator.
#
#     d \x02 d \x02 d \x02 d \x02 d \x02 d \x02 d \x02 d \x02
#
# So it is eight pieces of the properties, each of one character, and readers ignore them because
# they have no \x01. A longer piece would work for most readers, but ali-ons, the client for
# Node.js, reads all of it but the last character as a name.

_SEPARATOR = PROPERTY_SEPARATOR.encode()

HEX_PIECES: Final = tuple(
    "".join(digit + PROPERTY_SEPARATOR for digit in f"{byte:02x}").encode() for byte in range(256)
)
"""The two digits of each byte of a CRC."""


def encode_checksum(crc: int) -> bytes:
    """Return the pieces that end a record, given the CRC-32 of all bytes before them."""
    first, second, third, last = crc.to_bytes(4, "big")
    pieces = HEX_PIECES
    return pieces[first] + pieces[second] + pieces[third] + pieces[last]


EMPTY_CHECKSUM: Final = encode_checksum(0)
CHECKSUM_BYTES: Final = len(EMPTY_CHECKSUM)

_SEPARATORS = _SEPARATOR * (CHECKSUM_BYTES // 2 + 1)


def with_empty_checksum(properties_text: str) -> str:
    """Return the properties with room for a checksum after them."""
    if properties_text and not properties_text.endswith(PROPERTY_SEPARATOR):
        properties_text += PROPERTY_SEPARATOR
    return properties_text + EMPTY_CHECKSUM.decode()


def without_checksum(properties: bytes) -> bytes:
    """Return the properties without the checksum at their end, if they have one."""
    # Every second byte is a separator, starting with the one before the first digit, if any.
    if properties[-3:-2] != _SEPARATOR:  # the usual case
        return properties
    if (_SEPARATOR + properties)[-CHECKSUM_BYTES - 1 :: 2] == _SEPARATORS:
        return properties[:-CHECKSUM_BYTES]
    return properties


def has_valid_checksum(record: Buffer) -> bool:
    """Return whether a record ends with the checksum of all bytes before it."""
    watched = memoryview(record)[:-CHECKSUM_BYTES]
    return bytes(record[-CHECKSUM_BYTES:]) == encode_checksum(crc32(watched))
