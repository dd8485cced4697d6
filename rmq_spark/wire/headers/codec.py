"""Typed headers: the ext fields of one request or answer, as a named tuple.

A header class lists its fields in RocketMQ's order with RocketMQ's words in snake case; the wire's
names are the same words in camel case, except where a codec is told otherwise. A field without a
default must be there; on the wire every value is text.

This module knows how fields are read and written, and no header: those are its siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from rmq_spark.errors import HeaderError

Int32 = Annotated[int, 32]
Int64 = Annotated[int, 64]

HeaderType = TypeVar("HeaderType", bound=tuple[Any, ...])

_REQUIRED = object()


class _Field(NamedTuple):
    key: str
    parse: Callable[[str], Any] | None  # None: text as it is
    needed: str
    default: Any


class HeaderCodec(Generic[HeaderType]):
    """Reads and writes one header class under one set of wire names."""

    def __init__(self, header_type: type[HeaderType], keys: Mapping[str, str] | None = None) -> None:
        """``keys`` gives the wire names that are not the camel case of the field's."""
        self.header_type = header_type
        self._make: Callable[[list[Any]], HeaderType] = header_type._make  # type: ignore[attr-defined]  # every NamedTuple has it
        self._fields = _fields_of(header_type, keys or {})

    @property
    def keys(self) -> tuple[str, ...]:
        """The wire names, in the order of the header's fields."""
        return tuple(field.key for field in self._fields)

    def decode(self, ext_fields: Mapping[str, str]) -> HeaderType:
        """The header that these ext fields stand for; fields it does not know are passed over."""
        values: list[Any] = []
        get = ext_fields.get
        for key, parse, needed, default in self._fields:
            text = get(key)
            if text is None:
                if default is _REQUIRED:
                    raise HeaderError(
                        self.header_type.__name__, at=f"extFields.{key}", needed=needed, found=None
                    )
                values.append(default)
            elif parse is None:
                values.append(text)
            else:
                try:
                    values.append(parse(text))
                except ValueError as error:
                    raise HeaderError(
                        self.header_type.__name__, at=f"extFields.{key}", needed=needed, found=text
                    ) from error
        return self._make(values)

    def encode(self, header: HeaderType) -> dict[str, str]:
        """The ext fields that stand for this header; a field that is None is left out."""
        ext_fields: dict[str, str] = {}
        for (key, parse, needed, default), value in zip(self._fields, header, strict=True):
            if value is None:
                if default is _REQUIRED:
                    raise HeaderError(
                        self.header_type.__name__, at=f"extFields.{key}", needed=needed, found=None
                    )
            elif parse is None:
                ext_fields[key] = value
            elif parse is _parse_bool:
                ext_fields[key] = "true" if value else "false"
            else:
                ext_fields[key] = int.__repr__(value)  # a flag's own str is its name
        return ext_fields


def _fields_of(header_type: type[Any], keys: Mapping[str, str]) -> tuple[_Field, ...]:
    hints = get_type_hints(header_type, include_extras=True)
    defaults: Mapping[str, Any] = header_type._field_defaults
    return tuple(
        _Field(
            keys.get(name) or _camel_case(name),
            *_KINDS[_without_none(hints[name])],
            defaults.get(name, _REQUIRED),
        )
        for name in header_type._fields
    )


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    return hint


def _parse_int32(text: str) -> int:
    value = int(text) if len(text) <= _INT_CHARACTERS_MAX else _OUT_OF_RANGE
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise ValueError
    return value


def _parse_int64(text: str) -> int:
    value = int(text) if len(text) <= _INT_CHARACTERS_MAX else _OUT_OF_RANGE
    if not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        raise ValueError
    return value


def _parse_bool(text: str) -> bool:
    """As Java's parseBoolean: anything but "true" is false."""
    return text.lower() == "true"


_INT_CHARACTERS_MAX = 40  # turning digits to a number takes time quadratic in their count
_OUT_OF_RANGE = 1 << 64

_KINDS: Mapping[Any, tuple[Callable[[str], Any] | None, str]] = {
    str: (None, "text"),
    Int32: (_parse_int32, "a 32-bit integer"),
    Int64: (_parse_int64, "a 64-bit integer"),
    bool: (_parse_bool, "true or false"),
}
