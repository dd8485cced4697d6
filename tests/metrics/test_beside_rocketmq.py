"""Our metrics match those of a RocketMQ 5.5.0 after the same events: names, labels, units.

RocketMQ exports its own with metricsExporterType=PROM.
"""

from __future__ import annotations

import re
import urllib.request
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from support.brokers.broker_kinds import NAME, wait_until
from support.brokers.clusters import Cluster, running
from support.brokers.metrics_endpoint import samples_of
from support.clients.conformance_clients import Clients, Listener
from support.rocketmq.real_broker import free_port

from rmq_spark.cli.exporter.cluster_metrics import ClusterMetrics
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.consumer.simple_consumer import SimpleConsumer
from rmq_spark.client.message import Message
from rocketpoll import Admin

OF_OUR_CLIENTS = {"language": "python", "version": "v4_9_8", "consume_mode": "push"}

pytestmark = [pytest.mark.interop, pytest.mark.peers]


class Shown(NamedTuple):
    """The content of a scrape: the type of each metric, and all samples."""

    kinds: dict[str, str]
    samples: object

    @classmethod
    def of(cls, text):
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        return cls(kinds, samples_of(text))


def text_at(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return answer.read().decode()


@contextmanager
def story(kind, directory, **settings):
    """Run a broker that has delivered messages of 'orders' to 'online', 'offline', 'failing' and
    'popping', which has not acknowledged five of its six."""
    with running(kind, directory, **settings) as (name_server, address):
        cluster = Cluster(name_server, address, NAME)
        clients = Clients(cluster)
        cluster.topic(1, "orders")
        cluster.send("orders", *"abcde", queues=1)
        clients.producer().send(Message("orders", b"f"))
        listener = Listener()
        clients.push(listener, "online", "orders", persist_consumer_offset_interval_ms=200)
        listener.wait_for("abcdef")
        clients.push(
            lambda *_: ConsumeConcurrentlyStatus.RECONSUME_LATER,
            "failing", "orders", max_reconsume_times=0, persist_consumer_offset_interval_ms=200,
        )  # fmt: skip
        popping = SimpleConsumer("popping", instance=cluster.instance(), start="earliest")
        popping.subscribe("orders")
        popping.start()
        cluster.until_end(popping)
        popped = []
        wait_until(
            "popped messages",
            lambda: popped.extend(popping.receive(6, invisible_ms=600_000)) or len(popped) == 6,
        )
        popping.ack(popped[0])
        cluster.store_offset("offline", "orders", 2)
        wait_until("dead letters", lambda: cluster.dead_letters("failing") == 6)
        wait_until("its offset", lambda: cluster.stored_offset("online", "orders") == 6)
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture(scope="module")
def scrapes(tmp_path_factory):
    """Return the scrapes of RocketMQ, of our broker, and of the exporter for RocketMQ."""
    port = free_port()
    prometheus = {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": "127.0.0.1",
        "metricsPromExporterPort": port,
    }
    with story("5.5.0", tmp_path_factory.mktemp("rocketmq"), **prometheus) as cluster:
        theirs = Shown.of(text_at(port))
        with Admin(cluster.name_server) as admin:
            metrics = ClusterMetrics(admin, 15)
            metrics.refresh()
            exported = Shown.of(metrics.text.decode())
    with story("rocketpoll", tmp_path_factory.mktemp("ours"), metricsPort=port):
        return {"RocketMQ": theirs, "broker": Shown.of(text_at(port)), "exporter": exported}


OF_ITS_LIBRARY = {"otel_scope_name"}
LABELS_LEFT_OUT = {"rocketmq_send_to_dlq_messages_total": {"topic"}}
"""Labels that our metrics lack, with the reason: a dead-letter queue does not tell from which topic
each message came."""


@pytest.mark.parametrize("who", ["broker", "exporter"])
def test_metrics_have_rocketmqs_kinds_labels_and_units(scrapes, who):
    theirs, shown = scrapes["RocketMQ"], scrapes[who]
    names = {name for name in shown.samples.names if name.startswith("rocketmq_")}
    assert names
    for name in sorted(names):
        assert shown.kinds[name] == theirs.kinds[name], name
        labels = shown.samples.labels(name)
        expected = theirs.samples.labels(name) - OF_ITS_LIBRARY - LABELS_LEFT_OUT.get(name, set())
        assert labels == expected, name


@pytest.mark.parametrize("who", ["broker", "exporter"])
def test_metrics_equal_rocketmqs_after_the_same_events(scrapes, who):
    for name, labels in (
        ("rocketmq_messages_in_total", {"topic": "orders", "is_system": "false"}),
        ("rocketmq_send_to_dlq_messages_total", {"consumer_group": "failing"}),
        ("rocketmq_consumer_lag_messages", {"consumer_group": "online", "topic": "orders"}),
        ("rocketmq_consumer_connections", {**OF_OUR_CLIENTS, "consumer_group": "online"}),
    ):
        found = scrapes[who].samples(name, **labels)
        assert found == scrapes["RocketMQ"].samples(name, **labels), name
        assert found is not None, name


def test_popped_messages_in_flight_are_counted_as_rocketmq_counts_them(scrapes):
    """The exporter shows them for our broker only: RocketMQ's report does not contain them
    separately."""
    name = "rocketmq_consumer_inflight_messages"
    of_group = {"consumer_group": "popping", "topic": "orders", "is_retry": "false"}
    in_flight = {who: each.samples(name, **of_group) for who, each in scrapes.items()}
    assert in_flight == {"RocketMQ": 5, "broker": 5, "exporter": None}


def test_offline_group_lag_is_shown_unlike_in_rocketmq(scrapes):
    of_group = {"consumer_group": "offline", "topic": "orders"}
    lags = {
        who: each.samples("rocketmq_consumer_lag_messages", **of_group)
        for who, each in scrapes.items()
    }
    assert lags == {"RocketMQ": None, "broker": 4, "exporter": 4}
    for who in ("broker", "exporter"):
        latency_ms = scrapes[who].samples("rocketmq_consumer_lag_latency_milliseconds", **of_group)
        assert 0 < latency_ms < 600_000
