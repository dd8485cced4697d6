"""Message ids: encodes and decodes the two ids of a message.

    offset message id   storeHost (4 or 16 address bytes, i32 port), i64 physicalOffset
    unique id           address (4 or 16 bytes), u16 process, u32 class loader's hash,
                        u32 ms since the month began, u16 counter

Both are written in upper-case hexadecimal: 32 characters with IPv4, 56 with IPv6. The broker
assigns the first, which says where the message is stored; the producer assigns the second
(UNIQ_KEY). Clocks and process numbers are arguments.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.hosts import Host, decode_host

_OFFSET = struct.Struct(">q")
_UNIQUE_TAIL = struct.Struct(">HIIH")
_PORT_MAX = 0xFFFF
_V4_BYTES = 16
_V6_BYTES = 28


class UniqueId(NamedTuple):
    """The parts of a producer's message id."""

    address: bytes
    process_id: int
    loader_hash: int
    month_ms: int
    counter: int

    def encode(self) -> str:
        """Return the id as text; process, hash and counter are cut to their widths, as in Java."""
        if len(self.address) not in (4, 16) or not 0 <= self.month_ms < 1 << 32:
            raise RecordError(
                "unique id", at="address", needed="4 or 16 bytes, and a time", found=self
            )
        tail = _UNIQUE_TAIL.pack(
            self.process_id & 0xFFFF,
            self.loader_hash & 0xFFFFFFFF,
            self.month_ms,
            self.counter & 0xFFFF,
        )
        return (self.address + tail).hex().upper()


def decode_unique_id(text: str) -> UniqueId:
    """Decode the parts of a unique id."""
    data = _bytes_of(text)
    address_bytes = len(data) - _UNIQUE_TAIL.size
    return UniqueId(data[:address_bytes], *_UNIQUE_TAIL.unpack(data[address_bytes:]))


def encode_offset_message_id(store_host: Host, physical_offset: int) -> str:
    """Return the id of a message by its broker and its offset in the commit log."""
    try:
        offset = _OFFSET.pack(physical_offset)
    except struct.error as error:
        raise RecordError(
            "message id", at="physical offset", needed="a 64-bit integer", found=physical_offset
        ) from error
    return _host_digits(store_host) + offset.hex().upper()


@lru_cache(maxsize=1024)  # of thousands of messages, a few
def _host_digits(host: Host) -> str:
    return host.encode().hex().upper()


def decode_offset_message_id(text: str) -> tuple[Host, int]:
    """Return the broker and the offset in its commit log."""
    data = _bytes_of(text)
    (physical_offset,) = _OFFSET.unpack(data[-_OFFSET.size :])
    return decode_host(data[: -_OFFSET.size]), physical_offset


def is_unique_id(text: str) -> bool:
    """Return whether an id must be a producer's, because a broker's would need a valid port.

    The process number is where the port starts in a broker's id. So only the ids of a process with
    number 0 modulo 65,536 look like a broker's.
    """
    try:
        host, _ = decode_offset_message_id(text)
    except RecordError:
        return False
    return not 0 < host.port <= _PORT_MAX


def _bytes_of(text: str) -> bytes:
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    # fromhex ignores spaces, so check the text's own length.
    if len(data) not in (_V4_BYTES, _V6_BYTES) or len(text) != 2 * len(data):
        raise RecordError("message id", at="text", needed="32 or 56 hexadecimal digits", found=text)
    return data
