"""What the log tells the consume queues about a run of records, and whoever waits for messages.

A run is read in one of two ways that come to the same: a few records one by one, many as a
`RecordChunk`. Which queue gets which entries is decided here; nothing is written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.store.consume_queue import ENTRY, STATES_WITHOUT_ENTRY, TRANSACTION_MASK, Entries
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.chunk import COLUMNS, RecordChunk
from rmq_spark.wire.record import StoredMessage, decode_blank, decode_record
from rmq_spark.wire.tags import tags_code

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
FEW = 32
"""Up to so many, taking records one by one is cheaper than setting up arrays."""

_SIZE = struct.Struct(layout.struct_format(layout.HEAD[:1]))


class MessageArrivingListener(Protocol):
    """Whoever wants to know that a queue has new messages: the store's only word to the outside."""

    def arriving(self, topic: str, queue_id: int, max_offset: int, tags_codes: Sequence[int]) -> None:
        """The queue now ends at ``max_offset``; these are the tags codes of all that is new."""


class QueueEntries(NamedTuple):
    """New entries of one queue, with successive offsets."""

    topic: str
    queue_id: int
    queue_offset: int
    entries: Entries


def record_sizes(data: memoryview) -> list[int]:
    """The sizes of the records that follow each other from the start of the data, up to a blank or zeros."""
    sizes: list[int] = []
    add, read = sizes.append, _SIZE.unpack_from
    position, end = 0, len(data) - layout.RECORD_BYTES_MIN
    while position <= end:
        (size,) = read(data, position)
        if size < layout.RECORD_BYTES_MIN:
            break
        add(size)
        position += size
    # Only the last can be a record that is cut off, or the blank that fills a file.
    if sizes and (position > len(data) or decode_blank(data, position - sizes[-1]) is not None):
        sizes.pop()
    return sizes


class Dispatcher:
    """Turns records into consume-queue entries."""

    def __init__(self, delay_level_ms: Sequence[int]) -> None:
        """The delays of the levels, from 1 on."""
        self._delay_level_ms = tuple(delay_level_ms)
        self.deleted_topics: dict[str, int] = {}
        """Topics that were deleted, and where the log ended then: what lies before is passed over."""

    def entries_of_few(
        self, data: memoryview, sizes: Sequence[int], physical_offset: int
    ) -> Iterator[QueueEntries]:
        """The entries of a few records that lie back to back from a place in the log."""
        return self._not_deleted(self._one_by_one(data, sizes, physical_offset))

    def entries_of_chunk(self, chunk: RecordChunk, physical_offset: int) -> Iterator[QueueEntries]:
        """The same for many."""
        return self._not_deleted(self._all_at_once(chunk, physical_offset))

    def _not_deleted(self, runs: Iterator[QueueEntries]) -> Iterator[QueueEntries]:
        for run in runs:
            deleted_before = self.deleted_topics.get(run.topic, 0)
            entries = run.entries
            gone = int(np.searchsorted(entries["physical_offset"], deleted_before))
            if gone < len(entries):
                yield run._replace(queue_offset=run.queue_offset + gone, entries=entries[gone:])

    def _one_by_one(
        self, data: memoryview, sizes: Sequence[int], physical_offset: int
    ) -> Iterator[QueueEntries]:
        queues: dict[tuple[str, int], list[tuple[int, tuple[int, int, int]]]] = {}
        position = 0
        for size in sizes:
            message = decode_record(data, position, check_crc=False)
            if message.transaction_state not in STATES_WITHOUT_ENTRY:
                entry = (physical_offset + position, size, self._code_of(message))
                key = (message.topic, message.queue_id)
                queues.setdefault(key, []).append((message.queue_offset, entry))
            position += size
        for (topic, queue_id), found in queues.items():
            offsets = np.array([offset for offset, _ in found], np.int64)
            entries = np.array([entry for _, entry in found], ENTRY)
            yield from _runs(topic, queue_id, offsets, entries)

    def _all_at_once(self, chunk: RecordChunk, physical_offset: int) -> Iterator[QueueEntries]:
        topics = COLUMNS["topic"].build(chunk).dictionary_encode()
        topic_of = topics.indices.to_numpy().astype(np.int64)
        queue_ids = chunk.head["queue_id"].astype(np.int64)
        queue_offsets = chunk.head["queue_offset"].astype(np.int64)
        entries = np.empty(len(chunk), ENTRY)
        entries["physical_offset"] = chunk.starts + physical_offset
        entries["size"] = chunk.sizes
        entries["tags_code"] = self._codes_of(chunk, topics, topic_of, queue_ids)
        has_entry = ~np.isin(chunk.sys_flag & TRANSACTION_MASK, STATES_WITHOUT_ENTRY)
        # One number for each queue of each topic; the order within a queue stays.
        queues = (topic_of << 32) | (queue_ids & 0xFFFFFFFF)
        rows = np.flatnonzero(has_entry)
        rows = rows[np.argsort(queues[rows], kind="stable")]
        cuts = np.flatnonzero(np.diff(queues[rows])) + 1
        for run in np.split(rows, cuts) if len(rows) else ():
            topic = topics.dictionary[int(topic_of[run[0]])].as_py()
            yield from _runs(topic, int(queue_ids[run[0]]), queue_offsets[run], entries[run])

    def _code_of(self, message: StoredMessage) -> int:
        if message.topic == SCHEDULE_TOPIC:
            return message.store_timestamp + self._delay_ms(message.queue_id)
        return tags_code(message.tags)

    def _codes_of(
        self,
        chunk: RecordChunk,
        topics: pa.DictionaryArray,
        topic_of: npt.NDArray[np.int64],
        queue_ids: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        tags = COLUMNS["tags"].build(chunk).dictionary_encode()
        hashes = np.array([0, *map(tags_code, tags.dictionary.to_pylist())], np.int64)
        codes = hashes[tags.indices.fill_null(-1).to_numpy() + 1]
        names = topics.dictionary.to_pylist()
        if SCHEDULE_TOPIC in names:
            delayed = np.flatnonzero(topic_of == names.index(SCHEDULE_TOPIC))
            times = COLUMNS["storeTimestamp"].build(chunk).view(pa.int64()).to_numpy()
            delays = [self._delay_ms(queue_id) for queue_id in queue_ids[delayed].tolist()]
            codes[delayed] = times[delayed] + np.array(delays, np.int64)
        coded: npt.NDArray[np.int64] = codes
        return coded

    def _delay_ms(self, queue_id: int) -> int:
        """A delay level has the queue before its number; beyond the last, the last counts."""
        return self._delay_level_ms[max(0, min(queue_id, len(self._delay_level_ms) - 1))]


def _runs(
    topic: str, queue_id: int, queue_offsets: npt.NDArray[np.int64], entries: Entries
) -> Iterator[QueueEntries]:
    """Cut where offsets do not follow each other: the log has lost what was between."""
    cuts = np.flatnonzero(np.diff(queue_offsets) != 1) + 1
    starts = [0, *cuts.tolist()]
    for start, end in zip(starts, [*starts[1:], len(entries)], strict=True):
        yield QueueEntries(topic, queue_id, int(queue_offsets[start]), entries[start:end])
