"""LargeBatch: very many messages of one template that go into the log together, prepared in steps.

When it gets its place only what depends on that is left to be filled in, for all records at once:
that takes a microsecond a record. What comes out are the records that a `UniformBatch` of the same
messages makes.

It knows neither files nor queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from rocketpoll.broker.store import chunks
from rocketpoll.broker.store import lazy_numpy as np
from rocketpoll.broker.store.aside import Waiting
from rocketpoll.broker.store.offsets import FIRST_IN_QUEUE, LOG_START
from rocketpoll.broker.store.records.record_template import (
    RecordTemplate,
    UniformBatch,
    UniformParts,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.checksums import Sealing


_PART_RECORDS = 4_096
"""Records of one part, whose bytes stay in the processor's cache while they get their places."""


class Part(NamedTuple):
    """Some records of a batch or a chunk, and what is needed to append them."""

    chunk: RecordChunk
    timestamps_at: npt.NDArray[np.int64]
    """The places of the store timestamps, counted from the start of each record."""
    sealing: Sealing


class LargeBatch:
    """Very many messages of one template, prepared in steps for one append."""

    def __init__(self, template: RecordTemplate, born_timestamp: int) -> None:
        """Begin an empty batch of messages with a common birth timestamp."""
        self.queue = template.queue
        self.sizes: list[int] = []
        """The sizes of the records, in bytes."""
        self.size = 0
        """The size of all records together, in bytes."""
        self.longest_body = self.longest_properties = 0
        self._template = template
        self._born_timestamp = born_timestamp
        self._parts: list[_Begun] = []

    def add(self, parts: UniformParts) -> None:
        """Add some messages, at least one; raise RecordError if one cannot be stored."""
        batch = UniformBatch(self._template, parts, self._born_timestamp)
        if not self._parts or len(self._parts[-1].sizes) + len(batch.sizes) > _PART_RECORDS:
            self._parts.append(_Begun(bytearray(), [], []))
        begun = self._parts[-1]
        begun.records.extend(batch.sealed(FIRST_IN_QUEUE, LOG_START, 0))
        begun.sizes.extend(batch.sizes)
        begun.body_crcs.extend(map(crc32, parts.bodies))
        self.sizes += batch.sizes
        self.size += batch.size
        self.longest_body = max(self.longest_body, *map(len, parts.bodies))
        self.longest_properties = max(self.longest_properties, *map(len, parts.properties))

    def ready(self) -> Waiting[list[Part]]:
        """Return, in steps, all records without their places, and what seals them; end additions.

        Raises:
            OSError, ImportError, MemoryError, RuntimeError: The tools for that cannot be loaded.
        """
        yield from chunks.when_loaded()
        parts = []
        for begun in self._parts:
            chunk = chunks.RecordChunk(begun.records, begun.sizes)
            chunk.body_crcs = np.array(begun.body_crcs, np.uint32)
            parts.append(part_of(chunk))
            yield None
        return parts


class _Begun(NamedTuple):
    """A part that is being put together."""

    records: bytearray
    sizes: list[int]
    body_crcs: list[int]


def part_of(chunk: RecordChunk) -> Part:
    """Prepare records for an append, which have room for their checksums."""
    return Part(chunk, chunk.store_timestamp_at - chunk.starts, chunks.Sealing(chunk))
