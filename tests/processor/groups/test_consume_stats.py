"""Consume stats and time spans: the included queues, and Java's format."""

import pytest
from support.brokers.connections import finished

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.bodies.operators import (
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll.broker.store.queues.consume_queue import QueueBounds

START = 1_700_000_000_000


def queue(topic="T", queue_id=0):
    return MessageQueue(topic, "broker-a", queue_id)


def consume_stats(room, group="G", **ext_fields) -> ConsumeStats:
    return room.asked(
        ConsumeStats, RequestCode.GET_CONSUME_STATS, {"consumerGroup": group, **ext_fields}
    )


def lags(stats) -> dict[str, int]:
    return {
        f"{each.topic}/{each.queue_id}": offset.broker_offset - offset.consumer_offset
        for each, offset in stats.offset_table.items()
    }


@pytest.fixture
def stocked(room):
    """Create two topics with three messages each; G has consumed some of them."""
    for topic in ("T", "U"):
        room.create_topic(topic, queue_nums=1)
        for number in range(3):
            room.put(number, at_ms=START + 1000 * number, topic=topic)
    room.offsets.commit("G", "T", 0, 2)
    room.offsets.commit("G", "U", 0, 1)
    room.groups.find_or_create("G")
    return room


# ---- one group


def test_consume_stats_body_is_javas_text(stocked):
    answer = stocked.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", "topic": "T"})
    assert bytes(answer.body).decode() == (
        '{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:'
        '{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":1700000001000,"pullOffset":2}}}'
    )


def test_consume_stats_without_topic_show_all_topics_of_the_group(stocked):
    assert lags(consume_stats(stocked)) == {"T/0": 1, "U/0": 2}
    assert lags(consume_stats(stocked, topic="")) == {"T/0": 1, "U/0": 2}


def test_several_topics_can_be_asked_for_and_unknown_ones_are_left_out(stocked):
    assert lags(consume_stats(stocked, topicList="U;nowhere;", topic="T")) == {"U/0": 2}
    assert lags(consume_stats(stocked, topic="nowhere")) == {}


def test_repeated_topic_in_consume_stats_is_read_once(stocked, monkeypatch):
    looks = []
    queue_offsets = stocked.store.queue_offsets
    monkeypatch.setattr(
        stocked.store, "queue_offsets", lambda *of: looks.append(of) or queue_offsets(*of)
    )
    assert lags(consume_stats(stocked, topicList="T;" * 1_000)) == {"T/0": 1}
    assert looks == [("T", 0)]


def test_oversized_consume_stats_are_refused(room):
    for number in range(3):
        room.create_topic(f"T{number}", queue_nums=4_096)
        room.offsets.commit("G", f"T{number}", 0, 0)
    room.groups.find_or_create("G")
    for code, header in (
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    ):
        refusal, remark = room.refused(code, header)
        assert refusal == ResponseCode.SYSTEM_ERROR
        assert remark.startswith("the response would cover 12288 queues, over 8192")
    assert len(consume_stats(room, topic="T1").offset_table) == 4_096


def test_consume_stats_omit_topics_without_subscription_in_an_online_group(stocked):
    stocked.consume("G", "U")
    assert lags(consume_stats(stocked)) == {"U/0": 2}


def test_consume_stats_of_a_new_group_lag_by_all_messages(stocked):
    stats = consume_stats(stocked, "new", topic="T")
    assert lags(stats) == {"T/0": 3}
    assert stats.offset_table[queue()].last_timestamp == 0


def test_consume_stats_of_an_unknown_group_are_empty(stocked):
    assert consume_stats(stocked, "nobody") == ConsumeStats()


def test_consume_stats_show_every_readable_queue(room):
    room.create_topic("T", read_queue_nums=3, write_queue_nums=1)
    assert set(consume_stats(room, topic="T").offset_table) == {
        queue("T", number) for number in range(3)
    }


def test_consume_tps_of_a_group_sums_its_topics(stocked):
    stocked.stats.record_get("T", "G", 40, 400, 0)
    stocked.stats.record_get("U", "G", 20, 200, 0)
    finished(stocked.stats.sample(START + 10_000))
    assert consume_stats(stocked).consume_tps == 6.0
    assert consume_stats(stocked, topic="T").consume_tps == 4.0


# ---- all groups


def of_broker(room, *, is_order=False) -> ConsumeStatsList:
    header = {"isOrder": "true" if is_order else "false"}
    return room.asked(ConsumeStatsList, RequestCode.GET_BROKER_CONSUME_STATS, header)


def test_broker_consume_stats_add_up_the_lag_of_every_group(stocked):
    stocked.groups.put(SubscriptionGroupConfig(group_name="H"))
    stocked.offsets.commit("H", "T", 0, 0)
    found = of_broker(stocked)
    lag_of = {
        group: [lags(each) for each in stats]
        for entry in found.consume_stats_list
        for group, stats in entry.items()
        if stats
    }
    assert lag_of == {"G": [{"T/0": 1}, {"U/0": 2}], "H": [{"T/0": 3}]}
    assert (found.broker_addr, found.total_diff, found.total_inflight_diff) == (
        "10.0.0.2:9876",
        6,
        0,
    )


def test_consume_stats_of_all_groups_show_every_writable_queue(room):
    """RocketMQ does the same; for a single group it shows the readable queues only."""
    room.create_topic("T", read_queue_nums=1, write_queue_nums=3)
    room.put("x", topic="T", queue_id=2)
    room.groups.find_or_create("G")
    room.offsets.commit("G", "T", 0, 0)
    found = of_broker(room)
    assert found.total_diff == 1
    ((stats,),) = [stats for each in found.consume_stats_list for stats in each.values() if stats]
    assert lags(stats) == {"T/0": 0, "T/1": 0, "T/2": 1}


def test_broker_consume_stats_can_be_restricted_to_ordered_topics(stocked):
    stocked.create_topic("T", queue_nums=1, order=True)
    found = of_broker(stocked, is_order=True)
    assert found.total_diff == 1


# ---- times


def time_spans(room, group="G", topic="T") -> tuple[QueueTimeSpan, ...]:
    header = {"group": group, "topic": topic}
    body = room.asked(QueryConsumeTimeSpanBody, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
    return body.consume_time_span_set


def test_consume_time_span_shows_delay_of_the_next_message(stocked):
    stocked.clock.now_ms = START + 60_000
    (span,) = time_spans(stocked)
    assert span == QueueTimeSpan(
        message_queue=queue(),
        min_time_stamp=START,
        max_time_stamp=START + 2000,
        consume_time_stamp=START + 1000,
        delay_time=58_000,
    )


def test_consume_time_span_of_a_caught_up_group_has_no_delay(stocked):
    stocked.offsets.commit("G", "T", 0, 3)
    stocked.clock.now_ms = START + 60_000
    (span,) = time_spans(stocked)
    assert (span.consume_time_stamp, span.delay_time) == (START + 2000, 0)


def test_time_span_delay_of_a_new_group_counts_from_the_first_message(stocked):
    stocked.clock.now_ms = START + 60_000
    (span,) = time_spans(stocked, "new")
    assert (span.consume_time_stamp, span.delay_time) == (START, 60_000)


def test_time_span_delay_counts_from_the_first_message_not_expired(stocked, monkeypatch):
    stocked.clock.now_ms = START + 60_000
    monkeypatch.setattr(stocked.store, "queue_offsets", lambda *_: QueueBounds(2, 3))
    stocked.offsets.commit("G", "T", 0, 0)
    (span,) = time_spans(stocked)
    assert span.delay_time == 58_000


def test_time_span_of_an_empty_queue_has_no_times(room):
    room.create_topic("T", queue_nums=1)
    (span,) = time_spans(room)
    assert span == QueueTimeSpan(message_queue=queue())


def test_time_span_of_an_unknown_topic_is_refused(room):
    refused = room.refused(RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": "G", "topic": "nowhere"})
    assert refused == (
        ResponseCode.TOPIC_NOT_EXIST,
        "topic[nowhere] not exist, apply first please!",
    )


def test_consume_time_span_body_is_javas_text(stocked):
    answer = stocked.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": "G", "topic": "T"})
    assert bytes(answer.body).decode() == (
        '{"consumeTimeSpanSet":[{"consumeTimeStamp":1700000001000,"delayTime":0,'
        '"maxTimeStamp":1700000002000,"messageQueue":{"brokerName":"broker-a","queueId":0,"topic":"T"},'
        '"minTimeStamp":1700000000000}]}'
    )
    assert decode_body(QueryConsumeTimeSpanBody, answer.body).consume_time_span_set
