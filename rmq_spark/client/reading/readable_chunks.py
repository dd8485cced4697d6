"""Readable chunks: what a bulk pull brings, in megabytes, up to a record that cannot be read.

    pulls ──> gathered to megabytes ──> all readable? ──> records, and where to go on behind them

What is to become of a record that cannot be read is decided by the caller. It knows no broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from rmq_spark.client.reading.bulk_pull import RawChunk
from rmq_spark.errors import RecordError, RocketPollError
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.chunk.decode import readable_records

GATHERED_BYTES: Final = 2 * 1024 * 1024
"""Of records that become a record batch together, unless a broker gives more at once."""


class ReadableChunk(NamedTuple):
    """Records that can be read; ``fault`` says why the one at ``next_offset`` cannot, if so."""

    records: RecordChunk
    next_offset: int
    fault: RecordError | None


def readable_chunks(
    answers: Iterable[RawChunk], start: int, *, is_filtered: bool
) -> Iterator[ReadableChunk]:
    """Yield the records of a bulk pull that began at offset ``start``, in order.

    Whoever goes on after a fault gets what follows the answer in which it was.
    """
    at = start
    for chunk in gathered(answers):
        records, fault = readable_records(chunk.records, chunk.sizes)
        next_offset = chunk.next_offset
        if fault is not None:
            next_offset = _offset_behind(records, at, chunk, is_filtered=is_filtered)
        yield ReadableChunk(records, next_offset, fault)
        at = next_offset


def gathered(answers: Iterable[RawChunk]) -> Iterator[RawChunk]:
    """Yield the same records in fewer and larger pieces.

    A RocketMQ broker gives 32 messages at a time, and a filter leaves few of many: to make a record
    batch takes as long for so few as for some thousands.
    """
    waiting: list[RawChunk] = []
    size = 0
    try:
        for answer in answers:
            waiting.append(answer)
            size += len(answer.records)
            if size >= GATHERED_BYTES:
                yield _joined(waiting)
                waiting, size = [], 0
    except RocketPollError:
        if waiting:
            yield _joined(waiting)
        raise
    if waiting:
        yield _joined(waiting)


def _joined(chunks: Sequence[RawChunk]) -> RawChunk:
    if len(chunks) == 1:
        return chunks[0]
    sizes = None
    if all(chunk.sizes is not None for chunk in chunks):
        sizes = np.concatenate([chunk.sizes for chunk in chunks])
    return RawChunk(b"".join(chunk.records for chunk in chunks), sizes, chunks[-1].next_offset)


def _offset_behind(before: RecordChunk, at: int, chunk: RawChunk, *, is_filtered: bool) -> int:
    """Return the offset of a record that cannot be read, behind those that can.

    Offsets are dense; where a filter leaves some out, the record itself may say where it stands.
    """
    last = int(before.head["queue_offset"][-1]) if len(before) else at - 1
    place = int(before.ends[-1]) if len(before) else 0
    stated = bytes(
        chunk.records[place + layout.QUEUE_OFFSET_AT : place + layout.PHYSICAL_OFFSET_AT]
    )
    queue_offset = int.from_bytes(stated, "big", signed=True)
    return queue_offset if is_filtered and last < queue_offset < chunk.next_offset else last + 1
