"""A failed check is repeated at once, because only successful checks set its timer.

Each case checks a fake, under a clock that stands still after the failure.
"""

import threading

import pytest
from support.brokers.connections import finished
from support.spark.source_queries import options_for, query, queue_of, send
from support.suite.clocks import Clock

from rmq_spark.cli.console.survey import AGE_SECONDS_MAX, Survey
from rmq_spark.client.consumer.rebalance.rebalance_service import (
    CHECK_INTERVAL_MS,
    SubscriptionCheck,
)
from rmq_spark.client.errors import RequestTimeout
from rmq_spark.client.instance.routes import Routes
from rmq_spark.spark.brokers.discovery import QueueDiscovery
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS
from rocketpoll.broker.metrics.exposition import Exposition, GaugeFamily, MetricSample

FAULT = RequestTimeout("b:1", 203, 3_000)


class Failing:
    """A function that raises its next faults, one for each call, and then returns a value."""

    def __init__(self, value, *faults):
        self.value, self.faults, self.calls = value, list(faults), 0

    def __call__(self, *_args, **_more):
        self.calls += 1
        if self.faults:
            raise self.faults.pop(0)
        return self.value


def test_failed_subscription_check_is_repeated_at_the_next_rebalance():
    clock, topics_at_brokers = Clock(), Failing(frozenset({"o"}), FAULT)
    check = SubscriptionCheck("G", topics_at_brokers, clock)
    for calls in (1, 2, 2):
        check.check("o", frozenset({"o"}), 2)
        assert topics_at_brokers.calls == calls
    clock.now += CHECK_INTERVAL_MS
    check.check("o", frozenset({"o"}), 2)
    assert topics_at_brokers.calls == 3


@pytest.mark.parametrize("fault", [FAULT, ValueError("odd answer")], ids=["client error", "other"])
def test_survey_that_failed_is_read_again_for_the_next_page(fault):
    clock, read = Clock(), Failing("10 GB", fault)
    survey = Survey("sizes", read, now=clock)
    assert survey.get(["T"]).values == {}
    for _ in range(2):  # the second page shows the values read for the first
        _wait_for_threads("sizes")
        found = survey.get(["T"])
        assert (found.values, found.error, found.is_complete) == ({"T": "10 GB"}, None, True)
    assert read.calls == 2
    clock.now += AGE_SECONDS_MAX + 1
    _wait_for_threads("sizes")
    survey.get(["T"])
    assert read.calls == 3


@pytest.mark.parametrize("fault", [RuntimeError("can't start new thread"), MemoryError()])
def test_survey_is_read_after_a_thread_could_not_be_started(monkeypatch, fault):
    survey = Survey("sizes", Failing("10 GB"), now=Clock())
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", Failing(None, fault))
        with pytest.raises(type(fault)):
            survey.get(["T"])
    found = survey.get(["T"])
    assert (found.values, found.is_complete) == ({"T": "10 GB"}, True)


def test_survey_is_read_once_by_pages_that_come_while_it_is_read():
    gate = threading.Event()
    survey = Survey("sizes", lambda _: gate.wait(60) and "10 GB", now=Clock())
    assert not survey.get(["T"]).is_complete
    threads = [each for each in threading.enumerate() if each.name == "sizes"]
    assert not survey.get(["T"]).is_complete
    assert [each for each in threading.enumerate() if each.name == "sizes"] == threads
    gate.set()
    threads[0].join(60)
    assert survey.get(["T"]).is_complete


def _wait_for_threads(name):
    for each in threading.enumerate():
        if each.name == name:
            each.join(60)


def test_metrics_that_could_not_be_collected_are_collected_for_the_next_scrape():
    families = Failing([GaugeFamily("g", "G.", (), [MetricSample((), 1)])], ValueError("odd"))
    exposition, texts = Exposition(families, {}, finished, Clock()), []
    for _ in range(3):
        exposition.request(texts.append)
    assert families.calls == 2
    assert texts[0] is None
    assert texts[1] == texts[2] != b""


def test_failed_discovery_is_due_at_the_next_check(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    clock = Clock()
    options = options_for(rocketpoll_broker, rocketpoll_topic, discoveryIntervalMs="60000")
    with instance_for(options.access) as instance:
        discovery = QueueDiscovery(options, instance, clock)
        assert len(discovery.discover()) == 4
        rocketpoll_broker.create_topic(rocketpoll_topic, 6)
        clock.now += 60
        with monkeypatch.context() as broken:
            broken.setattr(Routes, "refresh_each", Failing({}, FAULT))
            assert len(discovery.discover()) == 4
        assert len(discovery.discover()) == 6


def test_failed_last_message_comparison_is_repeated_at_the_next_batch(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    clock, more = Clock(), {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    with query(rocketpoll_broker, rocketpoll_topic, clock, suspendTimeoutMs="1", **more) as batches:
        end = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
        rocketpoll_broker.delete_topic(rocketpoll_topic)
        rocketpoll_broker.create_topic(rocketpoll_topic, 4)
        send(rocketpoll_broker, rocketpoll_topic, 0, *"ABC")
        assert batches.latest_offset(end, NO_LIMITS) == end
        clock.now += 60
        with monkeypatch.context() as broken:
            broken.setattr(QueueClient, "fingerprints", Failing({}, FAULT))
            with pytest.raises(RequestTimeout):
                batches.latest_offset(end, NO_LIMITS)
        found = batches.latest_offset(end, NO_LIMITS)
        ranges = batches.plan_ranges(end, found)
        assert [(each.queue, each.start, each.end) for each in ranges] == [
            (queue_of(rocketpoll_topic), 0, 3)
        ]
