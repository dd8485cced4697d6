import numpy as np
import pytest

from rmq_spark.client.errors import ConnectionClosed
from rmq_spark.client.reading.bulk_pull import RawChunk
from rmq_spark.client.reading.readable_chunks import GATHERED_BYTES, gathered, readable_chunks
from rmq_spark.wire.record import StoredMessage, body_crc_of, encode_record


@pytest.mark.parametrize("has_sizes", [True, False])
def test_small_answers_are_worked_on_together(has_sizes):
    size = GATHERED_BYTES // 5 * 2
    answers = [
        RawChunk(memoryview(bytes([n]) * size), np.array([size]) if has_sizes else None, n)
        for n in range(4)
    ]
    first, last = gathered(answers)
    assert first.records == b"".join(answer.records for answer in answers[:3])
    assert (first.next_offset, last) == (2, answers[3])
    assert first.sizes.tolist() == [size] * 3 if has_sizes else first.sizes is None


def test_a_large_answer_is_not_copied():
    answer = RawChunk(memoryview(bytes(GATHERED_BYTES)), None, 1)
    assert next(gathered([answer])).records is answer.records


def test_what_came_before_a_failure_is_given_out_before_it():
    def answers():
        yield RawChunk(b"ab", None, 1)
        yield RawChunk(b"cd", None, 2)
        raise ConnectionClosed("127.0.0.1:1", "gone")

    given = gathered(answers())
    assert next(given) == RawChunk(b"abcd", None, 2)
    with pytest.raises(ConnectionClosed):
        next(given)


def record(queue_offset, magic=None):
    data = bytearray(encode_record(StoredMessage("T", b"x", queue_offset=queue_offset)))
    if magic is not None:
        data[4:8] = magic
    return bytes(data)


@pytest.mark.parametrize(("is_filtered", "expected"), [(False, 8), (True, 9)])
def test_a_record_that_cannot_be_read_ends_a_chunk_and_its_offset_is_told(is_filtered, expected):
    """Behind a filter the record itself says where it stands."""
    data = record(7) + record(9, magic=b"none") + record(10)
    [chunk] = readable_chunks([RawChunk(data, None, 11)], 7, is_filtered=is_filtered)
    assert chunk.records.head["queue_offset"].tolist() == [7]
    assert chunk.next_offset == expected
    assert "magic" in str(chunk.fault)
    assert chunk.stated_crc == body_crc_of(b"x")


def test_of_a_record_without_its_head_nothing_is_stated():
    [chunk] = readable_chunks([RawChunk(record(7) + bytes(9), None, 9)], 7, is_filtered=True)
    assert (len(chunk.records), chunk.next_offset, chunk.stated_crc) == (1, 8, None)


def test_records_that_can_all_be_read_have_no_fault():
    [chunk] = readable_chunks([RawChunk(record(0) + record(1), None, 2)], 0, is_filtered=False)
    assert (len(chunk.records), chunk.next_offset, chunk.fault) == (2, 2, None)
