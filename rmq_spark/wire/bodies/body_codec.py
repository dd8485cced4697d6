"""Body codec: converts body dataclasses to JSON and back, derived from the types of their fields.

A body class names its fields with RocketMQ's words in snake case. In JSON they are in camel case,
unless the field says otherwise (`json_name`), in alphabetical order, and omitted if None. When
reading, unknown members are ignored and missing ones take the field's default, as in Java. A null
counts as missing, in maps and lists too: Java keeps it there, but RocketMQ never writes one.

RocketMQ's clients in other languages spell bodies differently from Java, and RocketMQ's parsers
accept that. So does this module; where fastjson 1 (RocketMQ 4.9) and fastjson 2 (5.x) differ, the
more liberal one counts:

    "ConsumeType"  "consume_type"          names without regard to case, ``_`` and ``-``
    "messageModel":1  "1"  "Clustering"    enums by position, or by name as above; an unknown name
                                           counts as absent; a configuration refuses it
    "unitMode":1  "true"                   booleans as 0 and 1, and as text
    "subVersion":"5"  5.0  true            integers as text, floats and booleans
    "clientID":5                           numbers and booleans as text
    "producerDataSet":{...}                one element in place of an array
    ""  "null"                             null, except where text is needed

`tests/vectors` has the values that RocketMQ's own classes read from each spelling.

    str int float bool Enum   X | None   tuple[X, ...]   frozenset[X]   another body class
    Mapping[str | int | MessageQueue, X]           Any: kept unchanged, if only RocketMQ reads it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from rmq_spark.errors import BodyError, excerpt
from rmq_spark.wire.bodies import fastjson
from rmq_spark.wire.bodies.fastjson import ObjectMap
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.java_numbers import int_from_json, plain_name

Body = TypeVar("Body")
JsonPath: TypeAlias = "tuple[JsonPath, object] | None"
"""The path of a JSON value: its container's path, and its name there; formatted only for errors."""
_Reader = Callable[[Any, JsonPath], Any]
_Writer = Callable[[Any], Any]

_KEY_STEP = object()
_STEP_CHARACTERS_MAX = 60
_NAME = "json name"
_INT64_BOUND = 1 << 63


class ConfigEnum(Enum):
    """An enum in a configuration: an unknown name is refused instead of becoming the default."""


def json_name(name: str, *, default: Any = MISSING) -> Any:
    """Return a field whose name in JSON is not its own name in camel case."""
    return field(default=default, metadata={_NAME: name})


def decode_body(
    body_type: type[Body], data: Buffer, *, lenient_bytes_max: int | None = None
) -> Body:
    """Decode a body from JSON; bodies longer than ``lenient_bytes_max`` must be strict JSON."""
    hint: Any = body_type
    body: Body = reader_of(hint)(fastjson.loads(data, lenient_bytes_max), None)
    return body


def encode_body(body: object, body_type: Any = None) -> bytes:
    """Return a body as JSON text; ``body_type`` is for bodies without a class, as a tuple."""
    hint: Any = type(body) if body_type is None else body_type
    return fastjson.dumps(writer_of(hint)(body))


# ---- reading: converts a JSON value and its path to a value of a type


@cache  # one for each type in the body classes
def reader_of(hint: Any) -> _Reader:
    """Return the function that reads a value of a type, given its JSON and its path."""
    if hint is Any:
        return lambda value, _: value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        read = reader_of(only_type(arguments))
        return lambda value, path: None if value is None else read(value, path)
    if origin in (tuple, frozenset):
        return _sequence_reader(origin, reader_of(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _map_reader(*arguments)
    if issubclass(hint, Enum):
        return _enum_reader(hint)
    if is_dataclass(hint):
        return _object_reader(hint)
    return _SCALAR_READERS[hint]


def _sequence_reader(collection: Callable[[Any], Any], read: _Reader) -> _Reader:
    def read_sequence(value: Any, path: JsonPath) -> Any:
        if not isinstance(value, list):
            if value in NULLS:
                return None
            if not isinstance(value, (dict, str)) and read is not _read_int:
                raise unexpected_value(path, "an array", value)
            value = [value]
        return collection(
            [
                found
                for at, item in enumerate(value)
                if item is not None and (found := read(item, (path, at))) is not None
            ]
        )

    return read_sequence


def _map_reader(key_type: Any, item_type: Any) -> _Reader:
    read_item = reader_of(item_type)
    read_key = _object_key_reader(key_type) if is_dataclass(key_type) else _KEY_READERS[key_type]

    def read_map(value: Any, path: JsonPath) -> Any:
        if isinstance(value, ObjectMap):
            pairs: Any = value.pairs
        elif isinstance(value, dict):
            pairs = value.items()
        elif value in NULLS:
            return None
        else:
            raise unexpected_value(path, "an object", value)
        path_of_keys = (path, _KEY_STEP)
        return {
            read_key(key, path_of_keys): found
            for key, item in pairs
            if item is not None and (found := read_item(item, (path, key))) is not None
        }

    return read_map


def _object_key_reader(key_type: Any) -> _Reader:
    read = reader_of(key_type)
    # Clients in languages other than Java send the object's JSON as a string.
    return lambda key, path: read(
        fastjson.loads(key.encode()) if isinstance(key, str) else key, path
    )


def _enum_reader(enum_type: type[Enum]) -> _Reader:
    members = dict(enum_type.__members__)
    by_position = tuple(enum_type)
    positions = range(len(by_position))
    by_text = {str(position): member for position, member in enumerate(by_position)}
    by_plain_name = {plain_name(name): member for name, member in members.items()}

    def read_enum(value: Any, path: JsonPath) -> Any:
        if isinstance(value, str):
            member = members.get(value)
            if member is None:
                member = by_plain_name.get(plain_name(value))
            if member is None:
                member = by_text.get(value)
            if member is not None or not issubclass(enum_type, ConfigEnum):
                return member
        if type(value) in (int, float) and value in positions:
            return by_position[int(value)]
        raise unexpected_value(path, f"one of {', '.join(members)}", value)

    return read_enum


def _object_reader(body_type: Any) -> _Reader:
    members = [
        (attribute, name, reader_of(hint)) for attribute, name, hint, _ in parameters_of(body_type)
    ]

    def read_object(value: Any, path: JsonPath) -> Any:
        if not isinstance(value, dict):
            if value in NULLS:
                return None
            raise unexpected_value(path, "an object", value)
        arguments = {}
        for attribute, name, read in members:
            item = value.get(name)
            if item is not None:
                found = read(item, (path, name))
                if found is not None:
                    arguments[attribute] = found
        if len(arguments) != len(value):  # nulls, unknown members, or other spellings
            respelled = normalize_names(body_type, value)
            if respelled is not value:
                return read_object(respelled, path)
        return make_body(body_type, arguments, path)

    return read_object


def make_body(body_type: Any, arguments: dict[str, Any], path: JsonPath) -> Any:
    """Return a body with these fields, or raise BodyError if a required one is missing."""
    try:
        return body_type(**arguments)
    except TypeError:
        for attribute, name, _, has_default in parameters_of(body_type):
            if attribute not in arguments and not has_default:
                raise unexpected_value((path, name), "a value", None) from None
        raise


def normalize_names(body_type: Any, value: dict[str, Any]) -> dict[str, Any]:
    """Return an object whose members have the names of the body class where spellings match.

    A name in its exact spelling takes precedence. The object itself is returned if there is nothing
    to change.
    """
    foreign = value.keys() - _known_names(body_type)
    if not foreign:
        return value
    plain_names = _plain_names(body_type)
    respelled = {
        known: value[name]
        for name in value  # in the order of the JSON text: the last spelling counts
        if name in foreign
        and (known := plain_names.get(plain_name(name))) is not None
        and value.get(known) is None
    }
    if not respelled:
        return value
    replaced = {name for name in foreign if plain_names.get(plain_name(name)) in respelled}
    return {**{name: item for name, item in value.items() if name not in replaced}, **respelled}


@cache  # one for each body class
def _known_names(body_type: Any) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in parameters_of(body_type))


@cache  # one for each body class
def _plain_names(body_type: Any) -> Mapping[str, str]:
    names: dict[str, str] = {}
    for _, name, hint, _ in parameters_of(body_type):
        if hint is bool or bool in get_args(hint):
            names["is" + plain_name(name)] = name  # Java's getter of a boolean
    for _, name, _, _ in parameters_of(body_type):
        names[plain_name(name)] = name
    return names


@cache  # one for each body class
def parameters_of(body_type: Any) -> tuple[tuple[str, str, Any, bool], ...]:
    """Return the fields of a body class: name, name in JSON, type, and whether it has a default."""
    hints = get_type_hints(body_type)
    return tuple(
        (
            each.name,
            _json_name(each),
            hints[each.name],
            each.default is not MISSING or each.default_factory is not MISSING,
        )
        for each in fields(body_type)
    )


def _read_str(value: Any, path: JsonPath) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise unexpected_value(path, "text", value)


def _read_int(value: Any, path: JsonPath) -> int | None:
    if type(value) is int and -_INT64_BOUND <= value < _INT64_BOUND:
        return value
    try:
        return int_from_json(value)
    except ValueError:
        raise unexpected_value(path, "a 64-bit integer", value) from None


def _read_int_key(value: Any, path: JsonPath) -> int:
    number = _read_int(value, path)
    if number is None:
        raise unexpected_value(path, "a 64-bit integer", value)
    return number


def _read_float(value: Any, path: JsonPath) -> float | None:
    if isinstance(value, str):
        if value in NULLS:
            return None
        with suppress(ValueError):
            value = float(value)
    if type(value) not in (int, float) or not isfinite(value):
        raise unexpected_value(path, "a number", value)
    return float(value)


def _read_bool(value: Any, path: JsonPath) -> bool | None:
    if type(value) is bool:
        return value
    if isinstance(value, str):
        if value in NULLS:
            return None
        known = _BOOLEANS.get(value.lower())
    elif isinstance(value, (int, float)) and isfinite(value):
        known = int(value) == 1
    else:
        known = None
    if known is None:
        raise unexpected_value(path, "true or false", value)
    return known


NULLS = ("", "null")
"""Texts that members of other types read as null."""
_BOOLEANS = {
    **dict.fromkeys(("true", "1", "y", "t"), True),
    **dict.fromkeys(("false", "0", "n", "f"), False),
}

_SCALAR_READERS: Mapping[Any, _Reader] = {
    str: _read_str,
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
}

_KEY_READERS: Mapping[Any, _Reader] = {str: _read_str, int: _read_int_key}


# ---- writing: converts a value of a type to what `fastjson.dumps` writes

_PASS_THROUGH = (str, int, float, bool, Any)


@cache  # one for each type in the body classes
def writer_of(hint: Any) -> _Writer:
    """Return the function that converts a value of a type to one that `fastjson.dumps` writes."""
    if hint in _PASS_THROUGH:
        return lambda value: value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        write = writer_of(only_type(arguments))
        return lambda value: None if value is None else write(value)
    if origin is frozenset:
        write = writer_of(arguments[0])
        return lambda items: [write(item) for item in sorted(items)]
    if origin is tuple:
        write = writer_of(arguments[0])
        return lambda items: [write(item) for item in items]
    if origin is not None and issubclass(origin, Mapping):
        return _map_writer(*arguments)
    if issubclass(hint, Enum):
        return lambda member: member.name
    return _object_writer(hint)


def _map_writer(key_type: Any, item_type: Any) -> _Writer:
    write_item = writer_of(item_type)
    if not is_dataclass(key_type):
        return lambda items: {str(key): write_item(item) for key, item in items.items()}
    key_hint: Any = key_type
    write_key = writer_of(key_hint)
    return lambda items: ObjectMap(
        tuple((write_key(key), write_item(item)) for key, item in items.items())
    )


def _object_writer(body_type: Any) -> _Writer:
    members = [
        (name, attribute, writer_of(hint)) for name, attribute, hint in members_of(body_type)
    ]

    def write_object(body: Any) -> Any:
        return {
            name: write(value)
            for name, attribute, write in members
            if (value := getattr(body, attribute)) is not None
        }

    return write_object


@cache  # one for each body class
def members_of(body_type: Any) -> tuple[tuple[str, str, Any], ...]:
    """Return the fields of a body class for writing: name in JSON, name, and type."""
    return tuple(
        sorted((name, attribute, hint) for attribute, name, hint, _ in parameters_of(body_type))
    )


def only_type(arguments: tuple[Any, ...]) -> Any:
    """Return the type X of ``X | None``, given the arguments of that union."""
    (hint,) = (argument for argument in arguments if argument is not NoneType)
    return hint


def _json_name(each: Field[Any]) -> str:
    first, *rest = each.name.split("_")
    name: str = each.metadata.get(_NAME) or first + "".join(word.capitalize() for word in rest)
    return name


def unexpected_value(path: JsonPath, needed: str, found: object) -> BodyError:
    """Return the error for a value of the wrong type, with its path."""
    return BodyError("JSON body", at=_format_path(path), needed=needed, found=found)


def _format_path(path: JsonPath) -> str:
    if path is None:
        return "$"
    holder, step = path
    if step is _KEY_STEP:
        return f"a key of {_format_path(holder)}"
    if isinstance(step, int):
        return f"{_format_path(holder)}[{step}]"
    name = step[:_STEP_CHARACTERS_MAX] if isinstance(step, str) else excerpt(step)
    return f"{_format_path(holder)}.{name}"


# ---- unknown members: members that the class of a body does not have
#
# Reading ignores them. A request may have some, because RocketMQ's next release sends them; that is
# harmless. A table loses them when it is saved again, and its owner must be warned.
#
#   {"topicConfigTable": {"T": {"topicName": "T", "colour": 1}}}  ──>  topicConfigTable.*.colour

_Finder: TypeAlias = Callable[[Any], Iterator[str]]


def unknown_members(body_type: type[Any], data: Buffer) -> list[str]:
    """Return the paths of members that this body class ignores, in alphabetical order.

    Members inside a map or an array are reported once, with ``*`` for the key or position. The body
    must be decodable.
    """
    hint: Any = body_type
    find = _finder_of(hint)
    return sorted(set(find(fastjson.loads(data)))) if find is not None else []


@cache  # one for each type in the body classes
def _finder_of(hint: Any) -> _Finder | None:
    """Return the function that finds unknown members in values of a type; None if it has none."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _finder_of(only_type(arguments))
    if origin in (tuple, frozenset):
        return _find_in_items(
            _finder_of(arguments[0]), lambda value: value if isinstance(value, list) else [value]
        )
    if origin is not None and issubclass(origin, Mapping):
        return _find_in_items(_finder_of(arguments[1]), _values_of_map)
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
                yield from (f"*.{path}" for path in find(item))

    return find_all


def _find_in_object(body_type: Any) -> _Finder:
    known = {name: _finder_of(hint) for _, name, hint, _ in parameters_of(body_type)}

    def find_in_object(value: Any) -> Iterator[str]:
        if not isinstance(value, dict):  # a text that counts as null
            return
        value = normalize_names(body_type, value)
        yield from value.keys() - known.keys()
        for name, find in known.items():
            if find is not None and value.get(name) is not None:
                yield from (f"{name}.{path}" for path in find(value[name]))

    return find_in_object
