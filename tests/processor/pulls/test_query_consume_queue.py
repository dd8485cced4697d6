"""Consume queue entries for operators."""

import pytest
from support.stores.staged_batches import roll_back_between

from rmq_spark.wire.bodies.operators import QueryConsumeQueueResponseBody
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message.properties import tags_code
from rmq_spark.wire.message.record import decode_records
from rmq_spark.wire.message.record_layout import BLANK_SIZE, ROLLED_BACK
from rocketpoll.broker.processor.pulls.query_message import ENTRIES_MAX


def ask(room, index=0, count=10, **ext_fields) -> QueryConsumeQueueResponseBody:
    header = {"topic": "T", "queueId": "0", "index": str(index), "count": str(count), **ext_fields}
    return room.asked(QueryConsumeQueueResponseBody, RequestCode.QUERY_CONSUME_QUEUE, header)


@pytest.fixture
def stocked(room):
    """Store twenty messages, over three files of the queue; every other has tag A."""
    for number in range(20):
        room.put(number, tags="A" if number % 2 == 0 else "B")
    return room


def test_query_consume_queue_returns_positions_and_tag_codes(stocked):
    found = ask(stocked, 6, 4)
    assert (found.min_queue_index, found.max_queue_index) == (0, 20)
    assert [entry.tags_code for entry in found.queue_data] == [tags_code(tag) for tag in "ABAB"]
    for number, entry in enumerate(found.queue_data, 6):
        record = stocked.store.record_at(entry.physic_offset)
        assert len(record) == entry.physic_size
        assert [each.body for each in decode_records(record)] == [str(number).encode()]


def test_entries_of_several_files_come_together_and_end_with_the_queue(stocked):
    assert len(ask(stocked, 3, 14).queue_data) == 14
    assert len(ask(stocked, 15, 100).queue_data) == 5
    assert ask(stocked, 20, 5).queue_data == ()


def test_consume_queue_query_without_a_group_passes_everything(stocked):
    found = ask(stocked)
    assert all(entry.eval for entry in found.queue_data)
    assert (found.subscription_data, found.filter_data) == (None, None)


def test_consume_queue_query_of_an_online_group_shows_its_filter_result(stocked):
    stocked.consume("G", "T", sub_string="A")
    found = ask(stocked, 5, 10, consumerGroup="G")
    assert [entry.eval for entry in found.queue_data] == [False, True] * 5
    assert found.subscription_data.sub_string == "A"


def test_query_consume_queue_for_a_group_without_filter_evaluates_all(stocked):
    stocked.consume("G", "T")
    assert all(entry.eval for entry in ask(stocked, consumerGroup="G").queue_data)


def test_query_consume_queue_of_an_offline_group_has_no_filter(stocked):
    found = ask(stocked, consumerGroup="G")
    assert found.filter_data == "G@T is not online!"
    assert all(entry.eval for entry in found.queue_data)


def test_consume_queue_query_before_the_first_entry_starts_at_the_first(stocked):
    assert ask(stocked, -5, 1).queue_data == ask(stocked, 0, 1).queue_data


@pytest.mark.parametrize("count", [0, -3])
def test_query_consume_queue_for_none_returns_none(stocked, count):
    assert ask(stocked, 0, count).queue_data == ()


def test_query_consume_queue_limits_entries(room):
    for number in range(ENTRIES_MAX + 10):
        room.put(number)
    assert len(ask(room, 0, 1 << 30).queue_data) == ENTRIES_MAX


def test_query_consume_queue_limits_scanned_bytes(room, monkeypatch):
    monkeypatch.setattr("rocketpoll.broker.processor.pulls.query_message.SCAN_BYTES_MAX", 3_000)
    for _ in range(20):
        room.put("x" * 3_500)  # each fills a log file
    assert len(ask(room, 0, 20).queue_data) < 20
    assert len(ask(room, 19, 20).queue_data) == 1


@pytest.mark.parametrize("queue", [("T", "1"), ("U", "0")])
def test_query_consume_queue_of_a_missing_queue_is_refused(stocked, queue):
    header = {"topic": queue[0], "queueId": queue[1], "index": "0", "count": "1"}
    refused = stocked.refused(RequestCode.QUERY_CONSUME_QUEUE, header)
    assert refused == (ResponseCode.SYSTEM_ERROR, f"{queue[1]}@{queue[0]} is not exist!")


def test_query_consume_queue_shows_blank_entries(room):
    sent = roll_back_between(room.store)
    found = ask(room, 0, 100)
    sizes = [entry.physic_size for entry in found.queue_data]
    assert len(sizes) == found.max_queue_index > len(sent)
    blank = [entry for entry in found.queue_data if entry.physic_size == BLANK_SIZE]
    assert [entry.tags_code for entry in blank] == [ROLLED_BACK] * (len(sizes) - len(sent))
    first = sizes.index(BLANK_SIZE)
    assert ask(room, first, len(blank)).queue_data == tuple(blank)
    assert (
        ask(room, first + 1, len(blank)).queue_data == found.queue_data[first + 1 :][: len(blank)]
    )
