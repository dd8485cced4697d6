"""Producers of groups."""

import pytest
from support.brokers.connections import FakeConnection, finished
from support.brokers.state_tables import expelled, room

from rocketpoll.broker.state.members.client_channel_info import ClientChannelInfo
from rocketpoll.broker.state.members.producers import ProducerManager
from rocketpoll.broker.state.tables.table import TooMany


def channel(connection, now_ms=0):
    return ClientChannelInfo(connection, connection.client_id, "JAVA", 409, now_ms)


@pytest.fixture
def producers():
    return ProducerManager(room())


@pytest.fixture
def one():
    return FakeConnection("one")


@pytest.fixture
def two():
    return FakeConnection("two")


def test_producer_group_contains_registered_clients(producers, one, two):
    producers.register("p", channel(one, 1))
    producers.register("p", channel(two, 2))
    producers.register("p", channel(one, 3))
    assert [(each.client_id, each.last_heartbeat_ms) for each in producers.channels("p")] == [
        ("one", 3),
        ("two", 2),
    ]
    producers.unregister("p", one)
    producers.unregister("p", one)
    producers.unregister("q", one)
    assert [each.client_id for each in producers.channels("p")] == ["two"]
    producers.unregister("p", two)
    assert producers.channels("p") == ()
    assert producers.groups == {}


def test_silent_producer_expires(producers, one, two):
    producers.register("p", channel(one, 1_000))
    producers.register("q", channel(one, 1_000))
    producers.register("p", channel(two, 2_000))
    assert expelled(producers, 1_000) == []
    assert expelled(producers, 2_000) == [one]
    assert expelled(producers, 2_000) == []
    assert list(producers.groups) == ["p"]


def test_reconnected_producer_is_reached_at_its_last_connection(producers, one):
    again = FakeConnection("one")
    producers.register("p", channel(one, 1))
    producers.register("p", channel(again, 2))
    finished(producers.connection_closed(one))
    assert producers.find("one").connection is again
    finished(producers.connection_closed(again))
    assert producers.find("one") is None


def test_two_producers_with_one_client_id_may_leave_in_any_order(producers, one):
    again = FakeConnection("one")
    producers.register("p", channel(one, 1))
    producers.register("p", channel(again, 2))
    finished(producers.connection_closed(again))
    finished(producers.connection_closed(one))
    assert producers.find("one") is None
    assert producers.groups == {}


def test_changed_client_id_replaces_the_old_one(producers, one):
    def named(client_id):
        return ClientChannelInfo(one, client_id, "JAVA", 409, 0)

    producers.register("p", named("old"))
    producers.register("q", named("old"))
    producers.register("p", named("new"))
    assert producers.find("old").connection is producers.find("new").connection is one
    producers.register("q", named("new"))
    assert producers.find("old") is None
    producers.register("q", named("third"))
    finished(producers.connection_closed(one))
    assert [producers.find(client_id) for client_id in ("old", "new", "third")] == [None] * 3


def test_producer_client_counts_once_per_group(one, two):
    producers = ProducerManager(room(members_max=3))
    for group in ("p", "q", "p"):
        producers.register(group, channel(one))
    producers.register("p", channel(two))
    with pytest.raises(
        TooMany, match=r"there are 3 members of groups already, .* \(maxGroupMembers=3\)"
    ):
        producers.register("q", channel(two))
    assert list(producers.groups["q"]) == [one]
    finished(producers.connection_closed(one))
    producers.register("q", channel(two))
