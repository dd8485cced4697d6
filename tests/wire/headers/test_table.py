"""Each header of the table decodes as in Java's classes of both versions."""

from types import NoneType
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.messages.wire_strategies import EXAMPLES, int32, int64, text
from support.rocketmq import java_vectors

from rmq_spark.wire.codes import (
    MessageSysFlag,
    PullSysFlag,
    RequestCode,
    SerializeType,
    TopicPermission,
)
from rmq_spark.wire.extensions import Extension, ExtensionsHeader
from rmq_spark.wire.headers import Int32, Int64, exchange_of
from rmq_spark.wire.headers.codec import fields_of
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader

# Not read by rocketpoll: the field of "lite topics", which are pop consumption.
NOT_OURS = {"liteTopic"}

# Java has a response class for a one-way request.
NEVER_SENT = {"CheckTransactionStateResponseHeader"}


def has_header(vector):
    return vector["headerClass"] not in NEVER_SENT and bool(vector.get("header"))


def codec_of(vector):
    exchange = HEADERS[vector["requestCode"]]
    return exchange.response if vector["kind"] == "response" else exchange.request


def ext_fields_of(vector):
    reader = FrameReader()
    reader.feed(bytes.fromhex(vector["frame"]))
    return decode_command(reader.next_frame()).ext_fields


@java_vectors.each("frames", where=has_header)
def test_header_decodes_like_javas(vector):
    codec = codec_of(vector)
    header = codec.decode(ext_fields_of(vector))
    ours = dict(zip(codec.keys, header, strict=True))
    defaults = dict(
        zip(codec.keys, (header._field_defaults.get(name) for name in header._fields), strict=True)
    )
    theirs = {key: value for key, value in vector["header"].items() if key not in NOT_OURS}
    for key, value in theirs.items():
        if value is None:  # absent; for some of Java's nulls our header has a meaning
            assert ours.get(key) is defaults.get(key), key
        else:
            assert (type(ours[key]), ours[key]) == (type(value), value), key


FLAGS = st.sampled_from([*PullSysFlag, *MessageSysFlag, *TopicPermission])
STRATEGIES = {str: text, bool: st.booleans(), Int32: int32 | FLAGS, Int64: int64 | FLAGS}
CODECS = {
    f"{code.name}-{kind}": codec
    for code, exchange in HEADERS.items()
    for kind, codec in exchange._asdict().items()
    if codec is not None
}


def values_of(hint):
    arguments = [part for part in get_args(hint) if part is not NoneType]
    if NoneType in get_args(hint):
        return st.none() | STRATEGIES[arguments[0]]
    return STRATEGIES[hint]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_any_header_is_read_as_it_was_written_in_every_codec(codec):
    hints = {name: hint for name, (_, hint) in fields_of(codec.header_type).items()}

    @settings(max_examples=EXAMPLES)
    @given(
        st.builds(codec.header_type, **{name: values_of(hint) for name, hint in hints.items()}),
        st.sampled_from(SerializeType),
    )
    def round_trip(header, serialize_type):
        command = RemotingCommand(0, ext_fields=codec.encode(header), serialize_type=serialize_type)
        reader = FrameReader()
        reader.feed(command.encode())
        assert codec.decode(decode_command(reader.next_frame()).ext_fields) == header

    round_trip()


@java_vectors.each("frames", where=has_header)
def test_header_round_trip_keeps_javas_fields(vector):
    codec = codec_of(vector)
    ext_fields = ext_fields_of(vector)
    again = codec.encode(codec.decode(ext_fields))
    assert {key: again.get(key) for key in ext_fields if key in codec.keys} == {
        key: value for key, value in ext_fields.items() if key in codec.keys
    }


def test_send_response_header_has_region_and_trace_switch():
    codec = HEADERS[RequestCode.SEND_MESSAGE].response
    fields = {
        "msgId": "A",
        "queueId": "1",
        "queueOffset": "5",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    header = codec.decode(fields)
    assert (header.msg_region, header.trace_on) == ("DefaultRegion", True)
    assert codec.encode(header) == fields


def test_send_v2_header_has_javas_short_key_order():
    codec = HEADERS[RequestCode.SEND_MESSAGE_V2].request
    assert "".join(codec.keys) == "abcdefghijklmn"
    assert codec.header_type is HEADERS[RequestCode.SEND_MESSAGE].request.header_type


def test_header_lookup_equals_the_table():
    assert {code: exchange_of(code) for code in HEADERS} == HEADERS
    assert exchange_of(RequestCode.HEART_BEAT) == exchange_of(-1) == (None, None)


def test_every_header_belongs_to_a_named_request():
    assert all(isinstance(code, RequestCode) for code in HEADERS)


@pytest.mark.parametrize(
    ("names", "known"),
    [
        ("msgpack-header", {Extension.MSGPACK_HEADER}),
        ("something-later,msgpack-header", {Extension.MSGPACK_HEADER}),
        ("something-later", set()),
        ("", set()),
    ],
)
def test_unknown_extension_names_are_ignored(names, known):
    assert ExtensionsHeader(names).extensions == known


def test_extensions_are_offered_by_name():
    codec = HEADERS[RequestCode.EXTENSIONS].request
    offer = ExtensionsHeader.of(frozenset(Extension))
    names = "append-chunk,msgpack-header,proven-files,pull-chunk,staged-batches"
    assert codec.encode(offer) == {"names": names}
