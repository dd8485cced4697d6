"""Each header of the table against what Java's classes of both versions make of the same frame."""

import java_vectors
import pytest

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import decode_command
from rmq_spark.wire.extensions import Extension, ExtensionsHeader
from rmq_spark.wire.framing import FrameReader
from rmq_spark.wire.headers import HEADERS

# Not read by rocketpoll: fields by which 5.x brokers pass requests on, and those of "lite topics".
NOT_OURS = {"bname", "ns", "nsd", "oway", "lo", "liteTopic"}


# Java has a class for the answer to a question that is asked one-way.
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
def test_a_header_says_what_java_says(vector):
    codec = codec_of(vector)
    header = codec.decode(ext_fields_of(vector))
    ours = dict(zip(codec.keys, header, strict=True))
    # bname and brokerName are one field, under the key that the request uses.
    theirs = {
        key: value
        for key, value in vector["header"].items()
        if key not in NOT_OURS and value is not None and not (vector["requestCode"] in V2 and len(key) > 1)
    }
    missing = set(theirs) - set(ours)
    assert not missing
    assert {key: ours[key] or "" for key in theirs} == {key: value or "" for key, value in theirs.items()}


@java_vectors.each("frames", where=has_header)
def test_a_header_is_written_as_it_was_read(vector):
    codec = codec_of(vector)
    ext_fields = ext_fields_of(vector)
    again = codec.encode(codec.decode(ext_fields))
    assert {key: again.get(key) for key in ext_fields if key in codec.keys} == {
        key: value for key, value in ext_fields.items() if key in codec.keys
    }


V2 = {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}


def test_the_short_keys_of_v2_are_in_javas_order():
    codec = HEADERS[RequestCode.SEND_MESSAGE_V2].request
    assert "".join(codec.keys) == "abcdefghijklmn"
    assert codec.header_type is HEADERS[RequestCode.SEND_MESSAGE].request.header_type


@pytest.mark.parametrize("code", HEADERS)
def test_every_header_belongs_to_a_request_that_has_a_name(code):
    assert isinstance(code, RequestCode)


@pytest.mark.parametrize(
    ("names", "known"),
    [
        ("msgpack-header", {Extension.MSGPACK_HEADER}),
        ("something-later,msgpack-header", {Extension.MSGPACK_HEADER}),
        ("something-later", set()),
        ("", set()),
    ],
)
def test_extensions_that_are_not_known_are_passed_over(names, known):
    assert ExtensionsHeader(names).extensions == known


def test_extensions_are_offered_by_name():
    codec = HEADERS[RequestCode.EXTENSIONS].request
    offer = ExtensionsHeader.of(frozenset(Extension))
    assert codec.encode(offer) == {"names": "msgpack-header"}
