"""Readable chunks: gathers a bulk pull into megabytes of records, up to the first unreadable one.

    pulls ──> gathered to megabytes ──> all readable, of this queue, each offset once and in order?
          ──> records, and the offset to resume at

A record that states another queue or offset than expected counts as unreadable: it is damaged, or
the response is wrong. The caller decides what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.damaged_records import record_size_at
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.reading.bulk_pull import RawChunk
from rmq_spark.errors import RecordError, RocketPollError, Verbatim, sanitize
from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.chunk.decode import readable_records
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.record_layout import BLANK_SIZE, ROLLED_BACK
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import LIGHT_QUEUE_PREFIX

BATCH_BYTES_MIN: Final = 2 * 1024 * 1024
"""Bytes of records to gather for one record batch; a broker may return more at once."""


class ReadableChunk(NamedTuple):
    """Records that can be read; ``fault`` says why the one at ``next_offset`` cannot be, if any.

    ``recorded_crc`` is the body CRC that the faulty record states; None if it is too short.
    ``record`` has the bytes of the faulty record; None if it is unknown where they end.
    """

    records: RecordChunk
    next_offset: int
    fault: RecordError | None
    recorded_crc: int | None = None
    record: bytes | None = None


def readable_chunks(
    chunks: Iterable[RawChunk], queue: MessageQueue, start: int, *, is_filtered: bool
) -> Iterator[ReadableChunk]:
    """Yield the records of a bulk pull of a queue that began at offset ``start``, in order.

    After a fault, the iteration continues with the next response; what follows the faulty record in
    its own response is not yielded.
    """
    at = start
    for chunk in merge_chunks(chunks):
        if chunk.decoded is not None:  # `LogFiles` has compared queue and offsets
            yield ReadableChunk(chunk.decoded, chunk.next_offset, None)
            at = chunk.next_offset
            continue
        records, fault = readable_records(chunk.records, chunk.sizes)
        next_offset, recorded_crc, record = chunk.next_offset, None, None
        mismatch = _first_mismatch(records, queue, range(at, next_offset), is_filtered=is_filtered)
        if mismatch is not None:
            row, fault = mismatch
            data = memoryview(chunk.records)[: int(records.starts[row])]
            records = RecordChunk(data, records.sizes[:row])
        if fault is not None:
            next_offset = _offset_after(records, at, chunk, is_filtered=is_filtered)
            recorded_crc = _read_field(chunk, records, layout.BODY_CRC_AT, layout.QUEUE_ID_AT)
            record = _read_record(chunk, records)
        yield ReadableChunk(records, next_offset, fault, recorded_crc, record)
        at = next_offset


def _first_mismatch(
    records: RecordChunk, queue: MessageQueue, queue_offsets: range, *, is_filtered: bool
) -> tuple[int, RecordError] | None:
    """Return the row of the first record that is not as expected, and why; None if all are."""
    # records of a light queue state another queue and offset
    if not len(records) or queue.topic.startswith(LIGHT_QUEUE_PREFIX):
        return None
    found = records.head["queue_offset"].astype(np.int64)
    if len(found) == len(queue_offsets) and not is_filtered:
        is_mismatch = found != np.arange(queue_offsets.start, queue_offsets.stop)
    else:
        is_mismatch = (found < queue_offsets.start) | (found >= queue_offsets.stop)
        is_mismatch[1:] |= found[1:] <= found[:-1]
    is_mismatch |= records.head["queue_id"] != queue.queue_id
    is_mismatch |= ~records.has_topic(queue.topic.encode())
    if not is_mismatch.any():
        return None
    row = int(np.argmax(is_mismatch))
    before = int(found[row - 1]) if row else queue_offsets.start - 1
    topic = sanitize(records.topics[row].as_py())
    fault = RecordError(
        "a stored message",
        at="topic, queueId and queueOffset",
        needed=f"{queue.topic}, {queue.queue_id} and one between {before} and {queue_offsets.stop}",
        found=Verbatim(f"{topic}, {int(records.head['queue_id'][row])} and {int(found[row])}"),
    )
    return row, fault


def merge_chunks(chunks: Iterable[RawChunk]) -> Iterator[RawChunk]:
    """Yield the same records in fewer and larger pieces.

    A RocketMQ broker returns 32 messages at a time, and a filter leaves few of many. Making a
    record batch of few messages takes as long as one of some thousands. A large piece is not
    merged, because copying it takes longer than making another batch.
    """
    waiting: list[RawChunk] = []
    size = 0
    try:
        for chunk in chunks:
            if waiting and len(chunk.records) >= BATCH_BYTES_MIN:
                yield _concatenate(waiting)
                waiting, size = [], 0
            waiting.append(chunk)
            size += len(chunk.records)
            if size >= BATCH_BYTES_MIN:
                yield _concatenate(waiting)
                waiting, size = [], 0
    except RocketPollError:
        if waiting:
            yield _concatenate(waiting)
        raise
    if waiting:
        yield _concatenate(waiting)


def _concatenate(chunks: Sequence[RawChunk]) -> RawChunk:
    if len(chunks) == 1:
        return chunks[0]
    sizes = None
    if all(chunk.sizes is not None for chunk in chunks):
        sizes = np.concatenate([chunk.sizes for chunk in chunks])
    return RawChunk(b"".join(chunk.records for chunk in chunks), sizes, chunks[-1].next_offset)


def _offset_after(readable: RecordChunk, at: int, chunk: RawChunk, *, is_filtered: bool) -> int:
    """Return the offset of an unreadable record that follows readable ones.

    Offsets are dense; if a filter skips some, the record itself may state its offset.
    """
    last = int(readable.head["queue_offset"][-1]) if len(readable) else at - 1
    stated = _read_field(chunk, readable, layout.QUEUE_OFFSET_AT, layout.PHYSICAL_OFFSET_AT)
    is_possible = stated is not None and last < stated < chunk.next_offset
    return stated if is_filtered and stated is not None and is_possible else last + 1


def _read_field(chunk: RawChunk, readable: RecordChunk, start: int, end: int) -> int | None:
    """Return the number between two positions of the record that follows the readable ones."""
    base = int(readable.ends[-1]) if len(readable) else 0
    found = bytes(chunk.records[base + start : base + end])
    return int.from_bytes(found, "big", signed=True) if len(found) == end - start else None


def _read_record(chunk: RawChunk, readable: RecordChunk) -> bytes | None:
    """Return the record that follows the readable ones; None if it is unknown where it ends."""
    rest = bytes(chunk.records[int(readable.ends[-1]) if len(readable) else 0 :])
    if chunk.sizes is not None:
        return rest[: int(chunk.sizes[len(readable)])]
    try:
        return rest[: record_size_at(rest, 0)]
    except RecordError:
        return None


# ---- Offsets that a response omits. If our broker cannot commit a batch, it rolls it back. If
# others sent to its queues meanwhile, offsets without messages remain. The entries of the consume
# queue show that, even if a RocketMQ broker serves them now. They are fetched only for such a gap.


def missing_ranges(offsets: Iterable[int], start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges between ``start`` and ``end``, end exclusive, without these offsets."""
    found = []
    at = start
    for offset in (*offsets, end):
        if offset > at:
            found.append((at, offset))
        at = offset + 1
    return found


_ENTRIES_MAX: Final = 256
"""Most entries that our broker lists in one response."""


def without_rolled_back(
    api: BrokerApi, address: str, queue: MessageQueue, ranges: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return ranges of offsets without the rolled-back ones.

    The check stops after the first lost offset, because a compacted topic has thousands of gaps.
    """
    lost: list[tuple[int, int]] = []
    for start, end in ranges:
        rollbacks = () if lost else _query_rollbacks(api, address, queue, start, end)
        rolled_back = (offset for offset, is_rolled_back in rollbacks if is_rolled_back)
        lost += missing_ranges(rolled_back, start, end)
    return lost


def first_not_rolled_back(
    api: BrokerApi, address: str, queue: MessageQueue, start: int, end: int
) -> int:
    """Return the first offset between two that was not rolled back; ``end`` if all were."""
    at = start
    for offset, is_rolled_back in _query_rollbacks(api, address, queue, start, end):
        if not is_rolled_back:
            return offset
        at = offset + 1
    return at


def _query_rollbacks(
    api: BrokerApi, address: str, queue: MessageQueue, start: int, end: int
) -> Iterator[tuple[int, bool]]:
    """Yield offsets, and whether they were rolled back, as far as the broker reports it."""
    while start < end:
        try:
            found = api.admin.queue_entries(address, queue, start, min(end - start, _ENTRIES_MAX))
        except BrokerRefused:  # no entries, or an older broker: assume no rollback
            return
        marks = [
            entry.physic_size == BLANK_SIZE and entry.tags_code == ROLLED_BACK
            for entry in found.queue_data
        ]
        if not marks or (start < found.min_queue_index and not marks[0]):  # other entries
            return
        yield from enumerate(marks[: end - start], start)
        start += len(marks)
