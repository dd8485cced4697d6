"""Addresses of queues: from routes, from cluster info, and when both fail."""

import pytest
from support.servers.fake_servers import FakeCluster
from support.spark.source_queries import options_for, queue_of

from rmq_spark.client.api.admin_api import NameServerApi
from rmq_spark.client.errors import BrokerNotFound
from rmq_spark.spark.brokers.fan_out import BrokerAddresses, instance_for
from rmq_spark.wire.bodies.clients import BrokerData
from rmq_spark.wire.bodies.operators import ClusterInfo
from rmq_spark.wire.message_queue import MessageQueue


@pytest.fixture
def addresses(rocketpoll_broker):
    instance = instance_for(options_for(rocketpoll_broker, "T").access)
    yield BrokerAddresses(instance)
    instance.shutdown()


def test_queue_address_is_resolved_by_its_route(rocketpoll_broker, rocketpoll_topic, addresses):
    assert addresses.resolve(queue_of(rocketpoll_topic)) == rocketpoll_broker.address


def test_queue_address_without_a_route_is_found_among_all_brokers(rocketpoll_broker, addresses):
    assert addresses.resolve(queue_of("no-such-topic")) == rocketpoll_broker.address


def test_unknown_broker_raises_broker_not_found(rocketpoll_topic, addresses):
    with pytest.raises(
        BrokerNotFound, match="cannot reach broker gone: no name server knows a broker"
    ):
        addresses.resolve(MessageQueue(rocketpoll_topic, "gone", 0))


def test_name_servers_are_asked_once_until_there_is_doubt(rocketpoll_topic, addresses, monkeypatch):
    asked = []

    def cluster_info(calls):
        asked.append(1)
        moved = f"127.0.0.1:{len(asked)}"
        return ClusterInfo(
            broker_addr_table={"a": BrokerData(broker_name="a", broker_addrs={0: moved})}
        )

    monkeypatch.setattr(NameServerApi, "cluster_info", cluster_info)
    queue = MessageQueue(rocketpoll_topic, "a", 0)
    assert [addresses.resolve(queue) for _ in range(3)] == ["127.0.0.1:1"] * 3
    addresses.refresh()
    assert [addresses.resolve(queue) for _ in range(3)] == ["127.0.0.1:2"] * 3
    assert len(asked) == 2


def test_master_address_is_found_in_cluster_info_despite_slaves(
    rocketpoll_topic, addresses, monkeypatch
):
    known = BrokerData(broker_name="a", broker_addrs={2: "10.0.0.2:1", 0: "10.0.0.9:1", 1: "z:1"})
    monkeypatch.setattr(
        NameServerApi, "cluster_info", lambda _: ClusterInfo(broker_addr_table={"a": known})
    )
    assert addresses.resolve(MessageQueue(rocketpoll_topic, "a", 0)) == "10.0.0.9:1"


def test_route_address_is_used_if_cluster_info_is_empty():
    """A fake cluster may have routes but no cluster info."""
    with FakeCluster(a=lambda _: 0) as cluster:
        instance = instance_for(options_for(cluster, "T").access)
        addresses = BrokerAddresses(instance)
        queue = MessageQueue("T", "a", 0)
        assert addresses.resolve(queue) == cluster.servers["a"].address
        addresses.refresh()
        assert addresses.resolve(queue) == cluster.servers["a"].address
        instance.shutdown()
