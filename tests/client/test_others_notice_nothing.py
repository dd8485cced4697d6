"""A failure of one user, broker, message or file does not affect others of the same client."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress

import pytest
from support.brokers.broker_kinds import wait_until
from support.servers.fake_servers import BlackHole, FakeServer, answering

from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
from rmq_spark.client.errors import ClientError, ClientShutDown
from rmq_spark.client.instance import heartbeats
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message, decode_messages
from rmq_spark.client.producer.prepared_message import PreparedMessage, SendRules
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.reading.bulk_pull import BulkPull
from rmq_spark.client.transport import remoting_client
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import (
    BrokerData,
    ConsumeFromWhere,
    MessageModel,
    QueueData,
    TopicRouteData,
)
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message_queue import MessageQueue

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
QUEUE = MessageQueue("T", "broker-a", 0)
NEVER_MS = 600_000
PATIENCE_S = 30


@pytest.fixture
def topic(running_broker, api):
    config = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    api.admin.create_topic(running_broker.address, config)
    return "T"


def bodies_of(cluster, queue):
    end = cluster.api.max_offset(cluster.address, queue)
    return [
        message.body
        for chunk in BulkPull(cluster.api, cluster.address, "Readers", queue, 0, end)
        for message in decode_messages(chunk.records, "broker-a")
    ]


# ---- a user in a hurry


def test_short_timeouts_of_one_caller_close_no_connection_of_others(cluster):
    topic = cluster.topic(queues=1)
    queue = cluster.queue(topic)
    with ClientInstance(cluster.name_server) as instance:
        producer = Producer("P", instance=instance)
        with producer:
            producer.send(Message(topic, b"first"), queue)
            own = instance.connections.get(cluster.address)
            for number in range(20):
                futures = [
                    producer.send_async(Message(topic, b"%d" % n), queue, 20_000) for n in range(50)
                ]
                with suppress(ClientError):
                    producer.send(Message(topic, b"hurry"), timeout_ms=1)
                assert [future.result(20) for future in futures], number
            assert instance.connections.get(cluster.address) == own
    stored = Counter(bodies_of(cluster, queue))
    assert [stored[b"%d" % n] for n in range(50)] == [20] * 50


# ---- a broker whose host has vanished


@pytest.fixture
def two_brokers(running_broker, topic, monkeypatch):
    """A name server that leads to a broker, and to one at an address where nobody answers, ever."""
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
    consumer = LitePullConsumer(group, instance, LitePullSettings(consume_from_where=FIRST))

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
        instance,
        listener=lambda messages, _: seen.append(messages[0].body),
        settings=settings,
    )


def orderly(instance, seen, group="G"):
    settings = PushSettings(consume_from_where=FIRST)
    return PushConsumer(
        group,
        instance,
        orderly_listener=lambda messages, _: seen.append(messages[0].body),
        settings=settings,
    )


@pytest.mark.parametrize("kind", [lite, push, orderly])
def test_vanished_host_does_not_block_queues_of_others(
    two_brokers, running_broker, api, topic, kind
):
    """It would keep them waiting for ten minutes a question."""
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
    assert committed == [10, 10] or kind is lite  # what was polled last is only returned
    wait_until("the member has left", lambda: not api.consumer_ids(running_broker.address, "G"))


def test_vanished_host_is_skipped_by_sends(two_brokers, topic):
    with Producer("P", instance=two_brokers, send_timeout_ms=3_000) as producer:
        found = {producer.send(Message(topic, b"x")).queue.broker_name for _ in range(3)}
        assert found == {"broker-a"}
        hole = producer.instance.routes.master_address("a-gone")
        lines = producer.instance.connections
        lines._silent[hole] = float("inf")  # as it is when dialling has failed
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


# ---- a message that nobody can read


def send_damaged(producer, queue):
    """A message that says that its body is compressed, which it is not."""
    rules = SendRules("P", compress_body_bytes=1 << 20)
    sys_flag = MessageSysFlag.COMPRESSED.value
    text = "UNIQ_KEY\x01damaged\x02"
    damaged = PreparedMessage(
        rules, queue.topic, b"not compressed", "damaged", text, sys_flag, 0, 1
    )
    address = producer.instance.routes.master_address(queue.broker_name)
    producer.instance.api.send(address, damaged.header(queue), damaged.body, "damaged", 3_000)


@pytest.mark.parametrize("kind", [lite, push, orderly])
@pytest.mark.parametrize("place", ["first", "in the middle", "last"])
def test_unreadable_message_becomes_a_dead_letter_and_others_arrive(cluster, kind, place):
    topic, group = cluster.topic(queues=1), cluster.group()
    queue = cluster.queue(topic)
    seen, expected = [], [b"%d" % number for number in range(6)]
    with Producer("P", cluster.name_server) as producer:
        producer.publish_queues(topic)
        at = {"first": 0, "in the middle": 3, "last": 6}[place]
        for number in range(7):
            if number == at:
                send_damaged(producer, queue)
            if number < 6:
                producer.send(Message(topic, expected[number]), queue)
        with ClientInstance(cluster.name_server) as instance:
            consumer = kind(instance, seen, group)
            consumer.subscribe(topic)
            consumer.start()
            wait_until("all others", lambda: len(seen) >= 6, PATIENCE_S)
            assert sorted(seen) == expected
            wait_until("a dead letter", lambda: cluster.dead_letters(group) == 1, PATIENCE_S)
            wait_until("nothing is left", lambda: is_through(consumer), PATIENCE_S)
            if kind is lite:
                consumer.commit()
            consumer.shutdown()
    assert cluster.stored_offset(group, topic) == 7


def is_through(consumer):
    queues = consumer._impl.running_info().mq_table
    return all(info.cached_msg_count + info.transaction_msg_count == 0 for info in queues.values())


# ---- a strategy that fails


class FailsFor:
    """Shares out one topic's queues, and fails for all others."""

    name = "FAILS"

    def __init__(self, topic, error):
        self._topic, self._error = topic, error

    def allocate(self, _, queues, __):
        if queues[0].topic != self._topic:
            raise self._error
        return list(queues)


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(1)])
@pytest.mark.parametrize("kind", [LitePullSettings, PushSettings])
def test_strategy_failing_for_one_topic_keeps_other_topics_queues(
    running_broker, api, topic, kind, error, caplog
):
    config = TopicConfig(topic_name="A-fails", read_queue_nums=2, write_queue_nums=2)
    api.admin.create_topic(running_broker.address, config)
    settings = kind(
        allocate_message_queue_strategy=FailsFor(topic, error), rebalance_interval_ms=50
    )
    if kind is LitePullSettings:
        consumer = LitePullConsumer("G", running_broker.address, settings)
    else:
        consumer = PushConsumer(
            "G", running_broker.address, listener=lambda *_: None, settings=settings
        )
    consumer.subscribe("A-fails")
    consumer.subscribe(topic)
    with consumer:
        wait_until("a share", lambda: len(consumer.assignment()) == 2, PATIENCE_S)
        assert {queue.topic for queue in consumer.assignment()} == {topic}
    assert "the allocation strategy FAILS failed" in caplog.text


# ---- a file that cannot be written


def test_unwritable_offset_file_does_not_block_shutdown_or_start(
    running_broker, topic, tmp_path, caplog
):
    seen, directory = [], tmp_path / "offsets"
    with (
        ClientInstance(running_broker.address) as instance,
        Producer("P", instance=instance) as producer,
    ):
        settings = PushSettings(
            consume_from_where=FIRST,
            message_model=MessageModel.BROADCASTING,
            local_offset_directory=directory,
            persist_consumer_offset_interval_ms=NEVER_MS,
        )

        def join():
            consumer = PushConsumer(
                "G",
                instance,
                listener=lambda messages, _: seen.append(messages[0].body),
                settings=settings,
            )
            consumer.subscribe(topic)
            consumer.start()
            return consumer

        consumer = join()
        producer.send(Message(topic, b"x"), QUEUE)
        wait_until("a message", lambda: seen == [b"x"], PATIENCE_S)
        directory.write_text("a file, below which no directory can be made")
        consumer.shutdown()
        assert not consumer.is_running
        assert [each.group_name for each in instance._heartbeat_data().consumer_data_set] == []
        assert "storing offsets failed" in caplog.text
        assert str(directory) in caplog.text
        directory.unlink()
        join().shutdown()
