"""Long chunks are checked in parts and appended as one, without other messages between."""

import pytest
from support.stores.small_store import STORE_HOST, bodies, message, open_store, read_all

from rmq_spark.wire.chunk import encode_chunk
from rocketpoll.broker.store.append import chunk_appender
from rocketpoll.broker.store.results import PutMessageStatus as Status

BODY_AT = 88
"""Offset of the body in a record with IPv4 addresses."""


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_appender, "_PART_RECORDS", 7)
    monkeypatch.setattr(chunk_appender, "_PART_BYTES", 1_000)
    store = open_store(tmp_path)
    yield store
    store.shutdown()


def chunk_of(texts, queue_ids=0):
    chunk = encode_chunk(
        {
            "topic": "T",
            "queueId": queue_ids,
            "body": [text.encode() for text in texts],
            "storeHost": str(STORE_HOST),
        }
    )
    return bytearray(chunk.data), chunk.sizes.tolist()


@pytest.mark.parametrize("count", [1, 6, 7, 8, 50, 200])
def test_chunk_parts_are_appended_in_order(store, count):
    texts = [f"{number} " + "x" * (number % 90) for number in range(count)]
    store.put_message(message("before"))
    result = store.put_chunk(*chunk_of(texts))
    assert (result.status, result.queue_offset, result.message_count) == (Status.PUT_OK, 1, count)
    found = read_all(store, "T", 0, 1)
    assert [each.body.decode() for each in found] == texts
    assert [each.queue_offset for each in found] == list(range(1, count + 1))
    assert found[0].physical_offset == result.physical_offset
    assert all(bytes(store.record_at(each.physical_offset)) for each in found)


def test_message_during_a_stepwise_chunk_is_stored_before_or_after_it(store):
    texts = [f"{number}" for number in range(50)]
    results = []

    def steps():
        results.append((yield from store.put_chunk_in_steps(*chunk_of(texts), lambda: None)))

    between = 0
    for _ in steps():
        store.put_message(message(f"between {between}"))
        between += 1
    store.put_message(message("behind"))
    assert between >= 7
    assert results[0].queue_offset == between
    assert bodies(store) == [*(f"between {number}" for number in range(between)), *texts, "behind"]


@pytest.mark.parametrize("record", [0, 6, 7, 49])
def test_chunk_damaged_in_any_part_is_refused_whole(store, record):
    data, sizes = chunk_of([f"{number:02}" for number in range(50)])
    data[sum(sizes[: record + 1]) - sizes[record] + BODY_AT] ^= 1
    result = store.put_chunk(data, sizes)
    assert result.status is Status.MESSAGE_ILLEGAL
    assert ("counted from record" in result.remark) is (record >= 7)
    assert store.state().written_offset == 0


def test_chunk_with_records_of_two_queues_is_refused(store):
    result = store.put_chunk(*chunk_of([f"{number}" for number in range(50)], [0] * 49 + [1]))
    assert "one queue" in result.remark
    assert store.state().written_offset == 0


def test_chunk_with_too_many_records_is_refused(store, monkeypatch):
    monkeypatch.setattr(chunk_appender, "RECORDS_MAX", 50)
    assert store.put_chunk(*chunk_of(["x"] * 50)).status is Status.PUT_OK
    refusal = store.put_chunk(*chunk_of(["x"] * 51))
    assert refusal.status is Status.MESSAGE_ILLEGAL
    assert "51 messages" in refusal.remark
