"""Offset requests: commits, queries, bounds and times."""

import os

import pytest
from support.brokers.connections import FakeConnection, body_in, finished, header_in
from support.brokers.processors import open_parts, refused
from support.brokers.state_tables import room
from support.stores.small_store import message

from rmq_spark.errors import HeaderError
from rmq_spark.wire.bodies.configs import ConsumerOffsetSerializeWrapper
from rmq_spark.wire.codes import RequestCode as Code
from rmq_spark.wire.codes import ResponseCode as Answer
from rmq_spark.wire.headers import members as headers
from rocketpoll.broker.processor.groups.consumer_offset import (
    ConsumerOffsetProcessor,
)
from rocketpoll.broker.state.members.consumers import ConsumerManager

BYTES = 1 << 30
CLIENT = FakeConnection()


@pytest.fixture
def processor(parts):
    return processor_of(parts)


def processor_of(parts, memory_bytes=BYTES):
    consumers = ConsumerManager(lambda _: None, room())
    return ConsumerOffsetProcessor(parts.broker(memory_bytes=memory_bytes, consumers=consumers))


def offset_in(processor, code, header):
    answer = processor.handlers()[code](CLIENT, CLIENT.ask(code, header))
    assert answer.code == Answer.SUCCESS
    assert answer.opaque == 7
    return header_in(code, answer)[0]


def stored(processor, queue_id=0, topic="T", **more):
    header = headers.QueryConsumerOffsetRequestHeader("g", topic, queue_id, **more)
    return offset_in(processor, Code.QUERY_CONSUMER_OFFSET, header)


def not_stored(processor, queue_id=0, topic="T", **more):
    header = headers.QueryConsumerOffsetRequestHeader("g", topic, queue_id, **more)
    return refused(
        processor.query_consumer_offset, CLIENT, CLIENT.ask(Code.QUERY_CONSUMER_OFFSET, header)
    )


def commit(processor, queue_offset, queue_id=0, topic="T", group="g"):
    header = headers.UpdateConsumerOffsetRequestHeader(group, topic, queue_id, queue_offset)
    return CLIENT.ask(Code.UPDATE_CONSUMER_OFFSET, header)


def test_committed_offset_is_returned_by_query(processor, parts):
    answer = processor.update_consumer_offset(CLIENT, commit(processor, 3, queue_id=1))
    assert answer.code == Answer.SUCCESS
    assert stored(processor, 1) == 3
    processor.update_consumer_offset(CLIENT, commit(processor, 1, queue_id=1))
    assert stored(processor, 1) == 1
    assert parts.groups.get("g") is not None


def test_new_group_starts_at_0_in_a_queue_with_its_first_message(processor, parts):
    assert stored(processor) == 0  # the queue was always empty
    parts.put("a", "b")
    assert stored(processor) == 0


def test_new_group_has_no_offset_if_the_first_message_is_old(parts):
    parts.put("first")
    for number in range(20):
        parts.store.put_message(message("x" * 100, queue_id=number % 3 + 1))
    written = parts.store.state().written_offset
    assert stored(processor_of(parts, memory_bytes=int(written / 0.4) + 1)) == 0
    code, remark = not_stored(processor_of(parts, memory_bytes=int(written / 0.4) - 100))
    assert code == Answer.QUERY_NOT_FOUND
    assert "maybe it boots first" in remark


def test_new_group_has_no_offset_in_a_queue_without_its_first_messages(tmp_path):
    hour_ms = 3_600_000
    parts = open_parts(tmp_path, file_reserved_time_hours=1, delete_when_hours=tuple(range(24)))
    parts.make_topic("T")
    parts.put(*["x" * 100] * 100)
    old = parts.clock.now_ms // 1000
    for path in (tmp_path / "store" / "commitlog").iterdir():
        os.utime(path, (old, old))
    parts.clock.now_ms += 2 * hour_ms
    parts.put("new")
    assert parts.store.clean() > 0
    assert parts.store.queue_offsets("T", 0).first > 0
    assert not_stored(processor_of(parts))[0] == Answer.QUERY_NOT_FOUND
    parts.store.shutdown()


def test_missing_offset_is_zero_or_not_found_as_asked(processor):
    assert not_stored(processor, set_zero_if_not_found=False)[0] == Answer.QUERY_NOT_FOUND
    assert stored(processor, set_zero_if_not_found=True) == 0


def test_unknown_topic_has_no_offsets_and_accepts_none(processor, parts):
    """The response is an error, because clients would take 0 for an offset."""
    assert not_stored(processor, topic="U")[0] == Answer.QUERY_NOT_FOUND
    request = commit(processor, 3, topic="U")
    assert refused(processor.update_consumer_offset, CLIENT, request)[0] == Answer.TOPIC_NOT_EXIST
    assert parts.offsets.topics_of("g") == frozenset()


def test_deleted_and_recreated_topic_has_no_old_offsets(processor, parts):
    parts.put("a", "b")
    processor.update_consumer_offset(CLIENT, commit(processor, 2))
    parts.topics.delete("T")
    parts.store.delete_topic("T")
    parts.offsets.discard_topic("T")
    late = commit(processor, 2)
    assert refused(processor.update_consumer_offset, CLIENT, late)[0] == Answer.TOPIC_NOT_EXIST
    parts.make_topic("T")
    assert stored(processor) == 0


@pytest.mark.parametrize("queue_id", [-1, 4, 1 << 30])
@pytest.mark.parametrize(
    ("code", "header"),
    [
        (
            Code.QUERY_CONSUMER_OFFSET,
            lambda queue: headers.QueryConsumerOffsetRequestHeader("g", "T", queue),
        ),
        (
            Code.UPDATE_CONSUMER_OFFSET,
            lambda queue: headers.UpdateConsumerOffsetRequestHeader("g", "T", queue, 1),
        ),
        (Code.GET_MAX_OFFSET, lambda queue: headers.GetMaxOffsetRequestHeader("T", queue)),
        (Code.GET_MIN_OFFSET, lambda queue: headers.GetMinOffsetRequestHeader("T", queue)),
        (
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            lambda queue: headers.SearchOffsetRequestHeader("T", queue, 0),
        ),
        (
            Code.GET_EARLIEST_MSG_STORETIME,
            lambda queue: headers.GetEarliestMsgStoretimeRequestHeader("T", queue),
        ),
    ],
)
def test_offset_request_for_a_missing_queue_is_refused(processor, code, header, queue_id):
    answer, remark = refused(processor.handlers()[code], CLIENT, CLIENT.ask(code, header(queue_id)))
    assert answer == Answer.SYSTEM_ERROR
    assert f"queueId[{queue_id}] is illegal, topic[T] has the queues 0 to 3" in remark


def test_offset_queries_of_an_unknown_topic_report_an_empty_queue(processor):
    topic, queue_id = "U", 0
    for code, header in (
        (Code.GET_MAX_OFFSET, headers.GetMaxOffsetRequestHeader(topic, queue_id)),
        (Code.GET_MIN_OFFSET, headers.GetMinOffsetRequestHeader(topic, queue_id)),
        (Code.SEARCH_OFFSET_BY_TIMESTAMP, headers.SearchOffsetRequestHeader(topic, queue_id, 0)),
    ):
        assert offset_in(processor, code, header) == 0
    header = headers.GetEarliestMsgStoretimeRequestHeader(topic, queue_id)
    request = CLIENT.ask(Code.GET_EARLIEST_MSG_STORETIME, header)
    assert processor.get_earliest_msg_storetime(CLIENT, request).ext_fields == {"timestamp": "-1"}


def test_removed_queue_exists_while_it_has_messages(processor, parts):
    parts.put("a", "b", queue_id=3)
    parts.make_topic("T", queues=2)
    assert offset_in(processor, Code.GET_MAX_OFFSET, headers.GetMaxOffsetRequestHeader("T", 3)) == 2
    assert processor.update_consumer_offset(CLIENT, commit(processor, 1, queue_id=3)).code == 0
    refusal = refused(processor.update_consumer_offset, CLIENT, commit(processor, 1, queue_id=2))
    assert refusal[0] == Answer.SYSTEM_ERROR


def test_negative_offset_update_is_refused(processor, parts):
    code, remark = refused(processor.update_consumer_offset, CLIENT, commit(processor, -1))
    assert code == Answer.SYSTEM_ERROR
    assert "below zero" in remark
    assert parts.offsets.query("g", "T", 0) is None


def test_offset_commit_of_an_uncreatable_group_is_refused(tmp_path):
    parts = open_parts(tmp_path, auto_create=False)
    parts.make_topic("T")
    processor = processor_of(parts)
    refusal = refused(processor.update_consumer_offset, CLIENT, commit(processor, 1))
    assert refusal == (Answer.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group [g] does not exist")
    bad = refused(processor.update_consumer_offset, CLIENT, commit(processor, 1, group="a@b"))
    assert bad[0] == Answer.SYSTEM_ERROR
    assert "other characters" in bad[1]
    parts.store.shutdown()


def test_max_and_min_offset_of_a_queue(processor, parts):
    for code, header in (
        (Code.GET_MAX_OFFSET, headers.GetMaxOffsetRequestHeader("T", 0)),
        (Code.GET_MIN_OFFSET, headers.GetMinOffsetRequestHeader("T", 0)),
    ):
        assert offset_in(processor, code, header) == 0
    parts.put("a", "b", "c")
    committed = headers.GetMaxOffsetRequestHeader("T", 0, committed=True)
    assert offset_in(processor, Code.GET_MAX_OFFSET, committed) == 3
    assert offset_in(processor, Code.GET_MIN_OFFSET, headers.GetMinOffsetRequestHeader("T", 0)) == 0


@pytest.mark.parametrize(
    ("boundary", "expected"),
    [
        (None, [0, 0, 1, 2, 3]),
        ("lower", [0, 0, 1, 2, 3]),
        ("UPPER", [0, 0, 0, 1, 2]),
        ("Upper", [0, 0, 0, 1, 2]),
    ],
)
def test_offsets_are_found_by_time(processor, parts, boundary, expected):
    begin = parts.clock.now_ms
    parts.put("a", "b", "c", step_ms=100)
    found = [
        offset_in(
            processor,
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            headers.SearchOffsetRequestHeader("T", 0, timestamp, boundary),
        )
        for timestamp in (-1, begin, begin + 50, begin + 150, begin + 250)
    ]
    assert found == expected


def test_invalid_boundary_of_a_time_search_is_refused(processor):
    header = headers.SearchOffsetRequestHeader("T", 0, 0, "MIDDLE")
    request = CLIENT.ask(Code.SEARCH_OFFSET_BY_TIMESTAMP, header)
    code, remark = refused(processor.search_offset_by_timestamp, CLIENT, request)
    assert code == Answer.SYSTEM_ERROR
    assert "LOWER or UPPER, not 'MIDDLE'" in remark


def test_earliest_store_time_is_that_of_the_first_message(processor, parts):
    header = headers.GetEarliestMsgStoretimeRequestHeader("T", 0)
    assert offset_in(processor, Code.GET_EARLIEST_MSG_STORETIME, header) == -1
    begin = parts.clock.now_ms
    parts.put("a", "b", step_ms=10)
    assert offset_in(processor, Code.GET_EARLIEST_MSG_STORETIME, header) == begin


def test_all_consumer_offsets_are_returned_as_saved(processor, parts):
    parts.offsets.commit("g", "T", 1, 5)
    answer = finished(
        processor.get_all_consumer_offset(CLIENT, CLIENT.ask(Code.GET_ALL_CONSUMER_OFFSET))
    )
    assert body_in(ConsumerOffsetSerializeWrapper, answer).offset_table == {"T@g": {1: 5}}


def test_offset_request_without_fields_names_them(processor):
    with pytest.raises(HeaderError, match="consumerGroup"):
        processor.query_consumer_offset(CLIENT, CLIENT.ask(Code.QUERY_CONSUMER_OFFSET))
