"""Schemas of a registry: their columns, and the messages that Protobuf's headers name.

A registry returns Avro and JSON schemas as text, and files of Protobuf as descriptors in base64.
Schemas that others refer to are registered on their own.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import types as sql

from rmq_spark.client.schema_registry import RegisteredSchema
from rmq_spark.errors import excerpt
from rmq_spark.spark.schemas import avro_schema, protobuf_schema
from rmq_spark.spark.schemas.protobuf_schema import MessageSchema
from rmq_spark.spark.schemas.schema_text import schema_faults

_MAIN_FILE: Final = "schema.proto"
_JSON_TYPES: Final[Mapping[str, sql.DataType]] = {
    "boolean": sql.BooleanType(),
    "integer": sql.LongType(),
    "number": sql.DoubleType(),
    "string": sql.StringType(),
}


def with_null_defaults(schema: Any) -> Any:
    """Return an Avro schema in which null is the default of each field that has no default."""
    if isinstance(schema, list):
        return [with_null_defaults(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: with_null_defaults(each) if key in ("type", "items", "values") else each
        for key, each in schema.items()
    }
    if isinstance(schema.get("fields"), list):
        found["fields"] = [
            _with_null_default(with_null_defaults(each)) for each in schema["fields"]
        ]
    return found


def _with_null_default(field: Any) -> Any:
    if "default" in field:
        return field
    kind = field["type"]
    kinds = kind if isinstance(kind, list) else [kind]
    others = [each for each in kinds if each != "null"]
    return {**field, "type": ["null", *others], "default": None}


def message_of_registered(schema: RegisteredSchema, name: str | None) -> MessageSchema:
    """Return a message of a registered file, by default the first; ValueError if there is none."""
    files = _files_of(schema)
    return message_at(schema, (0,)) if name is None else protobuf_schema.find_message(files, name)


def message_at(schema: RegisteredSchema, path: Sequence[int]) -> MessageSchema:
    """Return the message of a registered file at a path of indexes, from the outermost inwards."""
    files = _files_of(schema)
    name = protobuf_schema.message_name_at(files, _MAIN_FILE, path)
    return MessageSchema(files, name)


def _files_of(schema: RegisteredSchema) -> bytes:
    """Return the descriptor set of a registered file and those that it imports."""
    files = {}
    pending = [(_MAIN_FILE, schema)]
    while pending:
        name, each = pending.pop()
        if name not in files:
            try:
                files[name] = base64.b64decode(each.text, validate=True)
            except (ValueError, binascii.Error):
                raise ValueError(
                    f"the registry returns schema {each.schema_id} as {excerpt(each.text)} only, "
                    "not as a descriptor (format=serialized)"
                ) from None
            pending += each.references
    return protobuf_schema.descriptor_set(files)


def index_bytes(message: MessageSchema) -> bytes:
    """Return the index of a message in its file, as headers have it."""
    path = protobuf_schema.message_path(message)
    if path == (0,):
        return b"\0"
    return b"".join(map(_varint, (len(path), *path)))


def _varint(number: int) -> bytes:
    number *= 2  # zigzag
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def split_index(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the index of a message, and where it ends; raise IndexError or ValueError."""
    if body[at] == 0:
        return (0,), at + 1
    count, at = _read_varint(body, at)
    if not 0 < count <= len(body):
        raise ValueError("an impossible count of indexes")
    path = []
    for _ in range(count):
        number, at = _read_varint(body, at)
        path.append(number)
    return tuple(path), at


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = body[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at
        if shift > 35:
            raise ValueError("an index that is too long")


def json_columns(text: str) -> sql.StructType:
    """Return the columns of bodies that have a JSON schema.

    Raises:
        ValueError: It is not the schema of an object with properties, or a property has no single
            type.
    """
    try:
        found = _json_type(json.loads(text), "")
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, sql.StructType):
        raise ValueError("it is not the schema of an object with properties")  # noqa: TRY004  # a text is wrong, not a type
    return found


def _json_type(schema: Any, path: str) -> sql.DataType:
    where = path or "the body"
    if not isinstance(schema, dict):
        raise ValueError(f"{where} has the schema {excerpt(schema)}, which gives no type")  # noqa: TRY004  # as above
    several: Any = schema.get("oneOf", schema.get("anyOf", ()))
    choices = [each for each in several if each != {"type": "null"}]
    if len(choices) == 1:
        return _json_type(choices[0], path)
    given = schema.get("type")
    kinds = [each for each in (given if isinstance(given, list) else [given]) if each != "null"]
    if choices or len(kinds) != 1 or kinds[0] is None:
        raise ValueError(f"{where} has no single type: {excerpt(schema)}")
    if kinds[0] == "array":
        return sql.ArrayType(_json_type(schema.get("items"), f"{path}[]"))
    if kinds[0] == "object" and isinstance(schema.get("properties"), dict):
        fields = [
            sql.StructField(name, _json_type(each, f"{path}.{name}".removeprefix(".")))
            for name, each in schema["properties"].items()
        ]
        return sql.StructType(fields)
    if kinds[0] == "object":
        return sql.MapType(
            sql.StringType(), _json_type(schema.get("additionalProperties"), f"{path}[]")
        )
    if kinds[0] not in _JSON_TYPES:
        raise ValueError(f"{where} has an unknown type: {excerpt(kinds[0])}")
    return _JSON_TYPES[kinds[0]]


def json_schema_of(kind: sql.DataType) -> dict[str, Any]:
    """Return the JSON schema of what the sink writes for a type."""
    if isinstance(kind, sql.StructType):
        fields = {each.name: _or_null(each.dataType) for each in kind.fields}
        return {"type": "object", "properties": fields}
    if isinstance(kind, sql.ArrayType):
        return {"type": "array", "items": _or_null(kind.elementType)}
    if isinstance(kind, sql.MapType):
        return {"type": "object", "additionalProperties": _or_null(kind.valueType)}
    if isinstance(kind, sql.BooleanType):
        return {"type": "boolean"}
    if isinstance(kind, sql.IntegralType):
        return {"type": "integer"}
    if isinstance(kind, sql.DecimalType):
        return {"type": "number"}
    if isinstance(kind, sql.NumericType):  # a float, whose NaN and infinities are texts
        return {"type": ["number", "string"]}
    return {"type": "string"}


def _or_null(kind: sql.DataType) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, json_schema_of(kind)]}


def registered_text(kind: sql.StructType, message: MessageSchema | None, *, is_json: bool) -> str:
    """Return the schema of a sink's columns, or of its message, as it is registered.

    Raises:
        ValueError: The message's file imports others, which need subjects of their own.
    """
    if message is not None:
        return base64.b64encode(protobuf_schema.only_file(message)).decode()
    return json.dumps(json_schema_of(kind) if is_json else avro_schema.avro_schema_of(kind))


def columns_of_avro(schema: RegisteredSchema) -> tuple[sql.StructType, str]:
    """Return the columns of bodies of a registered Avro schema, and the schema as one text."""
    text = json.dumps(schema.avro())
    found = avro_schema.spark_schema_of(text)
    avro_schema.check_avro_schema(text)
    if faults := schema_faults(found):
        raise ValueError("; ".join(faults))
    return found, text
