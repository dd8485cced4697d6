"""Hashes of index keys."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.message.properties import java_string_hash
from rocketpoll.broker.store.bulk.index_hash import hash_keys, index_hash
from rocketpoll.broker.store.bulk.java_hash import hash_index_keys

texts = st.text(st.sampled_from("ab #é😀"), max_size=8)


def test_index_hash_is_never_negative():
    assert java_string_hash("polygenelubricants") == -(1 << 31)
    assert index_hash("polygenelubricants") == 0
    assert java_string_hash("order-1") < 0
    assert index_hash("order-1") == -java_string_hash("order-1")
    assert index_hash("b") == 98


@given(texts, st.none() | texts, st.none() | texts)
def test_single_message_hashes_equal_bulk_hashes(topic, unique_key, keys):
    columns = (pa.array([text], pa.string()) for text in (topic, unique_key, keys))
    assert hash_keys(topic, unique_key, keys) == hash_index_keys(*columns)[1].tolist()
