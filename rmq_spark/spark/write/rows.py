"""RowPreparer: turns rows into messages: it checks and casts columns, and adds an id to each row.

All work is on whole columns. An error names the first faulty row, before anything of its record
batch is sent. `routing` decides where the rows go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.spark.errors import RowError
from rmq_spark.spark.options import sink_columns as columns
from rmq_spark.spark.options.values import RowIds
from rmq_spark.spark.schemas.columns import BROKER_NAME
from rmq_spark.wire.chunk.properties import has_no_separator, lengths_of_maps
from rmq_spark.wire.properties import (
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

if TYPE_CHECKING:
    from rmq_spark.client.manifest import CommittedSpan
    from rmq_spark.spark.write.spans import RowSums
    from rmq_spark.wire.bodies.staged_batches import StagedAttempt
    from rmq_spark.wire.headers.staging import BatchRequestHeader

ROW_ID: Final = "ROCKETPOLL_ROW"
"""The property by which a reader recognizes a row that was sent twice."""

ROW: Final = "row"
"""The column with the number of each row in its partition, for error messages."""

"""The most bytes of a user's properties; client and broker add some of their own."""

_COLUMN_OF_PROPERTY: Final[Mapping[str, str]] = {
    KEYS: columns.KEYS,
    TAGS: columns.TAGS,
    **dict.fromkeys((DELAY, *TIMER_PROPERTIES), columns.DELAY_LEVEL),
    "__SHARDINGKEY": columns.SHARDING_KEY,
}
"""Properties that request something of a broker, and the column to use instead."""

_RESERVED_PROPERTIES: Final = pa.array(sorted({*RESERVED_NAMES, ROW_ID}))
_TEXTS: Final = pa.map_(pa.string(), pa.string())
_INT: Final = pa.int32()


class WriteTask(NamedTuple):
    """The identity of a task's rows; it stays the same if the task or the whole batch is retried.

    ``write_id`` is the id of a streaming query, in foreachBatch followed by a slash and the name of
    the write if it has one; elsewhere the name of a batch write, its txnAppId, or a random id.
    """

    write_id: str
    batch_id: int
    partition: int

    def row_id(self, row: int) -> str:
        """Return the id of a row."""
        return f"{self.write_id}:{self.batch_id}:{self.partition}:{row}"

    def ids_from_keys(self, keys: pa.Array) -> pa.Array:
        """Return the ids of rows by their keys: the same in whatever partition they are."""
        prefix = pa.scalar(f"{self.write_id}:{self.batch_id}:{columns.KEYS}:")
        return pc.binary_join_element_wise(prefix, keys, "")

    def row_ids(self, first_row: int, count: int) -> pa.Array:
        """Return the ids of ``count`` rows, starting at ``first_row``."""
        numbers = pa.array(np.arange(first_row, first_row + count)).cast(pa.string())
        return pc.binary_join_element_wise(pa.scalar(self.row_id(0)[:-1]), numbers, "")


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
        """Take the columns to send, and what the ids of rows are made from."""
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
            else:
                found[name] = self._numbers(name, column)
        if self._ids is not RowIds.NONE:
            ids = (
                self._task.row_ids(first_row, batch.num_rows)
                if self._ids is RowIds.POSITIONS
                else self._ids_from_keys(found[columns.KEYS])
            )
            found[columns.PROPERTIES] = _with_ids(found.get(columns.PROPERTIES), ids)
        self._check_lengths(found)
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))

    def _bodies(self, column: pa.Array) -> pa.Array:
        bodies = column.cast(pa.binary())
        lengths = pc.binary_length(bodies)
        self._reject(
            pc.is_null(bodies),
            columns.BODY,
            "it is null: leave such rows out with .where('body is not null'), or coalesce it",
        )
        self._reject(
            pc.equal(lengths, 0),
            columns.BODY,
            "it is empty, and RocketMQ's consumers fail on empty messages: leave such rows out "
            "with .where('length(body) > 0')",
        )
        self._reject(
            pc.greater(lengths, self._body_bytes_max),
            columns.BODY,
            f"it has over {self._body_bytes_max} bytes: shorten or split it; where the broker's "
            "maxMessageSize is higher, say so in option maxMessageBytes",
        )
        return bodies

    def _texts(self, name: str, column: pa.Array) -> pa.Array:
        """Return the keys or tags, with None for empty ones."""
        texts = column.cast(pa.string())
        if not has_no_separator(PROPERTY_SEPARATOR, texts):
            self._reject(
                pc.match_substring(texts, PROPERTY_SEPARATOR),
                name,
                "it has the character \\x02, which RocketMQ keeps apart properties with: replace "
                "it",
            )
        return _none_if_empty(texts)

    def _key_lists(self, column: pa.Array) -> pa.Array:
        """Return each row's keys as one text, in RocketMQ's format."""
        lists = column.cast(pa.list_(pa.string()))
        keys = lists.flatten()
        is_bad = pc.match_substring(keys, KEY_SEPARATOR)
        if pc.any(is_bad).as_py():
            row = pc.list_parent_indices(lists)[pc.index(is_bad, True).as_py()].as_py()
            problem = (
                "a key in the array has a space, which is what keys are kept apart with: replace it"
            )
            raise RowError(self._task.partition, self._first_row + row, columns.KEYS, problem)
        if pc.any(pc.or_kleene(pc.is_null(keys), pc.equal(pc.binary_length(keys), 0))).as_py():
            lists = _without_blanks(lists, keys)
        return self._texts(columns.KEYS, pc.binary_join(lists, KEY_SEPARATOR))

    def _ids_from_keys(self, keys: pa.Array) -> pa.Array:
        """Return the rows' ids by their keys, which must be unique."""
        self._reject(
            pc.is_null(keys),
            columns.KEYS,
            "it is empty, and rowIds=keys makes the row's id of it: give each row a key, or leave "
            "the option out",
        )
        codes = np.asarray(pc.dictionary_encode(keys).indices)
        _, firsts = np.unique(codes, return_index=True)
        if len(firsts) < len(codes):
            row = int(np.setdiff1d(np.arange(len(codes)), firsts)[0])
            raise RowError(
                self._task.partition,
                self._first_row + row,
                columns.KEYS,
                "an earlier row of the batch has the same, and with rowIds=keys that is the same "
                "row: give each row of a batch a key of its own, or leave the option out",
            )
        return self._task.ids_from_keys(keys)

    def _numbers(self, name: str, column: pa.Array) -> pa.Array:
        least = -(1 << 31) if name == columns.FLAG else 0
        numbers = column.cast(pa.int64())
        is_bad = pc.or_(pc.less(numbers, least), pc.greater_equal(numbers, 1 << 31))
        needed = f"needed a number from {least} to {(1 << 31) - 1}"
        self._reject(is_bad, name, needed)
        numbers = numbers.cast(_INT)
        return numbers if name == columns.QUEUE_ID else pc.fill_null(numbers, pa.scalar(0, _INT))

    def _properties(self, column: pa.Array) -> pa.MapArray:
        """Return the user's properties, without nulls and those that RocketMQ sets itself."""
        maps = column.cast(_TEXTS)
        if maps.null_count:
            maps = maps.take(
                pa.array(np.arange(len(maps)))
            )  # leaves out what may lie behind a null
        offsets = np.asarray(maps.offsets)
        names = maps.keys[offsets[0] : offsets[-1]]
        values = maps.items[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
        for name, column_name in _COLUMN_OF_PROPERTY.items():
            if column_name not in self._names:
                self._reject_property(
                    pc.equal(names, name),
                    offsets,
                    f"name {name} means something to RocketMQ: use column {column_name}, or leave "
                    "it out",
                )
        separated = pc.or_(
            pc.match_substring(names, NAME_VALUE_SEPARATOR),
            pc.match_substring(names, PROPERTY_SEPARATOR),
        )
        separated = pc.or_kleene(separated, pc.match_substring(values, PROPERTY_SEPARATOR))
        problem = (
            "a name or a value has a character \\x01 or \\x02, which RocketMQ keeps them apart with"
        )
        self._reject_property(separated, offsets, f"{problem}: replace it")
        has_none = pc.fill_null(pc.equal(pc.binary_length(values), 0), fill_value=True)
        is_nameless = pc.and_not(pc.equal(pc.binary_length(names), 0), has_none)
        self._reject_property(
            is_nameless, offsets, "a value has an empty name: name it, or leave it out"
        )
        is_left_out = pc.or_(has_none, pc.is_in(names, _RESERVED_PROPERTIES))
        kept = ~np.asarray(is_left_out).astype(bool)
        before = np.concatenate(([0], np.cumsum(kept)))
        chosen = pa.array(kept)
        return pa.MapArray.from_arrays(
            pa.array(before[offsets], _INT), names.filter(chosen), values.filter(chosen)
        )

    def _check_lengths(self, found: Mapping[str, Any]) -> None:
        """Check that the properties of each message fit their 16-bit length."""
        total = np.zeros(len(found[columns.BODY]), np.int64)
        for name in (columns.KEYS, columns.TAGS):
            if name in found:
                total += np.asarray(pc.fill_null(pc.binary_length(found[name]), 0))
        if columns.PROPERTIES in found:
            total += lengths_of_maps(found[columns.PROPERTIES])
        if len(total) and total.max() > PROPERTIES_BYTES_SENT_MAX:
            row = int(total.argmax())
            problem = (
                f"with keys and tags they take {total[row]} bytes, and "
                f"{PROPERTIES_BYTES_SENT_MAX} is the most that RocketMQ leaves for them: put some "
                "into the body"
            )
            raise RowError(self._task.partition, self._first_row + row, columns.PROPERTIES, problem)

    # ---- refusing

    def _reject(self, bad: pa.BooleanArray, column: str, problem: str) -> None:
        first = pc.index(bad, True).as_py()
        if first >= 0:
            raise RowError(self._task.partition, self._first_row + first, column, problem)

    def _reject_property(
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
    """Return the lists without nulls and empty strings."""
    kept = np.asarray(pc.fill_null(pc.greater(pc.binary_length(keys), 0), fill_value=False)).astype(
        bool
    )
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    starts = np.concatenate(([0], np.cumsum(lengths)))
    before = np.concatenate(([0], np.cumsum(kept)))
    return pa.ListArray.from_arrays(pa.array(before[starts], _INT), keys.filter(pa.array(kept)))


def _with_ids(maps: pa.MapArray | None, ids: pa.Array) -> pa.MapArray:
    """Return each row's properties, with its id added as the last."""
    count = len(ids)
    names = pa.repeat(ROW_ID, count)
    if maps is None or not len(maps.keys):
        return pa.MapArray.from_arrays(pa.array(np.arange(count + 1), _INT), names, ids)
    own = len(maps.keys)
    offsets = np.asarray(maps.offsets) + np.arange(count + 1)
    source = np.empty(own + count, np.int64)
    is_id = np.zeros(own + count, bool)
    is_id[offsets[1:] - 1] = True
    source[is_id] = np.arange(own, own + count)
    source[~is_id] = np.arange(own)
    order = pa.array(source)
    return pa.MapArray.from_arrays(
        pa.array(offsets, _INT),
        pa.concat_arrays([maps.keys, names]).take(order),
        pa.concat_arrays([maps.items, ids]).take(order),
    )


# ---- Task reports: what a task of the sink tells the driver about its rows.


class StagedReport(NamedTuple):
    """The part of a batch that one task has staged; without topic and broker if it had no rows.

    ``sums`` are those of its rows if the batch had been committed before the task started.
    """

    batch: BatchRequestHeader
    topic: str | None = None
    broker_name: str | None = None
    attempt: StagedAttempt | None = None
    staged_bytes: int = 0
    is_committed: bool = False
    sums: RowSums | None = None


class TaskReport(NamedTuple):
    """The rows that a task has sent or staged: how many they are, and where.

    Adjoining spans of a queue are joined, up to a size that can be held in memory. Those of
    exactly-once delivery, which a manifest names, have the sums of their bodies.
    """

    row_count: int
    body_bytes: int
    """The size of all bodies."""
    retries: int
    """The number of times that something was tried again, as a broker was away or busy."""
    spans: tuple[CommittedSpan, ...] = ()
    staged: StagedReport | None = None
    """The report of rows that were staged instead of sent."""
