"""Broker addresses replaced by others than those that name servers return."""

import pytest

from rmq_spark.client.errors import MessageRejected, SendFailed
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.transport.address_overrides import NO_ADDRESS_OVERRIDES, AddressOverrides
from rmq_spark.wire.bodies.clients import BrokerData, TopicRouteData
from rmq_spark.wire.bodies.operators import ClusterInfo
from rocketpoll import EmbeddedBroker

A = BrokerData(broker_name="a", broker_addrs={0: "10.0.0.1:1", 1: "10.0.0.2:1"})
B = BrokerData(broker_name="b", broker_addrs={1: "10.0.0.3:1"})


def reached(instead):
    detours = AddressOverrides(instead)
    brokers = {"a": A, "b": B}
    route = detours.apply_to_route(TopicRouteData(broker_datas=(A, B)))
    cluster = detours.apply_to_cluster(ClusterInfo(broker_addr_table=brokers))
    found = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
    assert {
        name: broker.broker_addrs for name, broker in cluster.broker_addr_table.items()
    } == found
    return found


def test_route_without_address_overrides_is_unchanged():
    route = TopicRouteData(broker_datas=(A,))
    assert NO_ADDRESS_OVERRIDES.apply_to_route(route) is route
    assert reached({"elsewhere": "x:1"}) == {"a": A.broker_addrs, "b": B.broker_addrs}


def test_detour_by_broker_name_is_for_the_master_and_by_address_for_slaves():
    assert reached({"a": "x:1"})["a"] == {0: "x:1", 1: "10.0.0.2:1"}
    assert reached({"10.0.0.2:1": "x:2", "a": "x:1"})["a"] == {0: "x:1", 1: "x:2"}
    assert reached({"10.0.0.1:1": "x:3"})["a"] == {0: "x:3", 1: "10.0.0.2:1"}
    assert reached({"b": "x:1"})["b"] == {1: "10.0.0.3:1"}, "a slave is taken for its master"


@pytest.mark.parametrize("address", ["localhost", ":1", "a:b", "a:0", "http://"])
def test_invalid_broker_address_is_refused(address):
    with pytest.raises(MessageRejected, match=r"broker_addresses: needed addresses to use, as in"):
        ClientInstance("a:1", broker_addresses={"a": address})


@pytest.mark.parametrize("instead", [["a", "b:1"], "a=b:1", {"a": 1}, {1: "b:1"}])
def test_broker_addresses_of_wrong_type_are_refused(instead):
    with pytest.raises(TypeError, match="broker_addresses: needed a mapping of strings"):
        ClientInstance("a:1", broker_addresses=instead)


def test_broker_addresses_reach_a_broker_with_a_private_address(tmp_path):
    with EmbeddedBroker(tmp_path / "store") as broker:
        broker.create_topic("T", 1)
    with EmbeddedBroker(tmp_path / "store", brokerIP1="127.0.0.9") as broker:
        with (
            Producer("g", broker.address, retries=0) as producer,
            pytest.raises(SendFailed, match=r"127\.0\.0\.9"),
        ):
            producer.send(Message("T", b"lost"))
        for key in ("broker-a", f"127.0.0.9:{broker.port}"):
            instance = ClientInstance(broker.address, broker_addresses={key: broker.address})
            with Producer("g", instance=instance) as producer:
                producer.send(Message("T", key.encode()))
    with EmbeddedBroker(tmp_path / "store") as broker:
        assert [message.body[:9] for message in broker.messages("T")] == [b"broker-a", b"127.0.0.9"]
