"""RecordRun: records of messages of any templates, which go into the log back to back in one write.

    templates   T1   T2   T1   T1        of two queues, say
    bodies      b    b    b    b     ─>  [record][record][record][record]     one write
    ...                                   one time, one lock; offsets by queue

A `UniformBatch` has one queue and one birth for all of its messages; here each has its own. The
records are what the templates make of the same messages one by one.

It knows neither files nor queues: who appends it gives it the next offset of each of its queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.message_queue import QueueKey
from rocketpoll.broker.store.fresh_records import FreshRecord, FreshRun
from rocketpoll.broker.store.offsets import LOG_START, PhysicalOffset, QueueOffset
from rocketpoll.broker.store.records.record_template import RecordTemplate

_new_fresh: Callable[[type[FreshRecord], tuple[Any, ...]], FreshRecord] = tuple.__new__


class RecordRun:
    """Messages on their way into the log, in their order."""

    def __init__(
        self,
        templates: Sequence[RecordTemplate],
        bodies: Sequence[Buffer],
        properties: Sequence[bytes],
        born_timestamps: Sequence[int],
    ) -> None:
        """Take the parts of at least one message; properties must end with their separator."""
        self._templates = templates
        self._bodies = bodies
        self._properties = properties
        self._born_timestamps = born_timestamps
        self.sizes = [
            template.fixed_bytes + len(body) + len(text)
            for template, body, text in zip(templates, bodies, properties, strict=True)
        ]
        self.size = sum(self.sizes)
        self.body_bytes_max = max(map(len, bodies))
        self.properties_bytes_max = max(map(len, properties))
        self.next_offsets: dict[QueueKey, QueueOffset] = {}
        """The next offset of each queue: to be set before `sealed`, which counts on from there."""
        self.fresh = FreshRun((), 0, LOG_START)
        """The records that `sealed` has made, for reput and for who answers."""

    @property
    def queues(self) -> set[QueueKey]:
        """The queues that get messages."""
        return {template.queue for template in self._templates}

    def sealed(
        self, _: QueueOffset, physical_offset: PhysicalOffset, store_timestamp: int
    ) -> bytes:
        """Return all records, given the first one's place and the time of all."""
        next_offsets = self.next_offsets
        pieces: list[bytes] = []
        records: list[FreshRecord] = []
        for template, body, properties, born_timestamp, size in zip(
            self._templates,
            self._bodies,
            self._properties,
            self._born_timestamps,
            self.sizes,
            strict=True,
        ):
            queue = template.queue
            queue_offset = next_offsets[queue]
            next_offsets[queue] = queue_offset + 1
            pieces += template.seal(
                size,
                template.flag,
                body,
                properties,
                born_timestamp,
                queue_offset,
                physical_offset,
                store_timestamp,
            )
            records.append(
                _new_fresh(FreshRecord, (queue, queue_offset, physical_offset, size, properties))
            )
            physical_offset += size
        self.fresh = FreshRun(records, store_timestamp, physical_offset)
        return b"".join(pieces)
