"""Dispatcher: turns a run of records from the log into consume-queue entries.

It reads a run in one of three ways with the same result: a few records one by one, many as a
`RecordChunk`, and recent writes from the memory of their writer. It decides which queue gets which
entries, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rmq_spark.wire.message.properties import TAGS, tags_code
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.names import SCHEDULE_TOPIC, is_light_queue
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import bulk_tools
from ..bulk import lazy_numpy as np
from ..queues.consume_queue import ENTRY, ENTRY_BYTES, ENTRY_STRUCT, Entries
from ..queues.rolled_back_offsets import RolledBackOffsets, RolledBackRange
from ..records.fields import (
    STATE_ROLLED_BACK,
    STATES_WITHOUT_ENTRY,
    TRANSACTION_MASK,
    PropertySearch,
    pattern_of,
    property_of,
    read_fields,
    values_in_each,
)
from ..records.recent_writes import ColumnRun, RecentChunk, RecentRun
from ..results import PhysicalOffset, QueueOffset

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from rmq_spark.wire.chunk import RecordChunk

FEW_MAX = 128
"""Up to this number, processing records one by one is cheaper than setting up arrays."""

_COPIED_BYTES_MAX = 1 << 16  # slices of bytes are cheaper than slices of a memoryview
_CACHED_BYTES_MAX = 128
_TAGS = pattern_of(TAGS)
_TAGS_NAME = TAGS.encode()


class MessageArrivingListener(Protocol):
    """A listener for new messages in queues; the store reports arrivals only through it."""

    def arriving(
        self,
        topic: str,
        queue_id: int,
        max_offset: QueueOffset,
        tags_codes: Collection[int] | None,
    ) -> None:
        """Report that a queue now ends at ``max_offset``, with the tags codes of all new messages.

        ``None`` means that there are too many codes to list.
        """


class QueueEntries(NamedTuple):
    """New entries of one queue, with successive offsets, in the format of its files."""

    topic: str
    queue_id: int
    queue_offset: QueueOffset
    entries: Buffer
    tags_codes: Sequence[int]


class _EntryRun:
    """Successive entries of one queue, under construction."""

    __slots__ = ("codes", "end", "entries", "queue_id", "start", "topic")

    def __init__(self, topic: str, queue_id: int, start: QueueOffset) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.start = self.end = start
        self.entries: list[bytes] = []
        self.codes: list[int] = []

    def build(self) -> QueueEntries:
        return QueueEntries(
            self.topic, self.queue_id, self.start, b"".join(self.entries), self.codes
        )


class Dispatcher:
    """Turns records into consume-queue entries."""

    def __init__(self, delay_level_ms: Sequence[int]) -> None:
        """Use the delays of the delay levels, from level 1 on."""
        self._delay_level_ms = tuple(delay_level_ms)
        self.deleted_topics: dict[str, PhysicalOffset] = {}
        """The end of the log when a topic was deleted: its records before that are skipped."""
        self.rolled_back = RolledBackOffsets()
        """Offsets of rolled-back rows that queues have no entries for yet."""

    def note_deleted(self, topic: str, physical_offset: PhysicalOffset) -> None:
        """From the next run on, skip the records of a topic before a physical offset."""
        before = max(physical_offset, self.deleted_topics.get(topic, physical_offset))
        self.deleted_topics[topic] = before
        self.rolled_back.discard_topic(topic, before)

    def discard_deleted(self, first: PhysicalOffset) -> None:
        """Discard deletions of topics whose messages before a physical offset have all expired."""
        for topic, before in tuple(self.deleted_topics.items()):
            if before <= first:
                del self.deleted_topics[topic]

    def exclude_deleted(self, runs: Iterable[QueueEntries]) -> Iterable[QueueEntries]:
        """Return entries without those of topics that were deleted after them.

        Entries of RocketMQ's light queues are left out as well.
        """
        runs = (run for run in runs if not is_light_queue(run.topic))
        return filter(None, map(self._without_deleted, runs)) if self.deleted_topics else runs

    def _without_deleted(self, run: QueueEntries) -> QueueEntries | None:
        deleted_before = self.deleted_topics.get(run.topic, 0)
        positions = np.frombuffer(run.entries, ENTRY)["physical_offset"]
        deleted_count = int(np.searchsorted(positions, deleted_before))
        if deleted_count == len(positions):
            return None
        return run._replace(
            queue_offset=run.queue_offset + deleted_count,
            entries=memoryview(run.entries)[deleted_count * ENTRY_BYTES :],
            tags_codes=run.tags_codes[deleted_count:],
        )

    def entries_of_recent(self, recent: Iterable[RecentRun | ColumnRun]) -> list[QueueEntries]:
        """Return the entries of records that were just written, in log order."""
        runs: list[_EntryRun | QueueEntries] = []
        last_of_queue: dict[QueueKey, _EntryRun] = {}
        pack = ENTRY_STRUCT.pack
        for written in recent:
            if isinstance(written, ColumnRun):
                runs.append(self._of_column_run(written))
                continue
            records, store_timestamp, _ = written
            for queue, queue_offset, position, size, properties in records:
                run = last_of_queue.get(queue)
                if run is None or run.end != queue_offset:
                    run = last_of_queue[queue] = _EntryRun(*queue, queue_offset)
                    runs.append(run)
                code = 0
                if run.topic == SCHEDULE_TOPIC:
                    code = store_timestamp + self._delay_ms(run.queue_id)
                elif properties.find(_TAGS_NAME) >= 0:
                    code = _tags_code(property_of(properties, _TAGS))
                run.entries.append(pack(position, size, code))
                run.codes.append(code)
                run.end += 1
        return [run if isinstance(run, QueueEntries) else run.build() for run in runs]

    def _of_column_run(self, run: ColumnRun) -> QueueEntries:
        topic, queue_id = run.queue
        entries = np.empty(run.rows, ENTRY)
        entries["physical_offset"] = run.positions
        entries["size"] = run.sizes
        code = run.store_timestamp + self._delay_ms(queue_id) if topic == SCHEDULE_TOPIC else 0
        codes = [code] * run.rows
        entries["tags_code"] = code
        if topic != SCHEDULE_TOPIC and run.properties.count(_TAGS_NAME):
            codes = self._tags_codes_of_run(run)
            entries["tags_code"] = codes
        return QueueEntries(topic, queue_id, run.queue_offset, entries.tobytes(), codes)

    @staticmethod
    def _tags_codes_of_run(run: ColumnRun) -> list[int]:
        lengths = np.full(run.rows, run.properties_lengths)
        tags = values_in_each(run.properties, lengths.cumsum(), _TAGS)
        if tags is not None:
            return [*map(_tags_code, tags)]
        codes = [0] * run.rows
        columns = PropertySearch([run.properties], lengths)
        bounds = (each.tolist() for each in columns.find(_TAGS))
        for row, start, stop in zip(*bounds, strict=True):
            codes[row] = _tags_code(columns.text[start:stop])
        return codes

    def entries_of_few(
        self, data: Buffer, sizes: Sequence[int], physical_offset: PhysicalOffset
    ) -> list[QueueEntries]:
        """Return the entries of a few contiguous records that start at a physical offset."""
        if len(data) <= _COPIED_BYTES_MAX:
            data = bytes(data)
        runs: list[_EntryRun] = []
        last_of_queue: dict[tuple[bytes, int], _EntryRun] = {}
        position = 0
        for size in sizes:
            topic, queue_id, queue_offset, sys_flag, store_timestamp, properties = read_fields(
                data, position, size
            )
            if sys_flag & TRANSACTION_MASK not in STATES_WITHOUT_ENTRY:
                run = last_of_queue.get((topic, queue_id))
                if run is None or run.end != queue_offset:
                    run = last_of_queue[topic, queue_id] = _EntryRun(
                        topic.decode("utf-8", "replace"), queue_id, queue_offset
                    )
                    runs.append(run)
                if run.topic == SCHEDULE_TOPIC:
                    code = store_timestamp + self._delay_ms(queue_id)
                else:
                    code = _tags_code(property_of(properties, _TAGS))
                run.entries.append(ENTRY_STRUCT.pack(physical_offset + position, size, code))
                run.codes.append(code)
                run.end += 1
            elif sys_flag & TRANSACTION_MASK == STATE_ROLLED_BACK:
                name, record_offset = topic.decode("utf-8", "replace"), physical_offset + position
                if record_offset >= self.deleted_topics.get(name, 0):
                    offsets = range(queue_offset, queue_offset + 1)
                    self.rolled_back.add(
                        (name, queue_id), RolledBackRange(offsets, record_offset, record_offset)
                    )
            position += size
        return [run.build() for run in runs]

    def entries_of_recent_chunk(self, recent: RecentChunk) -> QueueEntries:
        """Return the entries of many records that were just written."""
        chunk, (topic, queue_id), start_offset = recent
        if topic == SCHEDULE_TOPIC:
            codes = chunk.store_timestamp.astype(np.int64) + self._delay_ms(queue_id)
        else:
            codes = _tags_codes(chunk)
        entries = np.empty(len(chunk), ENTRY)
        entries["physical_offset"] = chunk.starts + start_offset
        entries["size"] = chunk.sizes
        entries["tags_code"] = codes
        first = QueueOffset(chunk.head["queue_offset"][0])
        return QueueEntries(topic, queue_id, first, entries.tobytes(), codes.tolist())

    def entries_of_chunk(
        self, chunk: RecordChunk, physical_offset: PhysicalOffset
    ) -> Iterator[QueueEntries]:
        """Yield the entries of many contiguous records that start at a physical offset."""
        topics = bulk_tools.COLUMNS["topic"].build(chunk).dictionary_encode()
        topic_of = topics.indices.to_numpy().astype(np.int64)
        queue_ids = chunk.head["queue_id"].astype(np.int64)
        queue_offsets = chunk.head["queue_offset"].astype(np.int64)
        entries = np.empty(len(chunk), ENTRY)
        entries["physical_offset"] = chunk.starts + physical_offset
        entries["size"] = chunk.sizes
        entries["tags_code"] = self._codes_of(chunk, topics, topic_of, queue_ids)
        # One number for each queue of each topic; the order within a queue stays.
        queues = (topic_of << 32) | (queue_ids & 0xFFFFFFFF)
        is_usual = len(queues) and not chunk.sys_flags_union & TRANSACTION_MASK
        if is_usual and (queues == queues[0]).all():
            topic = topics.dictionary[int(topic_of[0])].as_py()
            yield from _runs(topic, int(queue_ids[0]), queue_offsets, entries)
            return
        states = chunk.sys_flag & TRANSACTION_MASK
        for run in _by_queue(queues, np.flatnonzero(states == STATE_ROLLED_BACK)):
            topic = topics.dictionary[int(topic_of[run[0]])].as_py()
            key = topic, int(queue_ids[run[0]])
            positions = entries["physical_offset"]
            alive = run[positions[run] >= self.deleted_topics.get(topic, 0)]
            for rows in _successive(queue_offsets, alive):
                start = int(queue_offsets[rows[0]])
                first, last = (PhysicalOffset(positions[row]) for row in (rows[0], rows[-1]))
                offsets = range(start, start + len(rows))
                self.rolled_back.add(key, RolledBackRange(offsets, first, last))
        for run in _by_queue(queues, np.flatnonzero(~np.isin(states, STATES_WITHOUT_ENTRY))):
            topic = topics.dictionary[int(topic_of[run[0]])].as_py()
            yield from _runs(topic, int(queue_ids[run[0]]), queue_offsets[run], entries[run])

    def _codes_of(
        self,
        chunk: RecordChunk,
        topics: pa.DictionaryArray,
        topic_of: npt.NDArray[np.int64],
        queue_ids: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        codes = _tags_codes(chunk)
        names = topics.dictionary.to_pylist()
        if SCHEDULE_TOPIC in names:
            delayed = np.flatnonzero(topic_of == names.index(SCHEDULE_TOPIC))
            times = bulk_tools.COLUMNS["storeTimestamp"].build(chunk).view("int64").to_numpy()
            delays = [self._delay_ms(queue_id) for queue_id in queue_ids[delayed].tolist()]
            codes[delayed] = times[delayed] + np.array(delays, np.int64)
        return codes

    def _delay_ms(self, queue_id: int) -> int:
        """Return the delay of a level's queue; past the last level, that of the last one."""
        return self._delay_level_ms[max(0, min(queue_id, len(self._delay_level_ms) - 1))]


def _by_queue(
    queues: npt.NDArray[np.int64], rows: npt.NDArray[np.intp]
) -> Sequence[npt.NDArray[np.intp]]:
    """Return rows grouped by queue, in their order within each queue."""
    if not len(rows):
        return ()
    rows = rows[np.argsort(queues[rows], kind="stable")]
    return np.split(rows, np.flatnonzero(np.diff(queues[rows])) + 1)


def _runs(
    topic: str, queue_id: int, queue_offsets: npt.NDArray[np.int64], entries: Entries
) -> Iterator[QueueEntries]:
    """Split entries at gaps in their offsets, which lost records leave."""
    for rows in _successive(queue_offsets, np.arange(len(entries))):
        piece = entries[rows[0] : rows[-1] + 1]
        codes = piece["tags_code"].tolist()
        first = QueueOffset(queue_offsets[rows[0]])
        yield QueueEntries(topic, queue_id, first, piece.tobytes(), codes)


def _successive(
    queue_offsets: npt.NDArray[np.int64], rows: npt.NDArray[np.intp]
) -> Sequence[npt.NDArray[np.intp]]:
    if not len(rows):
        return ()
    return np.split(rows, np.flatnonzero(np.diff(queue_offsets[rows]) != 1) + 1)


def _tags_codes(chunk: RecordChunk) -> npt.NDArray[np.int64]:
    tags = bulk_tools.COLUMNS["tags"].build(chunk)
    if tags.null_count == len(tags):
        return np.zeros(len(tags), np.int64)
    texts = tags.dictionary_encode()
    hashes = np.array([0, *map(tags_code, texts.dictionary.to_pylist())], np.int64)
    codes: npt.NDArray[np.int64] = hashes[texts.indices.fill_null(-1).to_numpy() + 1]
    return codes


def _tags_code(tags: bytes | None) -> int:
    if tags is None or len(tags) > _CACHED_BYTES_MAX:
        return tags_code(tags.decode("utf-8", "replace")) if tags else 0
    return _cached_tags_code(tags)


@lru_cache(maxsize=4096)
def _cached_tags_code(tags: bytes) -> int:
    return tags_code(tags.decode("utf-8", "replace"))
