"""Incremental codec: encodes and decodes bodies of thousands of values in steps, for an event loop.

The results are those of `encode_body` and `decode_body`. A body is divided at its arrays and maps,
wherever they are in it, so that each step handles a few hundred values. `body_codec` converts the
single values. JSON text is parsed and written in one step: that takes a fiftieth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import islice
from types import UnionType
from typing import Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin

import orjson

from rmq_spark.wire.bodies import fastjson
from rmq_spark.wire.bodies.body_codec import (
    JsonPath,
    make_body,
    members_of,
    normalize_names,
    only_type,
    parameters_of,
    reader_of,
    writer_of,
)
from rmq_spark.wire.framing import Buffer

VALUES_PER_STEP: Final = 256
"""The number of values that one step converts, in less than a millisecond."""

_SCALARS: Final = (str, int, float, bool, type(None))

Body = TypeVar("Body")
_Steps: TypeAlias = Generator[None, None, Any]


def encode_body_in_steps(body: object) -> Generator[None, None, bytes]:
    """Yield between steps and return the JSON text of a body, which must not change meanwhile."""
    return fastjson.dumps((yield from _write(type(body), body)))


def decode_body_in_steps(
    body_type: type[Body], data: Buffer, *, lenient_bytes_max: int | None = None
) -> Generator[None, None, Body]:
    """Yield between steps and return the body; JSON must be as strict as for `decode_body`."""
    hint: Any = body_type
    body: Body = yield from _read(hint, fastjson.loads(data, lenient_bytes_max), None)
    return body


def _read(hint: Any, value: Any, path: JsonPath) -> _Steps:
    if _remaining_values(value, VALUES_PER_STEP) > 0:
        return reader_of(hint)(value, path)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return (yield from _read(only_type(arguments), value, path))
    if origin in (tuple, frozenset) and isinstance(value, list):
        read = reader_of(arguments[0])
        found = yield from _convert_each(
            value,
            lambda at, item: None if item is None else read(item, (path, at)),
            lambda at, item: _read(arguments[0], item, (path, at)),
        )
        return origin([item for item in found if item is not None])
    if not (isinstance(value, dict) and _is_body(hint)):
        return reader_of(hint)(value, path)
    value, fields = normalize_names(hint, value), {}
    for attribute, name, member_hint, _ in parameters_of(hint):
        item = value.get(name)
        if item is not None:
            found = yield from _read(member_hint, item, (path, name))
            if found is not None:
                fields[attribute] = found
    return make_body(hint, fields, path)


def _write(hint: Any, value: Any) -> _Steps:
    origin, arguments = get_origin(hint), get_args(hint)
    is_scalar = origin is None and not _is_body(hint)
    if is_scalar or _remaining_values(value, VALUES_PER_STEP) > 0:
        return writer_of(hint)(value)
    if origin in (Union, UnionType):
        return (yield from _write(only_type(arguments), value))
    if origin is None:
        members = {}
        for name, attribute, member_hint in members_of(hint):
            item = getattr(value, attribute)
            if item is not None:
                members[name] = yield from _write(member_hint, item)
        return members
    if issubclass(origin, Mapping) and _is_body(arguments[0]):
        return (yield from _write_object_map(hint, value))
    is_map = issubclass(origin, Mapping)
    item_hint = arguments[-1] if is_map else arguments[0]
    write = writer_of(item_hint)
    items = value.values() if is_map else sorted(value) if origin is frozenset else value
    found = yield from _convert_each(
        items, lambda _, item: write(item), lambda _, item: _write(item_hint, item)
    )
    return dict(zip(map(str, value), found, strict=True)) if is_map else found


def _is_body(hint: Any) -> bool:  # which narrows no type
    return is_dataclass(hint)


def _write_object_map(hint: Any, value: Mapping[Any, Any]) -> _Steps:
    write, pairs, pieces = writer_of(hint), iter(value.items()), []
    while some := dict(islice(pairs, VALUES_PER_STEP)):
        pieces.append(fastjson.dump_pairs(write(some)))
        yield
    return orjson.Fragment(b"{" + b",".join(pieces) + b"}")


def _convert_each(
    items: Iterable[Any], convert: Callable[[int, Any], Any], start: Callable[[int, Any], _Steps]
) -> Generator[None, None, list[Any]]:
    """Convert elements: many in one step, and each large one in its own steps."""
    found: list[Any] = []
    room = VALUES_PER_STEP
    for at, item in enumerate(items):
        left = _remaining_values(item, room)
        if left <= 0:
            yield
            left = _remaining_values(item, VALUES_PER_STEP)
        found.append(convert(at, item) if left > 0 else (yield from start(at, item)))
        room = max(left, 1)
    return found


def _remaining_values(value: Any, values_max: int) -> int:
    """Return how many more values fit after this one; 0 or less if none do."""
    kind: Any = type(value)
    fields = _containers_of(kind)
    if fields is not None:
        items: Any = [getattr(value, name) for name in fields]
    elif isinstance(value, (list, tuple, frozenset)):
        items = value
    elif isinstance(value, (dict, Mapping)):
        items = value.values()
    else:
        return values_max - 1
    values_max -= 1 + len(items)
    for item in items:
        if values_max <= 0:
            break
        if type(item) not in _SCALARS:
            values_max = _remaining_values(item, values_max)
    return values_max


@cache  # as many as there are types of values
def _containers_of(kind: Any) -> tuple[str, ...] | None:
    """Return the fields of a body class that may hold many values; None for other types."""
    if not _is_body(kind):
        return None
    return tuple(name for _, name, hint in members_of(kind) if get_origin(hint) is not None)
