"""The body of REGISTER_BROKER: a broker's topics, as JSON or compressed.

Compressed, it is one zlib stream of

    i32 length, DataVersion as JSON
    i32 number of topics, then for each:  i32 length, text
        topicName readQueueNums writeQueueNums perm topicFilterType [attributes as JSON]
    i32 length, names of filter servers as JSON
    i32 number of topic-queue mappings, then for each:  i32 length, JSON       (5.x only)

with the parts of a topic separated by spaces; attributes are 5.x. Inflating is bounded.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field, replace

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import fastjson
from rmq_spark.wire.bodies.configs import (
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
)
from rmq_spark.wire.bodies.mapping import decode_body, encode_body
from rmq_spark.wire.compression import uncompress_body
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.java_numbers import parse_int32

REGISTRATION_BYTES_MAX = 1 << 20
VERSION_5 = 413
"""V5_0_0: from it on, topics have attributes, and a last part follows.

That part is for static topics, which rocketpoll does not have.
"""

_LENGTH = struct.Struct(">i")
_SPACE = " "


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerBody:
    """The body of REGISTER_BROKER: what a broker tells its name servers."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(
        default_factory=TopicConfigSerializeWrapper
    )
    filter_server_list: tuple[str, ...] = ()


def encode_compressed_registration(body: RegisterBrokerBody, sender_version: int) -> bytes:
    """Return the compressed form, as ``sender_version`` writes it: 4.9 knows no attributes."""
    wrapper = body.topic_config_serialize_wrapper
    topics = [
        _topic_text(topic, sender_version).encode() for topic in wrapper.topic_config_table.values()
    ]
    parts = [
        _sized(encode_body(wrapper.data_version)),
        _LENGTH.pack(len(topics)),
        *map(_sized, topics),
        _sized(fastjson.dumps(list(body.filter_server_list))),
    ]
    if sender_version >= VERSION_5:
        parts.append(_LENGTH.pack(0))
    return zlib.compress(b"".join(parts))


def decode_compressed_registration(data: Buffer) -> RegisterBrokerBody:
    """Decode the compressed form; mappings of static topics are ignored."""
    plain = uncompress_body(data, MessageSysFlag.COMPRESSED, REGISTRATION_BYTES_MAX)
    reader = _Reader(bytes(plain))
    version = decode_body(DataVersion, reader.sized())
    topics = [_parse_topic(reader.sized()) for _ in range(reader.count())]
    servers = fastjson.loads(reader.sized())
    if not isinstance(servers, list) or not all(isinstance(name, str) for name in servers):
        raise BodyError("registration", at="filterServerList", needed="texts", found=servers)
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
            topic_config_table={topic.topic_name: topic for topic in topics}, data_version=version
        ),
        filter_server_list=tuple(servers),
    )


def _topic_text(topic: TopicConfig, sender_version: int) -> str:
    parts = [
        topic.topic_name,
        str(topic.read_queue_nums),
        str(topic.write_queue_nums),
        str(topic.perm),
        topic.topic_filter_type.name,
    ]
    if topic.attributes is not None and sender_version >= VERSION_5:
        attributes = fastjson.dumps(dict(topic.attributes)).decode()
        if _SPACE in attributes:  # 5.x would split there, and drop all of them
            raise BodyError(
                "registration",
                at=topic.topic_name,
                needed="attributes without spaces",
                found=attributes,
            )
        parts.append(attributes)
    return _SPACE.join(parts)


def _parse_topic(data: bytes) -> TopicConfig:
    parts = data.decode("utf-8", "replace").split(_SPACE, 5)
    try:
        name, read_nums, write_nums, perm, filter_type, *attributes = parts
        topic = TopicConfig(
            topic_name=name,
            read_queue_nums=parse_int32(read_nums),
            write_queue_nums=parse_int32(write_nums),
            perm=parse_int32(perm),
            topic_filter_type=TopicFilterType[filter_type],
        )
    except (ValueError, KeyError) as error:
        raise BodyError(
            "registration", at="a topic", needed="name, 3 numbers and a filter type", found=data
        ) from error
    if not attributes:
        return topic
    table = fastjson.loads(attributes[0].encode())
    if not isinstance(table, dict):
        raise BodyError("registration", at="attributes", needed="an object", found=table)
    return replace(topic, attributes={str(key): str(value) for key, value in table.items()})


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


class _Reader:
    """A reader of lengths and the bytes that they announce."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self) -> int:
        """Return the next length word, which can count no more than the bytes that follow it."""
        data, at = self._data, self._at
        (length,) = _LENGTH.unpack_from(data, at) if at + 4 <= len(data) else (-1,)
        if not 0 <= length <= len(data) - at - _LENGTH.size:
            raise BodyError(
                "registration",
                at=at,
                needed=f"a length of at most {max(len(data) - at - _LENGTH.size, 0)}",
                found=data[at : at + 4],
            )
        self._at = at + _LENGTH.size
        return int(length)

    def sized(self) -> bytes:
        """Return the bytes that the next length word announces."""
        length = self.count()
        self._at += length
        return self._data[self._at - length : self._at]
