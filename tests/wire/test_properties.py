"""Properties as strings."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import properties, property_names, property_values
from support.rocketmq import java_vectors

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.properties import (
    RESERVED_NAMES,
    change_properties,
    decode_properties,
    encode_properties,
    java_string_hash,
    tags_code,
)


def is_writable(vector):
    entries = vector.get("entries")
    return entries is not None and all(
        name and value and "\x01" not in name and "\x02" not in name + value
        for name, value in entries
    )


@java_vectors.each("properties", where=lambda vector: "text" in vector)
def test_property_strings_are_parsed_as_in_java(vector):
    assert decode_properties(vector["text"]) == vector["properties"]


@java_vectors.each("properties", where=is_writable)
def test_property_strings_are_encoded_as_by_rocketmq_5(vector):
    theirs = vector["encoded"]
    ends = "" if not theirs or theirs.endswith("\x02") else "\x02"  # 4.9 omits the last separator
    assert encode_properties(dict(vector["entries"])) == theirs + ends


@given(properties)
def test_property_strings_round_trip(values):
    text = encode_properties(values)
    assert decode_properties(text) == values
    assert decode_properties(text.removesuffix("\x02")) == values


@given(properties, properties)
def test_property_strings_can_be_joined(first, second):
    assert decode_properties(encode_properties(first) + encode_properties(second)) == {
        **first,
        **second,
    }


@pytest.mark.parametrize("name", ["", "a\x01b", "a\x02"])
def test_property_names_that_would_parse_differently_are_refused(name):
    with pytest.raises(RecordError, match="message property at a name"):
        encode_properties({name: "v"})


@pytest.mark.parametrize("value", ["", "a\x02b"])
def test_property_values_that_would_be_lost_or_truncated_are_refused(value):
    with pytest.raises(
        RecordError, match=r"message property at colour: needed a value, without \\x02"
    ):
        encode_properties({"colour": value})


def test_reserved_names_are_those_with_a_meaning():
    assert {"KEYS", "TAGS", "UNIQ_KEY", "__CRC32#", "1ST_POP_TIME"} <= RESERVED_NAMES
    assert "colour" not in RESERVED_NAMES


@given(properties, st.dictionaries(property_names, st.none() | property_values, max_size=4))
def test_changed_property_strings_equal_those_of_a_changed_dict(before, changes):
    expected = {name: value for name, value in {**before, **changes}.items() if value is not None}
    found = decode_properties(change_properties(encode_properties(before), changes))
    assert found == expected
    assert [name for name in found if name not in changes] == [
        name for name in before if name not in changes
    ]


# ---- tag codes


@java_vectors.each("ids", where=lambda vector: vector["kind"] == "hash")
def test_java_string_hash_equals_javas(vector):
    assert java_string_hash(vector["text"]) == vector["hash"]


@pytest.mark.parametrize(
    ("text", "code"),
    [("TagA", 2598919), ("中文", 646394), ("😀", 1772899), ("polygenelubricants", -(1 << 31))],
)
def test_tags_code_examples(text, code):
    assert tags_code(text) == code


def test_tags_code_without_tags_is_zero():
    assert tags_code(None) == tags_code("") == 0


def test_different_tags_can_share_a_code():
    assert tags_code("AaAa") == tags_code("BBBB")


def test_java_string_hash_of_a_lone_surrogate():
    assert java_string_hash("\ud800") == 0xD800


def test_long_property_strings_are_not_cached():
    text = "x" * 50_000
    references = sys.getrefcount(text)
    java_string_hash(text)
    assert sys.getrefcount(text) == references
