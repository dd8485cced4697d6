"""RecordDraft: a message on its way into the log, with no position, queue offset or time yet.

Its texts are bytes, so that callers that have bytes need not decode them. Once the log has assigned
the rest, the whole record is built in one go, with its checksum. The result equals that of
`encode_record` of `rmq_spark.wire.message.record`, which also raises the errors for invalid
messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import methodcaller
from typing import Any, NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import decode_host
from rmq_spark.wire.message.properties import PROPERTY_SEPARATOR
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message.record_layout import (
    CHECKSUM_BYTES,
    encode_checksum,
    with_empty_checksum,
)
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.remoting.framing import Buffer

from ..records.fields import STATES_WITHOUT_ENTRY, TRANSACTION_MASK, head_struct
from ..records.recent_writes import ColumnRun, RecentRecord, RecentRun
from ..results import LOG_START, PhysicalOffset, PutMessageResult, PutMessageStatus, QueueOffset

_HOSTS_V6 = (MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6).value
_SEPARATOR = PROPERTY_SEPARATOR.encode()
PROPERTIES_LENGTH = struct.Struct(">h")
_ends_with_separator = methodcaller("endswith", _SEPARATOR)
_TOPIC_LENGTH = {layout.MAGIC_V1: struct.Struct(">b"), layout.MAGIC_V2: struct.Struct(">h")}


_HEADS = {
    (born_host_bytes, store_host_bytes, sys_flag): head_struct(sys_flag)
    for born_host_bytes, born_flag in ((layout.HOST_V4_BYTES, 0), (layout.HOST_V6_BYTES, 0x10))
    for store_host_bytes, store_flag in ((layout.HOST_V4_BYTES, 0), (layout.HOST_V6_BYTES, 0x20))
    for sys_flag in (born_flag | store_flag,)
}
"""The fields before the body, by the widths of the hosts and the matching bits of sysFlag."""


@dataclass(slots=True, eq=False)
class RecordDraft:
    """One message, with hosts encoded by `Host.encode` and properties as UTF-8 bytes."""

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
    _after_body: bytes = field(init=False)
    _body_crc: int = field(init=False)

    def prepare(self) -> None:
        """Encode everything that needs no position; raise RecordError for an invalid message."""
        properties = terminated_properties(self.properties)
        body = self.body
        try:
            head = head_of(self)
            properties_length = PROPERTIES_LENGTH.pack(len(properties) + CHECKSUM_BYTES)
            self._after_body = suffix = (
                topic_part(self.topic, self.magic) + properties_length + properties
            )
        except (KeyError, struct.error) as error:
            raise self.fault() from error
        self._head = head.pack
        self._body_crc = crc32(body) & layout.BODY_CRC_MASK
        self.size = head.size + len(body) + len(suffix) + CHECKSUM_BYTES

    def encode(
        self, queue_offset: QueueOffset, physical_offset: PhysicalOffset, store_timestamp: int
    ) -> bytes:
        """Return the record with its position, queue offset, time and checksum."""
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
        record = b"".join((head, body, self._after_body))
        return record + encode_checksum(crc32(record))

    def fault(self) -> RecordError:
        """Return the error that names the invalid value and the reason."""
        try:
            encode_record(
                self.message(with_empty_checksum(self.properties.decode("utf-8", "replace")))
            )
        except RecordError as error:
            return error
        return RecordError("stored message", at="its parts", needed="a message", found=self)

    def message(self, properties_text: str) -> StoredMessage:
        """Return the message with the draft's values and this text of properties."""
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
        encode_record(message)  # raises the more precise error
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
    """Return the topic with its length in front, as in records."""
    text = topic.encode()
    return _TOPIC_LENGTH[magic].pack(len(text)) + text


def head_of(draft: RecordDraft) -> struct.Struct:
    """Return the struct of the fields before the body; KeyError if hosts contradict sysFlag."""
    return _HEADS[len(draft.born_host), len(draft.store_host), draft.sys_flag & _HOSTS_V6]


def terminated_properties(properties: bytes) -> bytes:
    """Return the properties with a separator at the end, as needed before a checksum."""
    if properties and not properties.endswith(_SEPARATOR):
        return properties + _SEPARATOR
    return properties


def terminate_all(properties: Sequence[bytes]) -> Sequence[bytes]:
    """Return the properties of many messages, each with a separator at the end."""
    return (
        properties
        if all(map(_ends_with_separator, properties))
        else list(map(terminated_properties, properties))
    )


# ---- RecordTemplate.


class UniformParts(NamedTuple):
    """The parts that differ between messages of one template: a list of values for each field."""

    flags: Sequence[int]
    bodies: Sequence[Buffer]
    properties: Sequence[bytes]


class RecordTemplate:
    """The common part of records of one queue, checked and encoded once."""

    __slots__ = ("common", "fixed_bytes", "flag", "head_bytes", "queue", "seal")

    def __init__(self, common: RecordDraft) -> None:
        """Encode the common part of messages like ``common``, whose body may be empty.

        Raises:
            RecordError: Such messages are invalid.
            ValueError: Messages of open transactions cannot have templates.
        """
        common.prepare()
        if common.sys_flag & TRANSACTION_MASK in STATES_WITHOUT_ENTRY:
            raise ValueError(
                "messages of open transactions have no queue offsets and are put one by one"
            )
        self.common = common
        self.flag = common.flag
        self.queue = common.topic, common.queue_id
        head, before = head_of(common), topic_part(common.topic, common.magic)
        self.head_bytes = head.size
        # the size of a record without its body and its properties, which end with a separator
        self.fixed_bytes = head.size + len(before) + PROPERTIES_LENGTH.size + CHECKSUM_BYTES
        self.seal = _make_seal(common, head.pack, before)


def _make_seal(
    common: RecordDraft, pack: Callable[..., bytes], before: bytes
) -> Callable[..., tuple[bytes, bytes]]:
    """Return a function that completes a record; it is a closure for quick look-ups."""
    magic, queue_id, sys_flag = common.magic, common.queue_id, common.sys_flag
    born_host, store_host = common.born_host, common.store_host
    reconsume_times, prepared = common.reconsume_times, common.prepared_transaction_offset
    pack_length, mask, join = PROPERTIES_LENGTH.pack, layout.BODY_CRC_MASK, b"".join

    def seal(
        size: int,
        flag: int,
        body: Buffer,
        properties: bytes,
        born_timestamp: int,
        queue_offset: QueueOffset,
        physical_offset: PhysicalOffset,
        store_timestamp: int,
    ) -> tuple[bytes, bytes]:
        head = pack(
            size, magic, crc32(body) & mask, queue_id, flag, queue_offset,
            physical_offset, sys_flag, born_timestamp, born_host, store_timestamp,
            store_host, reconsume_times, prepared, len(body),
        )  # fmt: skip
        record = join(
            (head, body, before, pack_length(len(properties) + CHECKSUM_BYTES), properties)
        )
        return record, encode_checksum(crc32(record))

    return seal


# ---- RecordBatch.

_NOT_WRITTEN = PutMessageResult(
    PutMessageStatus.SERVICE_NOT_AVAILABLE, remark="the machine is short of memory"
)


class RecordBatch:
    """Messages to be appended back to back in one write, all or none."""

    def __init__(self, queues: set[QueueKey], size: int) -> None:
        self.queues = queues
        self.size = size
        self.next_offsets: dict[QueueKey, QueueOffset] = {}
        """The next offset of each queue: set this before `encode`, which advances it."""
        self.recent: RecentRun | ColumnRun = RecentRun((), 0, LOG_START)
        """The records made by `encode`, for reput and for the responses."""
        self.refusal: PutMessageResult | None = _NOT_WRITTEN
        """The result of each message while the batch is not in the log, then None."""


_new_recent_record: Callable[[type[RecentRecord], tuple[Any, ...]], RecentRecord] = tuple.__new__


class RecordRun(RecordBatch):
    """Messages that may have different templates, encoded one by one."""

    def __init__(
        self,
        templates: Sequence[RecordTemplate],
        parts: UniformParts,
        born_timestamps: Sequence[int],
    ) -> None:
        """Store the parts of at least one message; all properties must end with a separator."""
        self._templates = templates
        self._parts = parts
        self._born_timestamps = born_timestamps
        self.sizes = [
            template.fixed_bytes + len(body) + len(text)
            for template, body, text in zip(templates, parts.bodies, parts.properties, strict=True)
        ]
        super().__init__({template.queue for template in templates}, sum(self.sizes))
        self.recent: RecentRun

    @classmethod
    def uniform(
        cls, template: RecordTemplate, parts: UniformParts, born_timestamp: int
    ) -> RecordRun:
        """Return the run of messages of one template, born at the same time."""
        parts = parts._replace(properties=terminate_all(parts.properties))
        count = len(parts.bodies)
        return cls([template] * count, parts, [born_timestamp] * count)

    @property
    def body_bytes_max(self) -> int:
        """The size of the longest body."""
        return max(map(len, self._parts.bodies))

    @property
    def properties_bytes_max(self) -> int:
        """The size of the longest properties."""
        return max(map(len, self._parts.properties))

    def encode(
        self, _: QueueOffset, physical_offset: PhysicalOffset, store_timestamp: int
    ) -> bytes:
        """Return all records, given the first one's position and their common time."""
        next_offsets = self.next_offsets
        pieces: list[bytes] = []
        records: list[RecentRecord] = []
        try:
            for size, template, flag, body, properties, born_timestamp in zip(
                self.sizes, self._templates, *self._parts, self._born_timestamps, strict=True
            ):
                queue = template.queue
                queue_offset = next_offsets[queue]
                next_offsets[queue] = queue_offset + 1
                pieces += template.seal(
                    size,
                    flag,
                    body,
                    properties,
                    born_timestamp,
                    queue_offset,
                    physical_offset,
                    store_timestamp,
                )
                records.append(
                    _new_recent_record(
                        RecentRecord, (queue, queue_offset, physical_offset, size, properties)
                    )
                )
                physical_offset += size
        except struct.error as error:
            raise replace(
                template.common,
                flag=flag,
                body=body,
                properties=properties,
                born_timestamp=born_timestamp,
            ).fault() from error
        self.recent = RecentRun(records, store_timestamp, physical_offset)
        return b"".join(pieces)
