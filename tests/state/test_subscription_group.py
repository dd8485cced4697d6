"""Subscription groups: creation, limits and RocketMQ's file."""

import json

import pytest
from support.brokers.state_tables import groups_in
from support.disks.faulty_disk import ManualClock

from rmq_spark.wire.bodies.configs import DataVersion, SubscriptionGroupConfig
from rocketpoll.broker.state.tables.table import TooMany


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def groups(tmp_path, clock):
    return groups_in(tmp_path, clock)


def delete(groups, group):
    groups.begin_deletion(group)
    groups.delete(group)


def test_new_broker_has_rocketmqs_tool_groups(groups):
    assert set(groups.groups) == {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }
    assert groups.is_dirty


@pytest.mark.parametrize("name", ["", "a/b", "a@b", "g" * 249, "CID_RMQ_SYS_/"])
def test_group_with_an_invalid_name_is_not_created(groups, name):
    assert groups.find_or_create(name) is None
    assert name not in groups.groups


def test_number_of_groups_is_limited(tmp_path, clock):
    groups = groups_in(tmp_path, clock, max_groups=8)
    groups.find_or_create("g")
    for make in (
        groups.find_or_create,
        lambda name: groups.put(SubscriptionGroupConfig(group_name=name)),
    ):
        with pytest.raises(TooMany, match=r"there are 8 groups already, .* \(maxGroups=8\)"):
            make("more")
    groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=3))
    assert groups.find_or_create("g").retry_max_times == 3
    groups.save()
    fewer = groups_in(tmp_path, clock, max_groups=2)
    assert len(fewer.groups) == 8
    delete(groups, "g")
    assert groups.find_or_create("more") is not None


def test_groups_survive_a_restart(tmp_path, clock, groups):
    groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=3, consume_enable=False))
    groups.save()
    again = groups_in(tmp_path, clock)
    assert again.wrapper() == groups.wrapper()
    assert not again.is_dirty


def test_each_group_change_increments_the_data_version(groups, clock):
    counter = groups.data_version.counter
    for change in (
        lambda: groups.find_or_create("g"),
        lambda: groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=1)),
        lambda: delete(groups, "g"),
    ):
        clock.now_ms += 10
        change()
        counter += 1
        assert groups.data_version == DataVersion(timestamp=clock.now_ms, counter=counter)


def test_groups_written_by_rocketmq_5_are_loaded_and_saved(tmp_path, clock):
    path = tmp_path / "subscriptionGroup.json"
    path.write_text(
        '{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1},"forbiddenTable":{"g":{"T":4}},'
        '"subscriptionGroupTable":{"g":{"attributes":{"a":"b"},"brokerId":0,"consumeBroadcastEnable":true,'
        '"consumeEnable":true,"consumeFromMinEnable":true,"consumeMessageOrderly":false,'
        '"consumeTimeoutMinute":15,"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        '"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":5,"retryQueueNums":1,'
        '"whichBrokerWhenConsumeSlowly":1}}}'
    )
    groups = groups_in(tmp_path, clock)
    assert groups.get("g").retry_max_times == 5
    groups.save()
    again = groups_in(tmp_path, clock)
    assert again.get("g") == groups.get("g")
    assert again.get("g").group_retry_policy == {"type": "CUSTOMIZED"}
    assert again.wrapper().forbidden_table == {"g": {"T": 4}}


def test_group_entry_under_a_wrong_name_is_corrected(tmp_path, clock, caplog):
    groups = groups_in(tmp_path, clock)
    groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    groups.save()
    path = tmp_path / "subscriptionGroup.json"
    table = json.loads(path.read_text())
    del table["checksum"]
    table["subscriptionGroupTable"]["G"]["groupName"] = "H"
    path.write_text(json.dumps(table))
    groups = groups_in(tmp_path, clock)
    assert groups.get("G") == SubscriptionGroupConfig(group_name="G", retry_max_times=3)
    assert "has group H under the key G: using the key" in caplog.text
    groups.save()
    assert json.loads(path.read_text())["subscriptionGroupTable"]["G"]["groupName"] == "G"


def test_group_list_at_the_limit_may_contain_existing_groups(tmp_path, clock):
    groups = groups_in(tmp_path, clock, max_groups=8)
    groups.find_or_create("g")
    known, new = (SubscriptionGroupConfig(group_name=name) for name in ("g", "new"))
    for _ in groups.check_list([known, known]):
        pass
    with pytest.raises(TooMany, match="there are 8 groups already"):
        for _ in groups.check_list([known, new]):
            pass


def test_rolled_back_group_is_not_saved_with_others(tmp_path, clock):
    groups = groups_in(tmp_path, clock)
    with groups.changes.begin() as change:
        groups.put(SubscriptionGroupConfig(group_name="refused"), change)
    groups.save()
    change.rollback()
    assert groups.is_dirty
    groups.save()
    assert "refused" not in groups_in(tmp_path, clock).groups
