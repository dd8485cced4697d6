"""RecordDraft: a message on its way into the log, still without a place, a queue offset and a time.

Its texts are bytes already, so that callers that have them so need not make anything else of them.
Once the log knows the rest, all of the record is put together in one go, with its checksum. The
result is what `rmq_spark.wire.record.encode_record` makes of the same message, which also says best
what cannot be stored.

It knows neither files nor queues.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import methodcaller
from zlib import crc32

from rmq_spark.errors import RecordError
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.hosts import decode_host
from rmq_spark.wire.properties import PROPERTY_SEPARATOR
from rmq_spark.wire.record import StoredMessage, encode_record
from rmq_spark.wire.record_checksum import CHECKSUM_BYTES, checksum_pieces, with_empty_checksum
from rocketpoll.broker.store.offsets import PhysicalOffset, QueueOffset

_HOSTS_V6 = (MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6).value
_SEPARATOR = PROPERTY_SEPARATOR.encode()
PROPERTIES_LENGTH = struct.Struct(">h")
_ENDS = methodcaller("endswith", _SEPARATOR)
_TOPIC_LENGTH = {layout.MAGIC_V1: struct.Struct(">b"), layout.MAGIC_V2: struct.Struct(">h")}


def _before_body(born_host_bytes: int, store_host_bytes: int) -> struct.Struct:
    hosts = (("born_host", f"{born_host_bytes}s"),), (("store_host", f"{store_host_bytes}s"),)
    return struct.Struct(
        layout.struct_format(layout.HEAD, hosts[0], layout.STORE_TIMESTAMP, hosts[1], layout.TAIL)
    )


_HEADS = {
    (born_host_bytes, store_host_bytes, sys_flag): _before_body(born_host_bytes, store_host_bytes)
    for born_host_bytes, born_flag in ((layout.HOST_V4_BYTES, 0), (layout.HOST_V6_BYTES, 0x10))
    for store_host_bytes, store_flag in ((layout.HOST_V4_BYTES, 0), (layout.HOST_V6_BYTES, 0x20))
    for sys_flag in (born_flag | store_flag,)
}
"""The fields before the body, by the widths of the hosts and the matching bits of sysFlag."""


@dataclass(slots=True, eq=False)
class RecordDraft:
    """One message, its hosts as from `Host.encode`, its properties in UTF-8 as in `properties`."""

    topic: str
    queue_id: int
    body: Buffer
    properties: bytes
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = layout.MAGIC_V1
    size: int = field(default=0, init=False)
    """The size of the record in bytes, once it is prepared."""

    _head: Callable[..., bytes] = field(init=False)
    _behind_body: bytes = field(init=False)
    _body_crc: int = field(init=False)

    def prepare(self) -> None:
        """Do what needs no place; raise RecordError if something cannot be stored."""
        properties = ready_properties(self.properties)
        body = self.body
        try:
            head = head_of(self)
            properties_length = PROPERTIES_LENGTH.pack(len(properties) + CHECKSUM_BYTES)
            self._behind_body = behind = (
                topic_part(self.topic, self.magic) + properties_length + properties
            )
        except (KeyError, struct.error) as error:
            raise self.fault() from error
        self._head = head.pack
        self._body_crc = crc32(body) & layout.BODY_CRC_MASK
        self.size = head.size + len(body) + len(behind) + CHECKSUM_BYTES

    def sealed(
        self, queue_offset: QueueOffset, physical_offset: PhysicalOffset, store_timestamp: int
    ) -> bytes:
        """Return the record with its place, its offset, its time and its checksum."""
        body = self.body
        try:
            head = self._head(
                self.size, self.magic, self._body_crc, self.queue_id, self.flag, queue_offset,
                physical_offset, self.sys_flag, self.born_timestamp, self.born_host,
                store_timestamp, self.store_host, self.reconsume_times,
                self.prepared_transaction_offset, len(body),
            )  # fmt: skip
        except struct.error as error:
            raise self.fault() from error
        record = b"".join((head, body, self._behind_body))
        return record + checksum_pieces(crc32(record))

    def fault(self) -> RecordError:
        """Return the error that says what of this cannot be stored."""
        try:
            encode_record(
                self.message(with_empty_checksum(self.properties.decode("utf-8", "replace")))
            )
        except RecordError as error:
            return error
        return RecordError("stored message", at="its parts", needed="a message", found=self)

    def message(self, properties_text: str) -> StoredMessage:
        """Return the message that has the draft's values and this text of properties."""
        return StoredMessage(
            topic=self.topic,
            body=bytes(self.body),
            properties_text=properties_text,
            queue_id=self.queue_id,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_timestamp,
            born_host=decode_host(self.born_host),
            store_host=decode_host(self.store_host),
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
            magic=self.magic,
        )


def draft_of(message: StoredMessage) -> RecordDraft:
    """Return the draft of a message; raise RecordError if it cannot be encoded."""
    try:
        properties = message.properties_text.encode()
    except UnicodeEncodeError:
        encode_record(message)  # which says so in the wire's own words
        raise
    return RecordDraft(
        message.topic,
        message.queue_id,
        message.body,
        properties,
        message.born_timestamp,
        message.born_host.encode(),
        message.store_host.encode(),
        message.flag,
        message.sys_flag,
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.magic,
    )


@lru_cache(maxsize=4096)
def topic_part(topic: str, magic: int) -> bytes:
    """Return the topic behind its length, as the record has it."""
    text = topic.encode()
    return _TOPIC_LENGTH[magic].pack(len(text)) + text


def head_of(draft: RecordDraft) -> struct.Struct:
    """Return the struct before the body; raise KeyError if hosts and sysFlag do not match."""
    return _HEADS[len(draft.born_host), len(draft.store_host), draft.sys_flag & _HOSTS_V6]


def ready_properties(properties: bytes) -> bytes:
    """Return the properties with a separator behind the last, as a checksum wants before itself."""
    if properties and not properties.endswith(_SEPARATOR):
        return properties + _SEPARATOR
    return properties


def all_ready(properties: Sequence[bytes]) -> Sequence[bytes]:
    """Return the properties of many messages, each as `ready_properties` makes them."""
    return properties if all(map(_ENDS, properties)) else list(map(ready_properties, properties))
