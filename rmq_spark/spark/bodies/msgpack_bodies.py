"""MsgPackBodies: decodes MessagePack bodies to columns, by the rules of JSON bodies.

A body is one map with names as keys, as the client's serializer ``msgpack`` writes dicts and
dataclasses. Decimals, dates and times are text, as that serializer writes them; times may also be
MessagePack's own timestamps. msgpack limits nesting, and sizes to those of the body.
"""

from __future__ import annotations

import struct
from datetime import datetime
from typing import Any, Final

import msgpack
import pyarrow as pa

from rmq_spark.errors import excerpt
from rmq_spark.spark.bodies.json_bodies import (
    LeafBuilders,
    ObjectFields,
    ValueBuilder,
    build_text,
    create_builder,
    describe_value,
    require_type,
)
from rmq_spark.spark.schemas.arrow_conversion import (
    BodyFault,
    FieldPath,
    RowDecoder,
    parsed_type,
    to_exact_type,
)

_AS_DATETIME: Final = 3
"""The option by which msgpack returns a timestamp as a datetime in UTC."""

_ERRORS: Final = (ValueError, TypeError, OverflowError, struct.error, msgpack.UnpackException)


class MsgPackBodies(RowDecoder):
    """The decoder of MessagePack bodies to structs of one type."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        self._parsed_type = parsed_type(kind)
        self._builder = create_builder(kind, _LEAVES)

    def parse(self, body: bytes) -> Any:
        """Return a body as Python values, of the kinds that `parsed_type` gives."""
        try:
            value = msgpack.unpackb(
                body,
                object_pairs_hook=ObjectFields,
                strict_map_key=False,
                timestamp=_AS_DATETIME,
            )
        except _ERRORS as error:
            raise BodyFault("", "MessagePack", f"{excerpt(body)} ({error!r})") from error
        return self._builder(value, None)

    def build(self, trees: list[Any]) -> pa.Array:
        """Return the structs of bodies."""
        return to_exact_type(pa.array(trees, self._parsed_type), self._kind, "")


def _create_integer_builder(kind: pa.DataType) -> ValueBuilder:
    bound = 1 << (kind.bit_width - 1)
    needed = f"a whole number of {kind.bit_width} bits"

    def build(value: Any, path: FieldPath) -> Any:
        number: int = require_type(value, int, path, needed)
        if not -bound <= number < bound:
            raise BodyFault(path, needed, describe_value(value))
        return number

    return build


def _float(value: Any, path: FieldPath) -> float:
    return float(value) if type(value) is int else _number(value, path, "a number")


def _number(value: Any, path: FieldPath, needed: str) -> float:
    number: float = require_type(value, float, path, needed)
    return number


def _decimal(value: Any, path: FieldPath) -> str:
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    return repr(_number(value, path, "a number, or a string with a number"))


def _time(value: Any, path: FieldPath) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return build_text(value, path)


def _bytes(value: Any, path: FieldPath) -> Any:
    return require_type(value, bytes, path, "bytes")


_LEAVES = LeafBuilders(_create_integer_builder, _float, _decimal, _bytes, _time)
