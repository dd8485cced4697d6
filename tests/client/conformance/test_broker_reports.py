"""Broker reports, as an exporter reads them, are the same on every kind of broker."""

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import messages, numbers

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.broker_report import read_broker_report
from rmq_spark.client.errors import BrokerRefused


@pytest.fixture
def filled(cluster, clients):
    """Create a topic of two queues with ten messages, four of which a group has consumed."""
    topic = cluster.topic(2)
    producer = clients.producer()
    for number, each in enumerate(messages(topic, numbers(10))):
        producer.send(each, cluster.queue(topic, number % 2))
    clients.read(topic, 10, 2)
    with Admin(cluster.name_server) as admin:
        group = f"of-{topic}"
        admin.create_group(group)
        cluster.store_offset(group, topic, 3, 0)
        cluster.store_offset(group, topic, 1, 1)

        def report():
            try:
                return read_broker_report(admin, cluster.address)
            except BrokerRefused:  # a RocketMQ broker in its first second
                return None

        yield topic, group, wait_until("a report", report)


def test_broker_report_contains_topics_and_groups_with_offsets(filled):
    topic, group, report = filled
    (found,) = [each for each in report.topics if each.topic == topic]
    assert (found.begin, found.end) == (0, 10)
    (progress,) = [each for each in report.groups if (each.group, each.topic) == (group, topic)]
    assert (progress.messages, progress.consumed) == (6, 4)
    assert progress.last_timestamp_ms > 1_700_000_000_000
    assert "putTps" in report.runtime
    assert group not in report.members


def test_broker_report_counts_online_members(cluster, clients):
    topic = cluster.topic(1)
    group = f"on-{topic}"
    clients.lite(group, topic)
    with Admin(cluster.name_server) as admin:
        connection = wait_until(
            "the member", lambda: read_broker_report(admin, cluster.address).members.get(group)
        )
        assert len(connection.connection_set) == 1
