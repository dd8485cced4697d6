"""BodyEncoder: encodes columns of a data frame as bodies of a format, for the sink.

    the struct in bodyColumn, or all columns that are not a message's ──> one more column, bodies

The source reads the bodies back equal with the same schema: null as null, NaN and infinities as
"NaN" and "Infinity", decimals with all digits, binaries in base64, timestamps in UTC. The error for
a row that cannot be encoded has its number. pyarrow writes none of the formats; the library of each
format encodes the rows one by one.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from rmq_spark.client.errors import RegistryFailed
from rmq_spark.client.serializers import MsgPack
from rmq_spark.spark.errors import OptionError, RowError
from rmq_spark.spark.options.bodies import BODY, BodyOptions
from rmq_spark.spark.options.sink_columns import body_positions
from rmq_spark.spark.options.values import BodyFormat
from rmq_spark.spark.schemas.columns import arrow_schema_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Converter = Callable[[Any], Any]


class BodyEncoder:
    """The encoder for the rows of one data frame; it is pickled to tasks with the writer."""

    def __init__(self, schema: StructType, body: BodyOptions) -> None:
        """Take the columns of a data frame, and a body format that has fields."""
        from pyspark.sql.types import StructType  # noqa: PLC0415  # not for binary bodies

        self.width = len(schema.fields)
        self.positions: Sequence[int] = body_positions(schema, body)
        self._fields: Any = StructType([schema.fields[at] for at in self.positions])
        self._body = body if body.is_registered else _with_registered(body, self._value_type(body))

    def _value_type(self, body: BodyOptions) -> Any:
        """Return the type of the struct that becomes a body."""
        return self._fields.fields[0].dataType if body.column else self._fields

    @property
    def arrow_types(self) -> dict[int, pa.DataType]:
        """The Arrow type of each column that goes into bodies, by its position."""
        types = arrow_schema_of(self._fields).types
        return dict(zip(self.positions, types, strict=True))

    def encode_batches(
        self, batches: Iterable[pa.RecordBatch], partition: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield record batches with bodies added as the last column."""
        encode = self._row_encoder()
        first_row = 0
        for batch in batches:
            bodies = self._encode_batch(batch, encode, partition, first_row)
            columns = [*batch.columns, pa.array(bodies, pa.binary())]
            names = [str(position) for position in range(len(columns))]
            yield pa.RecordBatch.from_arrays(columns, names=names)
            first_row += batch.num_rows

    def _encode_batch(
        self,
        batch: pa.RecordBatch,
        encode: Callable[[Any], bytes],
        partition: int,
        first_row: int,
    ) -> list[bytes | None]:
        columns = [batch.column(position) for position in self.positions]
        if self._body.column:
            (rows,) = columns
        else:
            rows = pa.StructArray.from_arrays(columns, names=self._fields.fieldNames())
        rows = rows.cast(_with_utc(rows.type))
        try:
            return [None if row is None else encode(row) for row in rows.to_pylist()]
        except (ValueError, TypeError, OverflowError, ArithmeticError):
            for at, row in enumerate(rows):
                _check_row(row, encode, partition, first_row + at)
            raise

    def _row_encoder(self) -> Callable[[Any], bytes]:
        encode, header = self._plain_encoder(), self._body.header
        return (lambda row: header + encode(row)) if header else encode

    def _plain_encoder(self) -> Callable[[Any], bytes]:
        fields, header = self._value_type(self._body), self._body.header
        if self._body.message is not None:
            from rmq_spark.spark.schemas.protobuf_schema import protobuf_encoder  # noqa: PLC0415  # for Protobuf only

            return protobuf_encoder(self._body.message, fields, may_be_empty=bool(header))
        is_json = self._body.format is BodyFormat.JSON
        change = _converter_of(pa.struct(list(arrow_schema_of(fields))), is_json=is_json)
        write: Callable[[Any], bytes]
        if is_json:
            write = _encode_json
        elif self._body.format is BodyFormat.MSGPACK:
            write = MsgPack().dumps  # so that source, sink and client have the same bodies
        else:
            from rmq_spark.spark.schemas.avro_schema import avro_encoder, avro_schema_of  # noqa: PLC0415  # for Avro only

            given = self._body.avro_schema
            write = avro_encoder(avro_schema_of(fields) if given is None else json.loads(given))
        return write if change is None else lambda row: write(change(row))


def _with_registered(body: BodyOptions, kind: Any) -> BodyOptions:
    """Register the schema of bodies; return options with its header."""
    from rmq_spark.spark.schemas.registered_schema import index_bytes, registered_text  # noqa: PLC0415  # seldom used

    assert body.registry is not None  # noqa: S101  # options are checked
    assert body.subject is not None  # noqa: S101  # options are checked
    try:
        text = registered_text(kind, body.message, is_json=body.format is BodyFormat.JSON)
        found = body.registry.connect().register(body.subject, body.format.name, text)
    except (RegistryFailed, ValueError) as error:
        raise OptionError(
            "bodyRegister",
            f"the schema cannot be registered: {error}. Register it by another program, and remove "
            "this option",
        ) from None
    index = b"" if body.message is None else index_bytes(body.message)
    return replace(body, header=found.header + index, is_registered=True)


def _check_row(row: Any, encode: Callable[[Any], bytes], partition: int, number: int) -> None:
    try:
        value = row.as_py()
        if value is not None:
            encode(value)
    except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
        raise RowError(partition, number, BODY, f"it cannot be encoded: {error}") from error


def _encode_json(row: Any) -> bytes:
    return orjson.dumps(row, default=_json_number, option=orjson.OPT_UTC_Z)


def _json_number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return orjson.Fragment(format(value, "f"))
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _converter_of(kind: pa.DataType, *, is_json: bool) -> Converter | None:
    """Return the function that converts values of a type before encoding; None if not needed."""
    if pa.types.is_struct(kind):
        changes = [(each.name, _converter_of(each.type, is_json=is_json)) for each in kind]
        needed = [(name, change) for name, change in changes if change is not None]
        return _field_converter(needed) if needed else None
    if pa.types.is_list(kind):
        element = _converter_of(kind.value_type, is_json=is_json)
        if element is None:
            return None
        return lambda value: None if value is None else [element(each) for each in value]
    if pa.types.is_map(kind):
        item = _converter_of(kind.item_type, is_json=is_json) or _unchanged
        return lambda value: None if value is None else {name: item(each) for name, each in value}
    if not is_json:
        return None
    if pa.types.is_floating(kind):
        return _json_float
    if pa.types.is_binary(kind):
        return lambda value: None if value is None else base64.b64encode(value).decode()
    return None


def _field_converter(converters: Sequence[tuple[str, Converter]]) -> Converter:
    def change_fields(value: Any) -> Any:
        if value is not None:
            for name, change in converters:
                value[name] = change(value[name])
        return value

    return change_fields


def _unchanged(value: Any) -> Any:
    return value


def _json_float(value: float | None) -> Any:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _with_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with its timestamps in UTC, and all fields nullable.

    In a session's time zone, timestamps of Python's first and last day would be out of range. In a
    null struct, pyarrow sees nulls in fields that are never null.
    """
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _with_utc(each.type)) for each in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(pa.field("element", _with_utc(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _with_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, pa.field("value", _with_utc(kind.item_type)))
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind


def to_arrow_value(value: Any, kind: pa.DataType) -> Any:
    """Convert a value of a row, as Spark 4.0 passes it, to one that pyarrow accepts for a type."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: to_arrow_value(value[at], field.type) for at, field in enumerate(kind)}
    if pa.types.is_list(kind):
        return [to_arrow_value(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return [(name, to_arrow_value(each, kind.item_type)) for name, each in value.items()]
    return value.astimezone(timezone.utc) if pa.types.is_timestamp(kind) and kind.tz else value
