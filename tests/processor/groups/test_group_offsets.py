"""Offsets of groups are reset, cloned and corrected."""

import pytest
from support.brokers.connections import FakeConnection, body_in, finished
from support.brokers.processors import open_parts, refused
from support.brokers.state_tables import join, room

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.bodies.operators import (
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from rmq_spark.wire.codes import LanguageCode
from rmq_spark.wire.codes import RequestCode as Code
from rmq_spark.wire.codes import ResponseCode as Answer
from rmq_spark.wire.headers import operators as headers
from rmq_spark.wire.headers.operators import HEADERS
from rocketpoll.broker.processor.groups.group_offsets import (
    NO_CORRECTION_OFFSET,
    GroupOffsetsProcessor,
)
from rocketpoll.broker.state.members.consumers import ConsumerManager
from rocketpoll.broker.store.queues.consume_queue import QueueBounds

ADMIN = FakeConnection("admin")
RESET = Code.INVOKE_BROKER_TO_RESET_OFFSET


@pytest.fixture
def consumers():
    return ConsumerManager(lambda _: None, room())


@pytest.fixture
def processor(parts, consumers):
    return processor_of(parts, consumers)


def processor_of(parts, consumers):
    return GroupOffsetsProcessor(parts.broker(consumers=consumers))


@pytest.fixture
def story(parts):
    """Store five messages in queue 0 and two in queue 1, one second apart; the group is
    at 3 and 1."""
    begin = parts.clock.now_ms
    parts.put(*"abcde", step_ms=1_000)
    parts.put(*"fg", step_ms=1_000, queue_id=1)
    parts.offsets.commit("g", "T", 0, 3)
    parts.offsets.commit("g", "T", 1, 1)
    return begin


def reset(processor, timestamp, *, force=False, asker=ADMIN, **more):
    header = headers.ResetOffsetRequestHeader("T", "g", timestamp, force, **more)
    answer = finished(processor.reset_offset(asker, asker.ask(RESET, header)))
    assert answer.code == Answer.SUCCESS
    table = body_in(ResetOffsetBody, answer).offset_table
    assert {(queue.topic, queue.broker_name) for queue in table} == {("T", "broker-a")}
    return {queue.queue_id: target for queue, target in table.items()}


def reset_refused(processor, timestamp=0, topic="T", **more):
    header = headers.ResetOffsetRequestHeader(
        topic, "g", timestamp, more.pop("force", False), **more
    )
    return refused(processor.reset_offset, ADMIN, ADMIN.ask(RESET, header))


def test_offset_reset_notifies_members_which_store_it(processor, consumers, parts, story):
    members = [join(consumers, "g", name, "T") for name in "ab"]
    assert reset(processor, story + 1_000) == {0: 1, 1: 0, 2: 0, 3: 0}
    for member in members:
        (notice,) = member.sent
        assert notice.code == Code.RESET_CONSUMER_CLIENT_OFFSET
        assert notice.is_one_way
        header = HEADERS[notice.code].request.decode(notice.ext_fields)
        assert header == headers.ResetOffsetRequestHeader("T", "g", story + 1_000, is_force=False)
        table = body_in(ResetOffsetBody, notice).offset_table
        assert {queue.queue_id: target for queue, target in table.items()} == {
            0: 1,
            1: 0,
            2: 0,
            3: 0,
        }
    assert parts.offsets.queues("g", "T") == {0: 3, 1: 1}


def test_group_reset_without_force_only_moves_back(processor, consumers, story):
    join(consumers, "g", "a", "T")
    assert reset(processor, story + 60_000) == {0: 3, 1: 1, 2: 0, 3: 0}
    assert reset(processor, story + 60_000, force=True) == {0: 5, 1: 2, 2: 0, 3: 0}


def test_offset_reset_to_minus_one_moves_to_the_end(processor, consumers, story):
    join(consumers, "g", "a", "T")
    assert reset(processor, -1, force=True) == {0: 5, 1: 2, 2: 0, 3: 0}


def test_offset_reset_of_one_queue_by_time_or_offset(processor, consumers, story):
    join(consumers, "g", "a", "T")
    assert reset(processor, story, queue_id=0, offset=-1) == {0: 0}
    assert reset(processor, 0, queue_id=0, offset=5) == {0: 5}
    assert reset(processor, story, queue_id=-1, offset=-1) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_offset_reset_past_the_queue_end_is_refused(processor, consumers, story):
    member = join(consumers, "g", "a", "T")
    code, remark = reset_refused(processor, queue_id=1, offset=3)
    assert code == Answer.SYSTEM_ERROR
    assert "offset 3 is not in queue 1 of topic T: 0 to 2" in remark
    assert "needs a queueId" in reset_refused(processor, offset=3)[1]
    assert "queueId[9] is illegal" in reset_refused(processor, queue_id=9)[1]
    assert member.sent == []


def test_offset_reset_sends_a_flat_list_to_c_clients(processor, consumers, story):
    java = join(consumers, "g", "a", "T")
    cpp = join(consumers, "g", "b", "T", language=LanguageCode.CPP)
    reset(processor, story)
    flat = body_in(ResetOffsetBodyForC, cpp.sent[0]).offset_table
    assert [(each.topic, each.broker_name, each.queue_id, each.offset) for each in flat] == [
        ("T", "broker-a", number, 0) for number in range(4)
    ]
    assert len(body_in(ResetOffsetBody, java.sent[0]).offset_table) == 4


def test_offset_reset_of_an_offline_group_is_refused_unchanged(processor, parts, story):
    """mqadmin then stores the offsets itself."""
    code, remark = reset_refused(processor)
    assert code == Answer.CONSUMER_NOT_ONLINE
    assert "were not changed" in remark
    assert parts.offsets.queues("g", "T") == {0: 3, 1: 1}


def test_offset_reset_of_missing_topic_or_group_is_refused(processor, consumers, parts):
    member = join(consumers, "g", "a", "T")
    assert reset_refused(processor, topic="U")[0] == Answer.TOPIC_NOT_EXIST
    code, remark = reset_refused(processor)
    assert code == Answer.SYSTEM_ERROR
    assert "THe consumer group <g> not exist" in remark
    assert member.sent == []


def test_offset_reset_with_an_outdated_member_is_refused(processor, consumers, story):
    member = join(consumers, "g", "a", "T")
    join(consumers, "g", "old", "T", version=27)
    assert "client [old] is too old" in reset_refused(processor)[1]
    assert member.sent == []


def clone(processor, source="g", to="h", topic=None, *, offline=False):
    header = headers.CloneGroupOffsetRequestHeader(source, to, topic, offline)
    return ADMIN.ask(Code.CLONE_GROUP_OFFSET, header)


def test_clone_group_offset_copies_offsets_of_existing_topics(processor, parts, story):
    parts.make_topic("U")
    parts.offsets.commit("g", "U", 2, 9)
    parts.offsets.commit("g", "deleted", 2, 9)
    finished(processor.clone_group_offset(ADMIN, clone(processor, topic="T")))
    assert parts.offsets.topics_of("h") == {"T"}
    assert parts.offsets.queues("h", "T") == {0: 3, 1: 1}
    finished(processor.clone_group_offset(ADMIN, clone(processor)))
    assert parts.offsets.topics_of("h") == {"T", "U"}
    assert parts.groups.get("h") is not None


def test_offset_clone_includes_unsubscribed_topics_on_request_only(
    processor, parts, consumers, story
):
    parts.make_topic("U")
    parts.offsets.commit("g", "U", 0, 1)
    join(consumers, "g", "a", "U")
    finished(processor.clone_group_offset(ADMIN, clone(processor)))
    assert parts.offsets.topics_of("h") == {"U"}
    finished(processor.clone_group_offset(ADMIN, clone(processor, offline=True)))
    assert parts.offsets.topics_of("h") == {"T", "U"}


def test_clone_group_offset_without_source_or_target_is_refused(tmp_path, consumers):
    parts = open_parts(tmp_path, auto_create=False)
    parts.make_topic("T")
    parts.offsets.commit("g", "T", 0, 1)
    processor = processor_of(parts, consumers)

    def refusal(**more):
        return refused(processor.clone_group_offset, ADMIN, clone(processor, **more))

    assert refusal(to="a/b")[0] == Answer.SYSTEM_ERROR
    assert refusal(source="i")[1] == "the consumer group <i> has no offsets anywhere"
    assert refusal(topic="U")[1] == "the consumer group <g> has no offsets in topic U"
    assert refusal()[0] == Answer.SUBSCRIPTION_GROUP_NOT_EXIST
    assert parts.offsets.topics_of("h") == frozenset()
    parts.store.shutdown()


def test_correction_offsets_show_the_slowest_other_group(processor, parts, story):
    for group, first, second in (("h", 2, 1), ("i", 4, 0), ("left out", 0, 0)):
        parts.offsets.commit(group, "T", 0, first)
        parts.offsets.commit(group, "T", 1, second)
    parts.offsets.commit("h", "T", 2, 0)
    header = headers.QueryCorrectionOffsetRequestHeader("T", "g", "left out, g")
    answer = finished(
        processor.query_correction_offset(ADMIN, ADMIN.ask(Code.QUERY_CORRECTION_OFFSET, header))
    )
    assert body_in(QueryCorrectionOffsetBody, answer).correction_offsets == {0: 2, 1: 0, 2: 0}
    parts.offsets.commit("g", "T", 0, 1)
    answer = finished(
        processor.query_correction_offset(ADMIN, ADMIN.ask(Code.QUERY_CORRECTION_OFFSET, header))
    )
    assert body_in(QueryCorrectionOffsetBody, answer).correction_offsets == {
        0: NO_CORRECTION_OFFSET,
        1: 0,
        2: 0,
    }
    assert parts.offsets.query("left out", "T", 0) == 0  # RocketMQ removes filtered topics


def test_expired_offset_is_no_correction_offset(processor, parts, monkeypatch):
    parts.offsets.commit("h", "T", 0, 2)
    parts.offsets.commit("i", "T", 0, 4)
    monkeypatch.setattr(parts.store, "queue_offsets", lambda *_: QueueBounds(3, 5))
    header = headers.QueryCorrectionOffsetRequestHeader("T", "g", None)
    answer = finished(
        processor.query_correction_offset(ADMIN, ADMIN.ask(Code.QUERY_CORRECTION_OFFSET, header))
    )
    assert body_in(QueryCorrectionOffsetBody, answer).correction_offsets == {0: 4}


def test_offset_reset_includes_read_only_and_write_only_queues(processor, parts, consumers):
    join(consumers, "g", "c", "T")
    parts.put("x", queue_id=3)
    parts.offsets.commit("g", "T", 3, 1)
    for read, write in ((4, 1), (1, 4)):
        parts.topics.put(TopicConfig(topic_name="T", read_queue_nums=read, write_queue_nums=write))
        assert reset(processor, 0, force=True) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_correction_offset_query_of_a_topic_without_groups_is_empty(processor):
    header = headers.QueryCorrectionOffsetRequestHeader("U", "g")
    answer = finished(
        processor.query_correction_offset(ADMIN, ADMIN.ask(Code.QUERY_CORRECTION_OFFSET, header))
    )
    assert body_in(QueryCorrectionOffsetBody, answer).correction_offsets == {}
