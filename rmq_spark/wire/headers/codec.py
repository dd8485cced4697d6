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
from rmq_spark.wire.java_numbers import parse_int32, parse_int64

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
        self._writers = tuple(_WRITERS[field.parse] for field in self._fields)

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
        fields = zip(self._fields, self._writers, header, strict=True)
        for (key, _, needed, default), write, value in fields:
            if value is None and default is not _REQUIRED:
                continue
            try:
                ext_fields[key] = write(value)
            except (TypeError, ValueError) as error:
                raise HeaderError(
                    self.header_type.__name__, at=f"extFields.{key}", needed=needed, found=value
                ) from error
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


def _parse_bool(text: str) -> bool:
    """As Java's parseBoolean: anything but "true" is false."""
    return text.lower() == "true"


def _write_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _write_int32(value: Any) -> str:
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise ValueError
    return int.__repr__(value)  # a flag's own str is its name


def _write_int64(value: Any) -> str:
    if not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        raise ValueError
    return int.__repr__(value)


def _write_bool(value: Any) -> str:
    if type(value) is not bool:
        raise TypeError
    return "true" if value else "false"


_KINDS: Mapping[Any, tuple[Callable[[str], Any] | None, str]] = {
    str: (None, "text"),
    Int32: (parse_int32, "a 32-bit integer"),
    Int64: (parse_int64, "a 64-bit integer"),
    bool: (_parse_bool, "true or false"),
}
_WRITERS: Mapping[Callable[[str], Any] | None, Callable[[Any], str]] = {
    None: _write_text,
    parse_int32: _write_int32,
    parse_int64: _write_int64,
    _parse_bool: _write_bool,
}
