r"""A checksum over a whole stored record, where its own body CRC leaves all but the body unwatched.

It is RocketMQ 5's own: the last property of the record, always 20 bytes,

    __CRC32# \x01 dddddddddd \x02      ten digits of CRC-32 & 0x7FFFFFFF, the last one first

over everything before these 20 bytes. To readers that do not know it, it is one more property.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rmq_spark.wire.record_layout import BODY_CRC_MASK, PROPERTIES_LENGTH_BYTES

PROPERTY_CRC32: Final = "__CRC32#"
CHECKSUM_DIGITS: Final = 10
CHECKSUM_HEAD: Final = (PROPERTY_CRC32 + NAME_VALUE_SEPARATOR).encode()
CHECKSUM_BYTES: Final = len(CHECKSUM_HEAD) + CHECKSUM_DIGITS + 1
DIGITS_AT: Final = -CHECKSUM_DIGITS - 1
"""Where the digits stand, from the end of the record."""

EMPTY_CHECKSUM: Final = CHECKSUM_HEAD.decode() + "0" * CHECKSUM_DIGITS + PROPERTY_SEPARATOR

_CHECKSUM_TAIL = PROPERTY_SEPARATOR.encode()
_REVERSED = _CHECKSUM_TAIL + b"%010d" + CHECKSUM_HEAD[::-1]
_OLD_CHECKSUM = re.compile(r"(?:\A|(?<=\x02))__CRC32#\x01[^\x02]*(?:\x02|\Z)")
_BEFORE_CHECKSUM = (PROPERTY_SEPARATOR.encode(), CHECKSUM_BYTES.to_bytes(PROPERTIES_LENGTH_BYTES, "big"))
# What stands before it: the end of another property, or the length of the properties, which are it alone.


def with_empty_checksum(properties_text: str) -> str:
    """The properties with room for a checksum behind them, in place of any that they may have."""
    if PROPERTY_CRC32 in properties_text:
        properties_text = _OLD_CHECKSUM.sub("", properties_text)
    if properties_text and not properties_text.endswith(PROPERTY_SEPARATOR):
        properties_text += PROPERTY_SEPARATOR
    return properties_text + EMPTY_CHECKSUM


def seal_record(record: bytearray) -> None:
    """Fill in the checksum of a record that ends with an empty one."""
    record[DIGITS_AT:-1] = _digits(checksum_of(record))


def is_intact(record: Buffer) -> bool | None:
    """Whether a record is what its checksum says; None if it has none."""
    before = bytes(record[-CHECKSUM_BYTES - PROPERTIES_LENGTH_BYTES : -CHECKSUM_BYTES])
    if bytes(record[-CHECKSUM_BYTES:DIGITS_AT]) != CHECKSUM_HEAD or not before.endswith(_BEFORE_CHECKSUM):
        return None
    return bytes(record[DIGITS_AT:]) == _digits(checksum_of(record)) + _CHECKSUM_TAIL


def checksum_property(before: int) -> bytes:
    """The property that ends a record, by the CRC-32 of all that stands before it."""
    # Written backwards as a whole, which takes half as long as putting the parts together.
    return (_REVERSED % (before & BODY_CRC_MASK))[::-1]


def checksum_of(record: Buffer) -> int:
    """The checksum of a record, without the place where it stands."""
    return crc32(memoryview(record)[:-CHECKSUM_BYTES]) & BODY_CRC_MASK


def _digits(checksum: int) -> bytes:
    return (b"%010d" % checksum)[::-1]
