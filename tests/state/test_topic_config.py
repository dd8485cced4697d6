"""Topics: creation, limits, versions and RocketMQ's file."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.state_tables import topic_settings, topics_in
from support.disks.faulty_disk import ManualClock
from support.suite.log_records import lines_of

from rmq_spark.wire.bodies.configs import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rocketpoll.broker.state.tables import topic_config
from rocketpoll.broker.state.tables.table import TooMany
from rocketpoll.broker.state.tables.topic_config import TopicConfigManager


class Variable:
    """A table in memory."""

    def __init__(self):
        self.value = None

    def load(self, default):
        return default if self.value is None else self.value

    def save(self, value):
        self.value = value

    def clear(self):
        self.value = None

    @staticmethod
    def fail(_):
        raise OSError("no space")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def topics(tmp_path, clock):
    return topics_in(tmp_path, clock)


def config(name, queues=4, perm=6, **more):
    return TopicConfig(
        topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, **more
    )


def test_new_broker_has_rocketmqs_system_topics(topics):
    found = topics.topics.items()
    assert {
        name: (each.read_queue_nums, each.write_queue_nums, each.perm) for name, each in found
    } == {
        "TBW102": (8, 8, 7),
        "SELF_TEST_TOPIC": (1, 1, 6),
        "BenchmarkTest": (1024, 1024, 6),
        "DefaultCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "RMQ_SYS_TRACE_TOPIC": (1, 1, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6),
        "rmq_sys_wheel_timer": (1, 1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 8, 6),
    }
    assert topics.is_dirty


def test_topics_survive_a_restart(tmp_path, clock, topics):
    topics.put(config("T", attributes={"+a": "b"}))
    topics.save()
    assert not topics.is_dirty
    again = topics_in(tmp_path, clock)
    assert again.wrapper() == topics.wrapper()
    assert not again.is_dirty  # no topic that a start creates was missing


def test_topic_is_saved_once_its_config_is_on_disk(tmp_path, clock, topics):
    first = topics.create_in_send_back("T", 4)
    assert not topics.is_saved(first)
    topics.save()
    assert topics.is_saved(first)
    topics.put(config("T", queues=8))
    assert not topics.is_saved(topics.get("T"))
    topics.save()
    assert topics.is_saved(topics.get("T"))
    assert not topics.is_saved(first)
    topics.put(config("T", queues=8))  # which changes nothing
    assert topics.is_saved(topics.get("T"))
    again = topics_in(tmp_path, clock)
    assert again.is_saved(again.get("T"))
    assert not again.is_saved(config("U"))
    topics.delete("T")
    made = topics.create_in_send_back("T", 8)
    assert not topics.is_saved(made)


def test_number_of_topics_is_limited_but_for_system_topics(tmp_path, clock):
    topics = topics_in(tmp_path, clock, max_topics=2)
    system = len(topics.topics)
    topics.create_in_send("T1", "TBW102", 1)
    topics.put(config("T2"))
    for make in (
        lambda: topics.create_in_send("New", "TBW102", 1),
        lambda: topics.create_in_send("%RETRY%nobody", "TBW102", 1),
        lambda: topics.put(config("New")),
    ):
        with pytest.raises(TooMany, match=r"there are 2 topics already, .* \(maxTopics=2\)"):
            make()
    topics.put(config("T2", queues=3))
    assert topics.create_in_send("T2", "TBW102", 1).write_queue_nums == 3
    topics.delete("BenchmarkTest")
    topics.put(config("BenchmarkTest"))
    assert topics.create_in_send_back("%RETRY%g", 1) is not None
    topics.save()
    again = topics_in(tmp_path, clock, max_topics=2)
    assert (len(again.topics), again.limited_topics) == (system + 3, 3)
    for topic in ("%RETRY%g", "T1"):
        again.delete(topic)
    assert again.create_in_send("New", "TBW102", 1) is not None


def test_each_topic_change_increments_the_data_version(topics, clock):
    counter = topics.data_version.counter
    for change in (
        lambda: topics.put(config("T")),
        lambda: topics.put(config("T", queues=5)),
        lambda: topics.create_in_send("U", "TBW102", 4),
        lambda: topics.create_in_send_back("%RETRY%g", 1),
        lambda: topics.delete("T"),
    ):
        clock.now_ms += 10
        change()
        counter += 1
        assert topics.data_version == DataVersion(timestamp=clock.now_ms, counter=counter)
    topics.put(topics.get("U"))
    topics.create_in_send("U", "TBW102", 4)
    assert topics.data_version.counter == counter


def test_rocketmqs_topics_file_is_loaded_with_its_version(tmp_path, clock):
    """As 5.x writes them: with tabs, attributes and a state version."""
    (tmp_path / "topics.json").write_text(
        '{\n\t"dataVersion":{"counter":7,"stateVersion":3,"timestamp":1700000000123},\n\t"topicConfigTable":{\n'
        '\t\t"orders":{"attributes":{"+message.type":"NORMAL"},"order":false,"perm":6,"readQueueNums":8,'
        '"topicFilterType":"SINGLE_TAG","topicName":"orders","topicSysFlag":0,"writeQueueNums":4},\n'
        '\t\t"TBW102":{"order":false,"perm":7,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"TBW102","topicSysFlag":0,"writeQueueNums":8}\n\t}\n}'
    )
    topics = topics_in(tmp_path, clock)
    orders = topics.get("orders")
    assert (orders.read_queue_nums, orders.write_queue_nums) == (8, 4)
    assert orders.attributes == {"+message.type": "NORMAL"}
    assert topics.data_version.state_version == 3
    assert topics.data_version.counter > 7  # our own topics were added


def test_default_topic_can_be_inherited_only_with_auto_create(tmp_path, clock, topics):
    topics.save()
    strict = topics_in(tmp_path, clock, auto_create=False)
    assert strict.get("TBW102").perm == 6
    assert strict.create_in_send("T", "TBW102", 4) is None
    assert (
        strict.create_in_send("T", "DefaultCluster", 4) is None
    )  # it has the permission to inherit
    assert "TBW102" not in topics_in(tmp_path / "new", clock, auto_create=False).topics
    strict.save()
    assert topics_in(tmp_path, clock).get("TBW102").perm == 7


def test_topic_without_inheritable_default_is_not_created(topics):
    assert topics.create_in_send("T", "unknown", 4) is None
    assert topics.create_in_send("T", "", 4) is None
    assert topics.create_in_send("T", "BenchmarkTest", 4) is None
    assert topics.get("T") is None


def test_schedule_topic_gains_queues_with_delay_levels_and_never_loses_any(tmp_path, clock, topics):
    topics.save()
    more = topics_in(tmp_path, clock, delay_levels=20)
    assert more.get("SCHEDULE_TOPIC_XXXX").write_queue_nums == 20
    more.save()
    assert (
        topics_in(tmp_path, clock, delay_levels=3).get("SCHEDULE_TOPIC_XXXX").write_queue_nums == 20
    )


def test_number_of_queues_of_all_topics_is_limited(tmp_path, clock):
    ours = 1_024 + 18 + 16 + 8 + 8 + 6  # RocketMQ's own topics
    topics = topics_in(tmp_path, clock, max_queues=ours + 20)
    topics.put(replace(config("T", 4), write_queue_nums=16))
    with pytest.raises(
        TooMany, match=rf"there are {ours + 16} queues already, .* \(maxQueues={ours + 20}\)"
    ):
        topics.put(config("U", 5))
    with pytest.raises(TooMany, match="maxQueues"):
        topics.create_in_send("U", "TBW102", 5)
    topics.put(config("T", 15))  # fewer than before, and the removed ones may be added again
    topics.put(config("U", 5))
    with pytest.raises(TooMany, match="maxQueues"):
        topics.put(config("T", 16))
    topics.create_in_send_back("%RETRY%g", 1)  # for the broker itself
    topics.save()
    again = topics_in(tmp_path, clock, max_queues=ours + 20)
    with pytest.raises(TooMany, match=f"there are {ours + 21} queues"):
        again.put(config("V", 1))
    again.delete("U")
    again.put(config("V", 4))


def test_topic_view_is_read_only_and_its_wrapper_a_copy(topics):
    with pytest.raises(TypeError):
        topics.topics["T"] = config("T")
    wrapper = topics.wrapper()
    topics.put(config("T"))
    assert "T" not in wrapper.topic_config_table
    assert topics.wrapper().topic_config_table == topics.topics


_names = st.sampled_from(["A", "B", "%RETRY%g", "TBW102"])
_changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), _names, st.integers(1, 9)),
        st.tuples(st.just("send"), _names, st.integers(-1, 12)),
        st.tuples(st.just("back"), _names, st.integers(1, 3)),
        st.tuples(st.just("delete"), _names, st.just(0)),
        st.tuples(st.just("save"), _names, st.just(0)),
    )
)


@given(_changes)
def test_topic_table_version_grows_exactly_when_the_table_changes(changes):
    table = Variable()
    settings = topic_settings(delay_levels=2, max_queues=10_000)
    topics = TopicConfigManager(table, Variable(), now_ms=ManualClock(), **settings)
    for kind, name, queues in changes:
        before, counter = dict(topics.topics), topics.data_version.counter
        if kind == "put":
            topics.put(config(name, queues))
        elif kind == "send":
            topics.create_in_send(name, "TBW102", queues)
        elif kind == "back":
            topics.create_in_send_back(name, queues)
        elif kind == "delete":
            topics.delete(name)
        else:
            topics.save()
        assert (dict(topics.topics) != before) == (topics.data_version.counter == counter + 1)
        if topics.data_version.counter == counter:
            assert dict(topics.topics) == before
        assert topics.is_dirty == (table.load(TopicConfigSerializeWrapper()) != topics.wrapper())


def by_hand(clock, entries, **settings):
    """Return the topics of a table edited by hand."""
    table = Variable()
    table.value = TopicConfigSerializeWrapper(topic_config_table=entries)
    return TopicConfigManager(table, Variable(), now_ms=clock, **topic_settings(**settings))


def test_topic_entry_under_a_wrong_name_is_corrected(clock, caplog):
    topics = by_hand(clock, {"T": config("U", 3), "U": config("U", 5)})
    assert (topics.get("T"), topics.get("U")) == (config("T", 3), config("U", 5))
    assert lines_of(caplog, "rocketpoll.broker.state") == [
        "topics.json has topic U under the key T: using the key"
    ]
    topics.save()
    assert topics.is_saved(topics.get("T"))


def test_topic_with_too_many_queues_is_reduced_at_load(clock, caplog):
    topics = by_hand(clock, {"T": config("T", 1 << 31), "U": config("U", 10_000)}, max_queues=9_999)
    assert (topics.get("T"), topics.get("U")) == (config("T", 4_096), config("U", 4_096))
    assert "over maxQueues=9999" in caplog.text
    caplog.clear()
    assert by_hand(clock, {"U": config("U", 10_000)}).get("U") == config("U", 10_000)
    assert lines_of(caplog, "rocketpoll.broker.state") == []


# ---- large tables: changes are saved apart from the whole


def files_in(root):
    return sorted(path.name for path in root.iterdir() if path.suffix == ".json")


@pytest.fixture
def is_large(monkeypatch):
    """Make every table count as large, as with thousands of topics."""
    monkeypatch.setattr(topic_config, "SMALL_TABLE_TOPICS", 0)


def test_change_of_a_small_table_is_saved_with_the_whole(tmp_path, topics):
    topics.save()
    topics.put(config("A"))
    topics.save_changes()
    assert topics.is_saved(topics.get("A"))
    assert files_in(tmp_path) == ["topics.json"]


@pytest.mark.usefixtures("is_large")
def test_change_of_a_large_table_is_durable_and_saved_with_the_whole_later(tmp_path, clock, topics):
    topics.save()
    whole = (tmp_path / "topics.json").read_bytes()
    topics.put(config("A"))
    topics.save_changes()
    topics.put(config("B"))
    topics.save_changes()
    topics.save_changes()
    assert (tmp_path / "topics.json").read_bytes() == whole
    assert topics.is_dirty
    # accepts no message before RocketMQ can find the topic
    assert not topics.is_saved(topics.get("A"))
    again = topics_in(tmp_path, clock)
    assert dict(again.topics) == dict(topics.topics)
    assert again.data_version == topics.data_version
    assert (again.is_dirty, again.is_saved(again.get("A"))) == (True, False)
    again.save()
    assert again.is_saved(again.get("A"))
    assert files_in(tmp_path) == ["topics.json"]
    assert dict(topics_in(tmp_path, clock).topics) == dict(topics.topics)


@pytest.mark.usefixtures("is_large")
def test_recent_topics_of_an_older_version_are_ignored(tmp_path, clock, topics):
    topics.put(config("A"))
    topics.save()
    topics.put(config("B"))
    topics.save_changes()
    stale = (tmp_path / "recentTopics.json").read_bytes()
    topics.delete("B")
    topics.save()
    (tmp_path / "recentTopics.json").write_bytes(stale)  # as after a power loss
    again = topics_in(tmp_path, clock)
    assert (again.get("B"), again.is_dirty) == (None, False)
    again.put(config("C"))
    again.save()
    assert files_in(tmp_path) == ["topics.json"]


@pytest.mark.usefixtures("is_large")
def test_topic_table_with_many_changes_is_saved_as_a_whole(tmp_path, topics):
    topics.save()
    for number in range(topic_config.RECENT_TOPICS_MAX + 1):
        topics.put(config(f"T{number}"))
    topics.save_changes()
    assert not topics.is_dirty
    topics.put(config("A"))
    topics.save_changes()
    assert topics.is_dirty
    topics.delete("A")
    topics.save_changes()
    assert not topics.is_dirty
    assert files_in(tmp_path) == ["topics.json"]


_KINDS = ("put", "delete", "save", "changes", "fail")


@given(st.lists(st.tuples(st.sampled_from(_KINDS), st.sampled_from("ABC"))))
def test_topic_table_is_complete_after_a_restart_at_any_save(steps):
    whole, recent = Variable(), Variable()
    settings = topic_settings(delay_levels=2, max_queues=10_000)

    def start():
        return TopicConfigManager(whole, recent, now_ms=ManualClock(), **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_config, "SMALL_TABLE_TOPICS", 0)
        patch.setattr(topic_config, "RECENT_TOPICS_MAX", 2)
        topics = start()
        for number, (kind, name) in enumerate(steps):
            if kind == "put":
                topics.put(config(name, number % 9 + 1))
            elif kind == "delete":
                topics.delete(name)
            elif kind == "fail":
                with patch.context() as failing:
                    failing.setattr(whole, "save", Variable.fail)
                    failing.setattr(recent, "save", Variable.fail)
                    with suppress(OSError):
                        topics.save_changes()
            else:
                topics.save() if kind == "save" else topics.save_changes()
                assert dict(start().topics) == dict(topics.topics)
