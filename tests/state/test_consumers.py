"""Members of groups: joins, departures, subscriptions and expiry."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.brokers.connections import FakeConnection, finished
from support.brokers.state_tables import expelled, room

from rmq_spark.wire.bodies.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from rocketpoll.broker.state.members import client_channel_info
from rocketpoll.broker.state.members.client_channel_info import (
    CLIENT_ID_CHARACTERS_MAX,
    ClientChannelInfo,
    client_fault,
    subscription_bytes,
)
from rocketpoll.broker.state.members.consumers import ConsumerManager
from rocketpoll.broker.state.tables.table import TooMany


def channel(connection, now_ms=0):
    return ClientChannelInfo(connection, connection.client_id, "JAVA", 409, now_ms)


def data(group, *topics, version=1, **more):
    subscriptions = tuple(
        topic
        if isinstance(topic, SubscriptionData)
        else SubscriptionData(topic=topic, sub_version=version)
        for topic in topics
    )
    return ConsumerData(group_name=group, subscription_data_set=subscriptions, **more)


@pytest.fixture
def told():
    return []


@pytest.fixture
def consumers(told):
    return ConsumerManager(lambda group: told.append((group.name, group.client_ids)), room())


@pytest.fixture
def one():
    return FakeConnection("one")


@pytest.fixture
def two():
    return FakeConnection("two")


def test_group_exists_while_it_has_members(consumers, one, two):
    assert consumers.group("g") is None
    consumers.register(channel(one), data("g", "T"))
    consumers.register(channel(two), data("g", "T"))
    group = consumers.group("g")
    assert group.client_ids == ("one", "two")
    assert set(group.clients) == {one, two}
    assert consumers.groups_of("T") == {"g"}
    consumers.unregister("g", one)
    assert group.client_ids == ("two",)
    consumers.unregister("g", two)
    assert consumers.group("g") is None
    assert consumers.groups_of("T") == frozenset()


def test_member_that_left_frees_a_place(one, two):
    consumers = ConsumerManager(lambda _: None, room(members_max=1))
    for member in (one, two, one):
        consumers.register(channel(member), data("g", "T"))
        consumers.unregister("g", member)


def test_consumer_group_has_the_settings_of_its_last_heartbeat(consumers, one):
    consumers.register(channel(one), data("g", "T"))
    consumers.register(
        channel(one),
        data(
            "g",
            "T",
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=MessageModel.BROADCASTING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
        ),
    )
    group = consumers.group("g")
    assert group.consume_type is ConsumeType.CONSUME_ACTIVELY
    assert group.message_model is MessageModel.BROADCASTING
    assert group.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


def test_all_members_are_notified_of_a_join_including_the_joiner(consumers, one, two, told):
    assert consumers.register(channel(one), data("g", "T"))
    assert consumers.register(channel(two), data("g", "T"))
    assert told == [("g", ("one",)), ("g", ("one", "two"))]


def test_unchanged_heartbeat_does_not_notify_members(consumers, one, told):
    consumers.register(channel(one), data("g", "T"))
    told.clear()
    assert not consumers.register(channel(one, 5), data("g", "T", version=9))
    assert told == []
    assert consumers.group("g").clients[one].last_heartbeat_ms == 5


def test_members_are_notified_of_added_and_removed_topics(consumers, one, told):
    consumers.register(channel(one), data("g", "T"))
    assert consumers.register(channel(one), data("g", "T", "U"))
    assert consumers.register(channel(one), data("g", "U"))
    assert len(told) == 3
    assert consumers.subscription("g", "T") is None
    assert consumers.subscription("g", "U").topic == "U"


def test_member_changes_are_notified_to_remaining_members(consumers, one, two, told):
    consumers.register(channel(one), data("g", "T"), notify=False)
    consumers.register(channel(two), data("g", "T"), notify=False)
    assert told == []
    consumers.unregister("g", one)
    assert told == [("g", ("two",))]
    consumers.unregister("g", one)
    consumers.unregister("unknown", one)
    consumers.unregister("g", two)
    assert len(told) == 1


def test_newer_subscription_version_wins(consumers, one, two):
    def tags(text, version):
        return SubscriptionData(topic="T", sub_string=text, sub_version=version)

    consumers.register(channel(one), data("g", tags("a", 5)))
    consumers.register(channel(two), data("g", tags("b", 4)))
    assert consumers.subscription("g", "T").sub_string == "a"
    consumers.register(channel(two), data("g", tags("b", 6)))
    assert consumers.subscription("g", "T").sub_string == "b"
    consumers.register(channel(one), data("g", tags("a", 5)))
    assert consumers.subscription("g", "T").sub_string == "b"


def test_subscription_version_from_the_future_can_be_replaced(consumers, one, two):
    """R31: a version from the future could never be replaced."""
    future = SubscriptionData(topic="T", sub_string="old", sub_version=1 << 60)
    consumers.register(channel(one), data("g", future))
    now = SubscriptionData(topic="T", sub_string="new", sub_version=5)
    consumers.register(channel(one), data("g", now))
    assert consumers.subscription("g", "T").sub_string == "new"
    consumers.register(channel(one), data("g", future))
    consumers.register(channel(two), data("g", now))
    assert consumers.subscription("g", "T").sub_string == "old"
    finished(consumers.connection_closed(one))
    consumers.register(channel(two), data("g", now))
    assert consumers.subscription("g", "T").sub_string == "new"


def test_heartbeat_without_subscriptions_keeps_them(consumers, one, told):
    consumers.register(channel(one), data("g", "T", "U"))
    assert not consumers.register(channel(one, 9), data("g"), keep_subscriptions=True)
    assert set(consumers.group("g").subscriptions) == {"T", "U"}
    assert consumers.group("g").clients[one].last_heartbeat_ms == 9
    assert len(told) == 1


def test_closed_connection_leaves_all_its_consumer_groups(consumers, one, two, told):
    for group in "gh":
        consumers.register(channel(one), data(group, "T"))
    consumers.register(channel(two), data("g", "T"))
    told.clear()
    finished(consumers.connection_closed(one))
    assert told == [("g", ("two",))]
    assert consumers.group("h") is None
    finished(consumers.connection_closed(one))
    finished(consumers.connection_closed(FakeConnection()))
    assert len(told) == 1


def test_silent_consumer_expires_and_its_group_is_notified(consumers, one, two, told):
    consumers.register(channel(one, 1_000), data("g", "T"))
    consumers.register(channel(two, 2_000), data("g", "T"))
    told.clear()
    assert expelled(consumers, 1_000) == []
    assert expelled(consumers, 1_001) == [one]
    assert told == [("g", ("two",))]
    assert expelled(consumers, 1_001) == []


def test_reconnected_client_is_one_member_on_its_latest_connection(consumers, one):
    again = FakeConnection("one")
    consumers.register(channel(one, 1), data("g", "T"))
    consumers.register(channel(again, 2), data("g", "T"))
    assert consumers.group("g").client_ids == ("one",)
    assert consumers.find("g", "one").connection is again
    finished(consumers.connection_closed(again))
    assert consumers.find("g", "one").connection is one
    assert consumers.find("g", "nobody") is None
    assert consumers.find("nowhere", "one") is None


def test_connection_with_a_changed_client_id_is_a_new_member(consumers, one):
    consumers.register(channel(one), data("g", "T"))
    one.client_id = "other"
    assert consumers.register(channel(one), data("g", "T"))
    assert consumers.group("g").client_ids == ("other",)


class MemberMachine(RuleBasedStateMachine):
    """Compares members of groups with a dict: the other members are notified of every change, and
    of nothing else. There is room for four members, and for three subscriptions of all groups or of
    one client."""

    patch = pytest.MonkeyPatch()
    connections = tuple(FakeConnection(name) for name in "abc")
    members = st.sampled_from(connections)
    groups = st.sampled_from(["g", "h"])
    topics = st.frozensets(st.sampled_from("TU"), min_size=1)

    def __init__(self):
        super().__init__()
        self.told = []
        self.patch.setattr(client_channel_info, "CLIENT_SHARE", 1)
        self.room = room(4, 3 * subscription_bytes(data("g", "T").subscription_data_set))
        self.consumers = ConsumerManager(lambda group: self.told.append(group.name), self.room)
        self.model = {}
        self.said = {}
        self.topics_of = {}
        self.now_ms = 0

    @rule(connection=members, group=groups, topics=topics)
    def heartbeat(self, connection, group, topics):
        self.now_ms += 1
        alive = self.has_members(group)
        if not self.has_room(connection, group, topics):
            with pytest.raises(TooMany):
                self.consumers.register(channel(connection, self.now_ms), data(group, *topics))
            return
        self.said[group, connection] = len(topics)
        changed = (
            (group, connection) not in self.model or self.topics_of[group] != topics or not alive
        )
        assert (
            self.consumers.register(channel(connection, self.now_ms), data(group, *topics))
            == changed
        )
        self.model[group, connection] = self.now_ms
        self.topics_of[group] = topics
        self.hears([group] if changed else [])

    @rule(connection=members, group=groups)
    def leave(self, connection, group):
        self.consumers.unregister(group, connection)
        left = self.model.pop((group, connection), None)
        self.hears([group] if left is not None and self.has_members(group) else [])

    @rule(connection=members)
    def close(self, connection):
        finished(self.consumers.connection_closed(connection))
        gone = [group for group, other in self.model if other is connection]
        self.model = {key: at for key, at in self.model.items() if key[1] is not connection}
        self.hears(sorted(group for group in gone if self.has_members(group)))

    @rule(age=st.integers(0, 5))
    def expire(self, age):
        silent = {
            connection for (_, connection), at in self.model.items() if at < self.now_ms - age
        }
        assert set(expelled(self.consumers, self.now_ms - age)) == silent
        self.model = {key: at for key, at in self.model.items() if key[1] not in silent}
        self.told.clear()

    def has_room(self, connection, group, topics):
        is_new = (group, connection) not in self.model
        kept = {name: len(self.topics_of[name]) for name in ("g", "h") if self.has_members(name)}
        said = {key: self.said[key] for key in self.model if key[1] is connection}
        return (
            len(self.model) + is_new <= 4
            and (
                len(topics) <= kept.get(group, 0) or sum({**kept, group: len(topics)}.values()) <= 3
            )
            and (
                len(topics) <= said.get((group, connection), 0)
                or sum({**said, (group, connection): len(topics)}.values()) <= 3
            )
        )

    def teardown(self):
        """Check that departed members leave no used room."""
        for connection in self.connections:
            finished(self.consumers.connection_closed(connection))
        assert vars(self.room) == vars(room(4, self.room._bytes_max))
        self.patch.undo()

    def has_members(self, group):
        return any(key[0] == group for key in self.model)

    def hears(self, groups):
        assert sorted(self.told) == sorted(groups)
        self.told.clear()

    @invariant()
    def both_say_the_same(self):
        for name in ("g", "h"):
            expected = {connection for group, connection in self.model if group == name}
            group = self.consumers.group(name)
            assert (set(group.clients) if group else set()) == expected
            if group:
                assert group.subscriptions.keys() == self.topics_of[name]
        assert self.consumers._groups_of.keys() == {connection for _, connection in self.model}


MemberMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestMembers = MemberMachine.TestCase


# ---- client ids


def test_client_id_must_be_present_and_short():
    assert client_fault("10.0.0.1@4711") is None
    assert client_fault("c" * CLIENT_ID_CHARACTERS_MAX) is None
    assert client_fault(" ") == "there is no clientID"
    assert "1025 characters, over 1024" in client_fault("c" * 1_025)
