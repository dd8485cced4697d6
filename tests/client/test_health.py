"""Health of clients: pending sends, queues, caches, threads and silent brokers."""

import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.servers.fake_servers import BlackHole, FakeServer, answering

from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.results import ProducerHealth
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import BrokerData, ConsumeFromWhere, QueueData, TopicRouteData
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message_queue import MessageQueue

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def address(running_broker, api):
    config = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    api.admin.create_topic(running_broker.address, config)
    return running_broker.address


def silent_broker(request):
    """Run a broker that answers all requests but sends."""
    if request.code == RequestCode.EXTENSIONS:
        return request.respond(3, "not supported")
    if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
        return None
    return None if request.code == RequestCode.SEND_MESSAGE_V2 else request.respond(0)


def route_to(**addresses):
    route = TopicRouteData(
        queue_datas=tuple(
            QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
            for name in addresses
        ),
        broker_datas=tuple(
            BrokerData(broker_name=name, broker_addrs={0: address})
            for name, address in addresses.items()
        ),
    )
    return FakeServer(answering(lambda request: request.respond(0, body=encode_body(route))))


def test_producer_health_reports_pending_sends_and_bytes():
    with FakeServer(answering(silent_broker)) as server, route_to(a=server.address) as names:
        producer = Producer("P", names.address)
        nothing = ProducerHealth(
            is_running=False,
            pending_sends=0,
            pending_bytes=0,
            pending_requests=0,
            unwritten_bytes=0,
            dropped_traces=0,
            threads=0,
            instance_threads=0,
            silent_brokers=(),
        )
        assert producer.health() == nothing
        with producer:
            for _ in range(3):
                producer.send_async(Message("T", b"12345"), timeout_ms=60_000)
            health = producer.health()
            assert (health.is_running, health.pending_sends, health.pending_bytes) == (True, 3, 15)
        wait_until("nothing waits", lambda: producer.health() == nothing)


def started_since(before):
    return [each.name for each in threading.enumerate() if each not in before]


def test_client_threads_are_named_and_counted(address):
    before = set(threading.enumerate())
    settings = PushSettings(consume_from_where=FIRST, consume_thread_max=2)
    instance = ClientInstance(address)
    consumer = PushConsumer("G", instance=instance, listener=lambda *_: None, settings=settings)
    consumer.subscribe("T")
    with consumer, Producer("P", instance=instance) as producer:
        producer.send_async(Message("T", b"12345"), QUEUE).result(10)
        called, go_on = threading.Event(), threading.Event()
        future = producer.send_async(Message("T", b"12345"), QUEUE)
        future.add_done_callback(lambda _: (called.set(), go_on.wait(10)))
        assert called.wait(10)
        wait_until("it is at rest", lambda: consumer.health().cached_messages == 0)

        def is_right():
            names, sending, consuming = (
                started_since(before),
                producer.health(),
                consumer.health(),
            )
            assert sending.threads == 1
            assert sending.instance_threads == consuming.instance_threads
            return len(names) == 1 + consuming.threads + consuming.instance_threads

        wait_until("all are counted", is_right)
        assert all(name.startswith(("rocketpoll", "G ", "G-")) for name in started_since(before))
        go_on.set()


def test_producer_health_names_silent_brokers(monkeypatch):
    with BlackHole() as hole, route_to(a=hole.address) as names:
        instance = ClientInstance(names.address, connect_timeout_ms=600)
        with Producer("P", instance=instance) as producer:
            future = producer.send_async(Message("T", b"x"), timeout_ms=1_000)
            assert future.exception(10) is not None
            wait_until("it is known", lambda: producer.health().silent_brokers == (hole.address,))


def test_lite_consumer_health_shows_queues_and_cache(address):
    consumer = LitePullConsumer("G", address, LitePullSettings(consume_from_where=FIRST))
    consumer.subscribe("T")
    assert not consumer.health().is_running
    with consumer, Producer("P", address) as producer:
        for _ in range(3):
            producer.send(Message("T", b"12345"), QUEUE)
        wait_until("three messages", lambda: consumer.health().cached_messages == 3)
        health = consumer.health()
        assert (health.is_running, health.queues, health.cached_bytes) == (True, 1, 15)
        assert health.unreachable_queues == ()
        assert health.threads >= 1
    assert not consumer.health().is_running
    wait_until("no thread is left", lambda: consumer.health().threads == 0)


def test_push_consumer_health_counts_unfinished_messages(address):
    go_on = threading.Event()
    settings = PushSettings(consume_from_where=FIRST, consume_thread_max=2)
    consumer = PushConsumer(
        "G", address, listener=lambda *_: go_on.wait(10) and None, settings=settings
    )
    consumer.subscribe("T")
    with consumer, Producer("P", address) as producer:
        for _ in range(3):
            producer.send(Message("T", b"12345"), QUEUE)
        wait_until("three messages", lambda: consumer.health().cached_messages == 3)
        assert consumer.health().cached_bytes == 15
        go_on.set()
        wait_until("nothing is left", lambda: consumer.health().cached_messages == 0)
        assert consumer.health().queues == 2  # including the retry topic's


def test_consumer_health_names_queues_of_an_unreachable_broker(address):
    with BlackHole() as hole, route_to(gone=hole.address, **{"broker-a": address}) as names:
        instance = ClientInstance(names.address, connect_timeout_ms=600_000)
        consumer = LitePullConsumer("G", instance=instance)
        consumer.assign([QUEUE, MessageQueue("T", "gone", 0)])
        with consumer:
            gone = (MessageQueue("T", "gone", 0),)
            wait_until("one is reached", lambda: consumer.health().unreachable_queues == gone)


@pytest.mark.parametrize("kind", ["lite", "push"])
def test_health_of_a_member_with_a_stopped_instance_is_not_running(address, kind):
    instance = ClientInstance(address)
    producer = Producer("P", instance=instance)
    if kind == "lite":
        consumer = LitePullConsumer("G", instance=instance)
    else:
        consumer = PushConsumer("G", instance=instance, listener=lambda *_: None)
    consumer.subscribe("T")
    with producer, consumer:
        assert producer.is_running
        assert consumer.is_running
        instance.shutdown()
        assert not producer.is_running
        assert not consumer.is_running
        with pytest.raises(ClientShutDown):
            producer.send(Message("T", b"x"))
        if kind == "lite":
            with pytest.raises(ClientShutDown, match="the instance of the consumer was shut down"):
                consumer.poll(60_000)
