"""Batches of messages in Java's bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import int32, text
from support.rocketmq import java_vectors

from rmq_spark.errors import BodyError
from rmq_spark.wire.message.message_batch import BatchedMessage, decode_batch, encode_batch

MESSAGES = [BatchedMessage(b"one", "KEYS\x01k1\x02", 9), BatchedMessage(b"", "", -1)]


def as_message(fields):
    return BatchedMessage(bytes.fromhex(fields["body"]), fields["propertiesData"], fields["flag"])


@java_vectors.each("batches")
def test_javas_batches_are_read_and_written_with_the_same_bytes(vector):
    messages = [as_message(fields) for fields in vector["messages"]]
    body = bytes.fromhex(vector["body"])
    assert decode_batch(body) == messages
    assert [message.properties for message in messages] == [
        fields["properties"] for fields in vector["messages"]
    ]
    assert encode_batch(messages) == body


@given(
    st.lists(
        st.builds(BatchedMessage, body=st.binary(max_size=30), properties_text=text, flag=int32),
        max_size=5,
    )
)
def test_message_batch_round_trip(messages):
    assert decode_batch(encode_batch(messages)) == messages


def test_message_batch_cut_short_is_refused():
    body = encode_batch(MESSAGES)
    whole = {0, len(encode_batch(MESSAGES[:1])), len(body)}
    for end in set(range(len(body))) - whole:
        with pytest.raises(BodyError, match="message batch at byte"):
            decode_batch(body[:end])


@pytest.mark.parametrize(
    ("at", "word", "message"),
    [
        (0, 21, "at byte 0: needed size 22 to 55, found 21"),
        (0, 56, "at byte 0: needed size 22 to 55, found 56"),
        (0, -1, "at byte 0: needed size 22 to 55, found -1"),
        (16, -1, "at byte 16: needed bodyLength 0 to 11, found -1"),
        (16, 12, "at byte 16: needed bodyLength 0 to 11, found 12"),
        (16, 4, "needed propertiesLength"),
    ],
)
def test_message_batch_with_wrong_lengths_names_position_and_fault(at, word, message):
    body = encode_batch(MESSAGES)
    assert len(body) == 55
    with pytest.raises(BodyError, match=message):
        decode_batch(body[:at] + struct.pack(">i", word) + body[at + 4 :])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (BatchedMessage(b"x", "p" * 32_768), "message 1: needed at most 32767 bytes of properties"),
        (BatchedMessage(b"x", "\ud800"), "message 1: needed properties in UTF-8"),
        (BatchedMessage(b"x", "", 1 << 31), "message 1: needed a 32-bit flag"),
    ],
)
def test_oversized_field_of_a_batch_message_is_named(bad, message):
    with pytest.raises(BodyError, match=message):
        encode_batch([MESSAGES[0], bad])
