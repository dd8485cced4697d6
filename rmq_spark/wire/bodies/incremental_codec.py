"""Incremental codec: encodes and decodes bodies of thousands of values in steps, for an event loop.

The results are those of `encode_body` and `decode_body`. A body is divided at its arrays and maps,
wherever they are in it, so that each step handles a few hundred values. `body_codec` converts the
single values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin

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
from rmq_spark.wire.remoting.framing import Buffer

VALUES_PER_STEP: Final = 256
"""The number of values that one step writes, in less than a millisecond."""

Body = TypeVar("Body")
_TextSteps: TypeAlias = Generator[None, None, bytes]
_ReadSteps: TypeAlias = Generator[None, None, Any]


def encode_body_in_steps(body: object) -> _TextSteps:
    """Yield between steps and return the JSON text of a body, which must not change meanwhile."""
    return (yield from _write(type(body), body))


def decode_body_in_steps(
    body_type: type[Body], data: Buffer, *, lenient_bytes_max: int | None = None
) -> Generator[None, None, Body]:
    """Yield between steps and return the body; JSON must be as strict as for `decode_body`.

    The text is parsed in one step, because parsing takes a fiftieth of the time.
    """
    hint: Any = body_type
    body: Body = yield from _read(hint, fastjson.loads(data, lenient_bytes_max), None)
    return body


def _read(hint: Any, value: Any, path: JsonPath) -> _ReadSteps:
    if _remaining_values(value, VALUES_PER_STEP) > 0:
        return reader_of(hint)(value, path)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return (yield from _read(only_type(arguments), value, path))
    if origin in (tuple, frozenset) and isinstance(value, list):
        return origin((yield from _read_items(arguments[0], value, path)))
    if is_dataclass(hint) and isinstance(value, dict):
        return (yield from _read_object(hint, value, path))
    return reader_of(hint)(value, path)


def _read_items(hint: Any, items: list[Any], path: JsonPath) -> Generator[None, None, list[Any]]:
    """Read the elements of an array: many in one step, and each large one in its own steps."""
    read = reader_of(hint)
    found: list[Any] = []
    room = VALUES_PER_STEP
    for at, item in enumerate(items):
        if item is None:
            continue
        behind = _remaining_values(item, room)
        if behind <= 0:
            yield
            behind = _remaining_values(item, VALUES_PER_STEP)
        if behind > 0:
            found.append(read(item, (path, at)))
        else:
            found.append((yield from _read(hint, item, (path, at))))
        room = max(behind, 1)
    return [item for item in found if item is not None]


def _read_object(hint: Any, value: dict[Any, Any], path: JsonPath) -> _ReadSteps:
    value = normalize_names(hint, value)
    arguments = {}
    for attribute, name, member_hint, _ in parameters_of(hint):
        item = value.get(name)
        if item is not None:
            found = yield from _read(member_hint, item, (path, name))
            if found is not None:
                arguments[attribute] = found
    return make_body(hint, arguments, path)


def _remaining_values(value: Any, values_max: int) -> int:
    """Return how many more values fit after this one; 0 or less if none."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return values_max - 1
    if len(value) >= values_max:
        return 0
    for each in value:
        values_max = _remaining_values(each, values_max)
        if values_max <= 0:
            return 0
    return values_max - 1


def _write(hint: Any, value: Any) -> _TextSteps:
    if _weight_function(hint)(value) <= VALUES_PER_STEP:
        return _write_at_once(hint, value)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return (yield from _write(only_type(arguments), value))
    if origin is None:
        return (yield from _write_object(hint, value))
    if issubclass(origin, Mapping):
        pieces = yield from _write_elements(value.items(), _MapWriter(*arguments))
        return b"{" + b",".join(pieces) + b"}"
    items = sorted(value) if origin is frozenset else value
    pieces = yield from _write_elements(items, _ArrayWriter(arguments[0]))
    return b"[" + b",".join(pieces) + b"]"


def _write_at_once(hint: Any, value: Any) -> bytes:
    return fastjson.dumps(writer_of(hint)(value))


def _write_object(body_type: Any, body: Any) -> _TextSteps:
    pieces = []
    for name, attribute, hint in members_of(body_type):
        value = getattr(body, attribute)
        if value is not None:
            text = yield from _write(hint, value)
            pieces.append(fastjson.dumps(name) + b":" + text)
    return b"{" + b",".join(pieces) + b"}"


class _ArrayWriter:
    def __init__(self, hint: Any) -> None:
        self._hint = hint
        self._small_hint: Any = tuple[hint, ...]
        self.weigh = _weight_function(hint)

    def write_small(self, items: list[Any]) -> bytes:
        return _write_at_once(self._small_hint, items)[1:-1]

    def write_large(self, item: Any) -> _TextSteps:
        return _write(self._hint, item)


class _MapWriter:
    def __init__(self, key_hint: Any, hint: Any) -> None:
        self._key_hint, self._hint = key_hint, hint
        self._small_hint: Any = Mapping[key_hint, hint]
        self._weigh_value = _weight_function(hint)

    def weigh(self, pair: tuple[Any, Any]) -> int:
        return self._weigh_value(pair[1])

    def write_small(self, pairs: list[tuple[Any, Any]]) -> bytes:
        return _write_at_once(self._small_hint, dict(pairs))[1:-1]

    def write_large(self, pair: tuple[Any, Any]) -> _TextSteps:
        key, value = pair
        hint, key = (self._key_hint, key) if is_dataclass(self._key_hint) else (str, str(key))
        text = yield from _write(self._hint, value)
        return _write_at_once(hint, key) + b":" + text


def _write_elements(
    items: Iterable[Any], writer: _ArrayWriter | _MapWriter
) -> Generator[None, None, list[bytes]]:
    """Write elements as text: many in one step, and each large one in its own steps."""
    pieces: list[bytes] = []
    few: list[Any] = []
    weight = 0
    for item in items:
        own_weight = writer.weigh(item)
        if few and weight + own_weight > VALUES_PER_STEP:
            pieces.append(writer.write_small(few))
            few, weight = [], 0
            yield
        if own_weight > VALUES_PER_STEP:
            pieces.append((yield from writer.write_large(item)))
            yield
        else:
            few.append(item)
            weight += own_weight
    if few:
        pieces.append(writer.write_small(few))
    return pieces


@cache  # one for each type in the body classes
def _weight_function(hint: Any) -> Callable[[Any], int]:
    """Return a function that estimates how many values a value of this type contains."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        weigh = _weight_function(only_type(arguments))
        return lambda value: 1 if value is None else weigh(value)
    if origin is not None and issubclass(origin, Mapping):
        weigh_value = _weight_function(arguments[1])
        if weigh_value is _unit_weight:
            return len
        return lambda items: _total_weight(items.values(), weigh_value)
    if origin is not None:
        weigh_item = _weight_function(arguments[0])
        if weigh_item is _unit_weight:
            return len
        return lambda items: _total_weight(items, weigh_item)
    body_type: Any = hint
    parts = [
        (attribute, weigh)
        for _, attribute, member_hint in (members_of(body_type) if is_dataclass(hint) else ())
        if (weigh := _weight_function(member_hint)) is not _unit_weight
    ]
    if not parts:
        return _unit_weight
    return lambda body: 1 + sum([weigh(getattr(body, attribute)) for attribute, weigh in parts])


def _total_weight(items: Collection[Any], weigh: Callable[[Any], int]) -> int:
    """Return the sum of the items' weights; of very many items, only their number."""
    return len(items) if len(items) > VALUES_PER_STEP else sum(map(weigh, items))


def _unit_weight(_: Any) -> int:
    return 1
