"""Prometheus metrics of the exporter for a cluster of each kind."""

import logging
import queue
import threading
from types import SimpleNamespace

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.metrics_endpoint import samples_of
from support.clients.conformance_clients import Clients

from rmq_spark.cli.exporter.cluster_metrics import ClusterMetrics
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.errors import ConnectionFailed
from rocketpoll import Admin, EmbeddedBroker, SimpleConsumer


@pytest.fixture
def behind(cluster):
    """Return a topic with three messages and a group that has consumed one of them."""
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *"abc", queues=1)
    cluster.store_offset(group, topic, 1)
    return topic, group


@pytest.fixture
def admin(cluster):
    with Admin(cluster.name_server) as admin:
        yield admin


def test_lag_and_offsets_have_the_names_and_labels_of_rocketmq_5(cluster, admin, behind):
    topic, name = behind
    metrics = ClusterMetrics(admin, 15)

    def look():
        metrics.refresh()
        return samples_of(metrics.text.decode())

    def all_samples():
        samples = look()
        has_rates = samples("rocketpoll_messages_in_per_second") is not None
        return samples if has_rates else None

    samples = wait_until("rates, which RocketMQ has after a second", all_samples)
    [of_cluster] = admin.cluster_info().cluster_addr_table
    node = {"cluster": of_cluster, "node_type": "broker", "node_id": cluster.broker_name}
    group = {**node, "consumer_group": name, "topic": topic, "is_retry": "false"}
    assert samples("rocketmq_consumer_lag_messages", **group) == 2
    assert samples("rocketmq_consumer_lag_latency_milliseconds", **group) > 0
    assert samples("rocketpoll_group_offset", **group) == 1
    assert samples("rocketmq_messages_in_total", topic=topic, **node) == 3
    assert samples("rocketpoll_topic_messages", topic=topic, **node) == 3
    assert samples("rocketpoll_broker_up", **node) == 1
    assert samples("rocketpoll_messages_out_per_second", **node) is not None
    assert samples("rocketpoll_exporter_last_success_timestamp_seconds") > 1_700_000_000
    assert metrics.not_ready_reason is None


def test_members_and_dead_letters_of_a_group_are_counted(cluster, admin):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, "bad", queues=1)
    Clients(cluster).push(
        lambda *_: ConsumeConcurrentlyStatus.RECONSUME_LATER, group, topic, max_reconsume_times=0
    )
    wait_until("a dead letter", lambda: cluster.dead_letters(group) == 1)
    metrics = ClusterMetrics(admin, 15)
    metrics.refresh()
    samples = samples_of(metrics.text.decode())
    assert samples("rocketmq_consumer_connections", consumer_group=group) == 1
    assert samples("rocketmq_send_to_dlq_messages_total", consumer_group=group) == 1


def test_popped_messages_in_flight_are_counted_by_group_and_topic():
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        broker.send("T", *"abc")
        metrics = ClusterMetrics(admin, 15)

        def in_flight():
            metrics.refresh()
            samples = samples_of(metrics.text.decode())
            labels = {"consumer_group": "G", "topic": "T", "is_retry": "false"}
            return samples("rocketmq_consumer_inflight_messages", **labels)

        with SimpleConsumer("G", broker.address, start="earliest") as consumer:
            consumer.subscribe("T")
            assert in_flight() is None
            held = []
            wait_until("3 messages", lambda: held.extend(consumer.receive(3)) or len(held) == 3)
            consumer.ack(held[0])
            assert in_flight() == 2
            for message in held[1:]:
                consumer.ack(message)
            assert in_flight() is None


def test_exporter_shows_no_stale_figures_of_an_unreachable_cluster(caplog):
    caplog.set_level(logging.WARNING)
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        metrics = ClusterMetrics(admin, 15)
        metrics.refresh()
        broker.stop()
        metrics.refresh()
        metrics.refresh()
        samples = samples_of(metrics.text.decode())
        assert samples("rocketmq_messages_in_total") is None
        assert samples("rocketpoll_exporter_collect_seconds") is not None
        assert metrics.not_ready_reason.startswith("the name servers do not answer")
        told = [each for each in caplog.records if each.name.endswith("failure_log")]
        assert len(told) == 1


def test_exporter_logs_silent_name_servers_and_their_recovery_once_each(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    now, failures = [100.0], [ConnectionFailed("a:1", "no")] * 2

    def cluster_info():
        now[0] += 6
        if failures:
            raise failures.pop()
        return SimpleNamespace(cluster_addr_table={}, broker_addr_table={})

    with Admin("127.0.0.1:1") as admin:
        monkeypatch.setattr(admin, "cluster_info", cluster_info)
        metrics = ClusterMetrics(admin, 15, now=lambda: now[0])
        for _ in range(4):
            metrics.refresh()
    assert [each.getMessage().partition("; ")[0] for each in caplog.records] == [
        "reading the name servers failed, retrying: cannot connect to a:1: no",
        "reading the name servers recovered after 12.0 s",
    ]


def test_cluster_metrics_refresh_until_stopped(admin, monkeypatch):
    metrics, looks = ClusterMetrics(admin, 0.01), queue.Queue()
    look = metrics.refresh
    monkeypatch.setattr(metrics, "refresh", lambda: looks.put(look()))
    metrics.start()
    for _ in range(2):
        looks.get(timeout=20)
    assert metrics.not_ready_reason is None
    metrics.stop()
    assert not [each for each in threading.enumerate() if "ClusterMetrics" in each.name]
