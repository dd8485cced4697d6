"""Hypothesis strategies for the wire's values: commands, messages, and every body class."""

from __future__ import annotations

import dataclasses
import enum
import struct
import typing
from collections.abc import Mapping
from types import NoneType, UnionType

from hypothesis import strategies as st
from support.suite.selection import count

from rmq_spark.wire.bodies import clients, configs, operators
from rmq_spark.wire.codes import LanguageCode, MessageSysFlag, SerializeType
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import StoredMessage
from rmq_spark.wire.remoting.command import RemotingCommand

EXAMPLES = count("ROCKETPOLL_CODEC_EXAMPLES", 8, wide=60)
"""Number of examples of each of the 160 header and body classes."""

int16 = st.integers(-(1 << 15), (1 << 15) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
some_text = text.filter(bool)


def _commands_in(serialize_type: SerializeType) -> st.SearchStrategy[RemotingCommand]:
    # RocketMQ's binary codec has narrower fields, and no empty remark
    binary = serialize_type is SerializeType.ROCKETMQ
    return st.builds(
        RemotingCommand,
        code=int16 if binary else int32,
        language=st.sampled_from(LanguageCode),
        version=int16 if binary else int32,
        opaque=int32,
        flag=int32,
        remark=st.none() | (some_text if binary else text),
        ext_fields=st.dictionaries(text, text, max_size=8),
        body=st.binary(max_size=60),
        serialize_type=st.just(serialize_type),
    )


commands = st.sampled_from(SerializeType).flatmap(_commands_in)

_separators = "\x01\x02"
_property_text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters=_separators))
property_names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "KEY", "KEYSX", "a"]) | (
    _property_text.filter(bool)
)
property_values = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\x02"), min_size=1, max_size=12
)
properties = st.dictionaries(property_names, property_values, max_size=6)

# Property strings as peers may write them: separators anywhere, repeated names, pieces without a
# value.
ragged_properties = st.lists(
    st.sampled_from(
        ["KEYS", "TAGS", "UNIQ_KEY", "K", "x\u00e9", "\x01", "\x02", "\x01", "\x02", "KEYS\x01"]
    ),
    max_size=14,
).map("".join)

# Property strings with no or another meaning for RocketMQ: reserved names, pieces that are no
# properties or look like a checksum; with and without the last separator.
_odd_pieces = [
    "__CRC32#\x010123456789",
    "KEYS\x01k",
    "a\x01",
    "\x01b",
    "c\x01d\x01e",
    "",
    "f",
    "7",
    "42",
    "\u00fc",
]
odd_properties = st.lists(st.sampled_from(_odd_pieces), max_size=12).map("\x02".join) | st.lists(
    st.sampled_from(["7\x02", "a\x011\x02", "7", "\x02"]), max_size=12
).map("".join)

addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
hosts = st.builds(Host, address=addresses, port=st.integers(0, (1 << 31) - 1))

_other_flags = st.sampled_from([0, 0x2, 0x4, 0x8, 0xC, 0x40, 0x80, 0xCE])
_compressions = st.sampled_from(
    [
        0,
        0,
        MessageSysFlag.COMPRESSED,
        MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB,
        MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_LZ4,
        MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZSTD,
    ]
)


def fits_i16(message: StoredMessage) -> bool:
    """Return whether the length of the properties fits into 16 bits."""
    return len(message.properties_text.encode()) <= struct.unpack(">h", b"\x7f\xff")[0]


@st.composite
def stored_messages(draw: st.DrawFn, *, compressed: bool = False) -> StoredMessage:
    """Generate stored messages with any hosts, flags, topic width and properties.

    With ``compressed``, some have the compression flag; their bodies are compressed only when they
    are encoded.
    """
    born_host, store_host = draw(hosts), draw(hosts)
    wide_topic = draw(st.integers(0, 5)) == 0
    sys_flag = draw(_other_flags) | (int(draw(_compressions)) if compressed else 0)
    sys_flag |= MessageSysFlag.BORN_HOST_V6 if born_host.is_v6 else 0
    sys_flag |= MessageSysFlag.STORE_HOST_V6 if store_host.is_v6 else 0
    ragged = draw(st.booleans())
    return StoredMessage(
        topic=draw(st.text("abcXYZ_-%|", min_size=1, max_size=20))
        + ("w" * 200 if wide_topic else ""),
        body=draw(st.binary(max_size=40)),
        properties_text=draw(ragged_properties) if ragged else encode_properties(draw(properties)),
        queue_id=draw(int32),
        queue_offset=draw(int64),
        physical_offset=draw(int64),
        flag=draw(int32),
        sys_flag=int(sys_flag),
        born_timestamp=draw(int64),
        born_host=born_host,
        store_timestamp=draw(int64),
        store_host=store_host,
        reconsume_times=draw(int32),
        prepared_transaction_offset=draw(int64),
        magic=layout.MAGIC_V2 if wide_topic else layout.MAGIC_V1,
    )


CLASSES = {
    name: member
    for module in (clients, configs, operators)
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
