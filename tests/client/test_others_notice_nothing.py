"""A failure of one user, broker, message or file does not affect others of the same client."""

import threading
from contextlib import suppress

import pytest
from support.brokers.broker_kinds import wait_until
from support.servers.fake_servers import BlackHole, FakeServer, answering

from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.client.instance import heartbeats
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.transport import remoting_client
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import (
    BrokerData,
    ConsumeFromWhere,
    QueueData,
    TopicRouteData,
)
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.message_queue import MessageQueue

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
NEVER_MS = 600_000
PATIENCE_S = 30


@pytest.fixture
def topic(running_broker, api):
    config = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    api.admin.create_topic(running_broker.address, config)
    return "T"


# ---- one user with a short timeout


# ---- a broker whose host has vanished


@pytest.fixture
def two_brokers(running_broker, topic, monkeypatch):
    """Run a name server whose routes lead to a running broker, and to an address that never
    answers."""
    monkeypatch.setattr(remoting_client, "REQUEST_TIMEOUT_MS", NEVER_MS)
    names = {"a-gone": None, "broker-a": running_broker.address, "z-gone": None}

    def route(request):
        found = {name: address or hole.address for name, address in names.items()}
        return request.respond(
            0,
            body=encode_body(
                TopicRouteData(
                    queue_datas=tuple(
                        QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=2, perm=6)
                        for name in found
                    ),
                    broker_datas=tuple(
                        BrokerData(broker_name=name, broker_addrs={0: address})
                        for name, address in found.items()
                    ),
                )
            ),
        )

    with BlackHole() as hole, FakeServer(answering(route)) as name_server:
        instance = ClientInstance(
            name_server.address, request_timeout_ms=NEVER_MS, connect_timeout_ms=NEVER_MS
        )
        yield instance
        instance.shutdown()


def lite(instance, seen, group="G"):
    consumer = LitePullConsumer(
        group, instance=instance, settings=LitePullSettings(consume_from_where=FIRST)
    )

    def poll():
        wait_until("a start", lambda: consumer.is_running)
        with suppress(ClientShutDown):
            while True:
                seen.extend(message.body for message in consumer.poll(100))

    threading.Thread(target=poll).start()
    return consumer


def push(instance, seen, group="G"):
    settings = PushSettings(consume_from_where=FIRST)
    return PushConsumer(
        group,
        instance=instance,
        listener=lambda messages, _: seen.append(messages[0].body),
        settings=settings,
    )


def orderly(instance, seen, group="G"):
    settings = PushSettings(consume_from_where=FIRST)
    return PushConsumer(
        group,
        instance=instance,
        orderly_listener=lambda messages, _: seen.append(messages[0].body),
        settings=settings,
    )


@pytest.mark.parametrize("kind", [lite, push, orderly])
def test_vanished_host_does_not_block_queues_of_others(
    two_brokers, running_broker, api, topic, kind
):
    """Without isolation, each request would block them for ten minutes."""
    seen = []
    consumer = kind(two_brokers, seen)
    with Producer("P", running_broker.address) as producer:
        for number in range(10):
            producer.send(
                Message(topic, b"%d" % number), MessageQueue(topic, "broker-a", number % 2)
            )
        consumer.subscribe(topic)
        consumer.start()
        wait_until("what was there", lambda: len(seen) == 10, PATIENCE_S)
        assert len(consumer.assignment()) >= 6
        for number in range(10):
            producer.send(
                Message(topic, b"%d" % number), MessageQueue(topic, "broker-a", number % 2)
            )
        wait_until("what has come", lambda: len(seen) == 20, PATIENCE_S)
    consumer.shutdown()
    committed = [
        api.query_consumer_offset(
            running_broker.address, "G", MessageQueue(topic, "broker-a", number)
        )
        for number in range(2)
    ]
    assert committed == [10, 10] or kind is lite  # lite consumers commit what was polled only later
    wait_until("the member has left", lambda: not api.consumer_ids(running_broker.address, "G"))


def test_vanished_host_is_skipped_by_sends(two_brokers, topic):
    with Producer("P", instance=two_brokers, send_timeout_ms=3_000) as producer:
        found = {producer.send(Message(topic, b"x")).queue.broker_name for _ in range(3)}
        assert found == {"broker-a"}
        hole = producer.instance.routes.master_address("a-gone")
        lines = producer.instance.connections
        lines._silent[hole] = float("inf")  # as after a failed connection attempt
        reached = []
        reach = producer.instance.connections.connect
        producer.instance.connections.connect = lambda address, ms: (
            reached.append(address),
            reach(address, ms),
        )
        for _ in range(12):
            producer.send(Message(topic, b"x"))
        assert hole not in reached


def test_heartbeat_does_not_wait_for_a_vanished_host(
    two_brokers, running_broker, topic, monkeypatch
):
    monkeypatch.setattr(heartbeats, "SEND_WAIT_MS", 100)
    two_brokers.start()
    two_brokers.register_producer("P")
    two_brokers.routes.route(topic)

    def is_told():
        two_brokers.heartbeat()
        return running_broker.address in two_brokers.broker_versions

    wait_until("a version", is_told, PATIENCE_S)


# ---- an unreadable message


# ---- a failing strategy


# ---- a file that cannot be written
