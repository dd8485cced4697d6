"""Command headers as MessagePack."""

import msgpack
import pytest

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import LanguageCode
from rmq_spark.wire.remoting.header import EXT_FIELDS_MAX, Header
from rmq_spark.wire.remoting.header_msgpack import decode_header, encode_header

HEADER = Header(11, LanguageCode.PYTHON, 409, 7, 0, "为何", {"topic": "T"})
FIELDS = [11, 3, 409, 7, 0, "为何", {"topic": "T"}]


def test_msgpack_header_is_an_array_of_seven():
    assert msgpack.unpackb(encode_header(HEADER)) == FIELDS
    assert decode_header(msgpack.packb(FIELDS)) == HEADER


def test_unknown_language_in_a_msgpack_header_is_other():
    assert decode_header(msgpack.packb([1, 99, 0, 0, 0, None, {}])).language is LanguageCode.OTHER


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x97",
        msgpack.packb(FIELDS[:6]),
        msgpack.packb([*FIELDS, 1]),
        msgpack.packb(5),
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
    ],
)
def test_msgpack_header_that_is_no_array_of_seven_is_refused(data):
    with pytest.raises(HeaderError, match="MessagePack header at byte 0: needed an array of seven"):
        decode_header(data)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, "11", "code: needed an integer"),
        (0, 1 << 40, "code: needed an integer"),
        (0, True, "code: needed an integer.*found True"),
        (1, True, "language: needed a number, found True"),
        (4, False, "flag: needed an integer.*found False"),
        (1, [], "language: needed a number"),
        (2, None, "version: needed an integer"),
        (3, 1.5, "opaque: needed an integer"),
        (4, {}, "flag: needed an integer"),
        (5, 5, "remark: needed text or nil"),
        (6, None, "extFields: needed a map"),
        (6, {"a": 5}, "extFields: needed a map of text to text"),
        (6, {"a": None}, "extFields: needed a map of text to text"),
        (6, {"a": {"b": "c"}}, "extFields: needed a map of text to text"),
        (6, {b"": "v"}, "extFields: needed a map of text to text"),
        (6, {b"a": "v"}, "an array of seven, found .*max_bin_len"),
        (6, {"a": b"v"}, "an array of seven, found .*max_bin_len"),
        (
            6,
            {f"k{number}": "v" for number in range(EXT_FIELDS_MAX + 1)},
            rf"of seven, found {EXT_FIELDS_MAX + 1} exceeds max_map_len\({EXT_FIELDS_MAX}\)",
        ),
    ],
)
def test_msgpack_header_fields_of_a_wrong_type_are_refused(at, value, message):
    data = msgpack.packb([*FIELDS[:at], value, *FIELDS[at + 1 :]])
    with pytest.raises(HeaderError, match=message):
        decode_header(data)


@pytest.mark.parametrize("value", ["\ud800", [object()], 1 << 70])
def test_unencodable_msgpack_header_field_is_named(value):
    with pytest.raises(HeaderError, match="MessagePack header at bad: needed text"):
        encode_header(HEADER._replace(ext_fields={"bad": value}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (msgpack.packb(FIELDS) + b"xyz", "byte 24: needed the end, found b'xyz'"),
        (msgpack.packb(FIELDS).replace(b"topic", b"top\xffc"), "a text: needed UTF-8, found b'top"),
        (
            msgpack.packb([*FIELDS, 1]),
            r"needed an array of seven, found 8 exceeds max_array_len\(7\)",
        ),
        (msgpack.packb(FIELDS)[:-1], "needed an array of seven, found .*incomplete"),
        (b"\xc1", "needed an array of seven, found FormatError"),
        (msgpack.packb(FIELDS[:6]), r"needed an array of seven, found \[11, 3"),
    ],
)
def test_msgpack_header_error_gives_position_and_reason(data, message):
    with pytest.raises(HeaderError, match=f"MessagePack header at .*{message}"):
        decode_header(data)


@pytest.mark.parametrize("key", [5, b"a", None])
def test_non_text_msgpack_header_key_is_named(key):
    with pytest.raises(HeaderError, match=f"MessagePack header at {key}: needed text"):
        encode_header(HEADER._replace(ext_fields={key: "v"}))
