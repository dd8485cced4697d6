"""Topics are created, shown and deleted, and refused changes are rolled back."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.brokers.admin_processors import AdminRoom
from support.brokers.connections import finished

from rmq_spark.errors import RocketPollError
from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.configs import (
    ConsumerOffsetSerializeWrapper,
    CreateTopicListRequestBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
)
from rmq_spark.wire.bodies.operators import GroupList, TopicOffset, TopicStatsTable
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.processor.topics.topic_admin import changed_attributes
from rocketpoll.broker.state.tables import topic_config

CREATE = {
    "topic": "T",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "3",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


def create(room, **changes):
    return room.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**CREATE, **changes})


def refused(room, **changes):
    return room.refused(RequestCode.UPDATE_AND_CREATE_TOPIC, {**CREATE, **changes})


# ---- creating and changing


def test_created_topic_is_saved_as_requested(room):
    answer = create(
        room,
        perm="4",
        topicFilterType="MULTI_TAG",
        topicSysFlag="1",
        order="true",
        attributes="+message.type=FIFO",
    )
    assert answer.code == ResponseCode.SUCCESS
    expected = TopicConfig(
        topic_name="T",
        read_queue_nums=4,
        write_queue_nums=3,
        perm=4,
        topic_filter_type=TopicFilterType.MULTI_TAG,
        topic_sys_flag=1,
        order=True,
        attributes={"message.type": "FIFO"},
    )
    assert room.topics.get("T") == expected
    assert (
        room.saved("topics.json", TopicConfigSerializeWrapper).topic_config_table["T"] == expected
    )


def test_updated_topic_keeps_its_attributes(room):
    create(room, attributes="+message.type=FIFO")
    before = room.topics.data_version
    create(room, readQueueNums="8", attributes="")
    assert room.topics.get("T").read_queue_nums == 8
    assert room.topics.get("T").attributes == {"message.type": "FIFO"}
    assert room.topics.data_version.counter == before.counter + 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"topic": ""}, "blank"),
        ({"topic": "../../etc"}, "other characters"),
        ({"topic": "T" * 128}, "over 127"),
        ({"topic": "TBW102"}, "conflict with system topic"),
        ({"topic": "rmq_sys_mine"}, "conflict with system topic"),
        ({"topic": "broker-a"}, "conflict with system topic"),
        ({"topic": "DefaultCluster_REPLY_TOPIC"}, "conflict with system topic"),
        ({"topic": "%LMQ%x"}, "the topic %LMQ%x is a light queue of RocketMQ 5"),
        ({"readQueueNums": "0"}, "1 to 4096 read queues, not 0"),
        ({"writeQueueNums": "-1"}, "write queues"),
        ({"writeQueueNums": str((1 << 31) - 1)}, "write queues"),
        ({"perm": "8"}, "cannot have permission 8"),
        ({"perm": "-1"}, "cannot have permission -1"),
        ({"topicFilterType": "NO_TAG"}, "SINGLE_TAG or MULTI_TAG, not 'NO_TAG'"),
        ({"attributes": "+cleanup.policy=COMPACTION"}, "COMPACTION"),
    ],
)
def test_invalid_topic_is_refused_with_the_reason(room, changes, why):
    before = dict(room.topics.topics)
    code, remark = refused(room, **changes)
    assert code == ResponseCode.SYSTEM_ERROR
    assert why in remark
    assert room.topics.topics == before


def create_list(*configs):
    return (
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        {},
        json.dumps({"topicConfigList": configs}).encode(),
    )


def test_invalid_config_in_a_list_creates_no_topic(room):
    configs = (
        TopicConfig(topic_name="T"),
        TopicConfig(topic_name="U", perm=99),
        TopicConfig(topic_name="V"),
    )
    body = CreateTopicListRequestBody(topic_config_list=configs)
    code, remark = room.refused(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
    assert (code, "U" in remark) == (1, True)
    assert [room.topics.get(topic) is not None for topic in "TUV"] == [False, False, False]


def test_topic_list_attributes_are_changes(room):
    create(room, attributes="+message.type=FIFO,+cleanup.policy=DELETE")
    changes = {"+message.type": "DELAY", "-cleanup.policy": ""}
    new = {"topicName": "U", "attributes": {"+message.type": "NORMAL"}}
    assert room.ask(*create_list({"topicName": "T", "attributes": changes}, new)).code == 0
    assert room.topics.get("T").attributes == {"message.type": "DELAY"}
    assert room.topics.get("U").attributes == {"message.type": "NORMAL"}
    assert room.ask(*create_list({"topicName": "T"})).code == 0
    assert room.topics.get("T").attributes == {"message.type": "DELAY"}


TOPIC_CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.sampled_from(
            ["U", "", "a b", "x" * 128, "TBW102", "SELF_TEST_TOPIC", "broker-a"]
        ),
        "readQueueNums": st.sampled_from([-1, 0, 1, 4_096, 4_097, 1 << 31, 1 << 70]),
        "writeQueueNums": st.sampled_from([-(1 << 40), 0, 1, 4_096, 4_097]),
        "perm": st.sampled_from([-1, 0, 7, 8, 1 << 40]),
        "topicFilterType": st.sampled_from(["SINGLE_TAG", "MULTI_TAG", "NONE", ""]),
        "topicSysFlag": st.sampled_from(
            [-(1 << 31) - 5, -(1 << 31), 0, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 70]
        ),
        "attributes": st.dictionaries(
            st.sampled_from(
                ["+message.type", "+queue.type", "-message.type", "+k", "message.type", "-", "+"]
            ),
            st.sampled_from(["FIFO", "SimpleCQ", "BatchCQ", "", "v" * 300_000]),
            max_size=2,
        ),
    },
)


def is_success(room, *request):
    try:
        return room.ask(*request).code == ResponseCode.SUCCESS
    except RocketPollError:  # an invalid header or body, which the dispatcher answers
        return False


@given(changes=TOPIC_CHANGES)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # each example begins with the topics of the previous one
def test_topic_list_update_refuses_what_a_single_update_refuses(room, changes):
    attributes = changes.get("attributes", {})
    text = ",".join(f"{name}={value}" if value else name for name, value in attributes.items())
    one = CREATE | {name: str(value) for name, value in changes.items()} | {"attributes": text}
    is_taken = is_success(room, RequestCode.UPDATE_AND_CREATE_TOPIC, one)
    if is_taken:
        room.topics.delete(one["topic"])
    before, version = dict(room.topics.topics), room.topics.data_version
    config = {
        "topicName": one["topic"],
        "readQueueNums": 4,
        "writeQueueNums": 3,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    } | {name: value for name, value in changes.items() if name != "topic"}
    is_list_taken = is_success(
        room, *create_list({"topicName": "First"}, config, {"topicName": "Last"})
    )
    assert is_taken or not is_list_taken
    if not is_list_taken:
        assert (room.topics.topics, room.topics.data_version) == (before, version)
    else:
        for topic in (one["topic"], "First", "Last"):
            room.topics.delete(topic)


def test_topic_list_that_hits_the_limit_midway_keeps_the_first_and_says_so(
    tmp_path,
):
    room = AdminRoom(tmp_path, max_topics=3)
    request = room.connection.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        None,
        create_list(*({"topicName": t} for t in "AB"))[2],
    )
    steps = room.handlers[request.code](room.connection, request)
    while room.topics.get("A") is None:
        next(steps)
    for number in range(3 - room.topics.limited_topics):
        room.topics.create_in_send("%RETRY%" + str(number), "TBW102", 1)
    finished(steps)
    answer = room.connection.sent.pop()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "(maxTopics=3). Delete what nobody uses, or raise maxTopics" in answer.remark
    assert answer.remark.endswith("; the 1 before it were accepted")
    assert "A" in room.saved("topics.json", TopicConfigSerializeWrapper).topic_config_table


def test_topic_list_request_without_a_body_is_refused(room):
    assert room.refused(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)[0] == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("small_topics", [topic_config.SMALL_TABLE_TOPICS, 0])
def test_unsaved_topic_change_is_rolled_back(room, monkeypatch, small_topics):
    before = room.create_topic("T", queue_nums=8)
    monkeypatch.setattr(topic_config, "SMALL_TABLE_TOPICS", small_topics)
    room.disk.refuse("topics.json", "recentTopics.json")
    for changes in ({"topic": "T"}, {"topic": "New"}):
        code, remark = refused(room, **changes)
        assert (code, "No space left" in remark) == (ResponseCode.SYSTEM_ERROR, True)
    configs = tuple(TopicConfig(topic_name=name, read_queue_nums=1) for name in ("T", "New", "T"))
    body = CreateTopicListRequestBody(topic_config_list=configs)
    assert (
        room.refused(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)[0]
        == ResponseCode.SYSTEM_ERROR
    )
    wipe = room.refused(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert wipe[0] == ResponseCode.SYSTEM_ERROR
    assert room.topics.get("T") is before
    assert room.topics.is_saved(before)
    assert room.topics.get("New") is None
    room.disk.refuse()
    room.topics.save()
    saved = room.saved("topics.json", TopicConfigSerializeWrapper).topic_config_table
    assert (saved["T"], "New" in saved) == (before, False)
    assert create(room).code == ResponseCode.SUCCESS
    recent = room.saved("recentTopics.json", TopicConfigSerializeWrapper)
    assert (recent is None) == bool(small_topics)


# ---- queries


def test_all_topics_are_returned_despite_paging_fields(room):
    room.create_topic("T")
    page = {"topicSeq": "0", "maxTopicNum": "1"}
    answer = room.ask(RequestCode.GET_ALL_TOPIC_CONFIG, page)
    assert "totalTopicNum" not in answer.ext_fields
    assert decode_body(TopicConfigSerializeWrapper, answer.body) == room.topics.wrapper()


def test_topic_config_is_shown_as_json_that_java_reads(room):
    room.create_topic("T")
    answer = room.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T", "lo": "true"})
    assert bytes(answer.body).decode() == (
        '{"order":false,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG","topicName":"T",'
        '"topicSysFlag":0,"writeQueueNums":2}'
    )


@pytest.mark.parametrize("code", [RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_TOPIC_STATS_INFO])
def test_unknown_topic_is_answered_not_exist(room, code):
    assert room.refused(code, {"topic": "nowhere"}) == (
        17,
        "topic[nowhere] not exist, apply first please!",
    )


def test_topic_stats_contain_each_queue_as_java_reads_them(room):
    room.create_topic("T", read_queue_nums=1, write_queue_nums=2)
    for number in range(3):
        room.put(number, at_ms=1_700_000_000_000 + number, queue_id=1)
    answer = room.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    assert bytes(answer.body).decode() == (
        '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:'
        '{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},'
        '{"brokerName":"broker-a","queueId":1,"topic":"T"}:'
        '{"lastUpdateTimestamp":1700000000002,"maxOffset":3,"minOffset":0}},"topicPutTps":0.0}'
    )
    stats = decode_body(TopicStatsTable, answer.body)
    assert stats.offset_table[MessageQueue("T", "broker-a", 1)] == TopicOffset(
        min_offset=0, max_offset=3, last_update_timestamp=1_700_000_000_002
    )


def test_topic_stats_show_put_tps(room):
    room.create_topic("T")
    room.stats.record_put("T", 50, 500)
    finished(room.stats.sample(room.clock() + 10_000))
    stats = room.asked(TopicStatsTable, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    assert stats.topic_put_tps == 5.0


def test_topic_consumers_are_online_groups_and_those_with_offsets(room):
    room.create_topic("T")
    room.consume("online", "T")
    room.consume("elsewhere", "U")
    room.offsets.commit("offline", "T", 0, 5)
    found = room.asked(GroupList, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert found.group_list == {"online", "offline"}


# ---- deleting


def test_deleted_topic_loses_its_messages_offsets_and_counters_for_good(room):
    room.create_topic("T")
    room.create_topic("U")
    for topic in ("T", "U"):
        room.put("body", topic=topic)
        room.offsets.commit("G", topic, 0, 1)
        room.stats.record_put(topic, 1, 4)
    finished(room.stats.sample(room.clock() + 10_000))
    assert room.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == ResponseCode.SUCCESS
    assert room.topics.get("T") is None
    assert room.store.queue_offsets("T", 0) == (0, 0)
    assert room.offsets.topics_of("G") == {"U"}
    assert room.stats.data("TOPIC_PUT_NUMS", "T") is None
    assert "T" not in room.saved("topics.json", TopicConfigSerializeWrapper).topic_config_table
    saved = room.saved("consumerOffset.json", ConsumerOffsetSerializeWrapper)
    assert set(saved.offset_table) == {"U@G"}
    assert room.store.queue_offsets("U", 0) == (0, 1)


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "DefaultCluster", "TBW102", "", "a/b"])
def test_system_and_invalid_topics_cannot_be_deleted(room, topic):
    assert (
        room.refused(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})[0]
        == ResponseCode.SYSTEM_ERROR
    )


def test_topic_with_a_system_prefix_that_is_not_the_brokers_own_can_be_deleted(room):
    """Earlier releases created such topics for any message, and a store of RocketMQ may
    have them."""
    room.topics._set(
        "rmq_sys_x", TopicConfig(topic_name="rmq_sys_x", read_queue_nums=1, write_queue_nums=1)
    )
    room.put("body", topic="rmq_sys_x")
    answer = room.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "rmq_sys_x"})
    assert answer.code == ResponseCode.SUCCESS
    assert room.topics.get("rmq_sys_x") is None
    assert room.store.queue_offsets("rmq_sys_x", 0) == (0, 0)


def test_clean_unused_topics_keeps_messages_of_a_lost_topic(room):
    room.put("body", topic="lost")
    assert room.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == ResponseCode.SUCCESS
    assert room.store.queue_offsets("lost", 0) == (0, 1)


def test_topic_whose_deletion_failed_still_exists(room, monkeypatch):
    room.create_topic("T")
    room.put("body")
    room.offsets.commit("G", "T", 0, 1)
    with monkeypatch.context() as broken:
        broken.setattr(room.store, "delete_topic", failing)
        code, remark = room.refused(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert (code, "no space" in remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert room.topics.get("T") is not None
    assert room.offsets.query("G", "T", 0) == 1
    assert room.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == ResponseCode.SUCCESS
    assert room.store.queue_offsets("T", 0) == (0, 0)


@pytest.mark.parametrize("name", ["consumerOffset.json", "topics.json"])
def test_topic_deletion_that_could_not_be_saved_can_be_repeated(room, name):
    room.create_topic("T")
    room.put("body")
    room.offsets.commit("G", "T", 0, 1)
    room.offsets.save()
    room.disk.refuse(name)
    for _ in range(2):
        code, remark = room.refused(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert (code, "No space left" in remark) == (ResponseCode.SYSTEM_ERROR, True)
        assert room.topics.get("T") is None
        assert room.store.half_deleted_topics == ("T",)
        assert "is being deleted" in refused(room)[1]
    room.disk.refuse()
    assert room.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == ResponseCode.SUCCESS
    assert "T" not in room.saved("topics.json", TopicConfigSerializeWrapper).topic_config_table
    assert room.saved("consumerOffset.json", ConsumerOffsetSerializeWrapper).offset_table == {}
    assert room.store.half_deleted_topics == ()
    assert create(room).code == ResponseCode.SUCCESS


def failing(*_):
    raise OSError(28, "no space left")


# ---- attributes of topics are set, changed and dropped


def test_topic_attributes_are_set_changed_and_dropped():
    known = changed_attributes(None, "+message.type=FIFO,+cleanup.policy=DELETE")
    assert known == {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    assert changed_attributes(known, "+message.type=NORMAL,-cleanup.policy") == {
        "message.type": "NORMAL"
    }
    assert known["message.type"] == "FIFO"


@pytest.mark.parametrize("changes", ["", " ", ",", "-message.type"])
def test_topic_without_attributes_keeps_none_after_a_removal(changes):
    assert changed_attributes(None, changes) is None


def test_empty_attribute_change_keeps_the_attributes():
    assert changed_attributes({"message.type": "FIFO"}, "") == {"message.type": "FIFO"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ("+cleanup.policy=COMPACTION", "can be DELETE, not 'COMPACTION'"),
        ("+queue.type=BatchCQ", "can be SimpleCQ"),
        ("+reserve.time=5", "'reserve.time' is not supported"),
        ("message.type=FIFO", "by \\+name=value or -name"),
        ("+message.type", "by \\+name=value or -name"),
        ("-message.type=FIFO", "by \\+name=value or -name"),
        ("+", "by \\+name=value or -name"),
    ],
)
def test_topic_attribute_without_support_is_refused(changes, why):
    with pytest.raises(RequestRejected, match=why):
        changed_attributes(None, changes)
