import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import properties, property_names, ragged_properties, some_text

from rmq_spark.wire.chunk.property_scan import PropertyScan
from rmq_spark.wire.properties import decode_properties, encode_properties

ragged_texts = ragged_properties | st.text("ab\x01\x02\u00e9", max_size=12)
names = property_names | some_text | st.text("ab\x01\x02\u00e9", min_size=1, max_size=4)


def scan_of(texts):
    """The strings as a chunk has them: each behind its length."""
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(text) for text in encoded], np.int64)
    data = b"".join(len(text).to_bytes(2, "big") + text for text in encoded)
    starts = np.cumsum(lengths + 2) - lengths
    return PropertyScan(pa.py_buffer(data), starts, lengths)


@given(st.lists(properties.map(encode_properties) | ragged_texts, max_size=5), st.data())
def test_a_value_is_found_by_any_name(texts, data):
    maps = [decode_properties(text) for text in texts]
    known = [name for each in maps for name in each]
    name = data.draw(st.sampled_from(known) | names if known else names)
    assert scan_of(texts).values(name).to_pylist() == [each.get(name) for each in maps]


@given(st.lists(ragged_texts, max_size=5))
def test_maps_hold_what_one_string_says(texts):
    assert [dict(each) for each in scan_of(texts).maps().to_pylist()] == list(
        map(decode_properties, texts)
    )


@pytest.mark.parametrize("name", ["a", "ab", "abc", "abcd", "\u00e9"])
@pytest.mark.parametrize("end", ["", "\x02"])
def test_short_names_are_found_up_to_the_end_of_the_chunk(name, end):
    texts = [
        f"{name}\x01{end}",
        f"x{name}\x011\x02",
        f"{name}\x011{end}",
        "",
        f"b\x01{name}\x02{name}\x012{end}",
    ]
    for count in range(len(texts) + 1):
        expected = [None, None, "1", None, "2"][:count]
        assert scan_of(texts[:count]).values(name).to_pylist() == expected


@pytest.mark.parametrize("name", ["a\x01b", "a\x02b", "\x01", "\x02"])
def test_what_cannot_be_a_name_has_no_value(name):
    assert scan_of([f"{name}\x01v\x02", "a\x01b\x01c"]).values(name).to_pylist() == [None, None]
