"""Every body class of the wire, and bodies as hypothesis fills them."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Mapping
from types import NoneType, UnionType

from hypothesis import strategies as st
from strategies import int64, text

from rmq_spark.wire.bodies import client_info, clients, cluster_lists, configs, routes, stats

CLASSES = {
    name: member
    for module in (client_info, clients, configs, cluster_lists, routes, stats)
    for name, member in vars(module).items()
    if dataclasses.is_dataclass(member) and member.__module__ == module.__name__
}


def values_of(hint):
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any:
        return st.none() | st.dictionaries(text, st.integers(0, 9), max_size=2)
    if origin in (typing.Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return st.none() | values_of(inner)
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is frozenset:
        return st.frozensets(values_of(arguments[0]), max_size=3)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(
            hint, **{each.name: values_of(hints[each.name]) for each in dataclasses.fields(hint)}
        )
    return {
        str: text,
        int: int64,
        float: st.floats(-1e15, 1e15),
        bool: st.booleans(),
    }[hint]
