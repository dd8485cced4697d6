"""Avro: schemas to Spark types and bodies to columns, and back, with the mapping that Spark uses.

A nullable field is a union of null and its type. Nested records are named by their paths. UUIDs are
text. Other unions, and times of day, have no Spark type: they are refused with their path.

A body is one record without a header. pyarrow has no Avro, so that bodies are decoded row by row
here, and become columns together. Why fastavro: it is the maintained library that is compiled to C,
with all of Avro's logical types; Apache's own Python library is ten times slower.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as sql

from rmq_spark.errors import excerpt
from rmq_spark.spark.errors import import_extra
from rmq_spark.spark.schemas.arrow_conversion import BodyFault, RowDecoder

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOGICAL_TYPES: Final[Mapping[tuple[str, str], sql.DataType]] = {
    ("int", "date"): sql.DateType(),
    ("long", "timestamp-millis"): sql.TimestampType(),
    ("long", "timestamp-micros"): sql.TimestampType(),
    ("long", "local-timestamp-millis"): sql.TimestampNTZType(),
    ("long", "local-timestamp-micros"): sql.TimestampNTZType(),
}
"""The column types of logical types; Avro ignores a logical type on any other base type."""

_PRIMITIVE_TYPES: Final[Mapping[str, sql.DataType]] = {
    "boolean": sql.BooleanType(),
    "int": sql.IntegerType(),
    "long": sql.LongType(),
    "float": sql.FloatType(),
    "double": sql.DoubleType(),
    "bytes": sql.BinaryType(),
    "string": sql.StringType(),
    "enum": sql.StringType(),
    "fixed": sql.BinaryType(),
}
_NAMED_KINDS: Final = {"record": (), "enum": ("symbols",), "fixed": ("size",)}
_DIGITS_MAX: Final = 38
_UNSUPPORTED_TYPES: Final = ("time-millis", "time-micros", "duration")
_AVRO_TYPES: Final[Mapping[type[sql.DataType], Any]] = {
    sql.StringType: "string",
    sql.BooleanType: "boolean",
    sql.ByteType: "int",
    sql.ShortType: "int",
    sql.IntegerType: "int",
    sql.LongType: "long",
    sql.FloatType: "float",
    sql.DoubleType: "double",
    sql.BinaryType: "bytes",
    sql.DateType: {"type": "int", "logicalType": "date"},
    sql.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    sql.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_schema_of(kind: sql.StructType, name: str = "topLevelRecord") -> dict[str, Any]:
    """Return the Avro schema of bodies with the fields of a Spark type."""
    fields = [
        {"name": field.name, "type": ["null", _to_avro(field.dataType, f"{name}_{field.name}")]}
        for field in kind.fields
    ]
    return {"type": "record", "name": name, "fields": fields}


def _to_avro(kind: sql.DataType, name: str) -> Any:
    if isinstance(kind, sql.StructType):
        return avro_schema_of(kind, name)
    if isinstance(kind, sql.ArrayType):
        return {"type": "array", "items": ["null", _to_avro(kind.elementType, name)]}
    if isinstance(kind, sql.MapType):
        return {"type": "map", "values": ["null", _to_avro(kind.valueType, name)]}
    if isinstance(kind, sql.DecimalType):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    return _AVRO_TYPES[type(kind)]


def avro_name_faults(kind: sql.DataType, path: str = "") -> list[str]:
    """Return a line for each name that is not valid in Avro."""
    if isinstance(kind, sql.ArrayType):
        return avro_name_faults(kind.elementType, f"{path}[]")
    if isinstance(kind, sql.MapType):
        return avro_name_faults(kind.valueType, f"{path}[]")
    found: list[str] = []
    for field in kind.fields if isinstance(kind, sql.StructType) else ():
        field_path = f"{path}.{field.name}" if path else field.name
        if not _NAME.fullmatch(field.name):
            found.append(f"{field_path} is not a valid name in Avro: needed letters, digits and _")
        found += avro_name_faults(field.dataType, field_path)
    return found


def spark_schema_of(text: str) -> sql.StructType:
    """Return the columns of bodies that have an Avro schema."""
    try:
        schema = json.loads(text)
        found = _to_spark(schema, "", {})
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from error
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, sql.StructType):
        raise ValueError('needed an Avro schema of a record, {"type": "record", ...}')  # noqa: TRY004  # a text is wrong, not a type
    return found


def without_uuids(schema: Any) -> Any:
    """Return an Avro schema with UUIDs replaced by the text or bytes that they are stored as."""
    if isinstance(schema, list):
        return [without_uuids(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_uuids(each)
        for key, each in schema.items()
        if (key, each) != ("logicalType", "uuid")
    }


def _to_spark(schema: Any, path: str, seen: dict[str, Any]) -> sql.DataType:
    if isinstance(schema, list):
        others = [each for each in schema if each not in ("null", {"type": "null"})]
        if len(others) != 1:
            raise ValueError(f"{path} is a union of {len(others)} types, but a column has one type")
        return _to_spark(others[0], path, seen)
    if isinstance(schema, str):
        return _PRIMITIVE_TYPES.get(schema) or _to_spark(
            _named_schema(schema, path, seen), path, seen
        )
    kind = _required_member(schema, "type", path)
    if isinstance(kind, (dict, list)):
        return _to_spark(kind, path, seen)
    if kind in _NAMED_KINDS:
        seen[_required_member(schema, "name", path)] = None if kind == "record" else schema
    if kind == "record":
        return _to_struct(schema, path, seen)
    if kind == "array":
        return sql.ArrayType(_to_spark(_required_member(schema, "items", path), f"{path}[]", seen))
    if kind == "map":
        values = _to_spark(_required_member(schema, "values", path), f"{path}[]", seen)
        return sql.MapType(sql.StringType(), values)
    return _to_spark_value(schema, path, seen)


def _to_struct(schema: Any, path: str, seen: dict[str, Any]) -> sql.StructType:
    found = _required_member(schema, "fields", path)
    if not isinstance(found, list):
        raise ValueError(f"fields of {path or 'the record'}: needed a list, found {excerpt(found)}")  # noqa: TRY004  # a text is wrong, not a type
    fields = [_to_field(each, path, seen) for each in found]
    seen[schema["name"]] = schema
    return sql.StructType(fields)


def _to_field(field: Any, path: str, seen: dict[str, Any]) -> sql.StructField:
    name = _required_member(field, "name", f"a field of {path}" if path else "a field")
    field_path = f"{path}.{name}" if path else name
    return sql.StructField(
        name, _to_spark(_required_member(field, "type", field_path), field_path, seen)
    )


def _required_member(schema: Any, key: str, path: str) -> Any:
    where = path or "the record"
    if not isinstance(schema, dict):
        raise ValueError(f"{where} is {excerpt(schema)}, which is not an Avro schema")  # noqa: TRY004  # a text is wrong, not a type
    if key not in schema:
        raise ValueError(f"{where} has no {key!r}: {excerpt(schema)}")
    return schema[key]


def _to_spark_value(schema: Any, path: str, seen: dict[str, Any]) -> sql.DataType:
    kind, logical = schema["type"], schema.get("logicalType")
    for needed in _NAMED_KINDS.get(kind, ()):
        _required_member(schema, needed, path)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(_required_member(schema, "precision", path), schema.get("scale", 0), path)
    if logical in _UNSUPPORTED_TYPES:
        raise ValueError(f"{path} is a {logical}: no column type matches it")
    if kind not in _PRIMITIVE_TYPES:
        return _to_spark(_named_schema(kind, path, seen), path, seen)
    if kind == "fixed" and (type(schema["size"]) is not int or schema["size"] < 0):
        raise ValueError(f"{path}: needed a size in bytes, found {excerpt(schema['size'])}")
    return _LOGICAL_TYPES.get((kind, logical), _PRIMITIVE_TYPES[kind])


def _decimal(precision: Any, scale: Any, path: str) -> sql.DecimalType:
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        found = f"{excerpt(precision)} and {excerpt(scale)}"
        raise ValueError(f"{path}: needed precision and scale of a decimal, found {found}")
    if not 1 <= precision <= _DIGITS_MAX:
        raise ValueError(f"{path} has {precision} digits, over the {_DIGITS_MAX} of a column")
    return sql.DecimalType(precision, scale)


def _named_schema(name: Any, path: str, seen: dict[str, Any]) -> Any:
    if name == "null":
        raise ValueError(f"{path} is always null: no column type matches it")
    schema = seen.get(name, seen.get(str(name).rpartition(".")[2], path))
    if schema is path:
        raise ValueError(f"{path} is {name!r}, which is neither a type of Avro nor defined before")
    if schema is None:
        raise ValueError(f"{path} is {name} within itself: a column cannot be recursive")
    return schema


_DECODE_ERRORS: Final = (
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    ArithmeticError,
)


class AvroBodies(RowDecoder):
    """The decoder of Avro bodies, given the writer's schema, to structs of one type."""

    def __init__(self, kind: pa.StructType, schema: Any, reader_schema: Any = None) -> None:
        """Take the type of the structs, and the Avro schema with which bodies were written.

        With another ``reader_schema``, Avro's rules of evolution apply, with its defaults.
        """
        fastavro = import_extra("fastavro")
        self._kind = kind
        self._errors = (*_DECODE_ERRORS, fastavro.read.SchemaResolutionError)
        self._schema = fastavro.parse_schema(without_uuids(schema))
        self._reader_schema = reader_schema and fastavro.parse_schema(without_uuids(reader_schema))
        self._read: Callable[..., Any] = fastavro.schemaless_reader

    def parse(self, body: bytes) -> Any:
        """Return a body's record as a dict."""
        stream = io.BytesIO(body)
        try:
            found = self._read(stream, self._schema, self._reader_schema)
        except self._errors as error:
            raise BodyFault("", "Avro of the schema", f"{excerpt(body)} ({error!r})") from error
        if stream.tell() != len(body):
            left = f"{len(body) - stream.tell()} bytes after it"
            raise BodyFault("", "one Avro record of the schema", left)
        return found

    def build(self, trees: list[Any]) -> pa.Array:
        """Return the structs of records."""
        try:
            return pa.array(trees, self._kind)
        except (pa.ArrowException, *_DECODE_ERRORS) as error:
            raise _find_type_mismatch(trees[0], self._kind, error) from error


def _find_type_mismatch(record: Any, kind: pa.StructType, error: Exception) -> BodyFault:
    """Return the fault of the first field that its column cannot hold; of the record if unknown."""
    for field in kind if isinstance(record, dict) else ():
        value = record.get(field.name)
        try:
            pa.array([value], field.type)
        except (pa.ArrowException, *_DECODE_ERRORS) as problem:
            needed = f"a value that fits into a column of type {field.type}"
            return BodyFault(field.name, needed, f"{excerpt(value)} ({problem})")
    needed = "a record that fits the columns of bodySchema"
    return BodyFault("", needed, f"{excerpt(record)} ({error})")


def check_avro_schema(text: str) -> None:
    """Raise `ValueError` if an Avro schema, given as JSON, cannot be used to read bodies."""
    fastavro, schema = import_extra("fastavro"), json.loads(text)
    try:
        fastavro.parse_schema(schema)
    except Exception as error:  # fastavro raises its own errors and many of Python's
        raise ValueError(
            f"fastavro cannot read such a schema ({type(error).__name__}: {error})"
        ) from error


def avro_encoder(schema: Any) -> Callable[[Any], bytes]:
    """Return the function that encodes a record, given as a dict, as one body."""
    fastavro = import_extra("fastavro")
    parsed = fastavro.parse_schema(schema)
    write = fastavro.schemaless_writer

    def encode(record: Any) -> bytes:
        stream = io.BytesIO()
        write(stream, parsed, record)
        return stream.getvalue()

    return encode
