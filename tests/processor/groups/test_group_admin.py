"""Groups are created, shown and deleted, and refused changes are rolled back."""

import pytest
from support.brokers.connections import finished

from rmq_spark.wire.bodies.configs import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand


def saved_groups(room):
    return room.saved("subscriptionGroup.json", SubscriptionGroupWrapper).subscription_group_table


def test_created_group_is_saved_as_requested(room):
    config = SubscriptionGroupConfig(
        group_name="G",
        consume_enable=False,
        retry_queue_nums=3,
        retry_max_times=5,
        consume_timeout_minute=7,
    )
    assert room.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config).code == 0
    assert room.groups.get("G") == config == saved_groups(room)["G"]
    again = SubscriptionGroupConfig(group_name="G", retry_max_times=1)
    assert room.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, again).code == 0
    assert room.groups.get("G") == again == saved_groups(room)["G"]


def test_subscription_group_body_may_omit_defaults(room):
    body = b'{"groupName":"G"}'
    assert room.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0
    assert room.groups.get("G") == SubscriptionGroupConfig(group_name="G")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (SubscriptionGroupConfig(group_name=""), "blank"),
        (SubscriptionGroupConfig(group_name="a@b"), "other characters"),
        (SubscriptionGroupConfig(group_name="a/b"), "other characters"),
        (
            SubscriptionGroupConfig(group_name="G", retry_queue_nums=-1),
            "0 to 4096 retry queues, not -1",
        ),
        (SubscriptionGroupConfig(group_name="G", retry_queue_nums=1 << 20), "retry queues"),
        (SubscriptionGroupConfig(group_name="G", retry_max_times=-1), "retry -1 times"),
        (
            SubscriptionGroupConfig(group_name="G", retry_max_times=1 << 31),
            "retryMaxTimes of group G must be",
        ),
        (SubscriptionGroupConfig(group_name="G", group_sys_flag=-(1 << 31) - 1), "groupSysFlag"),
        (
            SubscriptionGroupConfig(group_name="G", consume_timeout_minute=1 << 31),
            "integer of 32 bits",
        ),
        (SubscriptionGroupConfig(group_name="G", attributes={"k": "v" * 2_560}), "over 2560"),
        (
            SubscriptionGroupConfig(group_name="G", subscription_data_set=[{"topic": "s" * 2_560}]),
            "over",
        ),
        (SubscriptionGroupConfig(group_name="G", subscription_data_set=["s"]), "a list of objects"),
        (
            SubscriptionGroupConfig(group_name="G", subscription_data_set={}),
            "subscriptionDataSet of group G",
        ),
        (
            SubscriptionGroupConfig(group_name="G", group_retry_policy="EXPONENTIAL"),
            "must be an object",
        ),
        (
            SubscriptionGroupConfig(group_name="G", group_retry_policy={"next": [1] * 2_000}),
            "over 2560",
        ),
    ],
)
def test_invalid_subscription_group_is_refused_with_the_reason(room, config, why):
    before = dict(room.groups.groups)
    code, remark = room.refused(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config)
    assert (code, why in remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert room.groups.groups == before


def test_group_list_is_created_whole_or_not_at_all(room):
    good = tuple(SubscriptionGroupConfig(group_name=name) for name in ("G", "H"))
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    bad = SubscriptionGroupList(
        group_config_list=(*good, SubscriptionGroupConfig(group_name="a b"))
    )
    assert room.refused(code, {}, bad)[0] == ResponseCode.SYSTEM_ERROR
    assert room.groups.get("G") is None
    assert room.ask(code, {}, SubscriptionGroupList(group_config_list=good)).code == 0
    assert {"G", "H"} <= saved_groups(room).keys()


def test_all_groups_are_returned_despite_paging_fields(room):
    page = {"groupSeq": "0", "maxGroupNum": "1"}
    answer = room.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, page)
    assert answer.ext_fields == {}
    found = room.asked(SubscriptionGroupWrapper, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert found == room.groups.wrapper()
    assert "TOOLS_CONSUMER" in found.subscription_group_table


def test_subscription_group_is_shown_as_json_that_java_reads(room):
    room.groups.put(SubscriptionGroupConfig(group_name="G"))
    answer = room.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
    assert bytes(answer.body).decode() == (
        '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
        '"groupName":"G","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        '"whichBrokerWhenConsumeSlowly":1}'
    )


def test_get_subscription_group_creates_a_missing_group_if_allowed(room):
    """RocketMQ's proxy asks for the group of a consumer before it starts the consumer."""
    found = room.asked(
        SubscriptionGroupConfig, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "new"}
    )
    assert found == SubscriptionGroupConfig(group_name="new") == room.groups.get("new")


@pytest.mark.parametrize("ext_fields", [{}, {"removeOffset": "true"}, {"cleanOffset": "true"}])
def test_deleted_group_keeps_its_offsets_unless_asked_to_remove_them(room, ext_fields):
    room.groups.put(SubscriptionGroupConfig(group_name="G"))
    for group in ("G", "H"):
        room.offsets.commit(group, "T", 0, 5)
        room.stats.record_get("T", group, 1, 1, 0)
    room.offsets.save()
    finished(room.stats.sample(room.clock() + 10_000))
    assert (
        room.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", **ext_fields}).code == 0
    )
    assert "G" not in saved_groups(room)
    kept = {"T@H"} if ext_fields else {"T@G", "T@H"}
    assert (
        set(room.saved("consumerOffset.json", ConsumerOffsetSerializeWrapper).offset_table) == kept
    )
    assert room.stats.data("GROUP_GET_NUMS", "T@G") is None
    assert room.stats.data("GROUP_GET_NUMS", "T@H") is not None


def test_unsaved_group_change_is_rolled_back(room):
    before = SubscriptionGroupConfig(group_name="G")
    room.groups.put(before)
    room.groups.save()
    changed = SubscriptionGroupConfig(group_name="G", retry_max_times=1)
    new = SubscriptionGroupConfig(group_name="New")
    room.disk.refuse("subscriptionGroup.json")
    for config in (changed, new):
        code, remark = room.refused(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config)
        assert (code, "No space left" in remark) == (ResponseCode.SYSTEM_ERROR, True)
    body = SubscriptionGroupList(group_config_list=(changed, new, changed))
    room.refused(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body)
    assert room.groups.get("G") is before
    assert room.groups.get("New") is None
    room.disk.refuse()
    room.groups.save()
    assert saved_groups(room)["G"] == before
    assert "New" not in saved_groups(room)


def test_unsaved_group_deletion_keeps_offsets_and_counters(room):
    before = SubscriptionGroupConfig(group_name="G")
    room.groups.put(before)
    room.offsets.commit("G", "T", 0, 5)
    room.offsets.commit("G", "U", 1, 6)
    room.stats.record_get("T", "G", 1, 1, 0)
    room.groups.save()
    room.offsets.save()
    finished(room.stats.sample(room.clock() + 10_000))
    room.disk.refuse("subscriptionGroup.json")
    fields = {"groupName": "G", "cleanOffset": "true"}
    code, remark = room.refused(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
    assert (code, "No space left" in remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert room.groups.get("G") is before
    assert (room.offsets.query("G", "T", 0), room.offsets.query("G", "U", 1)) == (5, 6)
    assert room.stats.data("GROUP_GET_NUMS", "T@G") is not None
    room.disk.refuse()
    room.groups.save()
    room.offsets.save()
    assert saved_groups(room)["G"] == before
    saved = room.saved("consumerOffset.json", ConsumerOffsetSerializeWrapper).offset_table
    assert saved == {"T@G": {0: 5}, "U@G": {1: 6}}
    assert room.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields).code == 0
    assert room.offsets.query("G", "T", 0) is None


def test_rollback_of_an_unsaved_group_deletion_keeps_later_commits(room):
    """The group commits and one of its topics is deleted before the disk refuses the deletion."""
    waiting = []
    room.after_saving._run_in_thread = lambda _, then: waiting.append(then)
    for queue_id in (0, 1):
        room.offsets.commit("G", "T", queue_id, 5)
    room.offsets.commit("G", "Gone", 0, 5)
    fields = {"groupName": "G", "cleanOffset": "true"}
    request = RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext_fields=fields)
    room.handlers[RequestCode.DELETE_SUBSCRIPTIONGROUP](room.connection, request)
    room.offsets.commit("G", "T", 0, 7)
    room.create_topic("Gone")
    room.topics.begin_deletion("Gone")
    room.offsets.discard_topic("Gone")
    room.topics.delete("Gone")
    waiting.pop()(OSError(28, "no space left"))
    assert room.offsets.queues("G", "T") == {0: 7, 1: 5}
    assert room.offsets.topics_of("G") == {"T"}
