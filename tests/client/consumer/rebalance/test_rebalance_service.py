"""The rebalance service: all topics in turn, failures of one topic, and its log."""

import logging

import pytest

from rmq_spark.client.consumer.rebalance.rebalance_service import (
    RETRY_MS,
    Rebalance,
    RebalanceService,
)
from rmq_spark.client.consumer.rebalance.strategies import AllocateMessageQueueAveragely
from rmq_spark.client.errors import RequestTimeout, RouteNotFound
from rmq_spark.wire.bodies.clients import MessageModel
from rmq_spark.wire.message_queue import MessageQueue


def queues(topic):
    return tuple(MessageQueue(topic, "broker-a", number) for number in range(4))


class World:
    """A member with its group, brokers and client."""

    def __init__(self):
        self.group, self.client_id, self.is_running, self.is_shut_down = "G", "me", True, False
        self.topics, self.held, self.taken, self.accepts = frozenset("AB"), (), {}, True
        self.members, self.fails, self.beats, self.asked, self.routed = ("me", "you"), (), 0, 0, []
        self.routes = self
        self.error = lambda _topic: RequestTimeout("b:1", 38, 3_000)
        rule = Rebalance(MessageModel.CLUSTERING, AllocateMessageQueueAveragely())
        self.service = RebalanceService(self, rule, self, self)

    def broker_names(self, _):
        return frozenset(["broker-a"])

    def queues(self, topic):
        if topic in self.fails:
            raise self.error(topic)
        return queues(topic)

    def consumer_ids(self, _):
        self.asked += 1
        return self.members

    def topics_of_group(self, _):
        return self.topics

    def heartbeat(self):
        self.beats += 1

    def refresh_each(self, topics):
        self.routed.append(topics)

    def assigned_topics(self):
        return self.held

    def apply_assignment(self, topic, share):
        self.taken[topic] = share.own
        return self.accepts


class Routes:
    def __init__(self, world):
        self.topics, self.refresh_each = frozenset(), world.refresh_each


@pytest.fixture
def world():
    return World()


def test_rebalance_updates_all_topics_with_one_member_query(world):
    assert world.service.do_rebalance() is None
    assert world.taken == {topic: queues(topic)[:2] for topic in "AB"}
    assert (world.asked, world.beats) == (1, 0)  # one request for members serves all topics


def test_rebalance_releases_queues_of_an_unsubscribed_topic(world):
    world.held = ("C", "A")
    world.service.do_rebalance()
    assert world.taken["C"] == ()


def test_rebalance_failure_of_one_topic_keeps_its_queues(world, caplog):
    world.fails = ("A",)
    assert world.service.do_rebalance() == RETRY_MS
    assert list(world.taken) == ["B"]
    assert "G: rebalancing A failed, retrying" in caplog.text


def warnings(caplog):
    found = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    caplog.clear()
    return found


def test_rebalance_failure_is_logged_once_for_all_topics_and_on_recovery(world, caplog):
    world.fails = ("A", "B")
    for _ in range(3):
        world.service.do_rebalance()
    assert len(warnings(caplog)) == 1
    world.fails = ("B",)
    world.service.do_rebalance()
    assert warnings(caplog) == []
    world.fails = ()
    for _ in range(2):
        world.service.do_rebalance()
    assert warnings(caplog) == ["G: rebalancing B recovered"]
    world.fails = ("A",)
    world.service.do_rebalance()
    assert len(warnings(caplog)) == 1


def test_rebalance_logs_each_missing_topic_once(world, caplog):
    world.fails, world.error = ("A", "B"), RouteNotFound
    for _ in range(3):
        world.service.do_rebalance()
    assert [each.split("topic ")[1][0] for each in warnings(caplog)] == ["A", "B"]
    world.topics = frozenset("A")
    world.service.do_rebalance()
    world.topics = frozenset("AB")
    world.service.do_rebalance()
    assert [each.split("topic ")[1][0] for each in warnings(caplog)] == ["B"]


def test_rebalance_sends_heartbeat_to_brokers_that_do_not_know_the_member(world):
    world.members = ()
    assert world.service.do_rebalance() == RETRY_MS
    assert (world.taken, world.beats, world.asked) == ({}, 2, 2)
    world.members = ("you",)  # the others own the queues; no broker knows this member yet
    assert world.service.do_rebalance() == RETRY_MS
    assert world.taken == {"A": (), "B": ()}


def test_rebalance_is_repeated_soon_when_a_share_is_not_accepted(world):
    world.accepts = False
    assert world.service.do_rebalance() == RETRY_MS


def test_rebalance_of_a_stopped_member_changes_nothing(world):
    world.is_running = False
    assert world.service.do_rebalance() is None
    assert world.taken == {}


def test_rebalance_fetches_unknown_routes_together(world):
    world.routes = Routes(world)
    world.service.do_rebalance()
    assert world.routed == [["A", "B"]]
