"""Arrow input: converts users' tables and data frames to record batches with message columns.

    Arrow table, record batch, reader ─┐
    polars, DuckDB and others (__arrow_c_stream__) ─┼──> record batches ──> columns in their types
    pandas DataFrame, without its index ─┘

Neither pandas nor polars is imported. A column of an unsuitable type is refused by name before any
row of its batch is sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.arguments import wrong_kind
from rmq_spark.errors import excerpt
from rmq_spark.wire.chunk.columns import TIMESTAMP
from rmq_spark.wire.chunk.properties import MAP_TYPE
from rmq_spark.wire.properties import KEY_SEPARATOR

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
    if pandas is not None and isinstance(rows, pandas.DataFrame):  # its stream has its index
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
        is_it(kind)
        for is_it in (
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
    if _is_list(kind):  # of pairs
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
    # Of a time, less than a millisecond is dropped; one in seconds may be too late.
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
    """Return the keys of each row in one text; a row without any has none."""
    if keys.flatten().null_count:
        raise ValueError("a key in a list is null")
    is_one = pc.greater(pc.list_value_length(keys), 0)
    return pc.if_else(is_one, pc.binary_join(keys, KEY_SEPARATOR), None)


def _pairs(row: Any) -> list[tuple[Any, ...]] | None:
    """Return the properties of a row: a dict as pandas has it, or pairs as polars has them."""
    # of several dicts Arrow makes structs with nulls where one has no value
    if isinstance(row, dict):
        return [pair for pair in row.items() if pair[1] is not None]
    return row if row is None else [tuple(pair.values()) for pair in row]
