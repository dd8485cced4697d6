"""RecordTemplate: what the records of messages have in common that one client sends to one queue.

Such messages differ in body, properties, birth and flag. All the rest is checked and put into bytes once,
which is a third of what a record costs. What comes out is what a `RecordDraft` makes of the same message.

It knows neither files nor queues.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias
from zlib import crc32

from broker.store.consume_queue import STATES_WITHOUT_ENTRY, TRANSACTION_MASK
from broker.store.fresh_records import FreshRecord
from broker.store.record_draft import PROPERTIES_LENGTH, RecordDraft, head_of, ready_properties, topic_part
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.record_checksum import CHECKSUM_BYTES, checksum_property

Sealed: TypeAlias = "tuple[bytes, bytes]"
"""A record in two pieces: all of it, and the checksum that ends it."""

_Part: TypeAlias = "tuple[int, int, Buffer, bytes]"


class RecordTemplate:
    """See the module."""

    __slots__ = ("common", "fixed_bytes", "queue", "seal")

    def __init__(self, common: RecordDraft) -> None:
        """``common`` is one such message, or one without a body; RecordError if it cannot be stored."""
        common.prepare()
        if common.sys_flag & TRANSACTION_MASK in STATES_WITHOUT_ENTRY:
            raise ValueError("messages of open transactions take no offsets, and come one by one")
        self.common = common
        self.queue = common.topic, common.queue_id
        head, before = head_of(common), topic_part(common.topic, common.magic)
        self.fixed_bytes = head.size + len(before) + PROPERTIES_LENGTH.size + CHECKSUM_BYTES
        self.seal = _sealer(common, head.pack, before)

    def size_of(self, body: Buffer, properties: bytes) -> int:
        """The size of a record with this body and these properties, which must be ready."""
        return self.fixed_bytes + len(body) + len(properties)


def _sealer(common: RecordDraft, pack: Callable[..., bytes], before: bytes) -> Callable[..., Sealed]:
    """The function that makes a record of the rest; in a closure, as what it knows costs no look-up."""
    magic, queue_id, sys_flag = common.magic, common.queue_id, common.sys_flag
    born_host, store_host = common.born_host, common.store_host
    reconsume_times, prepared = common.reconsume_times, common.prepared_transaction_offset
    pack_length, mask = PROPERTIES_LENGTH.pack, layout.BODY_CRC_MASK

    def seal(
        size: int,
        flag: int,
        body: Buffer,
        properties: bytes,
        born_timestamp: int,
        queue_offset: int,
        physical_offset: int,
        store_timestamp: int,
    ) -> Sealed:
        head = pack(
            size, magic, crc32(body) & mask, queue_id, flag, queue_offset,
            physical_offset, sys_flag, born_timestamp, born_host, store_timestamp,
            store_host, reconsume_times, prepared, len(body),
        )  # fmt: skip
        length = pack_length(len(properties) + CHECKSUM_BYTES)
        record = b"".join((head, body, before, length, properties))
        return record, checksum_property(crc32(record))

    return seal


class UniformBatch:
    """Messages of one template that go into the log back to back, with successive queue offsets."""

    def __init__(
        self, template: RecordTemplate, parts: Sequence[tuple[int, Buffer, bytes]], born_timestamp: int
    ) -> None:
        """Flag, body and properties of each."""
        self._template = template
        self._born_timestamp = born_timestamp
        fixed_bytes = template.fixed_bytes
        self._parts: list[_Part] = []
        add = self._parts.append
        for flag, body, properties in parts:
            ready = ready_properties(properties)
            add((fixed_bytes + len(body) + len(ready), flag, body, ready))
        self.sizes = [part[0] for part in self._parts]
        self.size = sum(self.sizes)

    def sealed(self, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
        """All records, with what the first one gets; RecordError if one cannot be stored."""
        common = replace(self._template.common, born_timestamp=self._born_timestamp)
        seal, born_timestamp = self._template.seal, self._born_timestamp
        pieces: list[bytes] = []
        for size, flag, body, properties in self._parts:
            place = queue_offset, physical_offset, store_timestamp
            try:
                pieces += seal(size, flag, body, properties, born_timestamp, *place)
            except struct.error as error:
                raise replace(common, flag=flag, body=body, properties=properties).fault() from error
            queue_offset += 1
            physical_offset += size
        return b"".join(pieces)

    def fresh_records(self, queue_offset: int, physical_offset: int) -> list[FreshRecord]:
        """What reput wants to know of them, likewise."""
        queue = self._template.queue
        records: list[FreshRecord] = []
        for size, _, _, properties in self._parts:
            records.append(FreshRecord(queue, queue_offset, physical_offset, size, properties))
            queue_offset += 1
            physical_offset += size
        return records
