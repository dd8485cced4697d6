"""Rows: turns the rows of a task into messages, routes them, and collects where they are stored.

`RowPreparer` works on whole columns. An error names the first faulty row, before anything of its
record batch is sent. `RowRouter` groups rows by destination: one queue, or any queue of one topic.

    rows ──> by topic ──> by queue ──> by delay level, or with times of delivery

Rows for the same queue keep their order. Python code runs only once for each distinct topic, queue
and sharding key, not for each row. `SpanCollector` collects where rows are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.arguments import check_send_topic
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.manifest import CommittedSpan, add_crc
from rmq_spark.client.producer.topic_sender import queue_for_key
from rmq_spark.spark.errors import RowError
from rmq_spark.spark.options import sink_columns as columns
from rmq_spark.spark.options.values import RowIds
from rmq_spark.spark.schemas.columns import BROKER_NAME
from rmq_spark.spark.write.reports import ROW_ID, RowSums, WriteTask
from rmq_spark.wire.chunk.buffer_slices import lengths_of
from rmq_spark.wire.chunk.encode import ENCODED_PROPERTIES, body_crcs
from rmq_spark.wire.chunk.properties import has_no_separator, lengths_of_maps
from rmq_spark.wire.message.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_BYTES_SENT_MAX,
    PROPERTY_SEPARATOR,
    RESERVED_NAMES,
    TAGS,
    TIMER_PROPERTIES,
)
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import wrap_namespace

if TYPE_CHECKING:
    from rmq_spark.client.producer.arrow_sender import SentSpan

ROW: Final = "row"
"""The column with the number of each row in its partition, for error messages."""

_COLUMN_OF_PROPERTY: Final[Mapping[str, str]] = {
    KEYS: columns.KEYS,
    TAGS: columns.TAGS,
    DELAY: columns.DELAY_LEVEL,
    **dict.fromkeys(TIMER_PROPERTIES, columns.DELIVER_AT),
    "__SHARDINGKEY": columns.SHARDING_KEY,
}
"""Properties that request something of a broker, and the column to use instead."""

_RESERVED_PROPERTIES: Final = pa.array(sorted({*RESERVED_NAMES, ROW_ID}))
_TEXTS: Final = pa.map_(pa.string(), pa.string())
_INT: Final = pa.int32()


def _id_properties(prefix: str, suffixes: pa.StringArray) -> pa.BinaryArray:
    """Return, for each row, the property that has the row's id."""
    before = pa.scalar(f"{ROW_ID}{NAME_VALUE_SEPARATOR}{prefix}")
    parts = before, suffixes, pa.scalar(PROPERTY_SEPARATOR), pa.scalar("")
    return pc.binary_join_element_wise(*parts).cast(pa.binary())


class RowPreparer:
    """Checks and casts the columns of one task's rows, and adds an id to each row."""

    def __init__(
        self,
        sink_columns: Sequence[columns.SinkColumn],
        task: WriteTask,
        *,
        body_bytes_max: int,
        row_ids: RowIds,
    ) -> None:
        self._sent = sink_columns
        self._names = {column.name for column in sink_columns}
        self._task = task
        self._body_bytes_max = body_bytes_max
        self._ids = row_ids
        self._first_row = 0

    def prepare(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """Return the columns to send, in the types that a producer accepts, with the row numbers.

        ``first_row`` is the number of the first row.
        """
        self._first_row = first_row
        found: dict[str, Any] = {
            ROW: pa.array(np.arange(first_row, first_row + batch.num_rows)),
        }
        for name, position, _ in self._sent:
            column = batch.column(position)
            if name == columns.BODY:
                found[name] = self._bodies(column)
            elif name == columns.KEYS and not _is_text(column):
                found[name] = self._key_lists(column)
            elif name in (columns.KEYS, columns.TAGS):
                found[name] = self._texts(name, column)
            elif name == columns.PROPERTIES:
                found[name] = self._properties(column)
            elif name in (columns.TOPIC, BROKER_NAME, columns.SHARDING_KEY):
                found[name] = _none_if_empty(column.cast(pa.string()))
            elif name == columns.DELIVER_AT:
                found[name] = self._times(name, column)
            else:
                found[name] = self._numbers(name, column)
        if {columns.DELAY_LEVEL, columns.DELIVER_AT} <= found.keys():
            self._refuse_row(
                pc.and_(
                    pc.greater(found[columns.DELAY_LEVEL], 0),
                    pc.is_valid(found[columns.DELIVER_AT]),
                ),
                columns.DELIVER_AT,
                "the row has a delayLevel as well: set one of them to null",
            )
        if self._ids is not RowIds.NONE:
            ids = (
                self._ids_from_positions(first_row, batch.num_rows)
                if self._ids is RowIds.POSITIONS
                else self._ids_from_keys(found[columns.KEYS])
            )
            found[ENCODED_PROPERTIES] = ids
        self._check_lengths(found)
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))

    def _bodies(self, column: pa.Array) -> pa.Array:
        bodies = column.cast(pa.binary())
        lengths = pc.binary_length(bodies)
        self._refuse_row(
            pc.is_null(bodies),
            columns.BODY,
            "it is null: remove such rows with .where('body is not null'), or coalesce it",
        )
        self._refuse_row(
            pc.equal(lengths, 0),
            columns.BODY,
            "it is empty, and RocketMQ's consumers fail on empty messages: remove such rows with "
            ".where('length(body) > 0')",
        )
        self._refuse_row(
            pc.greater(lengths, self._body_bytes_max),
            columns.BODY,
            f"it has over {self._body_bytes_max} bytes: shorten or split it; where the broker's "
            "maxMessageSize is higher, set option maxMessageBytes",
        )
        return bodies

    def _texts(self, name: str, column: pa.Array) -> pa.Array:
        texts = column.cast(pa.string())
        if not has_no_separator(PROPERTY_SEPARATOR, texts):
            self._refuse_row(
                pc.match_substring(texts, PROPERTY_SEPARATOR),
                name,
                "it has the character \\x02, which separates properties in RocketMQ: replace it",
            )
        return _none_if_empty(texts)

    def _key_lists(self, column: pa.Array) -> pa.Array:
        """Return each row's keys as one text, in RocketMQ's format."""
        lists = column.cast(pa.list_(pa.string()))
        keys = lists.flatten()
        is_bad = pc.match_substring(keys, KEY_SEPARATOR)
        if pc.any(is_bad).as_py():
            row = pc.list_parent_indices(lists)[pc.index(is_bad, True).as_py()].as_py()
            problem = "a key in the array has a space, which separates keys: replace it"
            raise RowError(self._task.partition, self._first_row + row, columns.KEYS, problem)
        if pc.any(pc.or_kleene(pc.is_null(keys), pc.equal(pc.binary_length(keys), 0))).as_py():
            lists = _without_blanks(lists, keys)
        return self._texts(columns.KEYS, pc.binary_join(lists, KEY_SEPARATOR))

    def _ids_from_positions(self, first_row: int, count: int) -> pa.BinaryArray:
        numbers = pa.array(np.arange(first_row, first_row + count)).cast(pa.string())
        return _id_properties(self._task.row_id(0)[:-1], numbers)

    def _ids_from_keys(self, keys: pa.Array) -> pa.Array:
        self._refuse_row(
            pc.is_null(keys),
            columns.KEYS,
            "it is empty, but rowIds=keys needs it for the row's id: give each row a key, or "
            "remove the option",
        )
        codes = np.asarray(pc.dictionary_encode(keys).indices)
        _, first_rows = np.unique(codes, return_index=True)
        if len(first_rows) < len(codes):
            row = int(np.setdiff1d(np.arange(len(codes)), first_rows)[0])
            raise RowError(
                self._task.partition,
                self._first_row + row,
                columns.KEYS,
                "an earlier row of the batch has the same key, and with rowIds=keys the key "
                "identifies the row: give each row of a batch its own key, or remove the option",
            )
        task = self._task  # without the partition: a retry may have the key in another one
        return _id_properties(f"{task.write_id}:{task.batch_id}:{columns.KEYS}:", keys)

    def _numbers(self, name: str, column: pa.Array) -> pa.Array:
        least = -(1 << 31) if name == columns.FLAG else 0
        numbers = column.cast(pa.int64())
        is_bad = pc.or_(pc.less(numbers, least), pc.greater_equal(numbers, 1 << 31))
        needed = f"needed a number from {least} to {(1 << 31) - 1}"
        self._refuse_row(is_bad, name, needed)
        numbers = numbers.cast(_INT)
        return numbers if name == columns.QUEUE_ID else pc.fill_null(numbers, pa.scalar(0, _INT))

    def _times(self, name: str, column: pa.Array) -> pa.Array:
        """Return times as milliseconds since 1970, rounded up."""
        micros = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        self._refuse_row(
            pc.less(micros, 0), name, "it is before 1970: correct it, or set it to null"
        )
        return pc.divide(pc.add(micros, 999), 1_000)

    def _properties(self, column: pa.Array) -> pa.MapArray:
        """Return the user's properties, without empty values and without RocketMQ's own names."""
        maps = column.cast(_TEXTS)
        if maps.null_count:
            maps = maps.take(pa.array(np.arange(len(maps))))  # drops values hidden under nulls
        offsets = np.asarray(maps.offsets)
        names = maps.keys[offsets[0] : offsets[-1]]
        values = maps.items[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
        for name, column_name in _COLUMN_OF_PROPERTY.items():
            if column_name not in self._names:
                self._refuse_property(
                    pc.equal(names, name),
                    offsets,
                    f"RocketMQ reserves the name {name}: use column {column_name}, or remove the "
                    "property",
                )
        separated = pc.or_(
            pc.match_substring(names, NAME_VALUE_SEPARATOR),
            pc.match_substring(names, PROPERTY_SEPARATOR),
        )
        separated = pc.or_kleene(separated, pc.match_substring(values, PROPERTY_SEPARATOR))
        problem = (
            "a name or a value has a character \\x01 or \\x02, which separate them in RocketMQ"
        )
        self._refuse_property(separated, offsets, f"{problem}: replace it")
        has_none = pc.fill_null(pc.equal(pc.binary_length(values), 0), fill_value=True)
        is_nameless = pc.and_not(pc.equal(pc.binary_length(names), 0), has_none)
        self._refuse_property(
            is_nameless, offsets, "a value has an empty name: name it, or remove it"
        )
        is_left_out = pc.or_(has_none, pc.is_in(names, _RESERVED_PROPERTIES))
        kept = ~np.asarray(is_left_out).astype(bool)
        before = np.concatenate(([0], np.cumsum(kept)))
        chosen = pa.array(kept)
        return pa.MapArray.from_arrays(
            pa.array(before[offsets], _INT), names.filter(chosen), values.filter(chosen)
        )

    def _check_lengths(self, found: Mapping[str, Any]) -> None:
        total = np.zeros(len(found[columns.BODY]), np.int64)
        for name in (columns.KEYS, columns.TAGS):
            if name in found:
                total += np.asarray(pc.fill_null(pc.binary_length(found[name]), 0))
        if columns.PROPERTIES in found:
            total += lengths_of_maps(found[columns.PROPERTIES])
        if ENCODED_PROPERTIES in found:
            total += lengths_of(found[ENCODED_PROPERTIES])
        if len(total) and total.max() > PROPERTIES_BYTES_SENT_MAX:
            row = int(total.argmax())
            problem = (
                f"with keys and tags they take {total[row]} bytes, over the "
                f"{PROPERTIES_BYTES_SENT_MAX} that RocketMQ allows: move some into the body"
            )
            raise RowError(self._task.partition, self._first_row + row, columns.PROPERTIES, problem)

    # ---- refusals

    def _refuse_row(self, bad: pa.BooleanArray, column: str, problem: str) -> None:
        first = pc.index(bad, True).as_py()
        if first >= 0:
            raise RowError(self._task.partition, self._first_row + first, column, problem)

    def _refuse_property(
        self, bad: pa.BooleanArray, offsets: npt.NDArray[Any], problem: str
    ) -> None:
        first = pc.index(bad, True).as_py()
        if first >= 0:
            row = int(np.searchsorted(offsets, first, "right")) - 1
            raise RowError(self._task.partition, self._first_row + row, columns.PROPERTIES, problem)


def _is_text(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _none_if_empty(texts: pa.Array) -> pa.Array:
    is_empty = pc.equal(pc.binary_length(texts), 0)
    return (
        pc.if_else(is_empty, pa.scalar(None, texts.type), texts)
        if pc.any(is_empty).as_py()
        else texts
    )


def _without_blanks(lists: pa.ListArray, keys: pa.Array) -> pa.ListArray:
    kept = np.asarray(pc.fill_null(pc.greater(pc.binary_length(keys), 0), fill_value=False)).astype(
        bool
    )
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    starts = np.concatenate(([0], np.cumsum(lengths)))
    before = np.concatenate(([0], np.cumsum(kept)))
    return pa.ListArray.from_arrays(pa.array(before[starts], _INT), keys.filter(pa.array(kept)))


# ---- destinations

QueueLookup = Callable[[str], Sequence[MessageQueue]]
"""A function that returns the queues to which a topic's messages may go."""

_SENT_COLUMNS: Final = (
    *(columns.BODY, columns.KEYS, columns.TAGS, columns.PROPERTIES, columns.FLAG),
    ENCODED_PROPERTIES,
)


_AT_A_TIME: Final = -1
"""The code of rows with a time of delivery, among the delay levels."""


class RoutedRows(NamedTuple):
    """Rows for one queue, or for any queue of a topic, and their numbers."""

    topic: str
    queue: MessageQueue | None
    delay_level: int
    rows: pa.RecordBatch
    numbers: pa.Array

    @property
    def first_row(self) -> int:
        """The number of the first row."""
        first: int = self.numbers[0].as_py()
        return first

    @property
    def has_delays(self) -> bool:
        """True for rows with a delay level or times of delivery, which cannot be sent in bulk."""
        return self.delay_level > 0 or columns.DELIVER_AT in self.rows.schema.names


class RowRouter:
    """Groups the rows of one partition by destination."""

    def __init__(
        self,
        names: Collection[str],
        partition: int,
        topic: str | None,
        queues_of: QueueLookup,
        namespace: str | None = None,
    ) -> None:
        """Take the full name of the topic of all rows; None if each names its own."""
        self._names = names
        self._partition = partition
        self._topic = topic
        self._queues_of = queues_of
        self._namespace = namespace

    def route(self, rows: pa.RecordBatch) -> Iterator[RoutedRows]:
        """Yield the rows that `RowPreparer` has checked, by destination."""
        for topic, of_topic in self._by_topic(rows):
            for queue, of_queue in self._by_queue(topic, of_topic):
                delays = np.zeros(of_queue.num_rows, np.int64)
                if columns.DELAY_LEVEL in self._names:
                    delays = np.asarray(of_queue.column(columns.DELAY_LEVEL))
                if columns.DELIVER_AT in self._names:
                    has_time = np.asarray(pc.is_valid(of_queue.column(columns.DELIVER_AT)))
                    delays = np.where(has_time, _AT_A_TIME, delays)
                for code, ready in _split_by_code(of_queue, delays):
                    names = [name for name in _SENT_COLUMNS if name in ready.schema.names]
                    names += [columns.DELIVER_AT] if code == _AT_A_TIME else []
                    sent = ready.select(names)
                    yield RoutedRows(topic, queue, max(code, 0), sent, ready.column(ROW))

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            if rows.num_rows:
                yield self._topic, rows
            return
        topics = rows.column(columns.TOPIC)
        first_row = rows.column(ROW)[0].as_py() if rows.num_rows else 0
        problem = "it is null or empty: fill it, or set option topic for all rows"
        first_null = pc.index(pc.is_null(topics), True).as_py()
        if first_null >= 0:
            raise RowError(self._partition, first_row + first_null, columns.TOPIC, problem)
        encoded = topics.dictionary_encode()
        for code, part in _split_by_code(rows, np.asarray(encoded.indices).astype(np.int64)):
            topic = wrap_namespace(self._namespace, encoded.dictionary[code].as_py())
            try:
                check_send_topic(topic)
            except MessageRejected as error:
                row = part.column(ROW)[0].as_py()
                raise RowError(self._partition, row, columns.TOPIC, str(error)) from error
            yield topic, part

    def _by_queue(
        self, topic: str, rows: pa.RecordBatch
    ) -> Iterator[tuple[MessageQueue | None, pa.RecordBatch]]:
        if not {columns.SHARDING_KEY, columns.QUEUE_ID} & set(self._names):
            yield None, rows
            return
        queues = self._queues_of(topic)
        if columns.SHARDING_KEY in self._names:
            keys = rows.column(columns.SHARDING_KEY).dictionary_encode()
            number = {queue: at for at, queue in enumerate(queues)}
            of_key = [number[queue_for_key(queues, key)] for key in keys.dictionary.to_pylist()]
            codes = np.asarray(pa.array(of_key, pa.int64()).take(keys.indices).fill_null(-1))
        else:
            codes = self._resolve_queues(rows, queues)
        for code, part in _split_by_code(rows, codes):
            yield (queues[code] if code >= 0 else None), part

    def _resolve_queues(
        self, rows: pa.RecordBatch, queues: Sequence[MessageQueue]
    ) -> npt.NDArray[Any]:
        """Return the position in ``queues`` of the queue that each row names, or -1."""
        ids = np.asarray(rows.column(columns.QUEUE_ID).fill_null(-1)).astype(np.int64)
        known: list[str | None] = [None]
        names = np.zeros(len(ids), np.int64)
        if BROKER_NAME in self._names:
            encoded = rows.column(BROKER_NAME).dictionary_encode()
            known += encoded.dictionary.to_pylist()
            names = np.asarray(encoded.indices.fill_null(-1)).astype(np.int64) + 1
        _, first, pair_of_row = np.unique(
            ids * len(known) + names, return_index=True, return_inverse=True
        )
        chosen = [
            self._resolve_queue(
                rows.column(ROW)[at].as_py(), int(ids[at]), known[names[at]], queues
            )
            for at in first.tolist()
        ]
        return np.array(chosen, np.int64)[pair_of_row]

    def _resolve_queue(
        self, row: int, queue_id: int, name: str | None, queues: Sequence[MessageQueue]
    ) -> int:
        if queue_id < 0:
            return -1
        matching = [
            at
            for at, queue in enumerate(queues)
            if queue.queue_id == queue_id and name in (None, queue.broker_name)
        ]
        if len(matching) == 1:
            return matching[0]
        which = f"queue {queue_id}" + (f" on {name}" if name else "")
        listed = ", ".join(f"{queue.queue_id} on {queue.broker_name}" for queue in queues)
        problem = (
            f"there is no {which}, only {listed}: correct it, or drop queueId and brokerName to "
            "let the sink choose"
        )
        if matching:
            problem = f"{which} is on several brokers: name one of them in column brokerName"
        raise RowError(self._partition, row, columns.QUEUE_ID, problem)


def _split_by_code(
    rows: pa.RecordBatch, codes: npt.NDArray[Any]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not len(codes):
        return
    if (codes == codes[0]).all():
        yield int(codes[0]), rows
        return
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    for part in np.split(order, ends):
        yield int(codes[part[0]]), rows.take(pa.array(part))


# ---- spans of stored rows

SPAN_ROWS_MAX: Final = 50_000
SPAN_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bytes of bodies up to which spans are joined: a reader holds a span in memory."""


def sums_of(bodies: pa.Array) -> RowSums:
    """Return the sums of rows with these bodies."""
    size = pc.sum(pc.binary_length(bodies)).as_py() or 0
    return RowSums(len(bodies), size, add_crc(int(body_crcs(bodies).sum()), 0))


class SpanCollector:
    """The spans of one task's rows, as the rows are stored."""

    def __init__(self) -> None:
        self.spans: list[CommittedSpan] = []
        self._last_index: dict[MessageQueue, int] = {}

    def add(self, sent: Iterable[SentSpan], bodies: pa.Array | None) -> None:
        """Add spans of rows that were stored.

        ``bodies`` are the rows' bodies, in order; without them the sums of a span stay 0.
        """
        first = 0
        for queue, queue_offset, count in sent:
            sums = RowSums() if bodies is None else sums_of(bodies.slice(first, count))
            first += count
            self._join(CommittedSpan(queue, queue_offset, count, sums.crc, sums.body_bytes))

    def _join(self, span: CommittedSpan) -> None:
        at = self._last_index.get(span.queue)
        if at is not None:
            last = self.spans[at]
            joined = CommittedSpan(
                span.queue,
                last.queue_offset,
                last.message_count + span.message_count,
                add_crc(last.crc, span.crc),
                last.body_bytes + span.body_bytes,
            )
            if (
                last.queue_offset + last.message_count == span.queue_offset
                and joined.message_count <= SPAN_ROWS_MAX
                and joined.body_bytes <= SPAN_BYTES_MAX
            ):
                self.spans[at] = joined
                return
        self._last_index[span.queue] = len(self.spans)
        self.spans.append(span)
