"""Message ids: encodes and decodes the two ids of a message, and the handle that recalls it.

    offset message id   storeHost (4 or 16 address bytes, i32 port), i64 physicalOffset
    unique id           address (4 or 16 bytes), u16 process, u32 class loader's hash,
                        u32 ms since the month began, u16 counter
    recall handle       base64url("v1 topic broker time id")

The ids are written in upper-case hexadecimal: 32 characters with IPv4, 56 with IPv6. The broker
assigns the first, which says where the message is stored; the producer assigns the second
(UNIQ_KEY).

A broker of RocketMQ 5 returns a recall handle for each send with a timer. Its time is that of the
message's slot in the timer wheel plus one millisecond; its id is the unique id of the message.
"""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from typing import NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.hosts import Host, decode_host

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


@lru_cache(maxsize=1024)  # thousands of messages have a few hosts
def _host_digits(host: Host) -> str:
    return host.encode().hex().upper()


def decode_offset_message_id(text: str) -> tuple[Host, int]:
    """Return the broker and the offset in its commit log."""
    data = _bytes_of(text)
    (physical_offset,) = _OFFSET.unpack(data[-_OFFSET.size :])
    return decode_host(data[: -_OFFSET.size]), physical_offset


def is_unique_id(text: str) -> bool:
    """Return whether an id must be a producer's, because a broker's would need a valid port.

    A producer's id has the process number where a broker's has the upper half of the port. So only
    the ids of a process whose number is a multiple of 65,536 look like a broker's.
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


# ---- Recall handles.

_VERSION = "v1"
_PARTS = 5


class RecallHandle(NamedTuple):
    """The message to recall, and the broker that has it."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_id: str

    def encode(self) -> str:
        """Return the handle as text."""
        parts = (_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.unique_id)
        return urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Decode a handle, or raise ValueError; a time that is not a number becomes -1."""
    try:
        # Like Java's decoder, accept text without padding.
        raw = urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeError):
        raise ValueError("recall handle is invalid") from None
    parts = raw.split(" ")
    if not text or len(parts) < _PARTS or parts[0] != _VERSION:
        raise ValueError("recall handle is invalid")
    _, topic, broker_name, time, unique_id, *_ = parts
    deliver_ms = int(time) if time.isascii() and time.isdigit() and len(time) < 19 else -1
    return RecallHandle(topic, broker_name, deliver_ms, unique_id)
