"""Input columns: checks the columns that a caller passes, and encodes parts that formats share.

A column is an Arrow array or a sequence, or one value for all messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import Verbatim
from rmq_spark.wire.chunk.buffer_slices import chunk_error, lengths_of
from rmq_spark.wire.chunk.columns import COLUMNS
from rmq_spark.wire.chunk.properties import encode_maps, encode_named
from rmq_spark.wire.properties import KEYS, PROPERTIES_BYTES_MAX, TAGS

_ACCEPTED_COLUMNS = frozenset(COLUMNS) - {"msgId", "offsetMsgId"}
_SEQUENCE_TYPES = (pa.Array, pa.ChunkedArray, np.ndarray, list, tuple)


class InputColumns:
    """The columns that a caller passed, checked; each becomes an array on first use."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        unknown = sorted(set(columns) - _ACCEPTED_COLUMNS)
        if unknown:
            raise chunk_error("columns", f"only {', '.join(sorted(_ACCEPTED_COLUMNS))}", unknown)
        self._columns = columns
        self.rows = _row_count(columns.get("body"))

    def get(self, name: str) -> Any:
        """Return a column as it was passed: an array, one value, or None."""
        return self._columns.get(name)

    def array(self, name: str) -> pa.Array:
        """Return the column as an array of its type, with a value in each row."""
        array = self.optional(name)
        if array is None or array.null_count:
            at = f"column {name}" if array is None else f"{name} {pc.index(array.is_null(), True)}"
            raise chunk_error(at, "a value for each message", None)
        return array

    def optional(self, name: str) -> pa.Array | None:
        """Return the column as an array, possibly with nulls; None if it was not passed."""
        values = self._columns.get(name)
        kind = COLUMNS[name].type
        if values is None:
            return None
        try:
            array = _as_array(values, kind, self.rows)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise chunk_error(
                f"column {name}", f"values of type {kind}", Verbatim(error)
            ) from error
        if len(array) != self.rows:
            raise chunk_error(f"column {name}", f"{self.rows} values", len(array))
        return array

    def numbers(self, name: str) -> Any:
        """Return the column as numpy numbers, or 0 if it was not passed."""
        if self._columns.get(name) is None:
            return 0
        array = self.array(name)
        return (
            array.view(pa.int64()).to_numpy()
            if pa.types.is_timestamp(array.type)
            else array.to_numpy()
        )


def _row_count(bodies: Any) -> int:
    if not isinstance(bodies, _SEQUENCE_TYPES) or (
        isinstance(bodies, np.ndarray) and bodies.ndim != 1
    ):
        raise chunk_error("column body", "one body for each message", bodies)
    return len(bodies)


def _as_array(values: Any, kind: pa.DataType, rows: int) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values.cast(kind)
    if isinstance(values, _SEQUENCE_TYPES):
        return pa.array(values, kind)
    return pa.repeat(pa.scalar(values, kind), rows)


def property_strings(input_columns: InputColumns, *more: Any) -> Any:
    """Join KEYS, TAGS, the rest and additions, in this order; one value if all are equal."""
    parts = []
    for column, name in (("keys", KEYS), ("tags", TAGS)):
        values = input_columns.optional(column)
        if values is not None:
            parts.append(encode_named(name, values))
    maps = input_columns.optional("properties")
    if maps is not None:
        reserved = tuple(
            name
            for column, name in (("keys", KEYS), ("tags", TAGS))
            if input_columns.get(column) is not None
        )
        parts.append(encode_maps(maps, reserved=reserved))
    nothing = pa.scalar(b"", pa.binary())
    parts += more or (nothing,)
    if len(parts) == 1:
        return parts[0]
    properties = pc.binary_join_element_wise(*parts, nothing)
    lengths = lengths_of(properties)
    if input_columns.rows and lengths.max() > PROPERTIES_BYTES_MAX:
        row = int(lengths.argmax())
        raise chunk_error(
            f"properties {row}",
            f"at most {PROPERTIES_BYTES_MAX} bytes",
            f"{int(lengths[row])} bytes",
        )
    return properties


def value_lengths(values: Any, rows: int) -> npt.NDArray[np.int64]:
    """Return the length of each row's value, or of the one value of all rows."""
    if isinstance(values, pa.Scalar):
        return np.full(rows, len(values.as_py()), np.int64)
    return lengths_of(values)


def to_binary(structures: npt.NDArray[Any]) -> pa.BinaryArray:
    """Return structures of one width as binary values of the same bytes."""
    width = structures.dtype.itemsize
    values = pa.Array.from_buffers(
        pa.binary(width), len(structures), [None, pa.py_buffer(structures)]
    )
    return values.cast(pa.binary())


def concatenate_rows(parts: Sequence[Any], rows: int, total: int) -> pa.Buffer:
    """Join the parts of each row, and all rows, to one buffer of ``total`` bytes."""
    if not rows:
        return pa.py_buffer(b"")
    return (
        pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
        .buffers()[2]
        .slice(0, total)
    )
