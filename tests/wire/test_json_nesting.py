"""Nesting depth of a peer's JSON is measured before parsing, whatever its strings contain."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import BodyError, HeaderError
from rmq_spark.wire.bodies import fastjson
from rmq_spark.wire.remoting import header_json
from rmq_spark.wire.remoting.json_nesting import LEVELS_MAX, check_nesting

texts = st.text(st.sampled_from('[]{}"\\\n,:a'), max_size=12)
values = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=30,
)


def levels_of(value):
    if isinstance(value, dict):
        return 1 + max(map(levels_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(levels_of, value), default=0)
    return 0


def is_refused(text):
    try:
        check_nesting(text, "JSON body", BodyError)
    except BodyError as error:
        assert str(LEVELS_MAX) in str(error)  # refusals are expected
        return True
    return False


@given(values, st.lists(st.sampled_from("[{"), max_size=40), st.booleans())
def test_json_nested_deeper_than_any_body_is_refused(value, around, is_ascii):
    for kind in around:
        value = [value, "]]}}"] if kind == "[" else {'a"[': value, "}": "\\"}
    text = json.dumps([value, " " * 1_100], ensure_ascii=is_ascii).encode()
    assert is_refused(text) is (levels_of(value) + 1 > LEVELS_MAX)


@pytest.mark.parametrize(
    ("text", "is_deep"),
    [
        (b"[" * 1_100, True),
        (b"[" * 33 + b" " * 1_100, True),
        (b'{"a":' * 1_100, True),
        (b"{[" * 600, True),
        (b"[{" * 17 + b"}]" * 17 + b" " * 1_100, True),
        (b"{[" * 16 + b"]}" * 16 + b" " * 1_100, False),
        (b"{{" * 600 + b"}:1}" * 600, True),
        (b'["' + b"[" * 1_100 + b'"]', False),
        (b'["' + b"[" * 1_100, False),
        (b'["\\"' + b"[" * 1_100 + b'"]', False),
        (b'["\\\\"' + b"[" * 1_100, True),
        (b'["\\\\\\"' + b"[" * 1_100, False),
        (b"[]" * 1_100, False),
        (b"]" * 1_100, False),
        (b"[" * 32 + b"]" * 1_100, False),
        (b"[" * 1_024, False),
    ],
)
def test_invalid_json_is_left_to_the_parser_unless_too_deep(text, is_deep):
    assert is_refused(text) is is_deep


@pytest.mark.parametrize("size", [33, 1_100, 200_000])
@pytest.mark.parametrize(
    ("decode", "error", "before", "after"),
    [
        (header_json.decode_header, HeaderError, b'{"code":1,"extFields":', b"}"),
        (fastjson.loads, BodyError, b'{"clientID":', b"}"),
        (fastjson.loads, BodyError, b"{0:", b"}"),
    ],
)
def test_deeply_nested_json_reaches_no_parser(monkeypatch, decode, error, before, after, size):
    class Parser:
        JSONDecodeError = orjson.JSONDecodeError

        @staticmethod
        def loads(text):
            raise AssertionError(f"a text of {len(text)} bytes is parsed")

    monkeypatch.setattr(header_json, "orjson", Parser)
    monkeypatch.setattr(fastjson, "orjson", Parser)
    with pytest.raises(error, match=f"at most {LEVELS_MAX} levels"):
        decode(before + b"[" * size + b" " * 1_100 + b"]" * size + after)
