"""Command headers in RocketMQ's binary form."""

import struct

import pytest

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import LanguageCode
from rmq_spark.wire.remoting.header import EXT_FIELDS_MAX, Header
from rmq_spark.wire.remoting.header_rocketmq import decode_header, encode_header

# The worked example of the protocol's notes: code 105, opaque 5, version 409, topic=T.
EXAMPLE = bytes.fromhex(
    "0069 00 0199 00000005 00000000 00000000 0000000c 0005 746f706963 00000001 54"
)
HEADER = Header(105, LanguageCode.JAVA, 409, 5, 0, None, {"topic": "T"})


def test_rocketmq_header_example_is_encoded_and_decoded():
    assert decode_header(EXAMPLE) == HEADER
    assert encode_header(HEADER) == EXAMPLE


def test_rocketmq_header_round_trips_non_ascii_and_long_values():
    header = HEADER._replace(
        remark="为何", ext_fields={"键": "值" * 300, "k": "v" * 70_000, "e": ""}
    )
    assert decode_header(encode_header(header)) == header


def test_repeated_rocketmq_header_field_counts_last():
    twice = HEADER._replace(ext_fields={"topic": "first", "tOpic": "second"})
    data = encode_header(twice).replace(b"tOpic", b"topic")
    assert decode_header(data).ext_fields == {"topic": "second"}


def test_unknown_language_in_a_rocketmq_header_is_other():
    assert decode_header(EXAMPLE[:2] + b"\x63" + EXAMPLE[3:]).language is LanguageCode.OTHER


def test_truncated_rocketmq_header_is_refused():
    for end in range(len(EXAMPLE)):
        with pytest.raises(HeaderError, match="binary header at byte"):
            decode_header(EXAMPLE[:end])


@pytest.mark.parametrize(
    ("at", "word"),
    [(13, -1), (13, 1 << 30), (17, -1), (17, 13), (17, 1 << 30), (28, -1), (28, 2)],
)
def test_rocketmq_header_with_wrong_lengths_is_refused(at, word):
    data = EXAMPLE[:at] + struct.pack(">i", word) + EXAMPLE[at + 4 :]
    with pytest.raises(HeaderError, match="binary header at byte"):
        decode_header(data)


def test_bytes_past_the_last_header_field_are_refused():
    with pytest.raises(HeaderError, match="at byte 17: needed ext length 14, found 12"):
        decode_header(EXAMPLE + b"xx")


@pytest.mark.parametrize("where", [26, 32])
def test_rocketmq_header_field_that_is_not_utf8_is_refused(where):
    with pytest.raises(HeaderError, match=f"at byte {where}: needed UTF-8"):
        decode_header(EXAMPLE[:where] + b"\xff" + EXAMPLE[where + 1 :])


def test_rocketmq_header_remark_that_is_not_utf8_is_refused():
    data = encode_header(HEADER._replace(remark="x")).replace(b"x", b"\xff", 1)
    with pytest.raises(HeaderError, match="at byte 17: needed UTF-8"):
        decode_header(data)


def test_rocketmq_header_with_thousands_of_fields_is_refused():
    for keys in ([f"{number:05}" for number in range(EXT_FIELDS_MAX + 1)], ["topic"] * 20_000):
        ext = b"".join(b"\0\x05" + key.encode() + b"\0\0\0\x01T" for key in keys)
        data = EXAMPLE[:17] + struct.pack(">i", len(ext)) + ext
        with pytest.raises(
            HeaderError, match=f"at most {EXT_FIELDS_MAX} fields, found {EXT_FIELDS_MAX + 1}"
        ):
            decode_header(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": 200_050}, "code: needed an integer from -32768 to 32767, found 200050"),
        ({"version": 1 << 15}, "version: needed an integer"),
        ({"opaque": 1 << 31}, "opaque: needed an integer"),
        ({"flag": 1 << 31}, "flag: needed an integer"),
        ({"remark": "\ud800"}, "remark: needed text"),
        ({"ext_fields": {"a": 5}}, "a: needed text"),
        ({"ext_fields": {"a": "\ud800"}}, "a: needed text"),
        ({"ext_fields": {"a" * 32_768: "v"}}, "keys to 32767 bytes"),
    ],
)
def test_oversized_header_field_is_named(change, message):
    with pytest.raises(HeaderError, match=message):
        encode_header(HEADER._replace(**change))
