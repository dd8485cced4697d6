"""Unknown members: finds the members of a JSON body that its class does not have.

Reading ignores them. A request may have some, because RocketMQ's next release sends them; that is
harmless. A table loses them when it is saved again, and its owner must be warned.

    {"topicConfigTable": {"T": {"topicName": "T", "colour": 1}}}  ──>  topicConfigTable.*.colour
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin

from rmq_spark.wire.bodies import fastjson
from rmq_spark.wire.bodies.body_codec import normalize_names, only_type, parameters_of
from rmq_spark.wire.bodies.references import ObjectMap
from rmq_spark.wire.framing import Buffer

_Finder: TypeAlias = Callable[[Any], Iterator[str]]


def unknown_members(body_type: type[Any], data: Buffer) -> list[str]:
    """Return the paths of members that a body of this class ignores, in alphabetical order.

    Members inside a map or an array are reported once, with ``*`` for the key or position. The body
    must be one that can be decoded.
    """
    hint: Any = body_type
    find = _finder_of(hint)
    return sorted(set(find(fastjson.loads(data)))) if find is not None else []


@cache  # as many as there are types in the body classes
def _finder_of(hint: Any) -> _Finder | None:
    """Return the function that finds unknown members in a value of a type; None if it has none."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _finder_of(only_type(arguments))
    if origin in (tuple, frozenset):
        return _find_in_items(
            _finder_of(arguments[0]), lambda value: value if isinstance(value, list) else [value]
        )
    if origin is not None and issubclass(origin, Mapping):
        return _find_in_items(
            _finder_of(arguments[1]),
            _values_of_map,
        )
    return _find_in_object(hint) if is_dataclass(hint) else None


def _values_of_map(value: Any) -> Iterable[Any]:
    if isinstance(value, ObjectMap):
        return [item for _, item in value.pairs]
    return value.values() if isinstance(value, dict) else ()


def _find_in_items(find: _Finder | None, items_of: Callable[[Any], Any]) -> _Finder | None:
    if find is None:
        return None

    def find_all(value: Any) -> Iterator[str]:
        for item in items_of(value):
            if item is not None:
                yield from (f"*.{place}" for place in find(item))

    return find_all


def _find_in_object(body_type: Any) -> _Finder:
    known = {name: _finder_of(hint) for _, name, hint, _ in parameters_of(body_type)}

    def find_in_object(value: Any) -> Iterator[str]:
        if not isinstance(value, dict):  # a text in place of null
            return
        value = normalize_names(body_type, value)
        yield from value.keys() - known.keys()
        for name, find in known.items():
            if find is not None and value.get(name) is not None:
                yield from (f"{name}.{place}" for place in find(value[name]))

    return find_in_object
