"""Listeners for changes of a topic's queues get each change, even when a check fails."""

import logging
import threading

import pytest

from rmq_spark.client.concurrency.scheduler import ThreadScheduler
from rmq_spark.client.consumer.lite_pull_consumer_impl import TopicChangeMonitor
from rmq_spark.client.errors import RouteNotFound

WAIT_S = 10


@pytest.fixture
def workers():
    made = ThreadScheduler("looks")
    yield made
    made.stop(WAIT_S * 1_000)


def test_unreadable_topic_is_logged_once_and_later_changes_are_notified(workers, caplog):
    routes = iter([{"a"}, *[RouteNotFound("T")] * 3, {"a", "b"}])
    last, changed = frozenset(), threading.Event()

    def queues_of(topic):
        nonlocal last
        last = next(routes, last)
        if isinstance(last, Exception):
            raise last
        return frozenset(last)

    found = []

    def listener(*said):
        found.append(said)
        changed.set()

    checks = TopicChangeMonitor(workers, queues_of, lambda _topic: None, 1)
    with caplog.at_level(logging.INFO, "rmq_spark.client"):
        checks.start()
        checks.add("T", listener)
        assert changed.wait(WAIT_S)
        checks.stop()
    assert found == [("T", {"a", "b"})]
    assert [
        (each.levelname, each.getMessage().partition(":")[0].partition(" after ")[0])
        for each in caplog.records
    ] == [
        ("WARNING", "checking the queues of T for changes failed, retrying"),
        ("WARNING", "checking the queues of T for changes recovered"),
    ]


def test_failing_topic_listener_is_logged_and_called_again(workers, caplog):
    numbers, told_twice = iter(range(3)), threading.Event()
    told = []

    def listener(topic, queues):
        told.append(queues)
        if len(told) == 2:
            told_twice.set()
        raise SystemExit("a listener fails")

    checks = TopicChangeMonitor(workers, lambda _topic: next(numbers, 2), lambda _topic: None, 1)
    checks.start()
    checks.add("T", listener)
    assert told_twice.wait(WAIT_S)
    checks.stop()
    workers.stop(WAIT_S * 1_000)
    assert told == [1, 2]
    assert {each.getMessage() for each in caplog.records} == {
        "the listener for changes of T failed"
    }
