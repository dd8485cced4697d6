"""Bulk checksums equal those computed one by one."""

import dataclasses
from random import Random
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.stored_messages import sealed
from support.messages.wire_strategies import fits_i16, stored_messages

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk import COLUMNS, RecordChunk
from rmq_spark.wire.chunk.checksums import intact_records, with_empty_checksums, write_checksums
from rmq_spark.wire.chunk.crc import combine_crcs, crcs_of_strings
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.message.properties import decode_properties, encode_properties
from rmq_spark.wire.message.record import StoredMessage, decode_records, encode_record
from rmq_spark.wire.message.record_layout import (
    CHECKSUM_BYTES,
    EMPTY_CHECKSUM,
    has_valid_checksum,
    with_empty_checksum,
    without_checksum,
)


def ended(message):
    """Return the message with its properties as we write them: each with a separator."""
    text = encode_properties(decode_properties(message.properties_text))
    return dataclasses.replace(message, properties_text=text)


def with_room(message):
    text = with_empty_checksum(message.properties_text)
    return dataclasses.replace(message, properties_text=text)


def sealed_chunk(messages):
    chunk = with_empty_checksums(RecordChunk(b"".join(map(encode_record, messages))))
    write_checksums(chunk)
    return chunk


def one_at_a_time(records):
    """Return the expected result of `intact_records`."""
    return [has_valid_checksum(record) for record in records]


def by_the_chunk(records):
    return intact_records(RecordChunk(b"".join(records))).tolist()


many = st.lists(
    stored_messages().map(ended).filter(lambda message: fits_i16(with_room(message))), max_size=6
)

A_MESSAGE = StoredMessage("T", b"hello", "TAGS\x01A\x02")
EVERY_SHAPE = [
    A_MESSAGE,
    dataclasses.replace(A_MESSAGE, properties_text=""),
    dataclasses.replace(A_MESSAGE, topic="t" * 300, magic=layout.MAGIC_V2),
    dataclasses.replace(A_MESSAGE, born_host=Host(bytes(16), 1), sys_flag=0x10),
    dataclasses.replace(A_MESSAGE, store_host=Host(bytes(16), 1), sys_flag=0x20, body=b""),
]


@given(many)
def test_empty_checksums_of_a_chunk_equal_those_of_its_messages(messages):
    data = b"".join(map(encode_record, messages))
    chunk = with_empty_checksums(RecordChunk(data))
    records = [encode_record(with_room(message)) for message in messages]
    assert chunk.data.tobytes() == b"".join(records)
    assert chunk.sizes.tolist() == [len(record) for record in records]


@given(many)
def test_chunk_checksums_equal_those_of_single_messages(messages):
    chunk = sealed_chunk(messages)
    assert chunk.data.tobytes() == b"".join(map(sealed, messages))
    assert intact_records(chunk).all()
    assert chunk.has_checksum.all()


@given(many, st.data())
def test_chunk_checksum_check_agrees_with_single_records(messages, data):
    is_sealed = data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages)))
    records = [
        sealed(message) if seal else encode_record(message)
        for message, seal in zip(messages, is_sealed, strict=True)
    ]
    assert by_the_chunk(records) == is_sealed == one_at_a_time(records)


@given(st.sampled_from(EVERY_SHAPE), st.data())
def test_chunk_checksums_detect_any_flipped_bit_in_its_record(message, data):
    record = bytearray(sealed(message))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    other = sealed(A_MESSAGE)
    records = [other, bytes(record), other]
    try:
        intact = by_the_chunk(records)
    except RecordError:
        return  # it is no record any more
    assert intact == [True, False, True] == one_at_a_time(records)


def test_records_of_every_shape_go_into_one_chunk():
    chunk = sealed_chunk(EVERY_SHAPE)
    assert chunk.data.tobytes() == b"".join(map(sealed, EVERY_SHAPE))
    read = [message.properties_text for message in decode_records(chunk.data.data)]
    assert read == [each.properties_text for each in EVERY_SHAPE]


PIECES = [b"7\x02" * 7, b"7\x02" * 8, b"a\x011\x02", b"x7\x02", b"x", b"7", b"\x02", b"\x01"]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join), max_size=8))
def test_has_checksum_agrees_with_single_records(properties):
    texts = [each.decode() for each in properties]
    records = [
        encode_record(dataclasses.replace(A_MESSAGE, properties_text=text)) for text in texts
    ]
    expected = [without_checksum(each) != each for each in properties]
    assert RecordChunk(b"".join(records)).has_checksum.tolist() == expected


@given(many)
def test_checksum_property_is_in_no_column(messages):
    plain = RecordChunk(b"".join(map(encode_record, messages)))
    sealed = sealed_chunk(messages)
    for name, column in COLUMNS.items():
        assert column.build(sealed).equals(column.build(plain)), name


def test_empty_chunk_has_no_checksums():
    chunk = with_empty_checksums(RecordChunk(b""))
    assert len(chunk) == 0
    write_checksums(chunk)
    assert len(intact_records(chunk)) == 0


def test_records_with_checksum_space_are_not_copied():
    roomy = [with_room(each) for each in EVERY_SHAPE]
    chunk = RecordChunk(bytearray(b"".join(map(encode_record, roomy))))
    assert with_empty_checksums(chunk) is chunk
    write_checksums(chunk)
    assert chunk.data.tobytes() == b"".join(map(sealed, EVERY_SHAPE))
    mixed = RecordChunk(encode_record(roomy[0]) + encode_record(A_MESSAGE))
    assert len(with_empty_checksums(mixed).data) == len(mixed.data) + 2 * len(EMPTY_CHECKSUM)


def test_part_of_a_chunk_can_get_its_checksums():
    chunk = with_empty_checksums(RecordChunk(b"".join(map(encode_record, EVERY_SHAPE))))
    write_checksums(chunk, 1, 3)
    assert intact_records(chunk).tolist() == [False, True, True, False, False]
    write_checksums(chunk, 3)
    write_checksums(chunk, 0, 1)
    assert intact_records(chunk).all()


def test_checksum_covers_offsets_that_were_filled_in():
    chunk = with_empty_checksums(RecordChunk(b"".join(map(encode_record, EVERY_SHAPE))))
    for start in chunk.starts.tolist():
        chunk.data[start + layout.QUEUE_OFFSET_AT : start + layout.PHYSICAL_OFFSET_AT + 8] = (
            start % 251
        )
    write_checksums(chunk)
    assert intact_records(chunk).all()


def test_empty_checksums_are_added_to_a_copy_of_the_chunk():
    data = bytearray(encode_record(A_MESSAGE) * 2)
    before = bytes(data)
    chunk = with_empty_checksums(RecordChunk(data))
    write_checksums(chunk)
    assert data == before


def test_records_that_come_with_checksums_from_elsewhere_get_their_own_in_the_same_place():
    moved = bytearray(b"".join(map(sealed, EVERY_SHAPE)))
    chunk = RecordChunk(moved)
    chunk.data[chunk.starts + layout.QUEUE_OFFSET_AT] ^= 1
    assert not intact_records(chunk).any()
    assert with_empty_checksums(chunk) is chunk
    write_checksums(chunk)
    assert intact_records(chunk).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TAGS\x01A", r"needed properties that end with byte 2 \(record 1\), found 65"),
        (
            "a\x01" + "v" * 32_749 + "\x02",
            r"needed propertiesLength 0 to 32751 \(record 1\), found 32752",
        ),
    ],
)
def test_checksums_of_records_without_room_are_refused(text, message):
    first = encode_record(A_MESSAGE)
    second = encode_record(dataclasses.replace(A_MESSAGE, properties_text=text))
    with pytest.raises(RecordError, match=f"chunk at byte {len(first)}: {message}"):
        with_empty_checksums(RecordChunk(first + second))


def test_chunk_too_large_for_checksums_is_refused(monkeypatch):
    chunk = RecordChunk(encode_record(A_MESSAGE) * 2)
    size = len(chunk.data) + 2 * CHECKSUM_BYTES
    monkeypatch.setattr("rmq_spark.wire.chunk.checksums.BUFFER_BYTES_MAX", size)
    assert len(with_empty_checksums(chunk).data) == size
    monkeypatch.setattr("rmq_spark.wire.chunk.checksums.BUFFER_BYTES_MAX", size - 1)
    with pytest.raises(
        RecordError, match=f"chunk at its end: needed at most {size - 1} bytes .*found {size}"
    ):
        with_empty_checksums(chunk)


def test_sealing_changes_only_the_checksums():
    chunk = with_empty_checksums(RecordChunk(b"".join(map(encode_record, EVERY_SHAPE))))
    before = chunk.data.copy()
    write_checksums(chunk)
    changed = np.flatnonzero(before != chunk.data)
    digits = (chunk.ends[:, None] + np.arange(-CHECKSUM_BYTES, 0, 2)).ravel()
    assert np.isin(changed, digits).all()


# ---- CRCs of many strings, and those combined from parts, equal zlib's CRC of the whole


@given(st.binary(max_size=40), st.binary(max_size=300))
def test_crc_of_two_parts_is_combined_from_crcs_and_second_length(first, second):
    assert combine_crcs(crc32(first), crc32(second), len(second)) == crc32(first + second)


@pytest.mark.parametrize("length", [0, 1, 7, 100, 65_535, 65_536, 4_194_304])
def test_combined_crcs_of_parts_of_any_length_equal_zlib(length):
    second = b"x" * length
    assert combine_crcs(crc32(b"head"), crc32(second), length) == crc32(b"head" + second)
    assert combine_crcs(0, crc32(second), length) == crc32(second)


def of_strings(texts):
    """Return the CRCs of these strings, which are in one buffer with a byte before and
    after each."""
    data = b"|" + b"|".join(texts)
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = 1 + np.cumsum(lengths + 1) - (lengths + 1)
    return crcs_of_strings(np.frombuffer(data, np.uint8), starts, lengths).tolist()


@given(st.lists(st.binary(max_size=60), max_size=12))
def test_crcs_of_strings_of_any_lengths_equal_zlib(texts):
    assert of_strings(texts) == [crc32(text) for text in texts]


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513])
@pytest.mark.parametrize("width", [1, 100, 479, 480])
def test_crcs_of_strings_of_one_length_equal_zlib(count, width):
    random = Random(count * width)
    texts = [random.randbytes(width) for _ in range(count)]
    assert of_strings(texts) == [crc32(text) for text in texts]


@pytest.mark.parametrize("count", [1, 2, 600])
@pytest.mark.parametrize("distances", [(0,), (1,), (8,), (0, 5), (8, 7, 9)])
def test_crcs_of_strings_of_one_length_at_any_distance_equal_zlib(count, distances):
    data = Random(count).randbytes(count * 50)
    gaps = np.resize(np.array(distances, np.int64), count)
    starts = np.cumsum(gaps + 30) - 30 - gaps[0] + 7
    found = crcs_of_strings(np.frombuffer(data, np.uint8), starts, np.full(count, 30))
    assert found.tolist() == [crc32(data[at : at + 30]) for at in starts.tolist()]
