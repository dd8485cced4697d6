"""Command headers as JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import int32, int64

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import LanguageCode
from rmq_spark.wire.remoting.framing import FrameReader
from rmq_spark.wire.remoting.header import EXT_FIELDS_MAX, Header
from rmq_spark.wire.remoting.header_json import JsonResponseTemplate, decode_header, encode_header


def test_json_header_is_written_like_java():
    header = Header(11, LanguageCode.JAVA, 409, 7, 0, "why", {"topic": "T"})
    assert encode_header(header) == (
        b'{"code":11,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"remark":"why","serializeTypeCurrentRPC":"JSON","version":409}'
    )


def test_absent_json_header_fields_have_javas_defaults():
    assert decode_header(b'{"code":1}') == Header(1, LanguageCode.JAVA, 0, 0, 0, None, {})


def test_null_body_members_equal_absent_ones():
    absent = ("language", "version", "opaque", "flag", "remark", "extFields")
    nulls = json.dumps({"code": 1, **dict.fromkeys(absent)}, separators=(",", ":")).encode()
    assert decode_header(nulls) == decode_header(b'{"code":1}')


def test_unknown_json_header_keys_are_ignored():
    assert decode_header(b'{"code":1,"later":[{"a":1}]}').code == 1


@pytest.mark.parametrize(
    ("language", "read"),
    [('"PYTHON"', LanguageCode.PYTHON), ("9", LanguageCode.GO), ('"KLINGON"', LanguageCode.OTHER)],
)
def test_json_header_language_is_a_name_or_a_number(language, read):
    assert decode_header(b'{"code":1,"language":%s}' % language.encode()).language is read


def test_json_header_scalars_become_text_and_nulls_are_dropped_as_in_java():
    fields = b'{"code":1,"extFields":{"a":1,"b":true,"c":false,"d":null,"e":1.5,"f":"x"}}'
    assert decode_header(fields).ext_fields == {
        "a": "1",
        "b": "true",
        "c": "false",
        "e": "1.5",
        "f": "x",
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "JSON header at byte 0: needed JSON"),
        (b'{"code":11,', "JSON header at byte"),
        (b'{"code":"\xff"}', "JSON header at byte"),
        (b"[11]", "needed an object"),
        (b"{}", "code: needed an integer.*found None"),
        (b'{"code":"1x"}', "code: needed an integer"),
        (b'{"code":2147483648}', "code: needed an integer from -2147483648 to 2147483647"),
        (b'{"code":1,"opaque":"x"}', "opaque: needed an integer"),
        (b'{"code":1,"flag":[]}', "flag: needed an integer"),
        (b'{"code":null}', "code: needed an integer.*found None"),
        (b'{"code":1,"version":" 5"}', "version: needed an integer.*found ' 5'"),
        (b'{"code":1,"language":["JAVA"]}', "language: needed an integer"),
        (b'{"code":1,"remark":[]}', "remark: needed text"),
        (b'{"code":1,"extFields":[1]}', "extFields: needed an object"),
        (b'{"code":1,"extFields":{"a":{}}}', "extFields.a: needed text"),
        (b'{"code":1,"extFields":{"a":[1]}}', "extFields.a: needed text"),
    ],
)
def test_bad_header_json_error_names_place_and_fault(data, message):
    with pytest.raises(HeaderError, match=message):
        decode_header(data)


def test_json_header_with_thousands_of_fields_is_refused():
    many = ",".join(f'"k{number}":"v"' for number in range(EXT_FIELDS_MAX + 1))
    with pytest.raises(HeaderError, match=f"at most {EXT_FIELDS_MAX} fields"):
        decode_header(f'{{"code":1,"extFields":{{{many}}}}}'.encode())


@pytest.mark.parametrize("value", ["\ud800", 5, None, b"x"])
def test_header_field_that_is_no_text_is_named_when_encoded(value):
    header = Header(1, LanguageCode.PYTHON, 409, 0, 0, None, {"topic": "T", "bad": value})
    with pytest.raises(HeaderError, match="header at bad: needed text"):
        encode_header(header)


def test_field_name_in_a_header_error_is_shortened():
    data = b'{"code":1,"extFields":{"%s":[]}}' % (b"k" * 100_000)
    with pytest.raises(HeaderError, match=r"extFields\.k+\.\.\.: needed text") as caught:
        decode_header(data)
    assert len(str(caught.value)) < 300


@given(opaque=int32, offset=int64, place=st.integers(0, (1 << 63) - 1))
def test_answer_by_template_equals_the_codec_encoding(opaque, offset, place):
    same = Header(
        0, LanguageCode.PYTHON, 409, 0, 1, None, {"TRACE_ON": "true", "MSG_REGION": "100%"}
    )
    varying = {"msgId": f"7F000001{place:024X}", "queueOffset": str(offset)}
    formats = {"msgId": "%s%024X", "queueOffset": "%d"}
    frame = JsonResponseTemplate(same, formats).encode(
        opaque, "7F000001", place, offset, body_bytes=7
    )
    reader = FrameReader()
    reader.feed(frame + bytes(7))
    answer = reader.next_frame()
    expected = same._replace(opaque=opaque, ext_fields={**same.ext_fields, **varying})
    assert decode_header(answer.header) == expected
    assert len(answer.body) == 7
