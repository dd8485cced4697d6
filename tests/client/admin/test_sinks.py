"""Sinks with staged batches on our brokers are listed and forgotten."""

import pytest
from support.stores.staged_batches import commit_batch

from rmq_spark.client.admin.admin import broker_sinks, remove_sink
from rocketpoll import Admin, EmbeddedBroker


@pytest.fixture
def admin():
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        broker.create_topic("orders", queues=1)
        yield admin


def commit(admin, sink, batch_id):
    [address] = admin.masters().values()
    commit_batch(admin.instance.api, address, sink, batch_id, "orders")


def test_sinks_are_listed_with_their_last_batch_and_by_topic(admin):
    commit(admin, "bills", 0)
    commit(admin, "bills", 1)
    commit(admin, "audit", 7)
    found = [(each.name, each.broker_name, each.state.batch_id) for each in broker_sinks(admin)]
    assert found == [("audit", "broker-a", 7), ("bills", "broker-a", 1)]
    assert [each.name for each in broker_sinks(admin, "orders")] == ["audit", "bills"]
    assert broker_sinks(admin, "others") == []


def test_forgotten_sink_may_start_over(admin):
    commit(admin, "bills", 5)
    assert remove_sink(admin, "bills") == ["broker-a"]
    assert broker_sinks(admin) == []
    assert remove_sink(admin, "bills") == []
    commit(admin, "bills", 0)
    assert [each.state.batch_id for each in broker_sinks(admin)] == [0]
