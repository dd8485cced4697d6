"""Descriptor sets of Protobuf, as protoc would write them, from messages given in Python."""

import re
from importlib import import_module

from google.protobuf import descriptor_pb2

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in _FIELD.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}
_GOOGLES = {
    "Timestamp": "timestamp",
    "Duration": "duration",
    "Any": "any",
    "Struct": "struct",
    **{f"{kind}Value": "wrappers" for kind in ("Int64", "UInt64", "Int32", "UInt32", "Bool")},
    **{f"{kind}Value": "wrappers" for kind in ("Double", "Float", "String", "Bytes")},
}


def file_of(
    messages, *, enums=(), package="shop", syntax="proto3", name="orders.proto", imports=()
):
    """Return the descriptor of a file.

    ``messages`` has the fields of each message by their names: a type, such as ``int64``,
    ``repeated Line``, ``optional string``, ``map<string, Line>`` or ``google.protobuf.Timestamp``,
    with ``= 7`` after it a number, and with a name in brackets after it in that oneof.
    ``enums`` has the names of each enum's numbers.
    """
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax=syntax)
    used = set(imports)
    for enum, values in dict(enums).items():
        made = file.enum_type.add(name=enum)
        for each, number in values.items():
            made.value.add(name=each, number=number)
    for message, fields in messages.items():
        made = file.message_type.add(name=message)
        for number, (field, text) in enumerate(fields.items(), 1):
            _add(made, field, text, number, package, dict(enums), used, syntax)
        for field in made.field:  # each synthetic oneof, after the declared ones
            if field.proto3_optional:
                field.oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name=f"_{field.name}")
    file.dependency.extend(sorted(used))
    return file


def descriptor_set(*files, path=None):
    """Write a descriptor set to a path; return its bytes."""
    found = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    if path is not None:
        path.write_bytes(found)
    return found


def with_googles(file):
    """Return a file's descriptor, preceded by those that it imports, as protoc does."""
    found = []
    for each in file.dependency:
        module = import_module(each.removesuffix(".proto").replace("/", ".") + "_pb2")
        own = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(own)
        found.append(own)
    return [*found, file]


def _add(message, name, text, number, package, enums, used, syntax):
    label, kind, set_number, oneof = re.fullmatch(
        r"(repeated |optional |required )?(.+?)(?: = (\d+))?(?: \[(\w+)\])?", text
    ).groups()
    field = message.field.add(name=name, number=int(set_number or number))
    field.label = _FIELD.LABEL_REPEATED if label == "repeated " else _FIELD.LABEL_OPTIONAL
    if label == "required ":
        field.label = _FIELD.LABEL_REQUIRED
    if label == "optional " and syntax == "proto3":
        field.proto3_optional = True
    if oneof:
        known = [each.name for each in message.oneof_decl]
        if oneof not in known:
            message.oneof_decl.add(name=oneof)
            known.append(oneof)
        field.oneof_index = known.index(oneof)
    if kind.startswith("map<"):
        key, value = kind[4:-1].split(", ")
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add(entry, "key", key, 1, package, enums, used, syntax)
        _add(entry, "value", value, 2, package, enums, used, syntax)
        field.label, kind = _FIELD.LABEL_REPEATED, f"{message.name}.{entry.name}"
    if kind in _TYPES:
        field.type = _TYPES[kind]
        return
    field.type = _FIELD.TYPE_ENUM if kind in enums else _FIELD.TYPE_MESSAGE
    short = kind.removeprefix("google.protobuf.")
    if short != kind:
        used.add(f"google/protobuf/{_GOOGLES[short]}.proto")
    field.type_name = (
        f".{kind}" if short != kind or ("." in kind and kind[0].islower()) else f".{package}.{kind}"
    )
