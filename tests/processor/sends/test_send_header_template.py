"""Send headers are read by shape only when the codec would give the same values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.remoting_clients import send_request

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import SerializeType
from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import Frame, FrameReader
from rocketpoll.broker.processor.sends.fast_path.cached_send import (
    BORN_MARK,
    build_template,
    header_prefix,
    unescape_all,
)


def header_of(request):
    reader = FrameReader()
    reader.feed(request.encode())
    return bytes(reader.next_frame().header)


def shape_of_request(request):
    return build_template(header_of(request), request._replace(body=b""))


USUAL = send_request(properties="KEYS\x01k\x02", opaque=7)
SHAPE = shape_of_request(USUAL)


def cut(header):
    return SHAPE.match(header.partition(BORN_MARK)[2])


def test_send_header_shape_is_cut_at_birth_time_properties_and_opaque():
    assert cut(header_of(USUAL)) == (1_600_000_000_000, rb"KEYS\u0001k\u0002", 7)
    assert header_prefix(header_of(USUAL)) == SHAPE.prefix
    assert shape_of_request(send_request(properties="", opaque=123_456)) == SHAPE
    assert shape_of_request(send_request(queue_id=1)) != SHAPE


@given(
    st.text(max_size=30) | st.text('ab"\\u0012\x01\x02', max_size=30),
    st.integers(0, (1 << 31) - 1),
)
def test_send_header_fast_path_reads_like_the_codec(text, opaque):
    try:
        header = header_of(send_request(properties=text, opaque=opaque))
    except HeaderError:  # half of a surrogate pair
        return
    found = cut(header)
    plain = None if found is None else unescape_all([found[1]])
    if plain is not None:
        assert (plain, found[2]) == (text, opaque)
    else:
        assert not (text.isascii() and text.replace("\1", "").replace("\2", "").isalnum())


ODD = {
    "a birth of other length": (b"1600000000000", b"160000000000"),
    "a birth that is no number": (b"1600000000000", b"160000000000x"),
    "an opaque with a zero before it": (b'"opaque":7', b'"opaque":07'),
    "a negative opaque": (b'"opaque":7', b'"opaque":-7'),
    "an opaque that is too large": (b'"opaque":7', b'"opaque":2147483648'),
    "no opaque": (b'"opaque":7', b'"opaque":'),
    "another flag": (b'"flag":0', b'"flag":2'),
    "a flag of its own": (b'"h":"0"', b'"h":"1"'),
    "more behind": (b"}", b"} "),
    "another end": (b"409}", b"408}"),
}


@pytest.mark.parametrize(("old", "new"), ODD.values(), ids=ODD)
def test_unusual_send_header_is_left_to_the_codec(old, new):
    header = header_of(USUAL)
    assert old in header
    found = cut(header.replace(old, new))
    assert found is None


def test_texts_that_need_the_codec_are_not_plain():
    assert unescape_all([rb"a\u0001b\u0002", b"", b"c"]) == 'a\x01b\x02""c'
    for odd in (b'a"', rb"\\u0001", rb"\n", rb"\u0003", b"\x01", b"\x7f", "ü".encode(), b"\n"):
        assert unescape_all([b"a", odd]) is None


@pytest.mark.parametrize(
    "change",
    [
        (b'"h":"0"', b'"h":"0","g":"1600000000000"'),
        (b'"h":"0"', b'"h":"0","i":"x"'),
        (b'"flag":0', b'"flag":0,"opaque":7'),
        (b'"a":"P"', rb'"a":"P","x\"g":"1600000000000"'),
        (b'"opaque":7', b'"opaque": 7'),
    ],
    ids=lambda change: change[1].decode(),
)
def test_send_shape_is_not_made_from_an_ambiguous_header(change):
    header = header_of(USUAL).replace(*change)
    request = decode_command(Frame(0, memoryview(header), memoryview(b"")))
    shape = build_template(header, request)
    if shape is not None:  # both have the same fields at another position
        found = shape.match(header.partition(BORN_MARK)[2])
        assert found == (1_600_000_000_000, rb"KEYS\u0001k\u0002", 7)
        assert header.count(b'"opaque":') == 2


def test_send_shape_is_made_only_of_short_json_headers():
    binary = USUAL._replace(serialize_type=SerializeType.ROCKETMQ)
    assert shape_of_request(binary) is None
    assert shape_of_request(send_request("b", "T" * 100, properties="p")) is not None
    long = USUAL._replace(ext_fields={**USUAL.ext_fields, "z": "z" * 5_000})
    assert shape_of_request(long) is None
