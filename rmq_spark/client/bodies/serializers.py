"""Serializers: turn values into bodies and back; chosen by name, or supplied by the user.

    json       str, numbers, dict, list, dataclasses, times; pydantic's models by themselves
    msgpack    the same, and bytes; smaller
    text       str alone, in UTF-8
    avro(...)  dict, by a schema; with a header of its own, and a registry, if wanted

Any object with the methods `dumps` and `loads` can be used as well. Libraries are imported on first
use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable
from uuid import UUID

from rmq_spark.client.arguments import check_kind, wrong_kind
from rmq_spark.client.bodies.serialization_errors import (
    ENCODING_ERRORS,
    fields_of,
    is_model,
    locate_error,
)
from rmq_spark.errors import BodyError, excerpt

if TYPE_CHECKING:
    from rmq_spark.client.bodies.avro_bodies import Avro


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
        if is_model(value):
            return bytes(value.model_dump_json(by_alias=True).encode())
        import orjson  # noqa: PLC0415  # as all libraries here

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
        import msgpack  # noqa: PLC0415  # as all libraries here

        return bytes(msgpack.packb(value, default=_to_packable))

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
        MessageRejected: The schema is none; the message names the field that is wrong.
    """
    check_kind("schema", schema, Mapping, "an Avro schema (dict)", "{'type': 'record', ...}")
    check_kind("header", header, bytes, "bytes", "b'\\x00\\x00\\x00\\x00\\x07'")
    from rmq_spark.client.bodies.avro_bodies import Avro  # noqa: PLC0415  # for those only who have Avro

    return Avro(schema, header, schema_of)


SERIALIZERS: Final[Mapping[str, Serializer]] = {
    "json": Json(),
    "msgpack": MsgPack(),
    "text": Text(),
}
"""The serializers that have names."""


def resolve_serializer(found: str | Serializer | None) -> Serializer | None:
    """Return the serializer that an argument names or is; None for None.

    Raises:
        TypeError: It is not a serializer; the message says what was needed.
    """
    if found is None or (isinstance(found, Serializer) and not isinstance(found, type)):
        return found
    if isinstance(found, str) and found in SERIALIZERS:
        return SERIALIZERS[found]
    names = ", ".join(map(repr, SERIALIZERS))
    needed = f"{names}, avro(schema), or an object with dumps and loads"
    raise wrong_kind("serializer", needed, f"{type(found).__name__} {excerpt(found)}", "'json'")


def encode_value(value: Any, serializer: Serializer) -> bytes:
    """Return the body of a value.

    Raises:
        TypeError: The serializer has no body for it; the message names the part that is wrong.
    """
    try:
        body = serializer.dumps(value)
    except ENCODING_ERRORS as error:
        what = f"{type(value).__name__} {excerpt(value)}"
        name = type(serializer).__name__
        is_in_parts = isinstance(serializer, (Json, MsgPack))
        why = locate_error(value, serializer.dumps, error) if is_in_parts else error
        raise TypeError(f"body: serializer {name} cannot encode {what}: {why}") from error
    check_kind("what serializer= returns", body, bytes, "bytes", "b'body'")
    return body


def decode_value(body: Any, serializer: Serializer, subject: str, at: str) -> Any:
    """Return the value of a body; ``subject`` and ``at`` name the message in the error.

    Raises:
        BodyError: The serializer cannot decode the body.
    """
    try:
        return serializer.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        needed = f"a body of serializer {type(serializer).__name__} ({error})"
        raise BodyError(subject, at=at, needed=needed, found=bytes(body)) from error


def _to_json(value: Any) -> Any:
    """Return what orjson does not know as it stands in JSON; raise TypeError for what does not."""
    if is_model(value):
        return value.model_dump(mode="json", by_alias=True)
    if (fields := fields_of(value)) is not None:
        return fields
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"needed a model or what JSON has, found {type(value).__name__}")


def _to_packable(value: Any) -> Any:
    """Return what msgpack does not know as it stands there; raise TypeError for what does not."""
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    return value.model_dump(by_alias=True) if is_model(value) else _to_json(value)
