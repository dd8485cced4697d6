"""SQL filters match messages by their properties, one by one or in bulk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import ragged_properties
from support.stores.small_store import message

from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rocketpoll.broker.filter.sql_filter import SqlFilter
from rocketpoll.broker.filter.sql_parser import compile_sql

FEW, MANY = 5, 500


def chunk_of(messages):
    return RecordChunk(b"".join(map(encode_record, messages)))


@pytest.mark.parametrize("count", [0, 1, FEW, MANY])
def test_sql_filter_matches_few_and_many_messages_alike(count):
    wanted = SqlFilter(compile_sql("number > 2 AND TAGS = 'TagA'"))
    tags = ["TagA", "TagB", None]
    messages = [message("x", tags=tags[number % 3], number=str(number)) for number in range(count)]
    expected = [number > 2 and number % 3 == 0 for number in range(count)]
    assert wanted.by_messages(chunk_of(messages)).tolist() == expected


@given(
    st.lists(ragged_properties, min_size=1, max_size=6),
    st.sampled_from(["KEYS IS NULL", "K = 'KEYS'", "TAGS > KEYS"]),
)
def test_sql_filter_parses_ragged_properties_alike_for_few_and_many_messages(texts, sql):
    wanted = SqlFilter(compile_sql(sql))
    messages = [StoredMessage("T", b"x", text) for text in texts]
    expected = [wanted.expression.evaluate(decode_properties(text)) for text in texts]
    assert wanted.by_messages(chunk_of(messages)).tolist() == expected
    many = wanted.by_messages(chunk_of(messages * 100)).tolist()
    assert many == expected * 100


def test_sql_filter_skips_properties_that_are_not_utf_8():
    broken = bytearray(encode_record(message("x", a="5~")))
    broken[broken.index(b"5~") + 1] = 0xFF
    data = (bytes(broken) + encode_record(message("x", a="5"))) * 100
    wanted = SqlFilter(compile_sql("a = '5' OR a = '5\ufffd'"))
    assert wanted.by_messages(RecordChunk(data)).all()
    assert wanted.by_messages(RecordChunk(data[: len(data) // 100])).all()


def test_sql_filter_ignores_tags_codes():
    wanted = SqlFilter(compile_sql("a = 5"))
    assert wanted.by_tags_code(np.array([1, 2], np.int64)).tolist() == [True, True]
    assert wanted.matches_code(7)
    assert wanted.needs_messages
