"""Serializers: turn values into bodies and back; chosen by name, or supplied by the user.

    json       str, numbers, dict, list, dataclasses, times; pydantic's models by themselves
    msgpack    the same, and bytes; smaller
    text       str alone, in UTF-8
    avro(...)  dict, by a schema; optionally with a header and a registry
    protobuf(...)  messages of a generated class; optionally with a header

Any object with the two methods `dumps` and `loads` is a serializer. If a library refuses a
value or a body, our error quotes its message. Libraries are imported when they are first used.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Protocol, runtime_checkable
from uuid import UUID

from rmq_spark.client.arguments import (
    check_kind,
    explain_keywords,
    wrong_kind,
)
from rmq_spark.client.errors import MessageRejected
from rmq_spark.errors import BodyError, excerpt

_ENCODING_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""The errors with which libraries refuse a value."""

_REASON_CHARACTERS_MAX: Final = 200
_NO_FASTAVRO: Final = "Avro needs the module fastavro: pip install fastavro"


@runtime_checkable
class Serializer(Protocol):
    """Converts values to bodies, and bodies to values.

    Example:
        class Upper:
            def dumps(self, value):
                return value.upper().encode()

            def loads(self, body):
                return body.decode().lower()
    """

    def dumps(self, value: Any) -> bytes:
        """Return the body of a value; raise TypeError or ValueError if it has none."""

    def loads(self, body: bytes) -> Any:
        """Return the value of a body; raise ValueError if it has none."""


class Json:
    """The serializer of JSON, by orjson; times are in ISO 8601."""

    def dumps(self, value: Any) -> bytes:
        """Return the JSON of a value; pydantic's models write their own, with their aliases.

        Decimals become texts and sets arrays, as in the JSON of models.
        """
        if _is_model(value):
            return bytes(value.model_dump_json(by_alias=True).encode())
        import orjson  # noqa: PLC0415  # when first used

        # By itself, orjson leaves out the fields of dataclasses that begin with an underscore.
        return orjson.dumps(value, default=_to_json, option=orjson.OPT_PASSTHROUGH_DATACLASS)

    def loads(self, body: bytes) -> Any:
        """Return the value of a JSON body; raise ValueError if it is not JSON."""
        return json.loads(body.decode())


class MsgPack:
    """The serializer of MessagePack."""

    def dumps(self, value: Any) -> bytes:
        """Return the MessagePack of a value; dataclasses and models become maps.

        Times, decimals and UUIDs become texts and sets arrays, as in JSON.
        """
        import msgpack  # noqa: PLC0415  # when first used

        return bytes(msgpack.packb(value, default=_to_packable))

    def loads(self, body: bytes) -> Any:
        """Return the value of MessagePack bytes; raise ValueError if they are invalid."""
        import msgpack  # noqa: PLC0415  # when first used

        return msgpack.unpackb(body, strict_map_key=False)


class Text:
    """The serializer of texts in UTF-8."""

    def dumps(self, value: Any) -> bytes:
        """Return a text in UTF-8."""
        check_kind("body", value, str, "a string (str)", "'one'")
        return bytes(value.encode())

    def loads(self, body: bytes) -> str:
        """Return the text of a body; raise ValueError if it is not UTF-8."""
        return body.decode()


class Avro:
    """The serializer of Avro's binary form, a record a body; made by `avro`."""

    def __init__(
        self,
        schema: Mapping[str, Any],
        header: bytes = b"",
        schema_of: Callable[[bytes], Mapping[str, Any]] | None = None,
    ) -> None:
        try:
            import fastavro  # noqa: PLC0415  # an extra that only Avro needs
        except ImportError as error:
            raise ModuleNotFoundError(_NO_FASTAVRO) from error
        self._library = fastavro
        try:
            self._schema = fastavro.parse_schema(dict(schema))
        except Exception as error:  # fastavro raises its own errors and many of Python's
            needed = f"an Avro schema that fastavro can read ({_reason(error)})"
            raise MessageRejected("schema", needed, schema) from error
        self._header = header
        self._schema_of = schema_of
        self._writer_schemas: dict[bytes, Any] = {header: self._schema}

    def dumps(self, value: Any) -> bytes:
        """Return the header and the encoded record; dataclasses and models become records.

        Enums stand for their values, wherever they are.
        """
        stream = io.BytesIO()
        stream.write(self._header)
        record = _to_plain(value)
        try:
            self._library.schemaless_writer(stream, self._schema, record)
        except _ENCODING_ERRORS as error:
            raise TypeError(f"it does not fit the schema ({_reason(error)})") from error
        return stream.getvalue()

    def loads(self, body: bytes) -> Any:
        """Return the decoded record; raise ValueError if it does not fit the schema."""
        header = body[: len(self._header)]
        written_by = self._writer_schemas.get(header)
        if written_by is None:
            if self._schema_of is None:
                raise ValueError(f"needed the header {self._header!r}, found {header!r}")
            self._writer_schemas[header] = written_by = self._fetch_schema(header, self._schema_of)
        stream = io.BytesIO(body[len(self._header) :])
        try:
            found = self._library.schemaless_reader(stream, written_by, self._schema)
        except self._library.read.SchemaResolutionError as error:
            raise ValueError(
                f"a record of the writer's schema does not fit this schema ({_reason(error)})"
            ) from error
        except (EOFError, LookupError, TypeError, OverflowError) as error:
            raise ValueError(f"it is not a record of the schema ({error!r})") from error
        left = len(body) - len(self._header) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes follow the record")
        return found

    def _fetch_schema(self, header: bytes, schema_of: Callable[[bytes], Mapping[str, Any]]) -> Any:
        """Return the schema for a header; raise ValueError if it is unknown."""
        try:
            schema = schema_of(header)
        except LookupError as error:
            raise ValueError(f"schema_of has no schema for header {header!r}") from error
        if not isinstance(schema, Mapping):
            found = f"{type(schema).__name__} {excerpt(schema)}"
            raise ValueError(f"schema_of: needed a schema for header {header!r}, found {found}")  # noqa: TRY004  # as for a bad body
        try:
            return self._library.parse_schema(dict(schema))
        except Exception as error:  # fastavro raises its own errors and many of Python's
            raise ValueError(
                f"schema_of: fastavro cannot read the schema for header {header!r} "
                f"({_reason(error)})"
            ) from error


@explain_keywords
def avro(
    schema: Mapping[str, Any],
    *,
    header: bytes = b"",
    schema_of: Callable[[bytes], Mapping[str, Any]] | None = None,
) -> Avro:
    """Return a serializer of Avro's binary form; it needs the extra ``rocketpoll[avro]``.

    Args:
        schema: The schema with which values are written and read.
        header: Bytes in front of each body, such as the id of the schema in a registry.
        schema_of: Returns the schema with which a body with another header, of the same length, was
            written; called once for each header. It raises `LookupError` if there is none.

    Raises:
        ModuleNotFoundError: The extra is not installed.
        MessageRejected: fastavro cannot read the schema; the message has its reason.
    """
    check_kind("schema", schema, Mapping, "an Avro schema (dict)", "{'type': 'record', ...}")
    check_kind("header", header, bytes, "bytes", "b'\\x00\\x00\\x00\\x00\\x07'")
    return Avro(schema, header, schema_of)


class Protobuf:
    """The serializer of a class of Protobuf messages; made by `protobuf`."""

    def __init__(self, message: Any, header: bytes = b"") -> None:
        self._class = message
        self._header = header

    def dumps(self, value: Any) -> bytes:
        """Return the header and the encoded message; a dict has the fields of a message."""
        message = self._class(**value) if isinstance(value, Mapping) else value
        check_kind("body", message, self._class, f"a {self._class.__name__}", "Order(id=1)")
        return self._header + bytes(message.SerializeToString(deterministic=True))

    def loads(self, body: bytes) -> Any:
        """Return the message of a body; raise ValueError if it is none."""
        at = len(self._header)
        if len(body) < at or (at and body[0] != self._header[0]):
            raise ValueError(f"needed a header as {self._header!r}, found {body[:at]!r}")
        try:
            return self._class.FromString(body[at:])
        except Exception as error:  # of a class that is not imported here
            raise ValueError(
                f"it is not a message of {self._class.__name__} ({_reason(error)})"
            ) from error


def protobuf(message: Any, *, header: bytes = b"") -> Protobuf:
    """Return a serializer of a class of messages, which needs the library protobuf itself.

    Args:
        message: The class, as ``protoc --python_out`` makes it.
        header: Bytes in front of each body, such as the id of the schema in a registry and the
            index of the message; when reading, another of the same length is skipped as well.
    """
    if not (isinstance(message, type) and hasattr(message, "FromString")):
        raise wrong_kind("message", "a class of Protobuf messages", repr(message), "Order")
    check_kind("header", header, bytes, "bytes", "b'\\x00\\x00\\x00\\x00\\x07\\x00'")
    return Protobuf(message, header)


SERIALIZERS: Final[Mapping[str, Serializer]] = {
    "json": Json(),
    "msgpack": MsgPack(),
    "text": Text(),
}
"""The serializers that have names."""


def resolve_serializer(
    found: str | Serializer | None, argument: str = "serializer"
) -> Serializer | None:
    """Return the serializer that an argument names or is; None for None."""
    if found is None or (isinstance(found, Serializer) and not isinstance(found, type)):
        return found
    if isinstance(found, str) and found in SERIALIZERS:
        return SERIALIZERS[found]
    names = ", ".join(map(repr, SERIALIZERS))
    needed = f"{names}, avro(schema), protobuf(message), or an object with dumps and loads"
    raise wrong_kind(argument, needed, f"{type(found).__name__} {excerpt(found)}", "'json'")


def encode_value(value: Any, serializer: Serializer) -> bytes:
    """Return the body of a value.

    Raises:
        TypeError: The serializer cannot encode it; the message has the reason of its library.
    """
    try:
        body = serializer.dumps(value)
    except _ENCODING_ERRORS as error:
        what = f"{type(value).__name__} {excerpt(value)}"
        name = type(serializer).__name__
        raise TypeError(f"body: serializer {name} cannot encode {what}: {error}") from error
    check_kind("what serializer= returns", body, bytes, "bytes", "b'body'")
    return body


def decode_value(body: Any, serializer: Serializer, subject: str, at: str) -> Any:
    """Return the value of a body; ``subject`` and ``at`` name the message in the error."""
    try:
        return serializer.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        needed = f"a body of serializer {type(serializer).__name__} ({error})"
        raise BodyError(subject, at=at, needed=needed, found=bytes(body)) from error


def _is_model(value: Any) -> bool:
    return callable(getattr(value, "model_dump", None)) and not isinstance(value, type)


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass by name, private ones included; None for other values.

    All serializers use this function, so that they write the same fields.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _to_json(value: Any) -> Any:
    """Convert a value that orjson does not support; raise TypeError if there is no conversion."""
    if _is_model(value):
        return value.model_dump(mode="json", by_alias=True)
    if (fields := _fields_of(value)) is not None:
        return fields
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"needed a model or a type of JSON, found {type(value).__name__}")


def _to_packable(value: Any) -> Any:
    """Convert a value that msgpack does not support; raise TypeError if there is no conversion."""
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    return value.model_dump(by_alias=True) if _is_model(value) else _to_json(value)


def _to_plain(value: Any) -> Any:
    """Convert a value for fastavro: to dicts, lists and the Python types of Avro's types."""
    if isinstance(value, Enum):
        return _to_plain(value.value)
    if isinstance(value, Mapping):
        return {name: _to_plain(each) for name, each in value.items()}
    if isinstance(value, tuple):  # in a pair, the first may name a type of a union
        return tuple(map(_to_plain, value))
    if isinstance(value, (list, set, frozenset)):
        return [_to_plain(each) for each in value]
    if (fields := _fields_of(value)) is not None:
        return {name: _to_plain(each) for name, each in fields.items()}
    return _to_plain(value.model_dump(by_alias=True)) if _is_model(value) else value


def _reason(error: Exception) -> str:
    """Return the type and message of a library's error, shortened if it quotes a whole value."""
    reason = f"{type(error).__name__}: {error}"
    if len(reason) <= _REASON_CHARACTERS_MAX:
        return reason
    return f"{reason[:_REASON_CHARACTERS_MAX]}..."
