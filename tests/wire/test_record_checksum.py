"""Checksums of records."""

import dataclasses
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.stored_messages import sealed
from support.messages.wire_strategies import (
    fits_i16,
    odd_properties,
    ragged_properties,
    stored_messages,
)

from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.message.record import StoredMessage, decode_record, encode_record
from rmq_spark.wire.message.record_layout import (
    CHECKSUM_BYTES,
    EMPTY_CHECKSUM,
    encode_checksum,
    has_valid_checksum,
    with_empty_checksum,
    without_checksum,
)

MESSAGE = StoredMessage("T", b"hello", "TAGS\x01A\x02")
CRCS = [0, 1, 0x0123ABCD, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
PIECES = b"0\x021\x022\x023\x02a\x02b\x02c\x02d\x02"


def roomy(message):
    return dataclasses.replace(
        message, properties_text=with_empty_checksum(message.properties_text)
    )


messages = stored_messages().filter(lambda message: fits_i16(roomy(message)))


def test_record_checksum_is_eight_digits_each_its_own_property_piece():
    assert encode_checksum(0x0123ABCD) == PIECES
    assert EMPTY_CHECKSUM == b"0\x02" * 8
    assert len(EMPTY_CHECKSUM) == CHECKSUM_BYTES == 16


@pytest.mark.parametrize("crc", CRCS)
def test_encoded_checksum_has_hexadecimal_digits(crc):
    assert bytes(encode_checksum(crc)[::2]) == b"%08x" % crc


def test_record_checksum_covers_all_before_it():
    record = b"hello" + encode_checksum(crc32(b"hello"))
    assert has_valid_checksum(record)
    assert not has_valid_checksum(b"hello" + EMPTY_CHECKSUM)
    assert not has_valid_checksum(b"hallo" + record[5:])


@pytest.mark.parametrize(
    ("text", "ready"),
    [
        ("", ""),
        ("a\x011", "a\x011\x02"),
        ("a\x011\x02", "a\x011\x02"),
        ("odd", "odd\x02"),
        ("__CRC32#\x010987654321\x02", "__CRC32#\x010987654321\x02"),
    ],
)
def test_empty_checksum_is_appended_after_the_last_separator(text, ready):
    assert with_empty_checksum(text) == ready + EMPTY_CHECKSUM.decode()


@given(odd_properties | ragged_properties, st.sampled_from(CRCS))
def test_checksum_leaves_properties_unchanged(text, crc):
    roomy_text = with_empty_checksum(text).encode()
    written = roomy_text[:-CHECKSUM_BYTES] + encode_checksum(crc)
    assert without_checksum(written).decode() in (text, text + "\x02")
    assert decode_properties(written.decode()) == decode_properties(text)


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"a\x011\x02",
        PIECES[2:],  # seven
        b"x" + PIECES,  # the first has two characters
        b"a\x01" + PIECES,
        PIECES[:-1],
        PIECES + b"\x02",
        PIECES + b"a\x011\x02",
    ],
)
def test_properties_without_a_checksum_stay_as_they_are(properties):
    assert without_checksum(properties) == properties


@pytest.mark.parametrize("before", [b"", b"a\x011\x02", PIECES, b"\x02"])
def test_removing_a_checksum_property_removes_one_only(before):
    assert without_checksum(before + PIECES) == before


@given(messages)
def test_sealed_record_is_valid_and_decodes_as_any_other(message):
    record = sealed(message)
    assert (
        has_valid_checksum(record)
        is has_valid_checksum(bytearray(record))
        is has_valid_checksum(memoryview(record))
    )
    assert has_valid_checksum(record)
    read = decode_record(record)
    text = message.properties_text
    assert read.properties_text in (text, text + "\x02")
    assert dataclasses.replace(read, properties_text=text) == decode_record(encode_record(message))


@given(odd_properties)
def test_client_properties_survive_the_checksum(text):
    read = decode_record(sealed(dataclasses.replace(MESSAGE, properties_text=text)))
    assert read.properties_text in (text, text + "\x02")
    assert read.properties == decode_properties(text)


@given(messages, st.data())
def test_any_flipped_bit_is_detected(message, data):
    record = bytearray(sealed(message))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    assert not has_valid_checksum(record)


def test_record_checksum_detects_any_flipped_bit():
    record = sealed(MESSAGE)
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not has_valid_checksum(damaged)


@given(odd_properties)
def test_record_without_checksum_is_not_intact(text):
    assert not has_valid_checksum(encode_record(dataclasses.replace(MESSAGE, properties_text=text)))


def test_checksum_digits_in_upper_case_are_invalid():
    records = (sealed(dataclasses.replace(MESSAGE, flag=flag)) for flag in range(100))
    record = next(each for each in records if each[-16:].upper() != each[-16:])
    assert not has_valid_checksum(record[:-16] + record[-16:].upper())


def test_sealed_record_cut_short_is_not_valid():
    record = sealed(MESSAGE)
    assert not any(has_valid_checksum(record[:end]) for end in range(len(record)))
