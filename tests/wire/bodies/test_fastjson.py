"""JSON as fastjson writes it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs.python_programs import last_line_of

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies.fastjson import DEPTH_MAX, ObjectMap, dumps, loads

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=("Cs",), exclude_characters="$"), max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def with_object_keys(value):
    """Return the value beside a map with an object as its key, which only the tolerant reader
    accepts."""
    return b'{"plain":' + dumps(value) + b',"m":{{"a":1}:2}}'


@given(json_values)
def test_strict_json_round_trips(value):
    assert loads(json.dumps(value).encode()) == value
    assert json.loads(dumps(value)) == value


@given(json_values)
def test_tolerant_json_reader_reads_strict_json_alike(value):
    assert loads(with_object_keys(value)) == {"plain": value, "m": ObjectMap((({"a": 1}, 2),))}


@given(st.lists(st.tuples(json_values, json_values), min_size=1, max_size=4))
def test_tolerant_json_reader_accepts_maps_with_objects_as_keys(pairs):
    value = ObjectMap(tuple(({"key": key}, item) for key, item in pairs))
    assert loads(dumps(value)) == value
    assert loads(dumps({"outer": [value]})) == {"outer": [value]}


def test_tolerant_json_reader_reads_bare_number_keys_as_text():
    assert loads(b'{0:"10.0.0.1:10911", 12 : {-5:1}}') == {"0": "10.0.0.1:10911", "12": {"-5": 1}}


def test_tolerant_json_reader_skips_blanks_and_java_number_suffixes():
    assert loads(b" {1:\t[ 5L , 1.5D,-2 ]\r\n} \n") == {"1": [5, 1.5, -2]}


def test_json_reader_decodes_escapes():
    assert loads(rb'{1:"a\"b\\c\u0001\u503c\ud83d\ude00"}') == {"1": 'a"b\\c\x01值😀'}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "JSON body at byte 0: needed JSON, found ''"),
        (b"{1:", "at byte 3: needed JSON"),
        (b"{1:}", "at byte 3: needed a value"),
        (b"{1 2}", "at byte 3: needed ':'"),
        (b"{1:2 3}", "at byte 5: needed ',' or '}'"),
        (b"{1:[2 3]}", "at byte 6: needed ',' or ']'"),
        (b"{1:2}}", "at byte 5: needed the end"),
        (b"{1:nul}", "at byte 3: needed JSON"),
        (b'{1:"\\x"}', "needed JSON escapes"),
        (b'{1:"open', "needed JSON"),
        (b'{1:"\xff"}', "at byte 4: needed UTF-8"),
        (b"{1:,}", "needed a value"),
        (b"not json", "at byte 0: needed JSON"),
    ],
)
def test_invalid_json_error_gives_position_and_reason(data, message):
    with pytest.raises(BodyError, match=message):
        loads(data)


def test_json_reader_refuses_deep_nesting():
    with pytest.raises(BodyError, match=f"at most {DEPTH_MAX} levels"):
        loads(b"{1:" + b"[" * 100_000)


def test_unserializable_value_is_refused():
    with pytest.raises(BodyError, match="needed JSON's types"):
        dumps({"a": object()})


PEAKS = r"""
import json
import tracemalloc

from rmq_spark.wire.bodies.fastjson import loads

shares = []
for lexeme, text, count in (("x", "x", 2_000_000), (r"\n", "\n", 1_000_000), (r"\"", '"', 1_000)):
    data = b'{1:"%s"}' % (lexeme * count).encode()
    tracemalloc.start()
    assert loads(data) == {"1": text * count}
    shares.append((tracemalloc.get_traced_memory()[1] - 100_000) / len(data))
    tracemalloc.stop()
print(json.dumps(shares))
"""


def test_tolerant_json_reader_needs_little_memory_for_long_texts():
    """Memory is measured in a process, because all threads of a process count together."""
    plain, escapes, quotes = last_line_of("-c", PEAKS, seconds=60)
    # orjson alone takes fourteen times its input.
    assert max(plain, escapes, quotes) < 20


@pytest.mark.parametrize(
    "end", ["", "\\", "\n" * 600 + "\\"], ids=["nothing", "escape", "many escapes"]
)
def test_unterminated_json_text_is_refused_at_its_start(end):
    with pytest.raises(BodyError, match="at byte 3: needed JSON"):
        loads(b'{1:"open' + end.encode())


@pytest.mark.parametrize("value", ["\ud800", {"\ud800": 1}, [{"a": {"\ud800": 1}}], {"a": 1 << 64}])
def test_json_writer_refuses_unencodable_text_and_numbers(value):
    with pytest.raises(BodyError, match="needed JSON's types, found"):
        dumps(value)


def test_json_nesting_depth_is_limited():
    value = 1
    for _ in range(1000):
        value = [value]
    with pytest.raises(BodyError, match="needed JSON's types"):
        dumps(value)


LIBERTIES = {
    "a number as a key": b'{0:"%s"}',
    "an object as a key": b'{{"a":1}:"%s"}',
    "a reference": b'{"a":{},"b":{"$ref":"$.a"},"c":"%s"}',
}


@pytest.mark.parametrize("text", LIBERTIES.values(), ids=LIBERTIES)
def test_lenient_json_over_its_size_limit_is_refused(text):
    assert loads(text % bytes(b"x" * 50), 100)
    with pytest.raises(BodyError, match="strict JSON in over 100 bytes"):
        loads(text % bytes(b"x" * 100), 100)
    assert loads(text % bytes(b"x" * 100))
    assert loads(b'{"0":"%s"}' % bytes(b"x" * 100), 100)
