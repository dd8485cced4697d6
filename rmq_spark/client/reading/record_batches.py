"""RecordBatchConverter: converts chunks of records to record batches, in bounded memory.

    bodies checked against their CRC ──> tags compared by text
        ──> bodies inflated, a slice at a time

Brokers filter by hashes that different tags can share, so the texts are compared here again. A
time that Spark's timestamps cannot hold (years 1 to 9999) becomes null: producers set their own
times, and no broker checks them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.wire.chunk import COLUMNS, RecordChunk
from rmq_spark.wire.chunk.body_checks import damaged_bodies
from rmq_spark.wire.chunk.buffer_slices import to_arrow
from rmq_spark.wire.chunk.columns import plain_bodies
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import LIGHT_QUEUE_PREFIX, without_namespace

SLICE_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of inflated bodies in one record batch."""

BROKER_NAME: Final = "brokerName"
"""The only column that is not part of a record."""

_BODY: Final = "body"
_TAGS: Final = "tags"
_TOPIC: Final = "topic"
_QUEUE_ID: Final = "queueId"
_TIMESTAMP_MS_MIN: Final = -62_135_596_800_000
_TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
_SPARE_ROWS_DIVISOR: Final = 8
"""A cached column is an eighth longer than needed, so that a slightly larger chunk can use it."""

_CONSTANTS_MAX: Final = 8
"""Most cached columns of one repeated value: those of two queues, and a few more."""

_CRC_MISMATCH: Final = "its body is not the one that was stored: its CRC differs"


class BadRecordPolicy(Protocol):
    """Decides what happens to messages that cannot be read."""

    @property
    def keeps_rows(self) -> bool:
        """True if such a message keeps its row, with a null body; False if it is omitted."""

    def report(self, records: Sequence[BadRecord]) -> None:
        """Log messages that cannot be read, or raise the error that ends the read."""


class RecordBatchConverter:
    """Makes record batches of one schema from chunks of records."""

    def __init__(
        self,
        schema: pa.Schema,
        bad_records: BadRecordPolicy,
        *,
        tags: Collection[str] = (),
        checks_crc: bool = True,
        max_body_bytes: int = PLAIN_BYTES_MAX,
        namespace: str | None = None,
    ) -> None:
        """Make a converter to record batches of exactly this schema.

        Args:
            schema: Names and types of the columns; of Spark, the result of
                `schema.arrow_schema_of`.
            bad_records: Handles records that cannot be read.
            tags: If there are any, messages without one of these tags are left out.
            checks_crc: Check bodies against their CRC, if they are among the columns.
            max_body_bytes: Most bytes that a compressed body may inflate to.
            namespace: The namespace to strip from the names in the topic column.
        """
        self._schema = schema
        self._bad_records = bad_records
        self._tags = pa.array(sorted(tags), pa.string()) if tags else None
        self._has_body = _BODY in schema.names
        self._checks_crc = checks_crc and self._has_body
        self._max_body_bytes = max_body_bytes
        self._namespace = namespace
        self._constants = _ConstantColumns()

    def convert(self, chunk: RecordChunk, origin: MessageQueue | str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk, in order.

        Args:
            chunk: The records.
            origin: The queue that all of them were pulled from, which is more reliable than what
                each record says, or the name of the broker, if they are of several queues.
        """
        queue = None if isinstance(origin, str) else origin
        broker_name = origin if isinstance(origin, str) else origin.broker_name
        built: dict[str, pa.Array] = {} if queue is None else self._queue_columns(queue, len(chunk))

        def column(name: str) -> pa.Array:
            if name not in built:
                found = COLUMNS[name].build(chunk)
                built[name] = self._strip_namespace(found) if name == _TOPIC else found
            return built[name]

        is_wanted = None if self._tags is None else pc.is_in(column(_TAGS), value_set=self._tags)
        arrays = {
            field.name: self._constants.column(broker_name, len(chunk))
            if field.name == BROKER_NAME
            else _cast(column(field.name), field.type)
            for field in self._schema
            if field.name != _BODY
        }
        if not self._has_body:
            yield from self._build_batch(arrays, is_wanted)
            return
        damaged = damaged_bodies(chunk) if self._checks_crc else np.zeros(0, np.int64)
        for first, bodies, problems in plain_bodies(chunk, SLICE_BYTES, self._max_body_bytes):
            rows = damaged[(damaged >= first) & (damaged < first + len(bodies))].tolist()
            wrong: dict[int, object] = {**problems, **dict.fromkeys(rows, _CRC_MISMATCH)}
            part = {name: array.slice(first, len(bodies)) for name, array in arrays.items()}
            kept = None if is_wanted is None else is_wanted.slice(first, len(bodies))
            part[_BODY] = bodies
            if wrong:
                part[_BODY], kept = self._report_bad_bodies(
                    chunk, origin, first, bodies, kept, wrong
                )
            yield from self._build_batch(part, kept)

    def convert_unreadable(
        self, queue: MessageQueue, queue_offset: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the row of a record of which only the position is known, if the policy keeps it."""
        if not self._bad_records.keeps_rows:
            return
        known = {
            _TOPIC: without_namespace(self._namespace, queue.topic),
            BROKER_NAME: queue.broker_name,
            _QUEUE_ID: queue.queue_id,
            "queueOffset": queue_offset,
        }
        arrays = [pa.array([known.get(field.name)], field.type) for field in self._schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _queue_columns(self, queue: MessageQueue, count: int) -> dict[str, pa.Array]:
        known = {_QUEUE_ID: self._constants.column(queue.queue_id, count)}
        # records of a light queue name another topic
        if not queue.topic.startswith(LIGHT_QUEUE_PREFIX):
            topic = without_namespace(self._namespace, queue.topic)
            known[_TOPIC] = self._constants.column(topic, count)
        return known

    def _strip_namespace(self, topics: pa.Array) -> pa.Array:
        if self._namespace is None:
            return topics
        found = pc.dictionary_encode(topics)
        names = [without_namespace(self._namespace, each) for each in found.dictionary.to_pylist()]
        return pc.take(pa.array(names, topics.type), found.indices)

    def _report_bad_bodies(
        self,
        chunk: RecordChunk,
        origin: MessageQueue | str,
        first: int,
        bodies: pa.Array,
        kept: pa.Array | None,
        problems: dict[int, object],
    ) -> tuple[pa.Array, pa.Array | None]:
        """Report unreadable bodies; return the bodies with these as null, and the rows to keep."""
        found = []
        for row in sorted(problems):
            if kept is None or kept[row - first].as_py():
                queue = origin
                if isinstance(queue, str):
                    topic = COLUMNS[_TOPIC].build(chunk)[row].as_py()
                    queue = MessageQueue(topic, queue, int(chunk.head["queue_id"][row]))
                at, problem = int(chunk.head["queue_offset"][row]), problems[row]
                found.append(BadRecord(queue, at, problem, chunk.record(row)))
        if found:
            self._bad_records.report(found)
        is_right = np.ones(len(bodies), bool)
        is_right[np.fromiter(problems, np.int64, len(problems)) - first] = False
        mask = pa.array(is_right)
        if not self._bad_records.keeps_rows:
            return bodies, mask if kept is None else pc.and_(kept, mask)
        return pc.if_else(mask, bodies, pa.scalar(None, bodies.type)), kept

    def _build_batch(
        self, arrays: dict[str, pa.Array], kept: pa.Array | None
    ) -> Iterator[pa.RecordBatch]:
        columns = [_cast(arrays[field.name], field.type) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if kept is not None and not pc.all(kept).as_py():
            batch = batch.filter(kept)
        if batch.num_rows:
            yield batch


class _ConstantColumns:
    """Columns of one value, sliced from arrays that were made for earlier chunks."""

    def __init__(self) -> None:
        self._arrays: dict[str | int, pa.Array] = {}

    def column(self, value: str | int, count: int) -> pa.Array:
        """Return a column of ``count`` rows with a text, or with a 32-bit number."""
        array = self._arrays.get(value)
        if array is None or len(array) < count:
            if len(self._arrays) >= _CONSTANTS_MAX:
                self._arrays.clear()
            # The next chunk rarely has exactly as many rows.
            array = self._arrays[value] = _repeat(value, count + count // _SPARE_ROWS_DIVISOR)
        return array.slice(0, count)


def _repeat(value: str | int, count: int) -> pa.Array:
    if isinstance(value, int):
        return to_arrow(np.full(count, value, np.int32))
    text = value.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _cast(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    if array.type == arrow_type:
        return array
    return (
        _cast_times(array, arrow_type)
        if pa.types.is_timestamp(arrow_type)
        else array.cast(arrow_type)
    )


def _cast_times(times: pa.TimestampArray, arrow_type: pa.TimestampType) -> pa.TimestampArray:
    """Return times in milliseconds in another unit; null for times that Spark cannot show."""
    whole: npt.NDArray[Any] = np.frombuffer(times.buffers()[1], np.int64)
    ms = whole[times.offset : times.offset + len(times)]
    if len(ms) and (ms.min() < _TIMESTAMP_MS_MIN or ms.max() > _TIMESTAMP_MS_MAX):
        is_possible = pa.array((ms >= _TIMESTAMP_MS_MIN) & (ms <= _TIMESTAMP_MS_MAX))
        times = pc.if_else(is_possible, times, pa.scalar(None, times.type))
    elif arrow_type.unit == "us":  # Arrow checks each for overflow, and takes three times as long
        return to_arrow(ms * 1_000).view(arrow_type)
    return times.cast(arrow_type)
