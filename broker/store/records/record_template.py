"""RecordTemplate: the common part of the records of messages that one client sends to one queue.

Such messages differ in body, properties, birth and flag. All the rest is checked and put into bytes
once, which is a third of what a record costs. The result is what a `RecordDraft` makes of the same
message.

It knows neither files nor queues.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, repeat
from typing import NamedTuple
from zlib import crc32

from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.record_checksum import CHECKSUM_BYTES, checksum_pieces
from rocketpoll.broker.store.consume_queue import STATES_WITHOUT_ENTRY, TRANSACTION_MASK
from rocketpoll.broker.store.fresh_records import FreshRecord
from rocketpoll.broker.store.offsets import PhysicalOffset, QueueOffset
from rocketpoll.broker.store.records.record_draft import (
    PROPERTIES_LENGTH,
    RecordDraft,
    all_ready,
    head_of,
    topic_part,
)


class UniformParts(NamedTuple):
    """The parts that differ between messages of one template: by field, one for each message."""

    flags: Sequence[int]
    bodies: Sequence[Buffer]
    properties: Sequence[bytes]


class RecordTemplate:
    """The common part of records of one queue, checked and encoded once."""

    __slots__ = ("common", "fixed_bytes", "flag", "head_bytes", "queue", "seal")

    def __init__(self, common: RecordDraft) -> None:
        """Prepare the part that is common to messages like this one, whose body may be missing.

        Raises:
            RecordError: Such messages cannot be stored.
            ValueError: Messages of open transactions have no templates.
        """
        common.prepare()
        if common.sys_flag & TRANSACTION_MASK in STATES_WITHOUT_ENTRY:
            raise ValueError("messages of open transactions take no offsets, and come one by one")
        self.common = common
        self.flag = common.flag
        self.queue = common.topic, common.queue_id
        head, before = head_of(common), topic_part(common.topic, common.magic)
        self.head_bytes = head.size
        # The bytes of a record besides its body and its properties, which must be ready.
        self.fixed_bytes = head.size + len(before) + PROPERTIES_LENGTH.size + CHECKSUM_BYTES
        self.seal = _sealer(common, head.pack, before)


def _sealer(
    common: RecordDraft, pack: Callable[..., bytes], before: bytes
) -> Callable[..., tuple[bytes, bytes]]:
    """Return the function that makes a record of the rest, a closure for quick look-ups."""
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
        """Return the record, and the checksum that ends it."""
        head = pack(
            size, magic, crc32(body) & mask, queue_id, flag, queue_offset,
            physical_offset, sys_flag, born_timestamp, born_host, store_timestamp,
            store_host, reconsume_times, prepared, len(body),
        )  # fmt: skip
        record = join(
            (head, body, before, pack_length(len(properties) + CHECKSUM_BYTES), properties)
        )
        return record, checksum_pieces(crc32(record))

    return seal


class UniformBatch:
    """Messages of one template that go into the log back to back, with successive queue offsets."""

    def __init__(self, template: RecordTemplate, parts: UniformParts, born_timestamp: int) -> None:
        """Take the parts of at least one message."""
        self._template = template
        self._parts = parts._replace(properties=all_ready(parts.properties))
        self._born_timestamp = born_timestamp
        fixed_bytes = template.fixed_bytes
        lengths = zip(map(len, parts.bodies), map(len, self._parts.properties), strict=True)
        self.sizes = [fixed_bytes + body + properties for body, properties in lengths]
        self.size = sum(self.sizes)

    def sealed(
        self, queue_offset: QueueOffset, physical_offset: PhysicalOffset, store_timestamp: int
    ) -> bytes:
        """Return all records, given the first one's place; raise RecordError if one is invalid."""
        seal, born_timestamp = self._template.seal, self._born_timestamp
        pieces: list[bytes] = []
        try:
            for size, flag, body, properties in zip(self.sizes, *self._parts, strict=True):
                place = queue_offset, physical_offset, store_timestamp
                pieces += seal(size, flag, body, properties, born_timestamp, *place)
                queue_offset += 1
                physical_offset += size
        except struct.error as error:
            common = self._template.common
            raise replace(
                common, flag=flag, body=body, properties=properties, born_timestamp=born_timestamp
            ).fault() from error
        return b"".join(pieces)

    def fresh_records(
        self, queue_offset: QueueOffset, physical_offset: PhysicalOffset
    ) -> list[FreshRecord]:
        """Return what reput needs to know of the records, given the place of the first."""
        queue, sizes = self._template.queue, self.sizes
        offsets = range(queue_offset, queue_offset + len(sizes))
        places = accumulate(sizes[:-1], initial=physical_offset)
        fields = zip(repeat(queue), offsets, places, sizes, self._parts.properties, strict=False)
        return list(map(FreshRecord._make, fields))
