"""Micro-batches: limits, restarts, and topics that are recreated at any moment."""

import logging
import re
from datetime import timedelta

import pytest
from support.spark.source_queries import offsets_in, query, queue_of, send
from support.suite.clocks import Clock

from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import CheckpointError, DataLoss
from rmq_spark.spark.options.options import BatchLimits
from rmq_spark.spark.plan.latest_offsets import LatestOffsets
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS
from rmq_spark.spark.plan.source_offset import QueuePosition, SourceOffset
from rocketpoll import EmbeddedBroker


def again(source_offset):
    """Return an offset as read from a checkpoint."""
    return SourceOffset.from_json(source_offset.to_json())


def spans(pieces):
    return [(piece.queue.queue_id, piece.start, piece.end) for piece in pieces]


def test_query_without_starting_offsets_starts_at_latest(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "before")
    with query(rocketpoll_broker, rocketpoll_topic) as batches:
        start = batches.initial_offset()
        assert offsets_in(start) == {0: 1, 1: 0, 2: 0, 3: 0}
        assert batches.latest_offset(start, NO_LIMITS) is start
        send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
        send(rocketpoll_broker, rocketpoll_topic, 3, "c")
        end = batches.latest_offset(start, NO_LIMITS)
        assert offsets_in(end) == {0: 3, 1: 0, 2: 0, 3: 1}
        assert spans(batches.plan_ranges(start, end)) == [(0, 1, 3), (3, 0, 1)]
        assert batches.latest_offset(end, NO_LIMITS) is end
        assert batches.newest.positions == end.positions


def test_topic_recreated_while_a_query_starts_is_checked_again(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    stored = QueueClient.fingerprints

    def made_again(queues, places):
        monkeypatch.setattr(QueueClient, "fingerprints", stored)
        rocketpoll_broker.delete_topic(rocketpoll_topic)
        rocketpoll_broker.create_topic(rocketpoll_topic, 4)
        return stored(queues, places)

    send(rocketpoll_broker, rocketpoll_topic, 0, "of the old one")
    monkeypatch.setattr(QueueClient, "fingerprints", made_again)
    with query(rocketpoll_broker, rocketpoll_topic) as batches:
        start = batches.initial_offset()
        send(rocketpoll_broker, rocketpoll_topic, 0, "of the new one")
        end = batches.latest_offset(start, NO_LIMITS)
        assert spans(batches.plan_ranges(start, end)) == [(0, 0, 1)]


def test_source_offset_has_store_time_of_the_last_message(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    stored = [message.store_timestamp for message in rocketpoll_broker.messages(rocketpoll_topic)]
    with query(rocketpoll_broker, rocketpoll_topic, startingOffsets="earliest") as batches:
        start = batches.initial_offset()
        assert {position.stored_ms for position in start.positions.values()} == {None}
        end = batches.latest_offset(start, NO_LIMITS)
        assert end.positions[queue_of(rocketpoll_topic)].stored_ms == stored[1]
        one = batches.latest_offset(start, BatchLimits(rows_max=1))
        assert one.positions[queue_of(rocketpoll_topic)][:2] == (1, stored[0])


def test_limits_are_shared_until_all_is_taken(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcdefgh")
    send(rocketpoll_broker, rocketpoll_topic, 1, *"ab")
    with query(rocketpoll_broker, rocketpoll_topic, startingOffsets="earliest") as batches:
        at = batches.initial_offset()
        taken = []
        while (end := batches.latest_offset(at, BatchLimits(rows_max=5))) != at:
            assert sum(piece.end - piece.start for piece in batches.plan_ranges(at, end)) <= 5
            taken.append(offsets_in(end))
            at = end
        assert [(each[0], each[1]) for each in taken] == [(4, 1), (8, 2)]


def test_messages_before_the_initial_offset_are_no_data_loss(rocketpoll_broker, rocketpoll_topic):
    """Spark asks for the latest offset before the initial one."""
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    with query(rocketpoll_broker, rocketpoll_topic) as batches:
        batches.prepare_available_now()
        send(rocketpoll_broker, rocketpoll_topic, 0, "between")
        start = batches.initial_offset()
        assert offsets_in(start)[0] == 4
        assert batches.latest_offset(start, NO_LIMITS) is start


def test_new_queue_is_read_from_its_first_message(rocketpoll_broker, rocketpoll_topic):
    with query(rocketpoll_broker, rocketpoll_topic) as batches:
        start = batches.initial_offset()
        rocketpoll_broker.create_topic(rocketpoll_topic, 5)
        assert batches.latest_offset(start, NO_LIMITS) is start  # an empty queue causes no batch
        send(rocketpoll_broker, rocketpoll_topic, 4, *"abc")
        end = batches.latest_offset(start, BatchLimits(rows_max=2))
        assert end.initial_offsets == {queue_of(rocketpoll_topic, number): 0 for number in range(5)}
        assert spans(batches.plan_ranges(start, again(end))) == [(4, 0, 2)]
        assert spans(batches.plan_ranges(end, batches.latest_offset(end, NO_LIMITS))) == [(4, 2, 3)]


def test_restarted_query_repeats_the_planned_batch(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    with query(rocketpoll_broker, rocketpoll_topic, startingOffsets="earliest") as batches:
        start = batches.initial_offset()
        end = batches.latest_offset(start, BatchLimits(rows_max=2))
        planned = batches.plan_ranges(start, end)
    with query(rocketpoll_broker, rocketpoll_topic) as batches:
        assert batches.plan_ranges(again(start), again(end)) == planned
        assert offsets_in(batches.latest_offset(again(end), NO_LIMITS))[0] == 3


# ---- lost messages


@pytest.fixture
def made_again(rocketpoll_broker, rocketpoll_topic):
    """Return a topic that was read, then deleted and recreated with more messages."""
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    with query(rocketpoll_broker, rocketpoll_topic, startingOffsets="earliest") as batches:
        end = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
    rocketpoll_broker.delete_topic(rocketpoll_topic)
    rocketpoll_broker.create_topic(rocketpoll_topic, 4)
    return end


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_recreated_topic_is_data_loss_at_latest_offset(
    rocketpoll_broker, rocketpoll_topic, made_again, count
):
    send(rocketpoll_broker, rocketpoll_topic, 0, *["new"] * count)
    with (
        query(rocketpoll_broker, rocketpoll_topic) as batches,
        pytest.raises(
            DataLoss, match=rf"queue 0 of {rocketpoll_topic} on broker-a .*failOnDataLoss to false"
        ),
    ):
        batches.latest_offset(again(made_again), NO_LIMITS)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_recreated_topic_is_read_from_its_start_without_fail_on_data_loss(
    rocketpoll_broker, rocketpoll_topic, made_again, count, caplog
):
    send(rocketpoll_broker, rocketpoll_topic, 0, *["new"] * count)
    with query(rocketpoll_broker, rocketpoll_topic, failOnDataLoss="false") as batches:
        with caplog.at_level(logging.WARNING):
            end = batches.latest_offset(again(made_again), NO_LIMITS)
        assert spans(batches.plan_ranges(made_again, end)) == [(0, 0, count)]
        assert "messages are lost, continuing without them: queue 0" in caplog.text


def test_ending_offsets_apply_to_a_recreated_topic(rocketpoll_broker, rocketpoll_topic, made_again):
    """The query has read the old topic past this offset."""
    send(rocketpoll_broker, rocketpoll_topic, 0, *["new"] * 9)
    given = {"endingOffsets": '{"*": {"*": 2}}', "failOnDataLoss": "false"}
    with query(rocketpoll_broker, rocketpoll_topic, **given) as batches:
        batches.prepare_available_now()
        end = batches.latest_offset(again(made_again), NO_LIMITS)
        assert spans(batches.plan_ranges(made_again, end)) == [(0, 0, 2)]
        assert batches.latest_offset(end, NO_LIMITS) is end


def test_queue_unreadable_for_a_while_is_not_taken_for_recreated(
    rocketpoll_broker, rocketpoll_topic, caplog
):
    send(rocketpoll_broker, rocketpoll_topic, 3, *"abcde")
    with query(rocketpoll_broker, rocketpoll_topic, startingOffsets="earliest") as batches:
        read = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
    for queues in (2, 4):
        rocketpoll_broker.create_topic(rocketpoll_topic, queues)
        with query(rocketpoll_broker, rocketpoll_topic, failOnDataLoss="false") as batches:
            assert batches.latest_offset(again(read), NO_LIMITS) == read
    assert "is not the one" not in caplog.text
    send(rocketpoll_broker, rocketpoll_topic, 3, "f")
    with query(rocketpoll_broker, rocketpoll_topic) as batches:
        assert spans(batches.plan_ranges(read, batches.latest_offset(again(read), NO_LIMITS))) == [
            (3, 5, 6)
        ]


def test_planned_batch_of_a_recreated_topic_is_data_loss(
    rocketpoll_broker, rocketpoll_topic, made_again
):
    send(rocketpoll_broker, rocketpoll_topic, 0, *["new"] * 9)
    with query(rocketpoll_broker, rocketpoll_topic) as batches, pytest.raises(DataLoss):
        batches.plan_ranges(
            SourceOffset(dict.fromkeys(made_again.positions, QueuePosition(0))), again(made_again)
        )


def remake(broker, topic, bodies):
    broker.delete_topic(topic)
    broker.create_topic(topic, 4)
    send(broker, topic, 0, *bodies)


def test_recreated_topic_of_equal_length_is_read_without_fail_on_data_loss(
    rocketpoll_broker, rocketpoll_topic
):
    more = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    with query(rocketpoll_broker, rocketpoll_topic, suspendTimeoutMs="1", **more) as batches:
        end = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
        remake(rocketpoll_broker, rocketpoll_topic, [])
        assert offsets_in(batches.latest_offset(end, NO_LIMITS))[0] == 3  # nothing new yet
        send(rocketpoll_broker, rocketpoll_topic, 0, *"ABC")
        found = batches.latest_offset(end, NO_LIMITS)
        assert spans(batches.plan_ranges(end, found)) == [(0, 0, 3)]


def test_recreated_topic_of_equal_length_is_found_within_a_minute(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    clock, more = Clock(), {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    with query(rocketpoll_broker, rocketpoll_topic, clock, suspendTimeoutMs="1", **more) as batches:
        end = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
        remake(rocketpoll_broker, rocketpoll_topic, "ABC")
        assert batches.latest_offset(end, NO_LIMITS) == end
        clock.now += 60
        found = batches.latest_offset(end, NO_LIMITS)
        assert spans(batches.plan_ranges(end, found)) == [(0, 0, 3)]
        last = rocketpoll_broker.messages(rocketpoll_topic)[-1]
        position = found.positions[queue_of(rocketpoll_topic)]
        assert position[:2] == (last.queue_offset + 1, last.store_timestamp)
        clock.now += 60
        assert batches.latest_offset(found, NO_LIMITS) == found
        asked = []
        monkeypatch.setattr(
            QueueClient, "fingerprints", lambda _, places: asked.extend(places) or {}
        )
        clock.now += 59
        assert batches.latest_offset(found, NO_LIMITS) == found
        assert asked == []


def test_messages_after_a_clock_correction_are_read(tmp_path):
    """New messages have earlier times than those that were read, so times do not
    distinguish them."""
    more = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    with EmbeddedBroker(tmp_path / "before") as broker:
        broker.clock.advance(timedelta(hours=1))
        broker.create_topic("T", queues=1)
        send(broker, "T", 0, *"abcde")
        with query(broker, "T", **more) as batches:
            end = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
    with EmbeddedBroker(tmp_path / "now") as broker:
        broker.create_topic("T", queues=1)
        send(broker, "T", 0, *"ABC")
        with query(broker, "T", suspendTimeoutMs="1", **more) as batches:
            assert (
                batches.latest_offset(again(end), NO_LIMITS) == end
            )  # the queue may have lost only its end
            send(broker, "T", 0, *"DEFGHI")
            found = batches.latest_offset(end, NO_LIMITS)
            assert spans(batches.plan_ranges(end, found)) == [(0, 0, 9)]


def test_topic_recreated_while_the_brokers_clock_stood_still_is_read(tmp_path):
    """The clock was set back: store times stand still until it has caught up."""
    earliest = {"startingOffsets": "earliest"}
    with EmbeddedBroker(tmp_path) as broker:
        broker.clock.advance(timedelta(hours=1))
        broker.create_topic("T", queues=1)
        send(broker, "T", 0, *"abcde")
        with query(broker, "T", **earliest) as batches:
            end = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
    with EmbeddedBroker(tmp_path) as broker:
        before = end.positions[queue_of("T")].stored_ms
        broker.delete_topic("T")
        broker.create_topic("T", queues=1)
        send(broker, "T", 0, *"ABCDEFGH")
        assert {message.store_timestamp for message in broker.messages("T")} == {before}
        with (
            query(broker, "T", **earliest) as batches,
            pytest.raises(DataLoss, match="is another one than when it was read"),
        ):
            batches.latest_offset(again(end), NO_LIMITS)
        with query(broker, "T", failOnDataLoss="false", **earliest) as batches:
            found = batches.latest_offset(again(end), NO_LIMITS)
            assert spans(batches.plan_ranges(end, found)) == [(0, 0, 8)]
            assert batches.latest_offset(found, NO_LIMITS) == found


@pytest.mark.parametrize("new", ["ABCDE", "A", ""], ids=["as long", "shorter", "empty"])
def test_tasks_do_not_read_messages_of_a_recreated_topic_for_planned_ones(
    rocketpoll_broker, rocketpoll_topic, new
):
    more = {"startingOffsets": "earliest", "maxRecordsPerPartition": "2"}
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcde")
    with query(rocketpoll_broker, rocketpoll_topic, **more) as batches:
        start = batches.initial_offset()
        end = batches.latest_offset(start, NO_LIMITS)
        known = {each.last_stored_ms for each in batches.plan_ranges(start, end)}
        remake(rocketpoll_broker, rocketpoll_topic, new)
        others = {each.store_timestamp for each in rocketpoll_broker.messages(rocketpoll_topic)}
        cut = batches.plan_ranges(start, end)
        assert spans(cut) == [(0, 0, 1), (0, 1, 3), (0, 3, 5)]
        assert {each.last_stored_ms for each in cut} <= known - others


def test_recreated_topic_is_detected_beside_an_unchanged_one(rocketpoll_broker):
    names = [f"beside-{number}" for number in range(2)]
    more = {"startingOffsets": "earliest", "maxRecordsPerPartition": "2"}
    for topic in names:
        rocketpoll_broker.create_topic(topic, 4)
        send(rocketpoll_broker, topic, 0, *"abcde")
    before = rocketpoll_broker.messages(names[0])
    with query(rocketpoll_broker, ",".join(names), **more) as batches:
        start = batches.initial_offset()
        end = batches.latest_offset(start, NO_LIMITS)
        remake(rocketpoll_broker, names[0], "ABCDE")
        cut = [each for each in batches.plan_ranges(start, end) if each.queue.topic == names[0]]
    assert len(cut) == 3
    assert {each.last_stored_ms for each in cut} <= {each.store_timestamp for each in before}


def test_topic_recreated_during_planning_is_detected(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    """An offset of the old topic must not get a time of the new one, or the next batch would not
    detect the change."""
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcde")
    stored = QueueClient.fingerprints

    def made_again_before(queues, places):
        places = list(places)
        if any(place.queue_offset == 2 for place in places):  # the limited end, after all checks
            monkeypatch.setattr(QueueClient, "fingerprints", stored)
            remake(rocketpoll_broker, rocketpoll_topic, "ABCDEF")
        return stored(queues, places)

    more = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    with query(rocketpoll_broker, rocketpoll_topic, **more) as batches:
        one = batches.latest_offset(batches.initial_offset(), BatchLimits(rows_max=1))
        monkeypatch.setattr(QueueClient, "fingerprints", made_again_before)
        end = batches.latest_offset(one, BatchLimits(rows_max=2))
        assert spans(batches.plan_ranges(one, end)) == [(0, 0, 2)]


def test_withdrawn_queue_with_unread_messages_is_data_loss(rocketpoll_broker, rocketpoll_topic):
    with query(rocketpoll_broker, rocketpoll_topic) as batches:
        start = batches.initial_offset()
    rocketpoll_broker.create_topic(rocketpoll_topic, 2)
    with query(rocketpoll_broker, rocketpoll_topic) as batches:
        assert batches.latest_offset(again(start), NO_LIMITS) == start
    rocketpoll_broker.create_topic(rocketpoll_topic, 4)
    send(rocketpoll_broker, rocketpoll_topic, 3, "unread")
    rocketpoll_broker.create_topic(rocketpoll_topic, 2)
    with (
        query(rocketpoll_broker, rocketpoll_topic) as batches,
        pytest.raises(
            DataLoss, match=r"is no longer readable \(perm\): its offsets from 0 to 0 were not read"
        ),
    ):
        batches.latest_offset(again(start), NO_LIMITS)
    with query(rocketpoll_broker, rocketpoll_topic, failOnDataLoss="false") as batches:
        assert batches.latest_offset(again(start), NO_LIMITS) == start


def test_checkpoint_with_topics_outside_the_pattern_is_refused(rocketpoll_broker):
    for topic in ("old-1", "old-2", "new-1"):
        rocketpoll_broker.create_topic(topic, 1)
        send(rocketpoll_broker, topic, 0, "a")
    more = {"startingOffsets": "earliest"}
    with query(rocketpoll_broker, None, subscribePattern="old-.*", **more) as batches:
        end = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
    refused = "is of old-1, old-2, but option subscribePattern names new-.*. Give this query"
    with (
        query(rocketpoll_broker, None, subscribePattern="new-.*") as batches,
        pytest.raises(CheckpointError, match=re.escape(refused)),
    ):
        batches.latest_offset(again(end), NO_LIMITS)
    with (
        query(rocketpoll_broker, None, subscribePattern="old-1|new-1") as batches,
        pytest.raises(DataLoss, match="the checkpoint also has old-2, which option"),
    ):
        batches.latest_offset(again(end), NO_LIMITS)


def test_checkpoint_of_another_topic_is_refused(rocketpoll_broker, rocketpoll_topic):
    rocketpoll_broker.create_topic("another-topic", 1)
    with query(rocketpoll_broker, "another-topic") as batches:
        start = batches.initial_offset()
    with (
        query(rocketpoll_broker, rocketpoll_topic) as batches,
        pytest.raises(
            CheckpointError, match=f"is of another-topic, but option topic names {rocketpoll_topic}"
        ),
    ):
        batches.latest_offset(again(start), NO_LIMITS)


def test_topic_dropped_from_the_options_is_data_loss(rocketpoll_broker, rocketpoll_topic):
    rocketpoll_broker.create_topic("another-topic", 1)
    with query(rocketpoll_broker, f"another-topic,{rocketpoll_topic}") as batches:
        start = batches.initial_offset()
    with (
        query(rocketpoll_broker, rocketpoll_topic) as batches,
        pytest.raises(DataLoss, match="also has another-topic, which option topic no longer names"),
    ):
        batches.latest_offset(again(start), NO_LIMITS)


# ---- queries with several sources


def test_idle_source_sends_no_requests_and_does_not_delay_others(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    waits, looks = [], []
    wait, look_from = QueueClient.wait, LatestOffsets.fetch
    monkeypatch.setattr(
        QueueClient,
        "wait",
        lambda queues, ends, ms: waits.append(ms) or wait(queues, ends, min(ms, 20)),
    )
    monkeypatch.setattr(
        LatestOffsets,
        "fetch",
        lambda horizon, start: looks.append(start) or look_from(horizon, start),
    )
    with query(rocketpoll_broker, rocketpoll_topic, suspendTimeoutMs="1000") as batches:
        start = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
        for _ in range(4):  # batches of another source
            assert batches.latest_offset(start, NO_LIMITS) == start
            batches.end_batch(start)
        for _ in range(2):  # the other source has nothing new, either
            assert batches.latest_offset(start, NO_LIMITS) == start
        assert waits == [1_000, 1_000, 1, 1, 1, 50]
        assert len(looks) == 3
        send(rocketpoll_broker, rocketpoll_topic, 0, "a")
        while (end := batches.latest_offset(start, NO_LIMITS)) == start:
            pass
        assert spans(batches.plan_ranges(start, end)) == [(0, 0, 1)]
        assert len(looks) == 4
