"""Received chunks are merged and checked record by record."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.errors import ConnectionClosed
from rmq_spark.client.reading.bulk_pull import RawChunk
from rmq_spark.client.reading.readable_chunks import (
    BATCH_BYTES_MIN,
    merge_chunks,
    missing_ranges,
    readable_chunks,
)
from rmq_spark.wire.message.record import StoredMessage, body_crc_of, encode_record
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.mark.parametrize("has_sizes", [True, False])
def test_small_pull_chunks_are_merged(has_sizes):
    size = BATCH_BYTES_MIN // 5 * 2
    answers = [
        RawChunk(memoryview(bytes([n]) * size), np.array([size]) if has_sizes else None, n)
        for n in range(4)
    ]
    first, last = merge_chunks(answers)
    assert first.records == b"".join(answer.records for answer in answers[:3])
    assert (first.next_offset, last) == (2, answers[3])
    assert first.sizes.tolist() == [size] * 3 if has_sizes else first.sizes is None


def test_large_pull_chunk_is_not_copied_when_merged():
    answer = RawChunk(memoryview(bytes(BATCH_BYTES_MIN)), None, 1)
    assert next(merge_chunks([answer])).records is answer.records


def test_large_pull_chunk_after_small_ones_is_not_merged_with_them():
    small = [RawChunk(b"ab", None, 1), RawChunk(b"cd", None, 2)]
    large = RawChunk(memoryview(bytes(BATCH_BYTES_MIN)), None, 3)
    assert list(merge_chunks([*small, large])) == [RawChunk(b"abcd", None, 2), large]


def test_merge_chunks_yields_received_chunks_before_an_error():
    def answers():
        yield RawChunk(b"ab", None, 1)
        yield RawChunk(b"cd", None, 2)
        raise ConnectionClosed("127.0.0.1:1", "gone")

    given = merge_chunks(answers())
    assert next(given) == RawChunk(b"abcd", None, 2)
    with pytest.raises(ConnectionClosed):
        next(given)


def record(queue_offset, magic=None, queue_id=0, topic="T"):
    message = StoredMessage(topic, b"x", queue_id=queue_id, queue_offset=queue_offset)
    data = bytearray(encode_record(message))
    if magic is not None:
        data[4:8] = magic
    return bytes(data)


@pytest.mark.parametrize(("is_filtered", "expected"), [(False, 8), (True, 9)])
def test_unreadable_record_ends_a_chunk_and_gives_its_offset(is_filtered, expected):
    """With a filter, the offset comes from the record itself."""
    data = record(7) + record(9, magic=b"none") + record(10)
    [chunk] = readable_chunks([RawChunk(data, None, 11)], QUEUE, 7, is_filtered=is_filtered)
    assert chunk.records.head["queue_offset"].tolist() == [7]
    assert chunk.next_offset == expected
    assert "magic" in str(chunk.fault)
    assert chunk.recorded_crc == body_crc_of(b"x")


def test_truncated_record_head_gives_no_stated_crc():
    [chunk] = readable_chunks([RawChunk(record(7) + bytes(9), None, 9)], QUEUE, 7, is_filtered=True)
    assert (len(chunk.records), chunk.next_offset, chunk.recorded_crc) == (1, 8, None)


def test_records_that_can_all_be_read_have_no_fault():
    data = record(0) + record(1)
    [chunk] = readable_chunks([RawChunk(data, None, 2)], QUEUE, 0, is_filtered=False)
    assert (len(chunk.records), chunk.next_offset, chunk.fault) == (2, 2, None)


@pytest.mark.parametrize("has_sizes", [True, False])
@pytest.mark.parametrize("is_filtered", [True, False])
@pytest.mark.parametrize(
    ("offsets", "next_offset", "right"),
    [
        ([7, 8, 8, 9], 10, 2),  # repeated
        ([7, 9, 8], 11, 2),  # unordered
        ([7, 8, 6], 10, 2),  # below the start
        ([7, 8, 10], 10, 2),  # beyond the next offset
        ([7, 8, 9], 8, 1),
        ([5, 6], 10, 0),
    ],
)
def test_record_of_another_offset_is_a_chunk_fault(
    offsets, next_offset, right, is_filtered, has_sizes
):
    records = [record(offset) for offset in offsets]
    sizes = np.array([len(each) for each in records]) if has_sizes else None
    answer = RawChunk(b"".join(records), sizes, next_offset)
    [chunk] = readable_chunks([answer], QUEUE, 7, is_filtered=is_filtered)
    assert chunk.records.head["queue_offset"].tolist() == offsets[:right]
    assert chunk.next_offset == [6, *offsets][right] + 1
    assert f"found T, 0 and {offsets[right]}" in str(chunk.fault)


def test_repeated_queue_offset_in_a_chunk_is_a_fault():
    data = record(7) + record(9) + record(9)
    [chunk] = readable_chunks([RawChunk(data, None, 10)], QUEUE, 7, is_filtered=False)
    assert chunk.records.head["queue_offset"].tolist() == [7]
    assert "needed T, 0 and one between 7 and 10, found T, 0 and 9" in str(chunk.fault)


def test_record_of_another_queue_is_a_chunk_fault():
    data = record(7) + record(8, queue_id=1)
    [chunk] = readable_chunks([RawChunk(data, None, 9)], QUEUE, 7, is_filtered=False)
    assert (len(chunk.records), chunk.next_offset) == (1, 8)
    assert "found T, 1 and 8" in str(chunk.fault)


@pytest.mark.parametrize("has_sizes", [True, False])
@pytest.mark.parametrize("topic", ["U", "Ta", "", "%RETRY%T", "T" * 127])
def test_record_of_another_topic_is_a_chunk_fault(topic, has_sizes):
    records = [record(7), record(8, topic=topic), record(9)]
    sizes = np.array([len(each) for each in records]) if has_sizes else None
    [chunk] = readable_chunks([RawChunk(b"".join(records), sizes, 10)], QUEUE, 7, is_filtered=False)
    assert (len(chunk.records), chunk.next_offset) == (1, 8)
    assert "needed T, 0" in str(chunk.fault)


@pytest.mark.parametrize(
    "topic", ["%RETRY%G", "%RETRY%G_T", "%DLQ%G", "SCHEDULE_TOPIC_XXXX", "ns%T"]
)
def test_records_of_a_topic_of_rocketmqs_own_bear_its_name(topic):
    queue = MessageQueue(topic, "broker-a", 0)
    data = record(7, topic=topic) + record(8, topic=topic)
    [chunk] = readable_chunks([RawChunk(data, None, 9)], queue, 7, is_filtered=False)
    assert (len(chunk.records), chunk.fault) == (2, None)


def test_records_of_a_light_queue_bear_the_places_of_another():
    light = MessageQueue("%LMQ%T", "broker-a", 0)
    data = record(70, queue_id=3) + record(90, queue_id=2)
    [chunk] = readable_chunks([RawChunk(data, None, 9)], light, 7, is_filtered=False)
    assert (len(chunk.records), chunk.fault) == (2, None)


# ---- offsets of a span that a read leaves out


@given(st.sets(st.integers(3, 40)), st.integers(0, 3), st.integers(41, 50))
def test_offsets_and_missing_ranges_cover_the_span(offsets, start, end):
    ranges = missing_ranges(sorted(offsets), start, end)
    missing = [offset for first, last in ranges for offset in range(first, last)]
    assert sorted([*offsets, *missing]) == list(range(start, end))
    assert all(first < last for first, last in ranges)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ranges))
