import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import fits_i16, ragged_properties, stored_messages

from rmq_spark.wire.properties import decode_properties
from rmq_spark.wire.record import StoredMessage, decode_record, encode_record
from rmq_spark.wire.record_checksum import (
    CHECKSUM_BYTES,
    EMPTY_CHECKSUM,
    PROPERTY_CRC32,
    checksum_of,
    is_intact,
    seal_record,
    with_empty_checksum,
)

MESSAGE = StoredMessage("T", b"hello", "TAGS\x01A\x02")


def sealed(message):
    text = with_empty_checksum(message.properties_text)
    record = bytearray(encode_record(dataclasses.replace(message, properties_text=text)))
    seal_record(record)
    return record


def has_room(message):
    text = with_empty_checksum(message.properties_text)
    return fits_i16(dataclasses.replace(message, properties_text=text))


messages = stored_messages().filter(has_room)


@pytest.mark.parametrize(
    ("checksum", "digits"),
    [
        (0, "0000000000"),
        (1_234_567_890, "0987654321"),
        (2_147_483_647, "7463847412"),
        (907_060_870, "0780607090"),
    ],
)
def test_digits_are_in_the_order_of_javas(monkeypatch, checksum, digits):
    monkeypatch.setattr("rmq_spark.wire.record_checksum.crc32", lambda _: checksum | 1 << 31)
    record = bytearray(EMPTY_CHECKSUM.encode())
    seal_record(record)
    assert record.decode() == f"__CRC32#\x01{digits}\x02"


def test_the_checksum_is_that_of_all_before_it():
    record = bytearray(b"hello" + EMPTY_CHECKSUM.encode())
    seal_record(record)
    assert record == b"hello__CRC32#\x010780607090\x02"
    assert checksum_of(record) == 907_060_870
    assert len(EMPTY_CHECKSUM) == CHECKSUM_BYTES == 20


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("a\x011", "a\x011\x02"),
        ("a\x011\x02", "a\x011\x02"),
        ("__CRC32#\x010987654321\x02", ""),
        ("a\x011\x02__CRC32#\x010987654321\x02", "a\x011\x02"),
        ("a\x011\x02__CRC32#\x010987654321", "a\x011\x02"),
        ("__CRC32#\x010987654321\x02a\x011\x02", "a\x011\x02"),
        ("__CRC32#\x011\x02__CRC32#\x01\x02a\x011\x02__CRC32#\x0122", "a\x011\x02"),
        # Twenty characters from the end, but not a property of its own, or not the last one.
        ("x__CRC32#\x010987654321\x02", "x__CRC32#\x010987654321\x02"),
        ("a\x01__CRC32#\x010987654321\x02", "a\x01__CRC32#\x010987654321\x02"),
        ("__CRC32#\x011\x02KEYS\x01kkk\x02", "KEYS\x01kkk\x02"),
    ],
)
def test_room_for_a_checksum_takes_the_place_of_older_ones(text, kept):
    assert with_empty_checksum(text) == kept + EMPTY_CHECKSUM


_checksum_texts = st.lists(
    st.sampled_from(["__CRC32#", "__CRC32#\x01", "0987654321", "\x01", "\x02", "a\x011\x02", "x"]), max_size=8
).map("".join)


@given(ragged_properties | _checksum_texts)
def test_all_other_properties_stay_as_they_are(text):
    others = {name: value for name, value in decode_properties(text).items() if name != PROPERTY_CRC32}
    written = with_empty_checksum(text)
    assert decode_properties(written) == {**others, PROPERTY_CRC32: "0" * 10}
    assert written.count(EMPTY_CHECKSUM) >= 1
    assert with_empty_checksum(written) == written


@given(messages)
def test_a_sealed_record_is_read_as_any_other(message):
    record = sealed(message)
    read = decode_record(record)
    assert read.body == message.body
    assert int(read.properties[PROPERTY_CRC32][::-1]) == checksum_of(record)
    assert is_intact(record) is is_intact(bytes(record)) is is_intact(memoryview(record)) is True


@given(messages, st.data())
def test_any_flipped_bit_is_noticed(message, data):
    record = sealed(message)
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    assert not is_intact(record)


def test_every_single_bit_of_a_record_is_watched():
    record = sealed(MESSAGE)
    head_at = len(record) - CHECKSUM_BYTES
    for at in range(len(record)):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[at] ^= 1 << bit
            # What says that there is a checksum is all that can be damaged so that there is none.
            assert is_intact(damaged) is (None if head_at - 1 <= at < head_at + 9 else False)


@pytest.mark.parametrize("digits", [b"098765432x", b"          ", b"+123456789", b"\xff" * 10, b"0" * 10])
def test_digits_that_are_none_match_nothing(digits):
    record = sealed(MESSAGE)
    record[-11:-1] = digits
    assert is_intact(record) is False


@pytest.mark.parametrize(
    "text", ["", "a\x011\x02", "x__CRC32#\x010987654321\x02", "a\x01__CRC32#\x010987654321\x02"]
)
def test_a_record_without_a_checksum_says_nothing(text):
    assert is_intact(encode_record(dataclasses.replace(MESSAGE, properties_text=text))) is None


def test_a_record_cut_short_is_not_intact():
    record = sealed(MESSAGE)
    assert not any(is_intact(record[:end]) for end in range(len(record)))
