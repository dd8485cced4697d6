"""JsonBodies: decodes JSON bodies to columns, by pyarrow many at once, one by one if it refuses.

    bodies, back to back ──> pyarrow.json ──> `to_exact_type`
        │ refused: pieces of some hundred, tried again
        └──> each body alone, by Python's json and the same rules, with the fault and its path

The second way defines the result, the first only makes it fast: every body that the first accepts,
the second accepts with the same values. Three checks ensure that. Each body begins with { and ends
with }, so that two cannot become one: after a } no valid JSON continues with {. The number of
objects equals that of bodies, so that no body has two. And input that pyarrow accepts and JSON does
not allow (NUL, NaN, bytes that are not UTF-8, malformed floats, numbers out of their type's range)
is detected before and after. Only pyarrow can skip values that are nested deeper than Python's
limit, so such a body is passed to pyarrow alone as well.

pyarrow reads neither maps nor base64: bodies with such fields always go the second way.

Producers control these bodies, so the time must stay linear in the bytes for any input. Repeated
names are counted only for objects that a column reads, and the path to a value is a linked chain
that becomes text only in an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from rmq_spark.errors import excerpt, sanitize
from rmq_spark.spark.schemas.arrow_conversion import (
    BodyFault,
    FieldPath,
    decode_one_by_one,
    parsed_type,
    to_exact_type,
)
from rmq_spark.spark.schemas.columns import duplicates

_NOT_JSON: Final = re.compile(rb"[\[:,\-]\s*-?(?:Inf|NaN)")
_DECIMAL_DIGITS: Final = 38
_EXPONENT: Final = re.compile(rb'[\[:,]\s*"?-?[0-9.]+[eE][-+]?[0-9]+"?\s*[,\]}]')
_DIGIT_CLASSES: Final = bytes.maketrans(b"123456789.E+", b"0000000000e-")
"""The bytes of numbers by kind: digits and points, the letter of an exponent, signs."""
_SPACE: Final = " \t\r\n"
_SHOWN_MAX: Final = 60
_REPEATED_SHOWN_MAX: Final = 3
_INTEGER_CHARS_MAX: Final = len(str(-(1 << 63)))
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")

ValueBuilder = Callable[[Any, FieldPath], Any]


class JsonBodies:
    """The decoder of JSON bodies to structs of one type."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        self._parsed_type = parsed_type(kind)
        self._builder = create_builder(kind, _LEAVES)
        self._is_columnar = _is_columnar(kind)
        self._schema = pa.schema(list(parsed_type(kind, keeps_decimals=True)))
        self._decimal_overflow = _decimal_overflow_of(kind)

    def decode_all(self, bodies: pa.Array) -> pa.StructArray:
        """Return bodies, none of them null, as structs."""
        if not self._is_columnar:
            raise ValueError("pyarrow cannot read such fields")
        joined = self._join_lines(bodies)
        table = pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=self._schema, unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(bodies):
            raise ValueError("a body has more than one object")
        columns = [column.combine_chunks() for column in table.columns]
        if any(_has_infinite(column) for column in columns):
            raise ValueError("a number does not fit into 64 bits")
        found = pa.StructArray.from_arrays(columns, fields=list(table.schema))
        return to_exact_type(found, self._kind, "")

    def decode_each(self, bodies: pa.Array) -> tuple[pa.Array, dict[int, BodyFault]]:
        """Return structs decoded by Python's json, and faults by row; ``bodies`` has no nulls."""
        found, faults = decode_one_by_one(bodies, self._parse, self._build)
        too_deep = [row for row, fault in faults.items() if isinstance(fault, _NestingFault)]
        for row in too_deep if self._is_columnar else ():
            try:  # same result as in a chunk: pyarrow skips values this deep
                one = self.decode_all(bodies.slice(row, 1))
            except (ValueError, pa.ArrowException):
                continue
            found = pa.concat_arrays([found.slice(0, row), one, found.slice(row + 1)])
            del faults[row]
        return found, faults

    def _build(self, trees: list[Any]) -> pa.StructArray:
        return to_exact_type(pa.array(trees, self._parsed_type), self._kind, "")

    def _join_lines(self, bodies: pa.Array) -> pa.Buffer:
        if not _is_all_objects(bodies):
            bodies = pc.ascii_trim(bodies.cast(pa.string()), _SPACE).cast(pa.binary())
            if not _is_all_objects(bodies):
                raise ValueError("a body is not an object")
        ends = pa.array([b""], pa.binary())  # so that a newline follows the last body
        lists = pa.ListArray.from_arrays(
            pa.array([0, len(bodies) + 1], pa.int32()), pa.concat_arrays([bodies, ends])
        )
        joined = pc.binary_join(lists, b"\n")
        joined.cast(pa.string())  # refuses what is not UTF-8
        data: pa.Buffer = joined[0].as_buffer()
        whole = data.to_pybytes()
        if (
            b"\0" in whole
            or ((b"NaN" in whole or b"Inf" in whole) and _NOT_JSON.search(whole) is not None)
            or (self._decimal_overflow is not None and self._decimal_overflow.may_occur(whole))
        ):
            raise ValueError("a body must be parsed alone")
        return data

    def _parse(self, body: bytes) -> Any:
        """Return a body as Python values, of the kinds that `parsed_type` gives."""
        if not body:
            raise BodyFault("", "a JSON object", "an empty body")
        try:
            text = body.decode()
            value = json.loads(
                text,
                object_pairs_hook=ObjectFields,
                parse_int=_JsonInteger,
                parse_float=_JsonFloat,
                parse_constant=_refuse_constant,
            )
            return self._builder(value, None)
        except UnicodeDecodeError as error:
            problem = f"byte {excerpt(body[error.start : error.start + 1])} at {error.start}"
            raise BodyFault("", "UTF-8", problem) from error
        except UnicodeEncodeError as error:
            raise BodyFault("", "text that UTF-8 can encode", ascii(error.object)) from error
        except json.JSONDecodeError as error:
            raise BodyFault("", "JSON", f"{excerpt(body)} ({error})") from error
        except RecursionError as error:
            raise _NestingFault("", "fewer than 1000 levels of nesting", "more") from error


class _NestingFault(BodyFault):
    """A body is nested deeper than Python's json can parse."""


class _JsonInteger(str):
    """The text of a JSON number without fraction or exponent."""

    __slots__ = ()


class _JsonFloat(str):
    """The text of a JSON number with a fraction or an exponent."""

    __slots__ = ()


class ObjectFields(dict[str, Any]):
    """The fields of a JSON object, and the names that occur in it more than once."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs if len(self) < len(pairs) else ()

    def repeated_names(self) -> list[str]:
        """Return the names that occur more than once."""
        return duplicates(name for name, _ in self._pairs)


def _refuse_constant(name: str) -> Any:
    raise BodyFault("", "a number of JSON", name)


def _is_all_objects(bodies: pa.Array) -> bool:
    if pc.min(pc.binary_length(bodies)).as_py() < 2:
        return False
    _, offsets, data = bodies.buffers()
    at = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    some = np.frombuffer(data, np.uint8)
    return bool((some[at[:-1]] == ord("{")).all() and (some[at[1:] - 1] == ord("}")).all())


def _is_columnar(kind: pa.DataType) -> bool:
    """Return whether pyarrow's JSON reader supports a type."""
    if pa.types.is_map(kind) or pa.types.is_binary(kind):
        return False
    return all(_is_columnar(kind.field(at).type) for at in range(kind.num_fields))


class _DecimalOverflow:
    """Finds numbers from which pyarrow may silently make a wrong decimal.

    pyarrow computes with 128 bits, and drops the bits beyond if a number has very many digits or an
    exponent. A number too small for its type becomes zero.
    """

    def __init__(self, scale_max: int) -> None:
        digits = max(_DECIMAL_DIGITS - scale_max, 1)
        self._zeros = b"0" * digits
        self._long_number = re.compile(rb"[0-9]{%d}" % digits)

    def may_occur(self, bodies: bytes) -> bool:
        """Return whether these bodies may have a number that pyarrow converts to a wrong decimal.

        The regular expressions are slow. They run only after a search that is ten times as fast has
        found the kinds of bytes that they need.
        """
        kinds = bodies.translate(_DIGIT_CLASSES)
        if self._zeros in kinds and self._long_number.search(bodies) is not None:
            return True
        return (b"0e0" in kinds or b"0e-" in kinds) and _EXPONENT.search(bodies) is not None


def _decimal_overflow_of(kind: pa.DataType) -> _DecimalOverflow | None:
    scales = list(_decimal_scales(kind))
    return _DecimalOverflow(max(scales)) if scales else None


def _decimal_scales(kind: pa.DataType) -> Iterator[int]:
    if pa.types.is_decimal(kind):
        yield kind.scale
    for at in range(kind.num_fields):
        yield from _decimal_scales(kind.field(at).type)


def _has_infinite(found: pa.Array) -> bool:
    """Return whether an array has an infinite number: one that was too large for 64 bits."""
    if pa.types.is_floating(found.type):
        return bool(pc.any(pc.is_inf(found)).as_py())
    if pa.types.is_struct(found.type):
        return any(_has_infinite(child) for child in found.flatten())
    return pa.types.is_list(found.type) and _has_infinite(found.flatten())


# ---- Builders: convert one parsed body to the types of the columns.


class LeafBuilders(NamedTuple):
    """Builders of a format's values, for all types that contain no other type."""

    integer: Callable[[pa.DataType], ValueBuilder]
    floating: ValueBuilder
    decimal: ValueBuilder
    binary: ValueBuilder
    timestamp: ValueBuilder

    def of(self, kind: pa.DataType) -> ValueBuilder:
        """Return the builder of values of a type."""
        if pa.types.is_boolean(kind):
            return _build_boolean
        if pa.types.is_integer(kind):
            return self.integer(kind)
        if pa.types.is_floating(kind):
            return self.floating
        if pa.types.is_decimal(kind):
            return self.decimal
        if pa.types.is_binary(kind):
            return self.binary
        return self.timestamp if pa.types.is_timestamp(kind) else build_text


def create_builder(kind: pa.DataType, leaves: LeafBuilders) -> ValueBuilder:
    """Return the function that converts a parsed body, or a part of it, to its `parsed_type`.

    The function requires objects (`ObjectFields`) and lists where the type has them.
    """
    build = _create_non_null_builder(kind, leaves)
    return lambda value, path: None if value is None and path is not None else build(value, path)


def _create_non_null_builder(kind: pa.DataType, leaves: LeafBuilders) -> ValueBuilder:
    if pa.types.is_struct(kind):
        return _create_struct_builder(kind, leaves)
    if pa.types.is_list(kind):
        element = create_builder(kind.value_type, leaves)
        return lambda value, path: [
            element(each, (path, at))
            for at, each in enumerate(require_type(value, list, path, "an array"))
        ]
    if pa.types.is_map(kind):
        item = create_builder(kind.item_type, leaves)
        return lambda value, path: [
            (build_text(name, path), item(each, (path, name)))
            for name, each in _require_object(value, path, None).items()
        ]
    return leaves.of(kind)


def _create_struct_builder(kind: pa.StructType, leaves: LeafBuilders) -> ValueBuilder:
    fields = [(field.name, create_builder(field.type, leaves)) for field in kind]
    names = frozenset(name for name, _ in fields)

    def build(value: Any, path: FieldPath) -> Any:
        given = _require_object(value, path, names)
        return {name: field(given.get(name), (path, name)) for name, field in fields}

    return build


def _require_object(value: Any, path: FieldPath, names: frozenset[str] | None) -> ObjectFields:
    found: ObjectFields = require_type(value, ObjectFields, path, "an object")
    twice = [name for name in found.repeated_names() if names is None or name in names]
    if twice:
        shown = ", ".join(map(sanitize, nsmallest(_REPEATED_SHOWN_MAX, twice)))
        others = len(twice) - _REPEATED_SHOWN_MAX
        more = f" and {others:,} others" if others > 0 else ""
        raise BodyFault(path, "each name once", f"{shown}{more} twice")
    return found


def _create_integer_builder(kind: pa.DataType) -> ValueBuilder:
    bound = 1 << (kind.bit_width - 1)

    def build(value: Any, path: FieldPath) -> Any:
        needed = f"a whole number of {kind.bit_width} bits"
        text = require_type(value, _JsonInteger, path, needed)
        if len(text) > _INTEGER_CHARS_MAX or not -bound <= int(text) < bound:
            raise BodyFault(path, needed, describe_value(text))
        return int(text)

    return build


def _float(value: Any, path: FieldPath) -> float:
    if type(value) is str and value in _NOT_FINITE:
        return float(value)
    if not isinstance(value, (_JsonInteger, _JsonFloat)):
        raise BodyFault(path, "a number", describe_value(value))
    number = float(value)
    if number in (float("inf"), float("-inf")):
        raise BodyFault(path, "a number that fits into 64 bits", describe_value(value))
    return number


def _decimal(value: Any, path: FieldPath) -> str:
    if not isinstance(value, str):
        raise BodyFault(path, "a number, or a string with a number", describe_value(value))
    return build_text(str(value), path)


def _build_boolean(value: Any, path: FieldPath) -> Any:
    return require_type(value, bool, path, "true or false")


def build_text(value: Any, path: FieldPath) -> str:
    """Return a value that must be a string; raise `UnicodeEncodeError` for lone surrogates."""
    text: str = require_type(value, str, path, "a string")
    if not text.isascii():
        text.encode()  # refuses halves of pairs of surrogates
    return text


def _base64(value: Any, path: FieldPath) -> bytes:
    text = require_type(value, str, path, "a string of base64")
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise BodyFault(path, "a string of base64", describe_value(value)) from error


_LEAVES = LeafBuilders(_create_integer_builder, _float, _decimal, _base64, build_text)


def require_type(value: Any, kind: type, path: FieldPath, needed: str) -> Any:
    """Return a value that must be of a type; raise a `BodyFault` if it is not."""
    if type(value) is not kind:
        raise BodyFault(path, needed, describe_value(value))
    return value


def describe_value(value: Any) -> str:
    """Describe a value that does not fit, for an error."""
    if isinstance(value, (_JsonInteger, _JsonFloat)):
        return str(value) if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]}..."
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else excerpt(value)
