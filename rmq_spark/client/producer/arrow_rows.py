"""Arrow rows: cut tables into requests, and encode their rows as records or messages.

    body             the payload; binary or text, never empty
    topic            the topic, unless one is given for all rows
    keys, tags       text
    properties       a map of text to text
    flag             a 32-bit number
    bornTimestamp    when the message was made; now, if it is not given

Rows that no broker would accept are refused before anything of their request is sent. The Spark
sink adds `ENCODED_PROPERTIES`, which has the ids of its rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.arguments import check_send_topic, check_text, wrong_kind
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.message import Message
from rmq_spark.client.producer.prepared_message import RECORD_OVERHEAD_BYTES, now_ms
from rmq_spark.errors import RecordError, excerpt
from rmq_spark.wire.chunk import encode_sized_chunk
from rmq_spark.wire.chunk.buffer_slices import lengths_of
from rmq_spark.wire.chunk.columns import TIMESTAMP
from rmq_spark.wire.chunk.encode import ENCODED_PROPERTIES
from rmq_spark.wire.chunk.properties import MAP_TYPE, lengths_of_maps
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.properties import KEY_SEPARATOR, RESERVED_NAMES, decode_properties
from rmq_spark.wire.message_queue import MessageQueue

COLUMNS: Final = ("body", "topic", "keys", "tags", "properties", "flag", "bornTimestamp")
"""The columns that users may send."""

SINK_COLUMNS: Final = (*COLUMNS, ENCODED_PROPERTIES)
"""Columns of the Spark sink, which has checked the last one itself."""

_BORN_V6: Final = MessageSysFlag.BORN_HOST_V6.value
_STORE_V6: Final = MessageSysFlag.STORE_HOST_V6.value


class RequestRows(NamedTuple):
    """Rows of one topic that are sent in one request."""

    topic: str
    rows: pa.RecordBatch


def split_rows(
    rows: pa.RecordBatch,
    topic: str | None,
    bytes_max: int,
    rows_max: Callable[[str], int],
    columns: Iterable[str] = COLUMNS,
) -> Iterator[RequestRows]:
    """Yield rows by topic, divided into requests; rows may have these columns only."""
    _check_columns(rows, columns)
    if topic is not None:
        check_text("topic", topic, "orders")
        yield from _split_by_size(rows, check_send_topic(topic), bytes_max, rows_max(topic))
        return
    if "topic" not in rows.schema.names:
        raise MessageRejected(
            "topic", "a column of that name, or one topic for all rows", "neither"
        )
    topics = rows.column("topic")
    if topics.null_count:
        raise MessageRejected("topic", "one in each row", "null")
    for each in topics.unique().to_pylist():
        chosen = rows.filter(pc.equal(topics, each))
        yield from _split_by_size(chosen, check_send_topic(each), bytes_max, rows_max(each))


def _check_columns(rows: pa.RecordBatch, columns: Iterable[str]) -> None:
    names = rows.schema.names
    unknown = set(names) - set(columns)
    if unknown or "body" not in names or len(set(names)) < len(names):
        needed = f"body, and optionally {', '.join(COLUMNS[1:])}, each once"
        raise MessageRejected("columns", needed, ", ".join(names))
    if "properties" in rows.schema.names:
        used = set(rows.column("properties").keys.unique().to_pylist()) & RESERVED_NAMES
        if used:
            raise MessageRejected(
                "properties", "names that RocketMQ does not reserve", ", ".join(sorted(used))
            )


def _split_by_size(
    rows: pa.RecordBatch, topic: str, bytes_max: int, rows_max: int
) -> Iterator[RequestRows]:
    bodies = rows.column("body")
    if bodies.null_count:
        raise MessageRejected("body", "one in each row", "null")
    lengths = pc.binary_length(bodies).to_numpy(zero_copy_only=False).astype(np.int64)
    if len(lengths) and not lengths.min():
        raise MessageRejected(
            "body", "at least one byte: RocketMQ's consumers fail on empty ones", "none"
        )
    if len(lengths) and lengths.max() > bytes_max:
        raise MessageRejected("body", f"at most {bytes_max} bytes", f"{lengths.max()} bytes")
    ends = np.cumsum(lengths + _property_lengths(rows) + (RECORD_OVERHEAD_BYTES + len(topic)))
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + bytes_max, "right"))
        end = min(max(end, start + 1), start + rows_max)
        yield RequestRows(topic, rows.slice(start, end - start))
        start = end


def _property_lengths(rows: pa.RecordBatch) -> Any:
    total = np.zeros(rows.num_rows, np.int64)
    for name in ("keys", "tags"):
        if name in rows.schema.names:
            lengths = pc.fill_null(pc.binary_length(rows.column(name)), 0)
            total += lengths.to_numpy(zero_copy_only=False).astype(np.int64) + len(name) + 2
    if "properties" in rows.schema.names and rows.num_rows:
        total += lengths_of_maps(rows.column("properties"))
    if ENCODED_PROPERTIES in rows.schema.names:
        total += lengths_of(rows.column(ENCODED_PROPERTIES))
    return total


def encode_sized_records(
    rows: pa.RecordBatch, queue: MessageQueue, born_host: str, store_host: str
) -> memoryview:
    """Return the body of a chunk: rows as records for a queue, each preceded by its size."""
    columns = record_columns(rows, queue, born_host, store_host)
    with translate_record_errors():
        return memoryview(encode_sized_chunk(columns))


def to_message(rows: pa.RecordBatch, topic: str) -> Message:
    """Return a single row as a message."""
    (row,) = rows.to_pylist()
    body = row["body"]
    return Message(
        topic,
        body.encode() if isinstance(body, str) else body,
        tags=row.get("tags"),
        keys=row.get("keys"),
        properties=dict(row.get("properties") or ())
        | decode_properties(row.get(ENCODED_PROPERTIES, b"").decode()),
        flag=row.get("flag") or 0,
    )


@contextmanager
def translate_record_errors() -> Iterator[None]:
    """Raise MessageRejected if the block raises RecordError for rows that cannot be records."""
    try:
        yield
    except RecordError as error:
        raise MessageRejected("a row", "values that a message can have", str(error)) from error


def record_columns(
    rows: pa.RecordBatch, queue: MessageQueue, born_host: str, store_host: str
) -> dict[str, Any]:
    """Return the columns that the chunk codec encodes as records."""
    columns = {name: _fill_defaults(rows, name) for name in rows.schema.names if name != "topic"}
    columns.setdefault("bornTimestamp", pa.scalar(now_ms(), TIMESTAMP))
    sys_flag = _BORN_V6 if parse_host(born_host).is_v6 else 0
    sys_flag |= _STORE_V6 if parse_host(store_host).is_v6 else 0
    return {
        **columns,
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "sysFlag": sys_flag,
        "bornHost": born_host,
        "storeHost": store_host,
    }


def message_columns(rows: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns of a batch, without born times: its messages share the request's."""
    return {
        name: _fill_defaults(rows, name)
        for name in rows.schema.names
        if name not in ("topic", "bornTimestamp")
    }


def _fill_defaults(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column, with the default where a row has no flag or no time."""
    column = rows.column(name)
    if name == "flag" and column.null_count:
        return pc.fill_null(column, 0)
    if name == "bornTimestamp" and column.null_count:
        return pc.fill_null(column, pa.scalar(now_ms(), TIMESTAMP))
    return column


# ---- Conversion of users' tables and data frames to record batches with message columns. Neither
# pandas nor polars is imported. A column of an unsuitable type is refused by name before any row of
# its batch is sent.
#
#     Arrow table, record batch, reader ─┐
#     polars, DuckDB and others (__arrow_c_stream__) ─┼──> record batches ──> columns in their types
#     pandas DataFrame, without its index ─┘

_TABLES: Final = "a pyarrow Table or RecordBatch, or a DataFrame of pandas or polars"
_STREAM: Final = "__arrow_c_stream__"


def normalize_tables(tables: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield tables, frames and record batches, with columns in the types of messages."""
    for rows in tables:
        for batch in _to_batches(rows):
            columns = [
                _cast_column(field.name, column) if field.name in _COLUMN_TYPES else column
                for field, column in zip(batch.schema, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _to_batches(rows: Any) -> Any:
    if isinstance(rows, pa.RecordBatch):
        return (rows,)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(rows, pandas.DataFrame):  # streams include the index
        rows = _from_pandas(rows)
    if isinstance(rows, pa.Table):
        return rows.to_batches()
    if hasattr(rows, _STREAM):
        try:
            return pa.RecordBatchReader.from_stream(rows)
        except (pa.ArrowException, TypeError, ValueError) as error:
            found = f"{type(rows).__name__}, which is not a table: {excerpt(str(error))}"
            raise wrong_kind("table", _TABLES, found, "frame[['body']]") from error
    found = f"{type(rows).__name__} {excerpt(rows)}"
    raise wrong_kind("table", _TABLES, found, "pa.table({'body': ['one', 'two']})")


def _from_pandas(frame: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (
        pa.ArrowException,
        ValueError,
    ) as error:  # says which column holds values of several kinds
        found = "; ".join(map(str, error.args))
        example = 'frame.assign(body=frame["body"].astype(str))'
        raise wrong_kind("table", "columns of one type each", found, example) from error


_HAS_VIEWS: Final = hasattr(pa.types, "is_binary_view")  # from pyarrow 16 on


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    of = pa.types
    if of.is_dictionary(kind):
        return _is_text_or_bytes(kind.value_type)
    is_view = (of.is_binary_view, of.is_string_view) if _HAS_VIEWS else ()
    return any(
        has_type(kind)
        for has_type in (
            of.is_binary,
            of.is_string,
            of.is_large_binary,
            of.is_large_string,
            of.is_fixed_size_binary,
            *is_view,
        )
    )


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_integer(kind))


def _is_number(kind: pa.DataType) -> bool:
    # pandas uses floats in columns with nulls
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_text_or_texts(kind: pa.DataType) -> bool:
    return _is_text_or_bytes(kind) or (_is_list(kind) and _is_text_or_bytes(kind.value_type))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_map(kind: pa.DataType) -> bool:
    of = pa.types
    if _is_list(kind):  # a list of pairs
        return bool(of.is_struct(kind.value_type) and kind.value_type.num_fields == 2)
    return bool(of.is_map(kind) or of.is_struct(kind))


class _ColumnType(NamedTuple):
    """A column's type, and the types that are converted to it."""

    type: pa.DataType
    accepts: Any
    needed: str
    example: str


_CAST: Final = 'table["{0}"].cast("string") of pyarrow, frame["{0}"].astype(str) of pandas'
_COLUMN_TYPES: Final[Mapping[str, _ColumnType]] = {
    "body": _ColumnType(pa.binary(), _is_text_or_bytes, "binary or text", _CAST.format("body")),
    **{
        name: _ColumnType(pa.string(), _is_text_or_bytes, "text", _CAST.format(name))
        for name in ("topic", "tags")
    },
    "keys": _ColumnType(
        pa.string(), _is_text_or_texts, "text, or lists of it", _CAST.format("keys")
    ),
    "properties": _ColumnType(
        MAP_TYPE,
        _is_map,
        "a map of text to text",
        'pa.array([{"colour": "red"}.items()], pa.map_(pa.string(), pa.string()))',
    ),
    "flag": _ColumnType(pa.int32(), _is_number, "32-bit numbers", 'table["flag"].cast("int32")'),
    "bornTimestamp": _ColumnType(
        TIMESTAMP,
        _is_time,
        "times, or milliseconds since 1970",
        'table["bornTimestamp"].cast("int64")',
    ),
}


_TEXTS: Final = (pa.string(), MAP_TYPE)
_YEAR_1_MS: Final = -62_135_596_800_000
_YEAR_9999_MS: Final = 253_402_300_799_999


def _cast_column(name: str, column: pa.Array) -> pa.Array:
    kind = _COLUMN_TYPES[name]
    if column.type != kind.type and not (
        kind.accepts(column.type) or pa.types.is_null(column.type)
    ):
        raise wrong_kind(f"column {name}", kind.needed, str(column.type), kind.example)
    try:
        found = column if column.type == kind.type else _cast(name, column, kind.type)
        if kind.type in _TEXTS:
            found.validate(full=True)  # Arrow can be made to believe that any bytes are text
        if kind.type == TIMESTAMP:
            _check_years(found)
    except (pa.ArrowException, TypeError, ValueError) as error:
        problem = f"{column.type}, and {'; '.join(map(str, error.args))}"
        raise wrong_kind(f"column {name}", kind.needed, problem, kind.example) from error
    return found


def _cast(name: str, column: pa.Array, to: pa.DataType) -> pa.Array:
    if name == "properties" and not pa.types.is_map(column.type):
        return pa.array([_pairs(row) for row in column.to_pylist()], to)
    if name == "keys" and _is_list(column.type):
        return _join_keys(column.cast(pa.list_(pa.string())))
    if to == TIMESTAMP and pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    # Fractions of a millisecond are dropped; seconds are cast safely, because they may overflow.
    is_cut = pa.types.is_timestamp(column.type) and column.type.unit != "s"
    return column.cast(to, safe=not is_cut)


def _check_years(times: pa.Array) -> None:
    """Raise ValueError for a time that readers of the message could not show."""
    milliseconds = times.view(pa.int64())
    is_wrong = pc.or_(pc.less(milliseconds, _YEAR_1_MS), pc.greater(milliseconds, _YEAR_9999_MS))
    row = pc.index(is_wrong, True).as_py()
    if row >= 0:
        raise ValueError(
            f"row {row} has {milliseconds[row].as_py()} ms, which is not between {_YEAR_1_MS} and "
            f"{_YEAR_9999_MS}, the years 1 to 9999"
        )


def _join_keys(keys: pa.ListArray) -> pa.Array:
    if keys.flatten().null_count:
        raise ValueError("a key in a list is null")
    is_one = pc.greater(pc.list_value_length(keys), 0)
    return pc.if_else(is_one, pc.binary_join(keys, KEY_SEPARATOR), None)


def _pairs(row: Any) -> list[tuple[Any, ...]] | None:
    """Return the properties of a row: a dict as pandas has it, or pairs as polars has them."""
    # Arrow makes structs of several dicts, with null for a key that a dict does not have
    if isinstance(row, dict):
        return [pair for pair in row.items() if pair[1] is not None]
    return row if row is None else [tuple(pair.values()) for pair in row]
