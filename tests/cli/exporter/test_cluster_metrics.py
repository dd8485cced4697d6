"""A cluster as Prometheus sees it through the exporter."""

from __future__ import annotations

import logging
import queue

import pytest
from scrapes import samples_of

from rmq_spark.cli.exporter.cluster_metrics import ClusterMetrics
from rmq_spark.client import Admin
from rocketpoll import EmbeddedBroker


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", queues=1)
        broker.send("orders", "a", "b", "c")
        with Admin(broker.address) as admin:
            admin.create_group("billing")
            (only,) = admin.topic_offsets("orders")
            admin.set_offset("billing", only, 1)
        yield broker


@pytest.fixture(scope="module")
def metrics(broker):
    with Admin(broker.address) as admin:
        yield ClusterMetrics(admin, 15)


def test_lag_and_offsets_have_the_names_and_labels_of_rocketmq_5(metrics):
    metrics.look()
    samples = samples_of(metrics.text.decode())
    node = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    group = {**node, "consumer_group": "billing", "topic": "orders", "is_retry": "false"}
    assert samples("rocketmq_consumer_lag_messages", **group) == 2
    assert samples("rocketmq_consumer_lag_latency", **group) > 0
    assert samples("rocketpoll_group_offset", **group) == 1
    assert samples("rocketmq_messages_in_total", topic="orders", **node) == 3
    assert samples("rocketpoll_topic_messages", topic="orders", **node) == 3
    assert samples("rocketpoll_broker_up", **node) == 1
    assert samples("rocketpoll_messages_in_per_second", **node) is not None
    assert samples("rocketpoll_messages_out_per_second", **node) is not None
    assert samples("rocketpoll_exporter_last_success_timestamp_seconds") > 1_700_000_000
    assert metrics.why_not_ready is None


def test_a_cluster_that_is_away_shows_no_old_figures_and_is_logged_once(caplog):
    caplog.set_level(logging.WARNING)
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        metrics = ClusterMetrics(admin, 15)
        metrics.look()
        broker.stop()
        metrics.look()
        metrics.look()
        samples = samples_of(metrics.text.decode())
        assert samples("rocketmq_messages_in_total") is None
        assert samples("rocketpoll_exporter_collect_seconds") is not None
        assert metrics.why_not_ready.startswith("the name servers do not tell")
        told = [each for each in caplog.records if each.name.endswith("cluster_metrics")]
        assert len(told) == 1


def test_it_is_read_again_and_again_until_it_is_stopped(broker, monkeypatch):
    with Admin(broker.address) as admin:
        metrics, looks = ClusterMetrics(admin, 0.01), queue.Queue()
        look = metrics.look
        monkeypatch.setattr(metrics, "look", lambda: looks.put(look()))
        metrics.start()
        for _ in range(2):
            looks.get(timeout=20)
        assert metrics.why_not_ready is None
        metrics.stop()
        assert not metrics._thread.is_alive()
