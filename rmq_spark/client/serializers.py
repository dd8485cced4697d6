"""Serializers: values to bodies and back, chosen once and by name, or brought along.

    json       str, numbers, dict, list, dataclasses, times; pydantic's models by themselves
    msgpack    the same, and bytes; smaller
    text       str alone, in UTF-8
    avro(...)  dict, by a schema; with an own header, and a registry, if one is wanted

Whatever has the two methods `dumps` and `loads` will do as well. This module knows no message and
no connection; libraries are imported when they are first used.
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

from rmq_spark.client.arguments import check_kind, wrong_kind
from rmq_spark.errors import BodyError, excerpt

EXTRA: Final = 'Avro needs the module fastavro: pip install "rocketpoll[avro]"'


@runtime_checkable
class Serializer(Protocol):
    """Makes values bodies, and bodies values.

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
        """Return the JSON of a value; models of pydantic write their own."""
        if _is_model(value):
            return bytes(value.model_dump_json().encode())
        import orjson  # noqa: PLC0415  # as all libraries here

        return orjson.dumps(value, default=_model_as_json)

    def loads(self, body: bytes) -> Any:
        """Return the value of JSON; raise ValueError if it is none."""
        return json.loads(body.decode())


class MsgPack:
    """The serializer of MessagePack."""

    def dumps(self, value: Any) -> bytes:
        """Return the MessagePack of a value; dataclasses and models become maps.

        Times, decimals and UUIDs become texts and sets arrays, as in the JSON of models.
        """
        import msgpack  # noqa: PLC0415  # as all libraries here

        return bytes(msgpack.packb(value, default=_as_packable))

    def loads(self, body: bytes) -> Any:
        """Return the value of MessagePack; raise ValueError if it is none."""
        import msgpack  # noqa: PLC0415  # as all libraries here

        return msgpack.unpackb(body, strict_map_key=False)


class Text:
    """The serializer of texts in UTF-8."""

    def dumps(self, value: Any) -> bytes:
        """Return a text in UTF-8."""
        check_kind("body", value, str, "a text (str)", "'one'")
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
            import fastavro  # noqa: PLC0415  # an extra: for those only who have Avro
        except ImportError as error:
            raise ModuleNotFoundError(EXTRA) from error
        self._library = fastavro
        self._schema = fastavro.parse_schema(dict(schema))
        self._header = header
        self._schema_of = schema_of
        self._known: dict[bytes, Any] = {header: self._schema}

    def dumps(self, value: Any) -> bytes:
        """Return a record behind the header; dataclasses and models become records."""
        stream = io.BytesIO()
        stream.write(self._header)
        plain = value if isinstance(value, Mapping) else as_plain(value)
        self._library.schemaless_writer(stream, self._schema, plain)
        return stream.getvalue()

    def loads(self, body: bytes) -> Any:
        """Return a record as the schema has it; raise ValueError if it is none."""
        header = body[: len(self._header)]
        written_by = self._known.get(header)
        if written_by is None:
            if self._schema_of is None:
                raise ValueError(f"needed the header {self._header!r}, found {header!r}")
            written_by = self._library.parse_schema(dict(self._schema_of(header)))
            self._known[header] = written_by
        stream = io.BytesIO(body[len(self._header) :])
        try:
            found = self._library.schemaless_reader(stream, written_by, self._schema)
        except (EOFError, LookupError, TypeError, OverflowError) as error:
            raise ValueError(f"it is no record of the schema ({error!r})") from error
        left = len(body) - len(self._header) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are behind the record")
        return found


def avro(
    schema: Mapping[str, Any],
    *,
    header: bytes = b"",
    schema_of: Callable[[bytes], Mapping[str, Any]] | None = None,
) -> Avro:
    """Return a serializer of Avro's binary form; it needs the extra ``rocketpoll[avro]``.

    Args:
        schema: The schema by which values are written, and as which they are read.
        header: Bytes in front of each body, such as the id of the schema in a registry.
        schema_of: Returns the schema by which a body with another header, of the same length, was
            written; asked once for each header.

    Raises:
        ModuleNotFoundError: The extra is not installed.
    """
    check_kind("schema", schema, Mapping, "an Avro schema (dict)", "{'type': 'record', ...}")
    check_kind("header", header, bytes, "bytes", "b'\\x00\\x00\\x00\\x00\\x07'")
    return Avro(schema, header, schema_of)


SERIALIZERS: Final[Mapping[str, Serializer]] = {
    "json": Json(),
    "msgpack": MsgPack(),
    "text": Text(),
}
"""The serializers that have names."""


def chosen(found: str | Serializer | None) -> Serializer | None:
    """Return the serializer that an argument chooses, by its name or itself; None for none.

    Raises:
        TypeError: It is no serializer; the message says what was needed.
    """
    if found is None or (isinstance(found, Serializer) and not isinstance(found, type)):
        return found
    if isinstance(found, str) and found in SERIALIZERS:
        return SERIALIZERS[found]
    names = ", ".join(map(repr, SERIALIZERS))
    needed = f"{names}, avro(schema), or an object with dumps and loads"
    raise wrong_kind("serializer", needed, f"{type(found).__name__} {excerpt(found)}", "'json'")


def encoded(value: Any, serializer: Serializer) -> bytes:
    """Return the body of a value.

    Raises:
        TypeError: The serializer has no body for it.
    """
    try:
        body = serializer.dumps(value)
    except (TypeError, ValueError, OverflowError, LookupError, AttributeError) as error:
        what = f"{type(value).__name__} {excerpt(value)}"
        name = type(serializer).__name__
        raise TypeError(f"body: serializer {name} cannot encode {what}: {error}") from error
    check_kind("what serializer= returns", body, bytes, "bytes", "b'body'")
    return body


def decoded(body: Any, serializer: Serializer, subject: str, at: str) -> Any:
    """Return the value of a body; ``subject`` and ``at`` name the message in the error.

    Raises:
        BodyError: The body is none of the serializer's.
    """
    try:
        return serializer.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        needed = f"a body of serializer {type(serializer).__name__} ({error})"
        raise BodyError(subject, at=at, needed=needed, found=bytes(body)) from error


def _model_as_json(value: Any) -> Any:
    """Return a model within another value as it writes itself; raise TypeError if it is none."""
    if not _is_model(value):
        raise TypeError(f"needed a model or what JSON has, found {type(value).__name__}")
    return value.model_dump(mode="json")


def _as_packable(value: Any) -> Any:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    return value.value if isinstance(value, Enum) else as_plain(value)


def _is_model(value: Any) -> bool:
    """Return whether a value is a model of pydantic."""
    return callable(getattr(value, "model_dump", None)) and not isinstance(value, type)


def as_plain(value: Any) -> Any:
    """Return a dataclass or a model of pydantic as a dict.

    Raises:
        TypeError: It is neither.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if _is_model(value):
        return value.model_dump()
    raise TypeError(f"needed a dict, a dataclass or a model, found {type(value).__name__}")
