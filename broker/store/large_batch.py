"""LargeBatch: very many messages of one template that go into the log together, prepared in steps.

When it gets its place only what depends on that is left to be filled in, for all records at once:
that takes a microsecond a record. What comes out are the records that a `UniformBatch` of the same
messages makes.

It knows neither files nor queues.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING
from zlib import crc32

from rocketpoll.broker.store import chunks
from rocketpoll.broker.store import lazy_numpy as np
from rocketpoll.broker.store.offsets import FIRST_IN_QUEUE, LOG_START
from rocketpoll.broker.store.records.record_template import (
    RecordTemplate,
    UniformBatch,
    UniformParts,
)

if TYPE_CHECKING:
    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.checksums import Sealing


class LargeBatch:
    """Very many messages of one template, prepared in steps for one append."""

    def __init__(self, template: RecordTemplate, born_timestamp: int) -> None:
        """Begin an empty batch of messages with a common birth timestamp."""
        self.queue = template.queue
        self.sizes: list[int] = []
        """The sizes of the records, in bytes."""
        self.longest_body = self.longest_properties = 0
        self._template = template
        self._born_timestamp = born_timestamp
        self._records = bytearray()
        self._body_crcs: list[int] = []

    @property
    def size(self) -> int:
        """The size of all records together, in bytes."""
        return len(self._records)

    def add(self, parts: UniformParts) -> None:
        """Add some messages, at least one; raise RecordError if one cannot be stored."""
        batch = UniformBatch(self._template, parts, self._born_timestamp)
        self._records += batch.sealed(FIRST_IN_QUEUE, LOG_START, 0)
        self.sizes += batch.sizes
        self._body_crcs += map(crc32, parts.bodies)
        self.longest_body = max(self.longest_body, *map(len, parts.bodies))
        self.longest_properties = max(self.longest_properties, *map(len, parts.properties))

    def ready(self) -> Generator[Future[None] | None, None, tuple[RecordChunk, Sealing]]:
        """Return, in steps, all records without their places, and what seals them; end additions.

        Raises:
            OSError, ImportError, MemoryError, RuntimeError: The tools for that cannot be loaded.
        """
        yield from chunks.when_loaded()
        chunk = chunks.RecordChunk(self._records, self.sizes)
        yield None
        chunk.body_crcs = np.array(self._body_crcs, np.uint32)
        sealing = chunks.Sealing(chunk)
        yield None
        return chunk, sealing
