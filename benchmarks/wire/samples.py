"""The frames and messages of the wire cases: typical ones, and the same in every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from benchmarks.traffic import VariedTraffic
from rmq_spark.wire.chunk import COLUMNS
from rmq_spark.wire.codes import (
    CommandFlag,
    LanguageCode,
    PullSysFlag,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from rmq_spark.wire.headers.codec import HeaderCodec
from rmq_spark.wire.headers.members import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeader,
)
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.properties import KEYS, TAGS, UNIQ_KEY, encode_properties
from rmq_spark.wire.remoting.command import RemotingCommand

Columns: TypeAlias = Mapping[str, Any]
"""Messages in the columns that `encode_chunk` takes."""

_GROUP = "order-service-consumers"
_TOPIC = "orders"
_TAGS = ("created", "paid", "shipped")
_NOW = 1_700_000_000_000
_SEED = 11
_PROPERTIES = COLUMNS["properties"].type


def codec_of(code: RequestCode) -> HeaderCodec[Any]:
    """Return the codec of this request's ext fields."""
    codec = HEADERS[code].request
    if codec is None:
        raise LookupError(f"{code.name} has no typed header")
    return codec


def pull_request(serialize_type: SerializeType) -> RemotingCommand:
    """Return a long poll with the eleven fields that Java's client sends."""
    header = PullMessageRequestHeader(
        consumer_group=_GROUP,
        topic=_TOPIC,
        queue_id=3,
        queue_offset=1_234_567,
        max_msg_nums=32,
        sys_flag=(PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUSPEND).value,
        commit_offset=1_234_500,
        suspend_timeout_millis=15_000,
        sub_version=_NOW,
        subscription="created || paid",
        expression_type="TAG",
    )
    return _request(RequestCode.PULL_MESSAGE, header, serialize_type)


def send_request(serialize_type: SerializeType) -> RemotingCommand:
    """Return a send of 100 bytes with three properties, under one-letter keys."""
    header = SendMessageRequestHeader(
        producer_group="order-service",
        topic=_TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=_NOW,
        flag=0,
        properties=properties_text(),
        reconsume_times=0,
    )
    return _request(RequestCode.SEND_MESSAGE_V2, header, serialize_type, bytes(100))


def pull_response(serialize_type: SerializeType) -> RemotingCommand:
    """Return an answer with 4 KiB of messages."""
    codec = HEADERS[RequestCode.PULL_MESSAGE].response
    if codec is None:
        raise LookupError("answers to pulls have no typed header")
    header = PullMessageResponseHeader(0, 1_234_599, 1_000_000, 1_300_000)
    return RemotingCommand(
        ResponseCode.SUCCESS,
        LanguageCode.JAVA,
        opaque=77,
        flag=CommandFlag.RESPONSE.value,
        remark="FOUND",
        ext_fields=codec.encode(header),
        body=bytes(4096),
        serialize_type=serialize_type,
    )


FRAMES: Mapping[str, Callable[[SerializeType], RemotingCommand]] = {
    "pull request": pull_request,
    "send request, 100 B": send_request,
    "pull response, 4 KiB": pull_response,
}


def properties_text() -> str:
    """Return the properties that producers set by themselves, a key and a tag."""
    return encode_properties(
        {KEYS: "order-00000007", TAGS: _TAGS[0], UNIQ_KEY: "7F0000010B2C18B4AAC2914F2E150000"}
    )


def producer_messages(count: int, body_bytes: int) -> Columns:
    """Return columns as a sink hands them over: bodies, keys, tags and times for one topic."""
    numbers = random.Random(_SEED)
    return {
        "topic": _TOPIC,
        "body": pa.array([numbers.randbytes(body_bytes) for _ in range(count)], pa.binary()),
        "keys": pa.array([f"order-{number:08}" for number in range(count)]),
        "tags": pa.array([_TAGS[number % len(_TAGS)] for number in range(count)]),
        "bornTimestamp": pa.array(_NOW + np.arange(count)).view(COLUMNS["bornTimestamp"].type),
    }


def varied_producer_messages(count: int) -> Columns:
    """Return the same columns and properties, of messages as services send them."""
    traffic = VariedTraffic()
    properties = [list(traffic.properties().items()) for _ in range(count)]
    return {
        **producer_messages(count, 0),
        "body": pa.array([traffic.body() for _ in range(count)], pa.binary()),
        "keys": pa.array([" ".join(traffic.keys()) for _ in range(count)]),
        "tags": pa.array([traffic.tag() for _ in range(count)]),
        "properties": pa.array(properties, _PROPERTIES),
    }


def stored_messages(count: int, body_bytes: int, *, with_properties: bool) -> Columns:
    """Return columns as a broker stores them, with or without properties."""
    columns = _as_stored(producer_messages(count, body_bytes), count)
    if with_properties:
        columns["properties"] = pa.array([[each] for each in _ids(count)], _PROPERTIES)
    else:
        del columns["keys"], columns["tags"]
    return columns


def varied_stored_messages(count: int) -> Columns:
    """Return columns as a broker stores them, of messages as services send them."""
    columns = _as_stored(varied_producer_messages(count), count)
    own = columns["properties"].to_pylist()
    with_ids = [[*some, each] for some, each in zip(own, _ids(count), strict=True)]
    return {**columns, "properties": pa.array(with_ids, _PROPERTIES)}


def _as_stored(columns: Columns, count: int) -> dict[str, Any]:
    return {
        **columns,
        "queueId": 3,
        "queueOffset": pa.array(1_000_000 + np.arange(count)),
        "commitLogOffset": pa.array((1 << 30) + np.arange(count) * 100),
        "storeTimestamp": pa.array(_NOW + 2 + np.arange(count)).view(
            COLUMNS["storeTimestamp"].type
        ),
        "bornHost": "10.0.0.7:51234",
        "storeHost": "10.0.0.1:10911",
    }


def _ids(count: int) -> list[tuple[str, str]]:
    numbers = random.Random(_SEED)
    return [(UNIQ_KEY, numbers.randbytes(16).hex().upper()) for _ in range(count)]


def _request(
    code: RequestCode, header: tuple[Any, ...], serialize_type: SerializeType, body: bytes = b""
) -> RemotingCommand:
    ext_fields = codec_of(code).encode(header)
    return RemotingCommand(
        code,
        LanguageCode.JAVA,
        opaque=77,
        ext_fields=ext_fields,
        body=body,
        serialize_type=serialize_type,
    )
