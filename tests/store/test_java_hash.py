"""Hashes of columns equal the hashes of single strings, which are verified against Java."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.message.properties import java_string_hash
from rocketpoll.broker.store.bulk.index_hash import index_hash
from rocketpoll.broker.store.bulk.java_hash import (
    hash_index_keys,
    hash_texts,
    hash_words,
    index_hashes,
    keys_before,
)

ascii_text = st.text(st.characters(max_codepoint=127), max_size=40)
any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
wordy_text = st.lists(
    st.sampled_from(["", " ", "a", "Aa", "BB", "\u00e9", "\U0001f600", "key-1"]), max_size=8
)
texts = ascii_text | any_text | wordy_text.map(" ".join) | wordy_text.map("".join)
columns = st.lists(st.none() | texts, max_size=20)


def column_of(values, cut=0):
    """Return a column that starts ``cut`` elements into its buffers."""
    return pa.array([*["x \u00e9"] * cut, *values], pa.string())[cut:]


def signed(hashes):
    return hashes.values.astype("int32").tolist()


@given(columns, st.integers(0, 2))
def test_column_hashes_equal_single_text_hashes(values, cut):
    assert signed(hash_texts(column_of(values, cut))) == [
        java_string_hash(text or "") for text in values
    ]


@given(texts, columns)
def test_column_hashes_continue_from_a_prefix_hash(before, values):
    before_hash = hash_texts(column_of([before] * len(values))).values
    joined = hash_texts(column_of(values)).with_prefixes(before_hash).astype("int32").tolist()
    assert joined == [java_string_hash(before + (text or "")) for text in values]


@given(columns, st.integers(0, 2))
def test_key_words_are_separated_by_single_spaces_and_never_empty(values, cut):
    rows, hashes = hash_words(column_of(values, cut))
    words = [
        (row, word) for row, text in enumerate(values) for word in (text or "").split(" ") if word
    ]
    assert rows.tolist() == [row for row, _ in words]
    assert signed(hashes) == [java_string_hash(word) for _, word in words]


@given(st.lists(st.tuples(texts, st.none() | texts, st.none() | texts), max_size=12))
def test_index_keys_of_a_message_are_its_unique_key_and_each_word_of_its_keys(messages):
    topics, unique_keys, keys = ([each[part] for each in messages] for part in range(3))
    rows, hashes = hash_index_keys(column_of(topics), column_of(unique_keys), column_of(keys))
    expected = []
    for row, (topic, unique_key, words) in enumerate(messages):
        own = [] if unique_key is None else [unique_key]
        own += [word for word in (words or "").split(" ") if word]
        expected += [(row, index_hash(f"{topic}#{key}")) for key in own]
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == expected


@given(texts, st.lists(st.tuples(st.none() | texts, st.none() | texts), max_size=12))
def test_index_key_hashes_of_one_topic_equal_those_of_a_topic_column(topic, messages):
    columns = [column_of([each[part] for each in messages]) for part in range(2)]
    of_each = hash_index_keys(column_of([topic] * len(messages)), *columns)
    for found, expected in zip(hash_index_keys(topic, *columns), of_each, strict=True):
        assert found.tolist() == expected.tolist()


def test_null_key_column_values_are_skipped_even_with_hidden_text():
    offsets = pa.py_buffer(b"".join(at.to_bytes(4, "little") for at in (0, 3, 6, 9)))
    hiding = pa.StringArray.from_buffers(
        3, offsets, pa.py_buffer(b"a bc def" + b"g"), pa.py_buffer(b"\x05")
    )
    assert hiding.to_pylist() == ["a b", None, "efg"]
    rows, hashes = hash_words(hiding)
    assert rows.tolist() == [0, 0, 2]
    assert signed(hashes) == [java_string_hash(word) for word in ("a", "b", "efg")]
    rows, _ = hash_index_keys(hiding, hiding, pa.nulls(3, pa.string()))
    assert rows.tolist() == [0, 2]


def test_column_hashes_of_long_columns_equal_those_of_short_ones():
    values = ["x" * 100_000, "y" * 70_000 + " z", "order-1"]
    assert signed(hash_texts(column_of(values))) == [java_string_hash(text) for text in values]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("Aa", 2112),
        ("BB", 2112),
        ("TopicTest#key", abs(java_string_hash("TopicTest#key"))),
        ("polygenelubricants", 0),  # its hash is the only integer without an absolute value
    ],
)
def test_index_hash_is_absolute_as_in_java(text, expected):
    assert index_hash(text) == expected
    assert index_hashes(hash_texts(column_of([text])).values).tolist() == [expected]


def test_key_count_includes_words_and_unique_keys():
    unique_keys = pa.array([None, "u", "u", "u"], pa.string())
    keys = pa.array(["a b", "c d", None, "e f g"])
    assert keys_before(unique_keys, keys).tolist() == [0, 2, 5, 6, 10]
    assert keys_before(unique_keys[2:], keys[2:]).tolist() == [0, 1, 5]
