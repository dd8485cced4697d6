"""Body values: the fields of decoded bodies as columns of a table.

`expand_bodies` replaces the column ``body``:

{"id": 1, "total": 9.5}  ──>  id BIGINT, total DOUBLE     types are found in the values
"some text"              ──>  body STRING, if all bodies are texts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.serializers import Serializer, decode_value
from rmq_spark.errors import BodyError, excerpt

BODY: Final = "body"


def expand_bodies(
    table: pa.Table, serializer: Serializer, report: Callable[[int, str], None], *, keeps_rows: bool
) -> pa.Table:
    """Return a table whose column ``body`` is replaced by the values of the bodies.

    Args:
        table: Rows with the column ``body``.
        serializer: Decodes each body.
        report: Called with the row of a body that has no value, and the reason; it may raise.
        keeps_rows: True if such a body's columns are null; False if its row is omitted.

    Raises:
        MessageRejected: A field has values of several types, or the name of another column.
    """
    values: list[Any] = []
    kept: list[int] = []
    for row, body in enumerate(table.column(BODY).to_pylist()):
        value, problem = (None, None) if body is None else _decode(body, serializer)
        if problem is not None:
            report(row, problem)
        if problem is None or keeps_rows:
            kept.append(row)
            values.append(value)
    rest = table.take(pa.array(kept, pa.int64()))
    at = rest.schema.get_field_index(BODY)
    rest = rest.remove_column(at)
    for name, column in _columns(values, set(rest.column_names)).items():
        rest = rest.add_column(at, name, column)
        at += 1
    return rest


def _decode(body: bytes, serializer: Serializer) -> tuple[Any, str | None]:
    """Return the value of a body, or why it has none."""
    try:
        value = decode_value(body, serializer, BODY, "the start")
    except BodyError as error:
        return None, str(error)
    if isinstance(value, (Mapping, str)):
        return value, None
    return None, f"its body has no fields: found {type(value).__name__} {excerpt(value)}"


def _columns(values: list[Any], taken: set[str]) -> dict[str, pa.Array]:
    found = [each for each in values if each is not None]
    if all(isinstance(each, str) for each in found):
        return {BODY: pa.array(values, pa.string())}
    if any(isinstance(each, str) for each in found):
        raise MessageRejected(BODY, "bodies that all have fields, or all are texts", "both")
    names = dict.fromkeys(name for each in found for name in each)
    columns = {}
    for name in names:
        if name in taken:
            needed = "bodies without a field that has the name of a column. Choose other columns"
            raise MessageRejected(BODY, needed, name)
        field = [None if each is None else each.get(name) for each in values]
        try:
            columns[str(name)] = pa.array(field)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            needed = f"fields of one type each. Read bodies as bytes (field {name!r}: {error})"
            first = next(each for each in field if each is not None)
            raise MessageRejected(BODY, needed, excerpt(first)) from error
    return columns
