"""Avro schemas: of Spark's types, and the types of a schema; the same mapping as in Spark's own.

A field that can be null is a union of null and its type. Names of nested records are their paths.
Unions of more, and times of day, are nothing that a column can be: they are refused by their path.
It knows no message, and imports no Avro library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import types as sql

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOGICAL: Final[Mapping[str, sql.DataType]] = {
    "date": sql.DateType(),
    "timestamp-millis": sql.TimestampType(),
    "timestamp-micros": sql.TimestampType(),
    "local-timestamp-millis": sql.TimestampNTZType(),
    "local-timestamp-micros": sql.TimestampNTZType(),
}
_NAMED: Final[Mapping[str, sql.DataType]] = {
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
_NO_COLUMN: Final = ("time-millis", "time-micros", "duration", "uuid")
_OF_SPARK: Final[Mapping[type[sql.DataType], Any]] = {
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
        {"name": field.name, "type": ["null", _of_spark(field.dataType, f"{name}_{field.name}")]}
        for field in kind.fields
    ]
    return {"type": "record", "name": name, "fields": fields}


def _of_spark(kind: sql.DataType, name: str) -> Any:
    if isinstance(kind, sql.StructType):
        return avro_schema_of(kind, name)
    if isinstance(kind, sql.ArrayType):
        return {"type": "array", "items": ["null", _of_spark(kind.elementType, name)]}
    if isinstance(kind, sql.MapType):
        return {"type": "map", "values": ["null", _of_spark(kind.valueType, name)]}
    if isinstance(kind, sql.DecimalType):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    return _OF_SPARK[type(kind)]


def name_faults(kind: sql.DataType, path: str = "") -> list[str]:
    """Return the names that Avro does not have, a line for each."""
    if isinstance(kind, sql.ArrayType):
        return name_faults(kind.elementType, f"{path}[]")
    if isinstance(kind, sql.MapType):
        return name_faults(kind.valueType, f"{path}[]")
    found: list[str] = []
    for field in kind.fields if isinstance(kind, sql.StructType) else ():
        place = f"{path}.{field.name}" if path else field.name
        if not _NAME.fullmatch(field.name):
            found.append(f"{place} is no name in Avro: needed letters, digits and _")
        found += name_faults(field.dataType, place)
    return found


def spark_schema_of(text: str) -> sql.StructType:
    """Return the columns of bodies that have an Avro schema.

    Raises:
        ValueError: It is no schema of a record, or has what no column can be.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is no JSON ({error})") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError('needed an Avro schema of a record, {"type": "record", ...}')
    try:
        found = _to_spark(schema, "", {})
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no Avro schema ({error!r})") from error
    assert isinstance(found, sql.StructType)  # noqa: S101  # as it is a record
    return found


def _to_spark(schema: Any, path: str, seen: dict[str, Any]) -> sql.DataType:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise ValueError(f"{path} is a union of {len(others)} types, and a column has one")
        return _to_spark(others[0], path, seen)
    if isinstance(schema, str):
        if schema in _NAMED:
            return _NAMED[schema]
        return _to_spark(_known(schema, path, seen), path, seen)
    kind = schema["type"]
    if isinstance(kind, (dict, list)):
        return _to_spark(kind, path, seen)
    if kind in ("record", "enum", "fixed"):
        seen[schema["name"]] = None if kind == "record" else schema
    if kind == "record":
        before = f"{path}." if path else ""
        fields = [
            sql.StructField(each["name"], _to_spark(each["type"], f"{before}{each['name']}", seen))
            for each in schema["fields"]
        ]
        seen[schema["name"]] = schema
        return sql.StructType(fields)
    if kind == "array":
        return sql.ArrayType(_to_spark(schema["items"], f"{path}[]", seen))
    if kind == "map":
        return sql.MapType(sql.StringType(), _to_spark(schema["values"], f"{path}[]", seen))
    return _to_spark_value(schema, path)


def _to_spark_value(schema: Any, path: str) -> sql.DataType:
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return sql.DecimalType(schema["precision"], schema.get("scale", 0))
    if logical in _NO_COLUMN:
        raise ValueError(f"{path} is a {logical}, which no column can be")
    if kind not in _NAMED:
        raise ValueError(f"{path} is {kind}, which Avro does not have")
    return _LOGICAL.get(logical, _NAMED[kind])


def _known(name: str, path: str, seen: dict[str, Any]) -> Any:
    """Return the schema of a name that was given before."""
    schema = seen.get(name, seen.get(name.rpartition(".")[2], path))
    if schema is path:
        raise ValueError(f"{path} is {name!r}, which is not said before")
    if schema is None:
        raise ValueError(f"{path} is {name} within itself, which no column can be")
    return schema
