"""Our broker in a cluster of RocketMQ: registered at real name servers, together with a real
broker."""

import pytest
from support.brokers.broker_kinds import store_config, wait_until
from support.rocketmq.java_clients import JavaClients, Scenario, bodies_of, numbered
from support.rocketmq.mqadmin import MqAdmin, rows
from support.rocketmq.real_broker import CLUSTER, free_broker_port

from rmq_spark.client.errors import ClientError, RouteNotFound
from rmq_spark.wire.bodies.configs import TopicConfig
from rocketpoll import Admin, EmbeddedBroker

NAME = "broker-of-python"


def registered(rocketmq, **settings):
    """Run a broker of ours that registers at a real name server."""
    return EmbeddedBroker(
        namesrvAddr=rocketmq.address, brokerName=NAME, brokerClusterName=CLUSTER, **settings
    )


def masters(admin):
    try:
        return dict(admin.masters())
    except ClientError:  # the topic has no route
        return {}


@pytest.mark.parametrize("compressed", ["false", "true"])
def test_broker_is_known_to_a_name_server_until_it_stops(rocketmq, compressed):
    with Admin(rocketmq.address) as admin:
        with registered(rocketmq, compressedRegister=compressed) as broker:
            wait_until("the broker", lambda: masters(admin) == {NAME: broker.address})
            config = TopicConfig(topic_name="x", read_queue_nums=3, write_queue_nums=2)
            with Admin(broker.address) as own:
                own.create_topic(f"orders-{compressed}", config=config)
            wait_until("its topic", lambda: f"orders-{compressed}" in admin.topics())
            route = admin.instance.routes.refresh(f"orders-{compressed}")
            assert len(route.subscribe_queues) == 3
            assert len(route.publish_queues) == 2
        assert masters(admin) == {}
        with pytest.raises(RouteNotFound):
            admin.topic_offsets(f"orders-{compressed}")


def test_java_clients_use_both_brokers_of_a_cluster(rocketmq, tmp_path):
    port = free_broker_port()
    real = rocketmq.start_broker("broker-of-java", port, store_config(tmp_path / "store"))
    try:
        with (
            Admin(rocketmq.address) as admin,
            registered(rocketmq) as broker,
            JavaClients(rocketmq.version, tmp_path / "clients", rocketmq.address) as clients,
        ):
            wait_until("both brokers", lambda: len(masters(admin)) == 2, 120)
            scenario = Scenario(clients, broker.address, "joined")
            admin.create_topic("joined", 2)
            wait_until("all queues", lambda: len(queues_of(admin, "joined")) == 4)
            consumer = scenario.push(topic="joined")
            scenario.producer().send("joined", *numbered(12))
            consumer.wait_for(bodies_of(numbered(12)))
            stored = admin.topic_offsets("joined")
            assert {queue.broker_name for queue, held in stored.items() if held.max_offset} == {
                NAME,
                "broker-of-java",
            }
            listed = rows(MqAdmin(clients, rocketmq.version).run("clusterList"), CLUSTER)
            assert {row[1] for row in listed} == {NAME, "broker-of-java"}
            scenario.stop()
    finally:
        real.kill()


def queues_of(admin, topic):
    try:
        return admin.topic_offsets(topic)
    except RouteNotFound:
        return {}
