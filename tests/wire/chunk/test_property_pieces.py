"""Short property strings parsed piece by piece match full property maps."""

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.chunk import properties as chunk_properties
from rmq_spark.wire.chunk.properties import (
    LONG_BYTES,
    PropertyColumns,
    PropertyPieces,
)

NAMES = ["KEYS", "TAGS", "UNIQ_KEY", "K", "KEYS\x02K", "a-name-of-one-s-own", "\u00e9"]
# Names and values whose lengths cross the ends of words and windows.
_pieces = st.tuples(
    st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "K", "KEYSX", "UNIQ_KEX", "a-name-of-one-s-own"]),
    st.sampled_from(["\x01", "\x01", "\x01", "\x01\x01", ""]),
    st.sampled_from([0, 1, 2, 7, 8, 9, 30, 55, 63, 64, 65, 130, 250]).map("v".__mul__)
    | st.sampled_from(["KEYS", "\x03\x03", "\u00e9"]),
).map("".join)
_ends = st.sampled_from(["", "\x02", "\x02", "\x02\x02"])
strings = st.lists(_pieces | st.just(""), max_size=6).flatmap(
    lambda pieces: _ends.map(lambda end: ("\x02".join(pieces) + end).encode())
) | st.binary(max_size=300)


def placed(texts, before=b"\x02", behind=b""):
    """Return the texts in one buffer, with these bytes before and after each."""
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum(lengths + len(before)) - lengths
    data = b"".join(before + text for text in texts) + behind
    return pa.py_buffer(data), starts, lengths


@given(
    st.lists(strings, max_size=6),
    st.sampled_from([b"\x02", b"\x00\x07", b"KEYS\x01", b"x" * 70]),
    st.sampled_from([b"", b"\x02", b"\x01v\x02", b"x" * 80]),
    st.integers(1, 3),
)
def test_property_pieces_equal_the_values_of_property_maps(texts, before, behind, times):
    where = placed(texts * times, before, behind)
    for name in NAMES:
        with mock.patch.object(chunk_properties, "LONG_BYTES", -1):
            expected = PropertyColumns(*where).values(name)
        found = PropertyColumns(*where).values(name)
        found.validate(full=True)
        assert found.equals(expected), name


KEYS_AND_TAGS = {
    "keys first": (b"KEYS\x01k\x02TAGS\x01t\x02", "k", "t"),
    "tags first": (b"TAGS\x01t\x02KEYS\x01k\x02", "k", "t"),
    "between others": (b"a\x011\x02KEYS\x01k\x02b\x012\x02TAGS\x01t\x02c\x013", "k", "t"),
    "keys alone": (b"KEYS\x01k\x02", "k", None),
    "tags alone, unended": (b"TAGS\x01t", None, "t"),
    "nothing": (b"", None, None),
    "separators only": (b"\x02\x02\x01\x02", None, None),
    "empty values": (b"KEYS\x01\x02TAGS\x01", None, None),
    "the last counts": (b"KEYS\x01old\x02TAGS\x01t\x02KEYS\x01k\x02", "k", "t"),
    "an empty one does not": (b"KEYS\x01k\x02TAGS\x01t\x02KEYS\x01\x02TAGS\x01", "k", "t"),
    "names within values": (b"a\x01KEYS\x01x\x02KEYS\x01k\x02b\x01TAGS\x01t", "k", None),
    "half a name": (b"KEYS\x02TAGS", None, None),
    "beyond a window": (b"a\x01" + b"v" * 70 + b"\x02KEYS\x01k\x02TAGS\x01t\x02", "k", "t"),
    "over a window's end": (b"a\x01" + b"v" * 59 + b"\x02KEYS\x01k\x02TAGS\x01t\x02", "k", "t"),
    "too long for the pieces": (b"a\x01" + b"v" * 2100 + b"\x02KEYS\x01k\x02TAGS\x01t", "k", "t"),
}


@pytest.mark.parametrize("kind", KEYS_AND_TAGS)
def test_property_pieces_find_keys_and_tags_in_any_order(kind):
    text, key, tag = KEYS_AND_TAGS[kind]
    columns = PropertyColumns(*placed([text] * 3))
    assert columns.values("KEYS").to_pylist() == [key] * 3
    assert columns.values("TAGS").to_pylist() == [tag] * 3


def test_property_pieces_of_all_kinds_of_rows_in_one_chunk():
    texts, keys, tags = zip(*list(KEYS_AND_TAGS.values()) * 40, strict=True)
    columns = PropertyColumns(*placed(texts))
    assert columns.values("KEYS").to_pylist() == list(keys)
    assert columns.values("TAGS").to_pylist() == list(tags)


def test_absent_property_is_found_in_no_row():
    buffer, starts, lengths = placed([b"KEYS\x01k\x02", b""])
    pieces = PropertyPieces(np.frombuffer(buffer, np.uint8), starts, lengths)
    assert pieces.find(b"TAGS\x01") is None
    assert not PropertyColumns(buffer, starts, lengths).has_any("TAGS")


@pytest.mark.parametrize("kind", KEYS_AND_TAGS)
def test_property_that_one_message_has_is_found(kind):
    text, key, tag = KEYS_AND_TAGS[kind]
    columns = PropertyColumns(*placed([b"", text, b"other\x01v\x02"]))
    assert columns.has_any("KEYS") is (key is not None)
    assert columns.has_any("TAGS") is (tag is not None)


def test_long_property_string_of_separators_has_no_values():
    texts = [b"\x02" * LONG_BYTES, b"KEYS\x01k"]
    assert PropertyColumns(*placed(texts)).values("KEYS").to_pylist() == [None, "k"]
