"""State tables are saved to their files and restored after a restart."""

import pytest
from support.disks.faulty_disk import ManualClock
from support.stores.small_store import small_config

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.bodies.operators import PolicyEntryInfo, PolicyInfo
from rocketpoll.broker.auth.access_lists import AccessList
from rocketpoll.broker.auth.user_tables import User, UserType
from rocketpoll.broker.runtime.state_tables import StateTables
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.store.errors import DamagedTable
from rocketpoll.broker.store.files.disk import LocalDisk

ACL = AccessList.of_policies(
    [PolicyInfo(entries=(PolicyEntryInfo(resource="Topic:T", actions=("Pub",), decision="Allow"),))]
)


def load(root, **settings):
    (root / "config").mkdir(exist_ok=True)
    config = BrokerConfig(store=small_config(root), **settings)
    return StateTables.load(config, LocalDisk(), ManualClock())


def test_state_tables_survive_a_restart(tmp_path):
    tables = load(tmp_path)
    tables.topics.put(TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=3, perm=6))
    tables.groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=2))
    tables.kv_configs.put(("N", "k"), "v")
    tables.users.put(User("root", "x", UserType.SUPER))
    with tables.acls.changes.begin() as change:
        tables.acls.put("root", ACL, change)
    assert tables.has_changed_configurations
    tables.save_configurations()
    assert not tables.has_changed_configurations
    tables.offsets.commit("G", "T", 1, 7)
    assert load(tmp_path).offsets.query("G", "T", 1) is None
    tables.save()
    again = load(tmp_path)
    assert again.topics.get("T").read_queue_nums == 3
    assert again.groups.get("G").retry_max_times == 2
    assert again.kv_configs.get(("N", "k")) == "v"
    assert again.users.get("root").is_super
    assert again.acls.get("root") == ACL
    assert again.offsets.query("G", "T", 1) == 7
    assert sorted(
        path.name for path in (tmp_path / "config").iterdir() if path.suffix == ".json"
    ) == [
        "acls.json",
        "consumerOffset.json",
        "kvConfig.json",
        "subscriptionGroup.json",
        "topics.json",
        "users.json",
    ]


def test_auto_create_settings_decide_which_topics_and_groups_are_created(tmp_path):
    tables = load(tmp_path, auto_create_topic_enable=False, auto_create_subscription_group=False)
    assert tables.topics.get("TBW102") is None
    assert tables.groups.find_or_create("G") is None
    other = load(tmp_path, broker_cluster_name="C1", broker_name="b1", default_topic_queue_nums=5)
    assert other.topics.get("TBW102").write_queue_nums == 5
    assert other.topics.get("C1")
    assert other.topics.get("b1")
    assert other.topics.get("SCHEDULE_TOPIC_XXXX").write_queue_nums == 18


@pytest.mark.parametrize(
    "name",
    [
        "topics.json",
        "subscriptionGroup.json",
        "consumerOffset.json",
        "kvConfig.json",
        "users.json",
        "acls.json",
    ],
)
def test_unreadable_state_table_is_refused(tmp_path, name):
    load(tmp_path)
    for suffix in ("", ".bak"):
        (tmp_path / "config" / f"{name}{suffix}").write_bytes(b"{{{")
    with pytest.raises(DamagedTable, match=name):
        load(tmp_path)


@pytest.mark.parametrize(
    "text",
    ['{"users":{"bob":"b0b-s3cret"}}', '{"users":{"bob":{"password":b0b-s3cret}}}', '"b0b-s3cret'],
)
def test_unreadable_table_of_users_shows_no_password(tmp_path, text):
    load(tmp_path)
    for suffix in ("", ".bak"):
        (tmp_path / "config" / f"users.json{suffix}").write_text(text)
    with pytest.raises(DamagedTable, match=r"users\.json cannot be read") as error:
        load(tmp_path)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "is_static"),
    [
        (b'{"topicQueueMappingInfoMap":{"S":{"hostedQueues":{0:[]}}},"dataVersion":{}}', True),
        (b"{}", False),
        (b"", False),
        (b"[1]", False),
        (None, False),
    ],
)
def test_static_topics_of_rocketmq_are_loaded_and_their_file_is_kept(
    tmp_path, text, is_static, caplog
):
    path = tmp_path / "config" / "topicQueueMapping.json"
    path.parent.mkdir()
    if text is not None:
        path.write_bytes(text)
    tables = load(tmp_path)
    feature = tables.topics.unserved_feature(TopicConfig(topic_name="S"))
    assert feature == ("static topics" if is_static else None)
    tables.save()
    assert not path.exists() if text is None else path.read_bytes() == text
    is_damaged = text in (b"", b"[1]")
    assert any(f"{path} cannot be read" in each for each in caplog.messages) == is_damaged
