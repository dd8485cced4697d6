"""Queues and topics are discovered, withdrawn and waited for."""

import pytest
from support.servers.joining_name_server import JoiningNameServer
from support.spark.source_queries import queue_of, queues_of

from rmq_spark.client.api.admin_api import NameServerApi
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.client.instance.routes import TopicRoute
from rmq_spark.spark.errors import OptionError
from rocketpoll import EmbeddedBroker


def test_discovery_finds_the_queues_of_a_topic(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        assert queues.discover() == {queue_of(rocketpoll_topic, number) for number in range(4)}


def test_discovery_finds_new_queues_after_the_interval_or_on_request(
    rocketpoll_broker, rocketpoll_topic
):
    with queues_of(rocketpoll_broker, rocketpoll_topic, discoveryIntervalMs="3600000") as queues:
        assert len(queues.discover()) == 4
        rocketpoll_broker.create_topic(rocketpoll_topic, 6)
        assert len(queues.discover()) == 4
        assert len(queues.discover(is_forced=True)) == 6


def test_queue_is_withdrawn_if_its_own_broker_drops_it():
    with EmbeddedBroker(brokerName="a") as here, EmbeddedBroker(brokerName="b") as away:
        for broker in (here, away):
            broker.create_topic("T", 2)
        with JoiningNameServer(here, away) as names, queues_of(names, "T") as queues:
            first = {queue.broker_name: queue for queue in queues.discover() if queue.queue_id}
            names.forget(away)
            here.create_topic("T", 1)
            assert {queue.broker_name for queue in queues.discover()} == {"a"}
            assert queues.is_withdrawn(first["a"])
            assert not queues.is_withdrawn(first["b"])  # that broker has not answered


def test_topic_pattern_matches_whole_names_except_system_topics(rocketpoll_broker):
    for name in ("pat-1", "pat-2", "pat-22"):
        rocketpoll_broker.create_topic(name, 1)
    with queues_of(rocketpoll_broker, None, subscribePattern="pat-.") as queues:
        assert {queue.topic for queue in queues.discover()} == {"pat-1", "pat-2"}
    with queues_of(rocketpoll_broker, None, subscribePattern=".*") as queues:
        topics = {queue.topic for queue in queues.discover()}
        assert {"pat-1", "pat-22"} <= topics
        assert not {"TBW102", "SCHEDULE_TOPIC_XXXX"} & topics


def test_topic_pattern_is_matched_within_the_namespace(rocketpoll_broker):
    for name in ("eu%shop-1", "eu%shop-2", "us%shop-1", "shop-1"):
        rocketpoll_broker.create_topic(name, 1)
    options = {"subscribePattern": "shop-[0-9]", "namespace": "eu"}
    with queues_of(rocketpoll_broker, None, **options) as queues:
        assert {queue.topic for queue in queues.discover()} == {"eu%shop-1", "eu%shop-2"}
    with queues_of(rocketpoll_broker, None, subscribePattern="shop-[0-9]") as queues:
        assert {queue.topic for queue in queues.discover()} == {"shop-1"}


def test_wait_for_topic_waits_for_a_missing_topic(rocketpoll_broker, caplog):
    with queues_of(rocketpoll_broker, "to-come", waitForTopic="true") as queues:
        assert queues.discover(is_forced=True) == queues.discover(is_forced=True) == frozenset()
        assert not queues.is_routed("to-come")
        rocketpoll_broker.create_topic("to-come", 1)
        assert queues.discover(is_forced=True) == {queue_of("to-come", 0)}
    assert [record.message for record in caplog.records] == [
        (
            "no name server knows topic to-come at the moment. If it is created, it is "
            "read from its first message on"
        )
    ]
    with queues_of(rocketpoll_broker, "never-there") as queues, pytest.raises(RouteNotFound):
        queues.discover()


def test_source_reads_exactly_the_assigned_queues(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, None, assign=f'{{"{rocketpoll_topic}": [1, 3]}}') as queues:
        assert queues.discover() == {queue_of(rocketpoll_topic, 1), queue_of(rocketpoll_topic, 3)}
    assign = f'{{"{rocketpoll_topic}": {{"broker-a": [1, 9]}}}}'
    with (
        queues_of(rocketpoll_broker, None, assign=assign) as queues,
        pytest.raises(
            OptionError, match=r"option assign: topic .* has no queue 9 on broker broker-a"
        ),
    ):
        queues.discover()


def test_topic_missing_in_a_young_name_server_stays_known(rocketpoll_broker, monkeypatch, caplog):
    for name in ("young-1", "young-2"):
        rocketpoll_broker.create_topic(name, 1)
    with queues_of(rocketpoll_broker, None, subscribePattern="young-.") as queues:
        known = queues.discover()
        rocketpoll_broker.delete_topic("young-2")
        monkeypatch.setattr(NameServerApi, "topics", lambda _: ["young-1"])
        assert queues.discover(is_forced=True) == queues.discover(is_forced=True) == known
    assert [record.message for record in caplog.records] == [
        "no name server knows topic young-2 at the moment"
    ]


def test_assigned_queues_stay_known_while_their_broker_is_not(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    with queues_of(rocketpoll_broker, None, assign=f'{{"{rocketpoll_topic}": [1, 3]}}') as queues:
        known = queues.discover()
        monkeypatch.setattr(TopicRoute, "subscribe_queues", ())
        assert queues.discover(is_forced=True) == known


def test_forgotten_queues_are_not_asked_for_until_they_return(rocketpoll_broker, caplog):
    rocketpoll_broker.create_topic("gone-1", 2)
    first, second = queue_of("gone-1", 0), queue_of("gone-1", 1)
    with queues_of(rocketpoll_broker, None, subscribePattern="gone-.") as queues:
        queues.discover()
        rocketpoll_broker.delete_topic("gone-1")
        assert queues.discover() == {first, second}  # the name server may have just started
        caplog.clear()
        queues.discard([first, second])
        for _ in range(2):
            assert queues.discover() == frozenset()
            assert not queues.is_routed("gone-1")
        assert caplog.records == []
        rocketpoll_broker.create_topic("gone-1", 1)
        assert queues.discover() == {first}
        assert queues.is_routed("gone-1")


def test_topic_stays_known_while_one_of_its_queues_is(rocketpoll_broker):
    rocketpoll_broker.create_topic("smaller", 2)
    first, second = queue_of("smaller", 0), queue_of("smaller", 1)
    hourly = {"discoveryIntervalMs": "3600000"}
    with queues_of(rocketpoll_broker, None, subscribePattern="smaller", **hourly) as queues:
        queues.discover()
        queues.discard([second])
        assert queues.discover() == {first}
        assert queues.is_routed("smaller")
        assert queues.is_withdrawn(second)
        queues.discard([first])
        assert not queues.is_routed("smaller")
        assert not queues.is_withdrawn(first)  # its broker has not answered
