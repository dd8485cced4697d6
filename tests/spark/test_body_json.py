"""JSON bodies as columns: each kind of value, and the same results of the fast and the slow
decoder."""

import json
import re
from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spark.body_rows import alone, rows, structs, values

from rmq_spark.spark.bodies.json_bodies import JsonBodies, _DecimalOverflow
from rmq_spark.spark.errors import RecordFault
from rmq_spark.spark.schemas.arrow_conversion import BodyFault
from rmq_spark.spark.schemas.columns import arrow_schema_of

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)

TAKEN = [
    ("STRING", '"ü"', "ü"),
    ("STRING", '"\\u0000"', "\0"),
    ("STRING", '""', ""),
    ("BOOLEAN", "true", True),
    ("TINYINT", "-128", -128),
    ("BIGINT", "9007199254740993", 2**53 + 1),
    ("BIGINT", "-9223372036854775808", -(2**63)),
    ("BIGINT", "-0", 0),
    ("DOUBLE", "7", 7.0),
    ("DOUBLE", "1e-400", 0.0),
    ("DOUBLE", '"-Infinity"', float("-inf")),
    ("FLOAT", "0.5", 0.5),
    ("DECIMAL(5,2)", "1.5", Decimal("1.50")),
    ("DECIMAL(5,2)", '"1.5"', Decimal("1.50")),
    ("DECIMAL(38,0)", "9" * 38, Decimal("9" * 38)),
    ("DECIMAL(38,0)", "1e37", Decimal(10**37)),
    ("DECIMAL(38,38)", "0." + "9" * 38, Decimal("0." + "9" * 38)),
    ("DECIMAL(10,2)", "-99999999.99", Decimal("-99999999.99")),
    ("DECIMAL(10,2)", "123e-2", Decimal("1.23")),
    ("DATE", '"2026-01-31"', date(2026, 1, 31)),
    ("DATE", '"0001-01-01"', date(1, 1, 1)),
    ("DATE", '"9999-12-31"', date(9999, 12, 31)),
    ("TIMESTAMP", '"2026-01-31T12:00:00Z"', NOON),
    ("TIMESTAMP", '"2026-01-31 14:00:00+02:00"', NOON),
    ("TIMESTAMP", '"2026-01-31T12:00:00"', NOON),
    ("TIMESTAMP", '"2026-01-31T12:00:00.123456789Z"', NOON.replace(microsecond=123456)),
    ("TIMESTAMP_NTZ", '"2026-01-31T12:00:00"', NOON.replace(tzinfo=None)),
    ("BINARY", '"AAE="', b"\0\1"),
    ("ARRAY<INT>", "[1, null]", [1, None]),
    ("ARRAY<INT>", "[]", []),
    ("STRUCT<a: INT>", "{}", {"a": None}),
    ("STRUCT<a: INT>", '{"a": 1, "b": 2, "b": 3}', {"a": 1}),
    ("MAP<STRING, INT>", '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
    ("MAP<STRING, STRUCT<t: ARRAY<DATE>>>", '{"a": {"t": ["2026-01-31"]}}', None),
]


@pytest.mark.parametrize(("kind", "text", "expected"), TAKEN)
def test_json_value_decodes_the_same_alone_and_beside_bad_bodies(kind, text, expected):
    body = f'{{"v": {text}}}'.encode()
    one, missing, null = values([body, b"{}", b'{"v": null}'], kind)
    assert missing is null is None
    if expected is not None:
        assert one == expected
    beside_bad = values([body, b"no JSON"], kind, onBadRecord="skip")
    assert beside_bad == [one]


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("STRING", "1", "its v: needed a string, found 1"),
        ("STRING", "{}", "needed a string, found an object"),
        ("STRING", '"\\ud800"', "needed text that UTF-8 can encode"),
        ("BOOLEAN", '"true"', "needed true or false, found 'true'"),
        ("BOOLEAN", "1", "needed true or false, found 1"),
        ("INT", "1.0", "needed a whole number of 32 bits, found 1.0"),
        ("INT", '"1"', "needed a whole number of 32 bits, found '1'"),
        ("INT", "true", "found true"),
        ("INT", "2147483648", "needed a whole number of 32 bits"),
        ("BIGINT", "9223372036854775808", "needed a whole number of 64 bits"),
        ("DOUBLE", "1e400", "needed a number that fits into 64 bits, found 1e400"),
        ("DOUBLE", "NaN", "needed a number of JSON, found NaN"),
        ("DOUBLE", "-Inf", "needed JSON"),
        ("DOUBLE", '"1"', "needed a number, found '1'"),
        ("FLOAT", "1e39", "needed a number that fits into 32 bits"),
        ("DECIMAL(5,2)", "1.555", "its v: needed a number of 5 digits, 2 of them"),
        ("DECIMAL(5,2)", "true", "needed a number, or a string with a number"),
        ("DECIMAL(5,2)", "1e3", "its v: needed a number of 5 digits, 2 of them"),
        ("DECIMAL(10,2)", "1e8", "its v: needed a number of 10 digits, 2 of them"),
        ("DECIMAL(10,2)", "100000000", "its v: needed a number of 10 digits, 2 of them"),
        ("DECIMAL(38,0)", "3.4028236e38", "its v: needed a number of 38 digits, 0 of them"),
        ("DECIMAL(38,0)", "1" * 60, "its v: needed a number of 38 digits, 0 of them"),
        ("DECIMAL(38,0)", f'"{"1" * 60}"', "its v: needed a number of 38 digits, 0 of them"),
        ("DECIMAL(38,0)", "1e-39", "its v: needed a number of 38 digits, 0 of them"),
        ("DECIMAL(38,38)", "127", "its v: needed a number of 38 digits, 38 of them"),
        ("DECIMAL(38,38)", "1e2", "its v: needed a number of 38 digits, 38 of them"),
        ("DECIMAL(38,38)", '"1"', "its v: needed a number of 38 digits, 38 of them"),
        ("DECIMAL(18,6)", "9007199254740993", "its v: needed a number of 18 digits, 6 of them"),
        ("BIGINT", "1" * 5_000, f"needed a whole number of 64 bits, found {'1' * 60}..."),
        ("DOUBLE", "1.7976931348623159e308", "needed a number that fits into 64 bits"),
        ("DOUBLE", "1" * 400, f"needed a number that fits into 64 bits, found {'1' * 60}..."),
        ("FLOAT", "1" * 400, "needed a number that fits into 64 bits"),
        ("ARRAY<DOUBLE>", f"[{'1' * 400}]", "its v[0]: needed a number that fits into 64 bits"),
        ("STRUCT<d: DECIMAL(4,2)>", '{"d": 100}', "its v.d: needed a number of 4 digits"),
        ("DATE", '"0000-01-01"', "its v: needed a date such as 2026-01-31"),
        ("DATE", '"31.1.2026"', "its v: needed a date such as 2026-01-31, found '31.1.2026'"),
        ("DATE", "5", "needed a string, found 5"),
        ("TIMESTAMP", "1769860800", "needed a string, found 1769860800"),
        ("TIMESTAMP", '"yesterday"', "needed a time such as 2026-01-31T12:00:00.123456, with Z"),
        ("TIMESTAMP", '"9999-12-31T23:59:59-10:00"', "needed a time"),
        ("TIMESTAMP_NTZ", '"2026-01-31T12:00:00Z"', "123456 without a zone, found '2026-01-31T"),
        ("BINARY", '"?"', "needed a string of base64, found '?'"),
        ("ARRAY<INT>", '[1, "a"]', "its v[1]: needed a whole number"),
        ("ARRAY<INT>", "{}", "needed an array, found an object"),
        ("STRUCT<a: INT>", "[]", "needed an object, found an array"),
        ("STRUCT<a: INT>", '{"a": 1, "a": 2}', "its v: needed each name once, found a twice"),
        ("MAP<STRING, INT>", '{"a": 1, "a": 2}', "its v: needed each name once"),
        ("MAP<STRING, INT>", '{"a": []}', "its v.a: needed a whole number"),
        ("ARRAY<STRUCT<d: DATE>>", '[{"d": "x"}]', "its v[].d: needed a date"),
    ],
)
def test_json_value_of_another_type_is_a_bad_record(kind, text, said):
    good = b'{"v": null}'
    with pytest.raises(RecordFault) as caught:
        rows([good, f'{{"v": {text}}}'.encode(), good], f"v {kind}")
    assert caught.value.queue_offset == 1
    assert said in str(caught.value)
    assert "at offset 1 of queue 3 of orders on broker-a" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "needed a JSON object, found an empty body"),
        (b" ", "needed JSON"),
        (b"null", "its body: needed an object, found null"),
        (b'[{"v": 1}]', "its body: needed an object, found an array"),
        (b'{"v": 1}{"v": 2}', "Extra data"),
        (b'{"v": 1}\n{"v": 2}', "Extra data"),
        (b'{"v": 1', "needed JSON"),
        (b'{"v": 1},{"v": 2}', "Extra data"),
        (b'{"v": 1, "v": 1}', "its body: needed each name once, found v twice"),
        (b'\xef\xbb\xbf{"v": 1}', "BOM"),
        (b'{"v": 1}\0', "needed JSON"),
        (b'{"x": "\xff", "v": 1}', "its body: needed UTF-8, found byte b'\\xff' at 7"),
        (b'{"x": NaN, "v": 1}', "a number of JSON, found NaN"),
        (b'{"v": 01}', "needed JSON"),
        (b"{'v': 1}", "needed JSON"),
        (b'{"v": 1} // note', "needed JSON"),
    ],
)
def test_json_body_that_is_no_object_is_a_bad_record(body, said):
    good = b'{"v": 7}'
    with pytest.raises(RecordFault, match="offset 1 of queue 3") as caught:
        rows([good, body, good], "v INT")
    assert said in str(caught.value)
    assert values([good, body, good], "INT", onBadRecord="null") == [7, None, 7]
    assert values([good, body, good], "INT", onBadRecord="skip") == [7, 7]


def test_json_bodies_may_contain_spaces_and_newlines_anywhere():
    bodies = [b' {"v": 1}\r\n', b'{\n  "v":\n  2\n}\n', b'{"v": 3, "text": "NaN, Infinity"}']
    assert values(bodies, "INT") == [1, 2, 3]


def test_adjacent_json_bodies_are_never_merged():
    """Joined, they would be three objects, although two of the bodies are invalid."""
    bodies = [b'{"v": 1}', b'{"v": 2} {"v": 3}', b'{"x": [', b"]}"]
    assert values(bodies, "INT", onBadRecord="null") == [1, None, None, None]
    assert values([b'{"a": {"v": 1}', b'{"v": 2}}'], "INT", onBadRecord="null") == [None, None]


def test_deeply_nested_json_is_a_bad_record():
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert values([deep, b"{}"], "INT") == [None, None]
    assert values([deep, b"bad"], "INT", onBadRecord="skip") == [None]
    with pytest.raises(RecordFault, match="fewer than 1000 levels of nesting"):
        values([deep], "MAP<STRING, INT>")


def test_json_field_names_are_case_sensitive():
    assert values([b'{"V": 1}'], "INT") == [None]


def test_good_and_bad_json_bodies_keep_their_order():
    bodies = [b"bad" if at % 97 == 5 else b'{"v": %d}' % at for at in range(1_000)]
    expected = [None if at % 97 == 5 else at for at in range(1_000)]
    assert values(bodies, "INT", onBadRecord="null") == expected
    assert values(bodies, "INT", onBadRecord="skip") == [v for v in expected if v is not None]


def test_json_chunk_without_bad_bodies_is_decoded_in_one_pass(monkeypatch):
    monkeypatch.setattr(JsonBodies, "decode_each", None)
    assert values([b'{"v": %d}' % at for at in range(1_000)], "INT") == list(range(1_000))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31 12:00:00", "1.5", "NaN"])
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "v"]), inner, max_size=3)
    ),
    max_leaves=6,
)
SOME_TYPES = st.sampled_from(
    (
        *("STRING", "BOOLEAN", "TINYINT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(5,1)", "DATE"),
        *("TIMESTAMP", "TIMESTAMP_NTZ", "ARRAY<DOUBLE>", "ARRAY<TIMESTAMP>", "STRUCT<a: BIGINT>"),
        "STRUCT<a: STRUCT<b: STRING>>",
    )
)


def decoder_of(kind):
    from rmq_spark.spark.schemas.schema_text import parse_schema  # noqa: PLC0415  # few tests need it

    return JsonBodies(pa.struct(list(arrow_schema_of(parse_schema(f"v {kind}")))))


@given(SOME_TYPES, st.lists(VALUES, min_size=1, max_size=3))
def test_bulk_json_decoding_equals_single_decoding(kind, given_values):
    """The bulk decoder may give up on valid bodies, but must not accept invalid ones."""
    decoder = decoder_of(kind)
    bodies = [json.dumps({"v": each}).encode() for each in given_values]
    try:
        together = decoder.decode_all(pa.array(bodies, pa.binary()))
    except (ValueError, pa.ArrowException):
        return
    singly = pa.concat_arrays([alone(decoder, body) for body in bodies])
    assert repr(together.to_pylist()) == repr(singly.to_pylist())


PIECES = [
    "1",
    "23",
    "9" * 17,
    "0." + "4" * 20,
    ".",
    "e",
    "E",
    "-",
    "+",
    "a",
    " ",
    ",",
    ":",
    '"',
    "[",
    "}",
]


@given(st.integers(0, 38), st.lists(st.sampled_from(PIECES), max_size=12))
def test_decimal_overflow_precheck_finds_all_candidates(scale, pieces):
    """A cheap search for byte classes comes first, to save the regular expression."""
    text = "".join(pieces).encode()
    digits = max(38 - scale, 1)
    rule = rb'[0-9]{%d}|[\[:,]\s*"?-?[0-9.]+[eE][-+]?[0-9]+"?\s*[,\]}]' % digits
    assert _DecimalOverflow(scale).may_occur(text) is (re.search(rule, text) is not None)


@given(st.lists(st.text('{}[]",:v1 \n\0xN', max_size=12), min_size=1, max_size=4))
def test_bulk_json_decoder_accepts_no_body_that_the_single_one_refuses(texts):
    decoder = decoder_of("INT")
    bodies = [text.encode() for text in texts]
    try:
        together = decoder.decode_all(pa.array(bodies, pa.binary()))
    except (ValueError, pa.ArrowException):
        return
    assert together.to_pylist() == [alone(decoder, body).to_pylist()[0] for body in bodies]


@given(structs(), st.binary(max_size=20))
def test_json_body_decoding_raises_only_body_faults(kind_and_values, body):
    kind, _ = kind_and_values
    decoder = JsonBodies(pa.struct(list(arrow_schema_of(kind))))
    try:
        alone(decoder, body)
    except BodyFault as fault:
        assert str(fault).startswith("its ")  # the body may also be valid
