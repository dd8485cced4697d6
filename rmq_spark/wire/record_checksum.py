r"""Record checksum: a checksum of a whole stored record; RocketMQ's CRC covers only the body.

It ends the record's properties, always 16 bytes: the CRC-32 of all bytes before it, as eight
hexadecimal digits, each followed by a separator.

    d \x02 d \x02 d \x02 d \x02 d \x02 d \x02 d \x02 d \x02

So it is eight pieces of the properties, each of one character, and readers ignore them because they
have no \x01. A longer piece would work for most readers, but ali-ons, the client for Node.js, reads
all of it but the last character as a name.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.properties import PROPERTY_SEPARATOR

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
    # Every second byte is a separator, from the one before the first digit on, if there is one.
    if properties[-3:-2] != _SEPARATOR:  # as nearly always
        return properties
    if (_SEPARATOR + properties)[-CHECKSUM_BYTES - 1 :: 2] == _SEPARATORS:
        return properties[:-CHECKSUM_BYTES]
    return properties


def has_valid_checksum(record: Buffer) -> bool:
    """Return whether a record ends with the checksum of all bytes before it."""
    watched = memoryview(record)[:-CHECKSUM_BYTES]
    return bytes(record[-CHECKSUM_BYTES:]) == encode_checksum(crc32(watched))
