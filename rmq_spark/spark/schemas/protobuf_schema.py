"""Protobuf: messages of a descriptor set to Spark types and bodies to columns, and back.

The types are those of Spark's ``from_protobuf``, except that unsigned numbers have a wider type, so
that none wraps around, and that wrappers of one nullable value (``Int64Value``) become that value.
A field without presence has its default value where it is not set, and is never null.

A body is one message. The library parses bodies one by one, and each column is then read from all
messages at once. Why protobuf: it is Google's own library, compiled to C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache, partial
from importlib import import_module
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as sql

from rmq_spark.errors import excerpt, nearest_name
from rmq_spark.spark.errors import import_extra
from rmq_spark.spark.schemas.arrow_conversion import BodyFault, RowDecoder
from rmq_spark.spark.schemas.schema_text import nesting_faults

_GROUP, _MESSAGE, _ENUM = 10, 11, 14
_BOOLEAN, _TEXT, _BYTES = sql.BooleanType(), sql.StringType(), sql.BinaryType()
_INT, _LONG, _UNSIGNED_LONG = sql.IntegerType(), sql.LongType(), sql.DecimalType(20, 0)
_SCALARS: Final[Mapping[int, sql.DataType]] = {
    1: sql.DoubleType(),
    2: sql.FloatType(),
    **dict.fromkeys((5, 15, 17), _INT),
    **dict.fromkeys((3, 16, 18, 7, 13), _LONG),  # 7 and 13 are unsigned, of 32 bits
    **dict.fromkeys((4, 6), _UNSIGNED_LONG),
    8: _BOOLEAN,
    9: _TEXT,
    12: _BYTES,
    _ENUM: _TEXT,
}
"""Column types by the number that descriptors use for the type of a field."""

_WELL_KNOWN: Final = "google.protobuf."
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"
_WRAPPERS: Final = frozenset(
    f"{_WELL_KNOWN}{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)
_US: Final = 1_000_000
_SECONDS_OF_TIMES: Final = (-62_135_596_800, 253_402_300_799)
_SECONDS_OF_DURATIONS: Final = (-315_576_000_000, 315_576_000_000)
_GOOGLES_FILES: Final = "google/protobuf/"
_LISTED_MAX: Final = 10

Reader = Callable[[Sequence[Any]], pa.Array]
"""A function from values, or messages, of all bodies to their column."""

Writer = Callable[[Any], Any]
"""A function from a value of a row to what a message's constructor takes; it raises ValueError."""


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """A message of a file of descriptors; pickled to tasks, where `message_class` makes its class.

    Attributes:
        files: The bytes of a ``FileDescriptorSet``.
        name: The message's full name.
    """

    files: bytes
    name: str


# ---- descriptors


def find_message(files: bytes, name: str | None) -> MessageSchema:
    """Return the message with a name, which may be short if it is unique.

    Raises:
        ValueError: There is no such message, or no name and several messages.
    """
    known = [each.full_name for each in _messages(_pool_of(files), files)]
    found = [each for each in known if name in (None, each.rpartition(".")[2])]
    if name in known or len(found) == 1:
        return MessageSchema(files, name if name is not None and name in known else found[0])
    listed = ", ".join(known[:_LISTED_MAX]) + (", ..." if len(known) > _LISTED_MAX else "")
    if name is None:
        raise ValueError(f"it is required. Give the name of the message: {listed or 'none'}")
    near = nearest_name(name, known)
    hint = f"Did you mean {near}?" if near else f"The messages are {listed or 'none'}"
    if found:
        hint = f"Give one of the full names {', '.join(found)}"
    count = "more than one" if found else "no"
    raise ValueError(f"there is {count} message {excerpt(name)}. {hint}")


def check_files(files: bytes) -> None:
    """Raise `ValueError` if bytes are not a descriptor set, or if a file is missing in it."""
    _pool_of(files)


def descriptor_set(files: Mapping[str, bytes]) -> bytes:
    """Return files, given by their names, as one set; raise `ValueError` if one is invalid."""
    library, message = _library("descriptor_pb2"), _library("message")
    found = library.FileDescriptorSet()
    for name, content in files.items():
        try:
            found.file.add().MergeFromString(content)
        except message.DecodeError as error:
            raise ValueError(f"{name} is not a Protobuf file descriptor ({error})") from None
        found.file[-1].name = name
    return bytes(found.SerializeToString())


def only_file(schema: MessageSchema) -> bytes:
    """Return the descriptor of a message's file; raise `ValueError` if it imports others."""
    file = message_class(schema).DESCRIPTOR.file
    others = [each.name for each in file.dependencies if not each.name.startswith(_GOOGLES_FILES)]
    if others:
        raise ValueError(f"file {file.name} imports {', '.join(others)}")
    return bytes(file.serialized_pb)


def message_name_at(files: bytes, file_name: str, path: Sequence[int]) -> str:
    """Return the full name of the message at a path of indexes, from the outermost inwards."""
    within = list(_pool_of(files).FindFileByName(file_name).message_types_by_name.values())
    name = ""
    for at in path:
        if not 0 <= at < len(within):
            raise ValueError(f"{file_name} has no message at index {list(path)}")
        name, within = within[at].full_name, within[at].nested_types
    return name


def message_path(schema: MessageSchema) -> tuple[int, ...]:
    """Return the path of indexes of a message in its file, from the outermost message inwards."""
    descriptor = message_class(schema).DESCRIPTOR
    path = []
    while descriptor is not None:
        outer = descriptor.containing_type
        siblings = outer.nested_types if outer else descriptor.file.message_types_by_name.values()
        path.append([each.full_name for each in siblings].index(descriptor.full_name))
        descriptor = outer
    return tuple(reversed(path))


@lru_cache(maxsize=64)
def message_class(schema: MessageSchema) -> Any:
    """Return the class of a message."""
    descriptor = _pool_of(schema.files).FindMessageTypeByName(schema.name)
    return _library("message_factory").GetMessageClass(descriptor)


def _library(module: str) -> Any:
    import_extra("google.protobuf")
    return import_module(f"google.protobuf.{module}")


@lru_cache(maxsize=64)
def _pool_of(files: bytes) -> Any:
    """Return the pool of a descriptor set's files; Google's own files may be missing in the set."""
    descriptors, message = _library("descriptor_pb2"), _library("message")
    try:
        found = descriptors.FileDescriptorSet.FromString(files).file
    except message.DecodeError as error:
        raise ValueError(f"it is not a descriptor set ({error})") from None
    if not found:
        raise ValueError("it has no files")
    pool = _library("descriptor_pool").DescriptorPool()
    pending = {each.name: each for each in found}
    for each in found:
        _add_file(pool, each.name, pending, each.name)
    return pool


def _add_file(pool: Any, name: str, pending: dict[str, Any], importer: str) -> None:
    file = pending.pop(name, None)
    if file is not None:
        for each in file.dependency:
            _add_file(pool, each, pending, name)
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except (TypeError, ValueError) as error:
            raise ValueError(f"the library refuses file {name} of the set ({error})") from None
        return
    try:
        pool.FindFileByName(name)  # an import added it before
    except KeyError:
        if not name.startswith(_GOOGLES_FILES):
            raise ValueError(
                f"file {importer} imports {name}, which is not in the set. Make the set again with "
                "protoc --include_imports"
            ) from None
        module = name.removeprefix(_GOOGLES_FILES).removesuffix(".proto") + "_pb2"
        own = _library(module).DESCRIPTOR
        for each in own.dependencies:
            _add_file(pool, each.name, pending, name)
        pool.AddSerializedFile(own.serialized_pb)


def _messages(pool: Any, files: bytes) -> Iterator[Any]:
    """Yield the descriptors of a set's messages, without Google's and entries of maps."""
    for file in _library("descriptor_pb2").FileDescriptorSet.FromString(files).file:
        if not file.name.startswith(_GOOGLES_FILES):
            found = pool.FindFileByName(file.name)
            yield from _with_nested(found.message_types_by_name.values())


def _with_nested(messages: Iterable[Any]) -> Iterator[Any]:
    for each in messages:
        if not each.GetOptions().map_entry:
            yield each
            yield from _with_nested(each.nested_types)


# ---- types


def protobuf_columns(schema: MessageSchema) -> sql.StructType:
    """Return the columns of bodies that are messages.

    Raises:
        ValueError: The message has no fields, or contains itself.
    """
    found = _struct_type(message_class(schema).DESCRIPTOR, "", ())
    if not found.fields:
        raise ValueError(f"message {schema.name} has no fields")
    if faults := nesting_faults(found):
        raise ValueError("; ".join(faults))
    return found


def _struct_type(descriptor: Any, path: str, within: tuple[str, ...]) -> sql.StructType:
    if descriptor.full_name in within:
        raise ValueError(
            f"{path} is {descriptor.full_name} within itself: a column cannot be recursive. Leave "
            "the field out of the descriptor: fields that it does not have are ignored"
        )
    within = (*within, descriptor.full_name)
    fields = []
    for field in descriptor.fields:
        kind = _column_type(field, f"{path}.{field.name}".removeprefix("."), within)
        if kind is not None:
            fields.append(sql.StructField(field.name, kind))
    return sql.StructType(fields)


def _column_type(field: Any, path: str, within: tuple[str, ...]) -> sql.DataType | None:
    """Return the type of a field's column; None for messages without fields, as in Spark."""
    if _is_map(field):
        key, value = field.message_type.fields
        item = _value_type(value, path, within)
        return None if item is None else sql.MapType(_SCALARS[key.type], item)
    kind = _value_type(field, path, within)
    return sql.ArrayType(kind) if kind is not None and _is_repeated(field) else kind


def _value_type(field: Any, path: str, within: tuple[str, ...]) -> sql.DataType | None:
    if field.type not in (_MESSAGE, _GROUP):
        return _SCALARS[field.type]
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return sql.TimestampType()
    if name == _DURATION:
        return sql.DayTimeIntervalType()
    if name in _WRAPPERS:
        return _SCALARS[field.message_type.fields[0].type]
    found = _struct_type(field.message_type, path, within)
    return found if found.fields else None


def _is_repeated(field: Any) -> bool:
    """Return whether a field is repeated, in old and new releases of the library."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == 3)


def _is_map(field: Any) -> bool:
    return field.type == _MESSAGE and bool(field.message_type.GetOptions().map_entry)


def _may_be_null(field: Any) -> bool:
    """Return whether a field may have no value: it has presence, and no default of its own."""
    return bool(field.has_presence and not field.has_default_value)


# ---- bodies to columns


class ProtobufBodies(RowDecoder):
    """The decoder of messages to structs of one type."""

    def __init__(self, kind: pa.StructType, schema: MessageSchema) -> None:
        """Take the type of the structs, which may have only some of the message's fields."""
        self._class = message_class(schema)
        self._kind = kind
        self._name = schema.name
        self._decode_error = _library("message").DecodeError
        self._read = _struct_reader(self._class.DESCRIPTOR, kind, "")

    def parse(self, body: bytes) -> Any:
        """Return a body's message."""
        try:
            message = self._class.FromString(body)
        except self._decode_error as error:
            raise BodyFault("", f"a message {self._name}", f"{excerpt(body)} ({error})") from error
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise BodyFault("", f"the required fields of {self._name}", f"no {missing}")
        return message

    def build(self, trees: list[Any]) -> pa.Array:
        """Return the structs of messages, and null for None."""
        empty = self._class()
        try:
            found = self._read([empty if each is None else each for each in trees])
        except (UnicodeDecodeError, pa.ArrowInvalid) as error:  # proto2 strings may have any bytes
            raise BodyFault("", "strings in UTF-8", error) from error
        return _with_nulls(found, [each is not None for each in trees])


def _struct_reader(descriptor: Any, kind: pa.StructType, path: str) -> Reader:
    readers = [
        _field_reader(
            descriptor.fields_by_name[each.name], each.type, f"{path}.{each.name}".removeprefix(".")
        )
        for each in kind
    ]

    def read(messages: Sequence[Any]) -> pa.Array:
        children = [reader(messages) for reader in readers]
        return pa.StructArray.from_arrays(children, fields=list(kind))

    return read


def _field_reader(field: Any, kind: pa.DataType, path: str) -> Reader:
    get, name = attrgetter(field.name), field.name
    if _is_map(field):
        key, value = field.message_type.fields
        return partial(
            _read_maps,
            get,
            _value_reader(key, kind.key_type, path),
            _value_reader(value, kind.item_type, f"{path}[]"),
            kind,
        )
    if _is_repeated(field):
        return partial(_read_lists, get, _value_reader(field, kind.value_type, f"{path}[]"), kind)
    read = _value_reader(field, kind, path)
    if not _may_be_null(field):
        return lambda messages: read(list(map(get, messages)))

    def read_present(messages: Sequence[Any]) -> pa.Array:
        found = read(list(map(get, messages)))
        return _with_nulls(found, [each.HasField(name) for each in messages])

    return read_present


def _read_lists(
    get: Callable[[Any], Any], read: Reader, kind: pa.DataType, messages: Sequence[Any]
) -> pa.Array:
    lists = list(map(get, messages))
    values = read(list(chain.from_iterable(lists)))
    return pa.ListArray.from_arrays(_offsets(lists), values).cast(kind)


def _read_maps(
    get: Callable[[Any], Any],
    read_keys: Reader,
    read_items: Reader,
    kind: pa.DataType,
    messages: Sequence[Any],
) -> pa.Array:
    maps = list(map(get, messages))
    pairs = [pair for each in maps for pair in each.items()]
    keys, items = read_keys([key for key, _ in pairs]), read_items([item for _, item in pairs])
    return pa.MapArray.from_arrays(_offsets(maps), keys, items).cast(kind)


def _offsets(lists: Iterable[Any]) -> pa.Array:
    return pa.array(list(accumulate(map(len, lists), initial=0)), pa.int32())


def _value_reader(field: Any, kind: pa.DataType, path: str) -> Reader:
    """Return the reader of the values of a field, none of which is missing."""
    if field.type in (_MESSAGE, _GROUP):
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return partial(_read_microseconds, kind, _SECONDS_OF_TIMES, path)
        if name == _DURATION:
            return partial(_read_microseconds, kind, _SECONDS_OF_DURATIONS, path)
        if name in _WRAPPERS:
            read, get = _value_reader(field.message_type.fields[0], kind, path), attrgetter("value")
            return lambda values: read(list(map(get, values)))
        return _struct_reader(field.message_type, kind, path)
    if field.type == _ENUM:
        names = _EnumNames(field.enum_type)
        return lambda values: pa.array([names[each] for each in values], kind)
    if pa.types.is_decimal(kind):
        return lambda values: pa.array(list(map(Decimal, values)), kind)
    return lambda values: pa.array(values, kind)


class _EnumNames(dict[int, str]):
    """The names of an enum's numbers; an unknown number gets the name that Java gives it."""

    def __init__(self, enum_type: Any) -> None:
        super().__init__({each.number: each.name for each in reversed(enum_type.values)})
        self._prefix = f"UNKNOWN_ENUM_VALUE_{enum_type.name}_"

    def __missing__(self, number: int) -> str:
        return f"{self._prefix}{number}"


def _read_microseconds(
    kind: pa.DataType, limits: tuple[int, int], path: str, values: Sequence[Any]
) -> pa.Array:
    count, (least, most) = len(values), limits
    seconds = np.fromiter(map(attrgetter("seconds"), values), np.int64, count)
    nanos = np.fromiter(map(attrgetter("nanos"), values), np.int64, count)
    is_bad = (seconds < least) | (seconds > most) | (np.abs(nanos) > 999_999_999)
    if is_bad.any():
        at = int(is_bad.argmax())
        needed = f"{least} to {most} seconds, and less than a second of nanos"
        raise BodyFault(path, needed, f"{seconds[at]} and {nanos[at]}")
    return pa.array(seconds * _US + np.fix(nanos / 1000).astype(np.int64)).cast(kind)


def _with_nulls(found: pa.Array, are_set: list[bool]) -> pa.Array:
    if all(are_set):
        return found
    indices = [at if is_set else None for at, is_set in enumerate(are_set)]
    return found.take(pa.array(indices, pa.int64()))


# ---- columns to bodies


def protobuf_encoder(
    schema: MessageSchema, kind: sql.StructType, *, may_be_empty: bool = False
) -> Callable[[Any], bytes]:
    """Return the function that encodes a row, given as a dict with some fields, as one message."""
    found = message_class(schema)
    convert = _struct_writer(found.DESCRIPTOR, kind, "")
    error_class = _library("message").Error

    def encode(row: Any) -> bytes:
        try:
            body: bytes = found(**convert(row)).SerializeToString(deterministic=True)
        except error_class as error:
            raise ValueError(str(error)) from error
        if not body and not may_be_empty:
            raise ValueError(
                "all fields have their default values, which have no bytes, and RocketMQ's "
                "consumers fail on empty messages: leave the row out, or declare a field optional"
            )
        return body

    return encode


def _struct_writer(descriptor: Any, kind: sql.StructType, path: str) -> Writer:
    writers = []
    for each in kind.fields:
        field, label = (
            descriptor.fields_by_name[each.name],
            f"{path}.{each.name}".removeprefix("."),
        )
        writers.append((each.name, label, _field_writer(field, each.dataType, label), field))
    nullable = {name for name, _, _, field in writers if _may_be_null(field)}
    choices = {
        each.name: own
        for each in descriptor.oneofs
        if len(own := {field.name for field in each.fields}.intersection(kind.fieldNames())) > 1
    }

    def write(row: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name, label, convert, _ in writers:
            value = row[name]
            if value is not None:
                found[name] = convert(value)
            elif name not in nullable:
                raise ValueError(
                    f"{label} is null, but the field always has a value: coalesce it, or declare "
                    "the field optional"
                )
        for choice, own in choices.items():
            given = sorted(own.intersection(found))
            if len(given) > 1:
                raise ValueError(f"{', '.join(given)} of oneof {choice} are given: keep one")
        return found

    return write


def _field_writer(field: Any, kind: Any, path: str) -> Writer:
    if _is_map(field):
        key, value = field.message_type.fields
        write_key = _value_writer(key, kind.keyType, path)
        item = _item_writer(value, kind.valueType, path)
        if value.type == _MESSAGE:  # before release 6.30, dicts may be in lists only
            write, create = item, _library("message_factory").GetMessageClass(value.message_type)
            item = lambda each: create(**write(each))  # noqa: E731  # replaces item above
        return lambda pairs: {write_key(each): item(value) for each, value in pairs}
    if _is_repeated(field):
        element = _item_writer(field, kind.elementType, path)
        return lambda values: [element(each) for each in values]
    return _value_writer(field, kind, path)


def _item_writer(field: Any, kind: Any, path: str) -> Writer:
    write = _value_writer(field, kind, f"{path}[]")

    def write_item(value: Any) -> Any:
        if value is None:
            raise ValueError(f"{path} has a null in it, which no message can have: remove it")
        return write(value)

    return write_item


def _value_writer(field: Any, kind: Any, path: str) -> Writer:
    if field.type in (_MESSAGE, _GROUP):
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return lambda value: _seconds_and_nanos((value - _EPOCH) // _MICROSECOND)
        if name == _DURATION:
            return lambda value: _seconds_and_nanos(value // _MICROSECOND, is_signed=True)
        if name in _WRAPPERS:
            write = _value_writer(field.message_type.fields[0], kind, path)
            return lambda value: {"value": write(value)}
        return _struct_writer(field.message_type, kind, path)
    return int if isinstance(kind, sql.DecimalType) else _unchanged


def _unchanged(value: Any) -> Any:
    return value


def _seconds_and_nanos(us: int, *, is_signed: bool = False) -> dict[str, int]:
    """Return the parts of a timestamp or duration; a duration's parts have the same sign."""
    seconds, rest = divmod(abs(us), _US) if is_signed else divmod(us, _US)
    sign = -1 if is_signed and us < 0 else 1
    return {"seconds": sign * seconds, "nanos": sign * rest * 1000}
