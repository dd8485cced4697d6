"""A task's range is read in chunks, with each offset once or a loss."""

import numpy as np
import pytest
from support.spark.source_queries import options_for, queue_of, send

from rmq_spark.client.reading.bulk_pull import RawChunk
from rmq_spark.spark.brokers.queue_client import mark_of
from rmq_spark.spark.errors import DataLoss
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read import record_chunks
from rmq_spark.spark.read.partition_reader import addresses_of
from rmq_spark.spark.read.record_chunks import QueueRecreated, UnreadableRecord, pull_chunks
from rmq_spark.wire.message.record import StoredMessage, body_crc_of, encode_record


@pytest.mark.parametrize(
    ("given", "expected"), [({}, 30_000), ({"requestTimeoutMs": "120000"}, 120_000)]
)
def test_chunk_read_timeout_is_30_seconds_or_a_longer_request_timeout(
    rocketpoll_broker, rocketpoll_topic, monkeypatch, given, expected
):
    asked = []

    def pulled(*, rules, **_):
        asked.append(rules.timeout_ms)
        return []

    monkeypatch.setattr(record_chunks, "BulkPull", pulled)
    options = options_for(rocketpoll_broker, rocketpoll_topic, failOnDataLoss="false", **given)
    assert (
        list(
            pull_chunks(
                addresses_of(options.access), options, OffsetRange(queue_of(rocketpoll_topic), 0, 1)
            )
        )
        == []
    )
    assert asked == [expected]


# ---- invalid responses of a broker


def chunks_given(
    monkeypatch, topic, options, piece_end, *records, next_offset, stored_ms=None, mark=None
):
    """Return the chunks made from one response with these records."""
    answer = RawChunk(b"".join(records), np.array([len(record) for record in records]), next_offset)
    monkeypatch.setattr(record_chunks, "BulkPull", lambda **_: [answer])
    piece = OffsetRange(queue_of(topic), 0, piece_end, stored_ms, mark)
    return pull_chunks(addresses_of(options.access), options, piece)


def record(topic, queue_offset, stored_ms=1):
    return encode_record(
        StoredMessage(topic, b"body", queue_offset=queue_offset, store_timestamp=stored_ms)
    )


def broken(topic, queue_offset):
    damaged = bytearray(record(topic, queue_offset))
    damaged[4] ^= 1  # damage the magic
    return bytes(damaged)


@pytest.mark.parametrize("bad", range(4))
def test_unreadable_record_is_raised_after_earlier_chunks(
    rocketpoll_broker, rocketpoll_topic, monkeypatch, bad
):
    records = [record(rocketpoll_topic, number) for number in range(4)]
    records[bad] = broken(rocketpoll_topic, bad)
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    chunks = chunks_given(monkeypatch, rocketpoll_topic, options, 4, *records, next_offset=4)
    before, next_offset = next(chunks)
    assert [len(before), next_offset] == [bad, bad]
    with pytest.raises(UnreadableRecord, match="magic") as raised:
        next(chunks)
    assert raised.value.bad.queue_offset == bad


def test_unreadable_record_past_a_filter_gives_its_own_offset(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    records = [record(rocketpoll_topic, 3), broken(rocketpoll_topic, 7)]
    options = options_for(rocketpoll_broker, rocketpoll_topic, tags="a")
    chunks = chunks_given(monkeypatch, rocketpoll_topic, options, 9, *records, next_offset=9)
    assert next(chunks)[1] == 7
    with pytest.raises(UnreadableRecord) as raised:
        next(chunks)
    assert raised.value.bad.queue_offset == 7


@pytest.mark.parametrize("fails", [True, False])
def test_offsets_that_a_broker_leaves_out_are_a_loss(
    rocketpoll_broker, rocketpoll_topic, monkeypatch, caplog, fails
):
    records = [record(rocketpoll_topic, number) for number in (0, 1, 4)]
    options = options_for(rocketpoll_broker, rocketpoll_topic, failOnDataLoss=str(fails).lower())
    chunks = chunks_given(monkeypatch, rocketpoll_topic, options, 5, *records, next_offset=5)
    if fails:
        with pytest.raises(DataLoss, match="has lost offsets 2 to 3"):
            next(chunks)
    else:
        assert [len(found) for found, _ in chunks] == [3]
        assert "has lost offsets 2 to 3" in caplog.text


def test_early_end_of_a_range_is_data_loss_after_the_given_rows(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    records = [record(rocketpoll_topic, number) for number in range(2)]
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    chunks = chunks_given(monkeypatch, rocketpoll_topic, options, 5, *records, next_offset=2)
    assert next(chunks)[1] == 2
    with pytest.raises(DataLoss, match="has lost offsets 2 to 4"):
        next(chunks)


def test_last_message_with_another_store_time_means_a_recreated_queue(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    records = [record(rocketpoll_topic, number, stored_ms=100 + number) for number in range(3)]
    chunks = chunks_given(
        monkeypatch, rocketpoll_topic, options, 3, *records, next_offset=3, stored_ms=102
    )
    assert [len(found) for found, _ in chunks] == [3]
    chunks = chunks_given(
        monkeypatch, rocketpoll_topic, options, 3, *records, next_offset=3, stored_ms=90
    )
    with pytest.raises(
        QueueRecreated, match="offset 2 was stored at 102 ms, and was stored at 90 ms then"
    ):
        next(chunks)


def test_younger_messages_before_the_last_have_the_broker_asked_for_that(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    """A clock that was set back does not mean that the topic was recreated."""
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    stored_ms = rocketpoll_broker.messages(rocketpoll_topic)[-1].store_timestamp
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    younger = record(rocketpoll_topic, 0, stored_ms=stored_ms + 1)
    piece_end = 2
    for planned_ms, is_same in ((stored_ms, True), (stored_ms - 1, False)):
        chunks = chunks_given(
            monkeypatch,
            rocketpoll_topic,
            options,
            piece_end,
            younger,
            next_offset=1,
            stored_ms=planned_ms,
        )
        if is_same:
            assert next(chunks)[1] == 1
        else:
            with pytest.raises(QueueRecreated):
                next(chunks)


@pytest.mark.parametrize("is_same", [True, False])
def test_last_message_of_the_same_store_time_is_recognised_by_its_mark(
    rocketpoll_broker, rocketpoll_topic, monkeypatch, is_same
):
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    mark = mark_of(body_crc_of(b"body"), 0) + (not is_same)
    records = [record(rocketpoll_topic, number, stored_ms=100) for number in range(3)]
    more = {"next_offset": 3, "stored_ms": 100, "mark": mark}
    chunks = chunks_given(monkeypatch, rocketpoll_topic, options, 3, *records, **more)
    if is_same:
        assert [len(found) for found, _ in chunks] == [3]
    else:
        with pytest.raises(
            QueueRecreated, match="offset 2 is another, and was stored at 100 ms then"
        ):
            next(chunks)


@pytest.mark.parametrize("is_same", [True, False])
def test_recreated_topic_is_found_by_asking_for_the_last_message_of_the_chunk(
    rocketpoll_broker, rocketpoll_topic, monkeypatch, is_same
):
    """The chunk does not contain the last message, so the broker is asked for it."""
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    last = rocketpoll_broker.messages(rocketpoll_topic)[-1]
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    mark = mark_of(body_crc_of(last.body), last.born_timestamp) + (not is_same)
    as_old = record(rocketpoll_topic, 0, stored_ms=last.store_timestamp)
    more = {"next_offset": 1, "stored_ms": last.store_timestamp, "mark": mark}
    chunks = chunks_given(monkeypatch, rocketpoll_topic, options, 2, as_old, **more)
    if is_same:
        assert next(chunks)[1] == 1
    else:
        with pytest.raises(QueueRecreated):
            next(chunks)
