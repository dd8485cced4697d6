"""Properties of many records as columns."""

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import (
    properties,
    property_names,
    ragged_properties,
    some_text,
)

from rmq_spark.wire.chunk import properties as chunk_properties
from rmq_spark.wire.chunk.properties import MAP_TYPE, PropertyColumns, lengths_of_maps
from rmq_spark.wire.message.properties import decode_properties, encode_properties

ragged_texts = ragged_properties | st.text("ab\x01\x02\u00e9", max_size=12)
names = property_names | some_text | st.text("ab\x01\x02\u00e9", min_size=1, max_size=4)


both = pytest.mark.parametrize("long_bytes", [chunk_properties.LONG_BYTES, -1])
"""Runs a test with properties parsed piece by piece, and with maps of long strings; the results are
equal."""


def values_of(long_bytes, texts, name):
    with mock.patch.object(chunk_properties, "LONG_BYTES", long_bytes):
        return columns_of(texts).values(name).to_pylist()


def columns_of(texts):
    """Return the texts as in a chunk, each after its length."""
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(text) for text in encoded], np.int64)
    data = b"".join(len(text).to_bytes(2, "big") + text for text in encoded)
    starts = np.cumsum(lengths + 2) - lengths
    return PropertyColumns(pa.py_buffer(data), starts, lengths)


@both
@given(st.lists(properties.map(encode_properties) | ragged_texts, max_size=5), st.data())
def test_property_column_finds_values_by_any_name(long_bytes, texts, data):
    maps = [decode_properties(text) for text in texts]
    known = [name for each in maps for name in each]
    name = data.draw(st.sampled_from(known) | names if known else names)
    assert values_of(long_bytes, texts, name) == [each.get(name) for each in maps]


@given(st.lists(ragged_texts, max_size=5))
def test_property_maps_equal_the_single_string_decoder(texts):
    assert [dict(each) for each in columns_of(texts).maps().to_pylist()] == list(
        map(decode_properties, texts)
    )


@both
@pytest.mark.parametrize("name", ["a", "ab", "abc", "abcd", "\u00e9"])
@pytest.mark.parametrize("end", ["", "\x02"])
def test_property_column_finds_short_names_at_the_chunk_end(long_bytes, name, end):
    texts = [
        f"{name}\x01{end}",
        f"x{name}\x011\x02",
        f"{name}\x011{end}",
        "",
        f"b\x01{name}\x02{name}\x012{end}",
    ]
    for count in range(len(texts) + 1):
        expected = [None, None, "1", None, "2"][:count]
        assert values_of(long_bytes, texts[:count], name) == expected


@both
@pytest.mark.parametrize("name", ["a\x01b", "a\x02b", "\x01", "\x02"])
def test_impossible_property_name_has_no_value(long_bytes, name):
    assert values_of(long_bytes, [f"{name}\x01v\x02", "a\x01b\x01c"], name) == [None, None]


@given(st.lists(st.none() | properties, max_size=5), st.integers(0, 5))
def test_encoded_length_of_property_maps_is_exact(given_maps, first):
    maps = pa.array([None if each is None else list(each.items()) for each in given_maps], MAP_TYPE)
    expected = [len(encode_properties(each or {}).encode()) for each in given_maps]
    assert lengths_of_maps(maps[first:]).tolist() == expected[first:]
