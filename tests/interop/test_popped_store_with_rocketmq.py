"""A store with popped messages moves between our broker and RocketMQ 5.5.0, in both directions.

Messages acknowledged at one broker stay acknowledged at the other; all others are delivered again
there.
"""

import time

import pytest
from support.brokers.broker_kinds import KINDS, wait_until
from support.brokers.clusters import Cluster

from rmq_spark.client.consumer.simple_consumer import SimpleConsumer
from rmq_spark.client.errors import ClientError
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rocketpoll.broker.store.config import FlushDiskType

pytestmark = pytest.mark.interop

VERSION, BROKER, TOPIC, GROUP = "5.5.0", "broker-a", "Popped", "poppers"
SECONDS_MAX = 180


def started(kind, directory):
    return KINDS[kind](VERSION, directory, FlushDiskType.SYNC_FLUSH)


def usable(broker):
    """Return a client of a broker that accepts requests."""
    cluster = Cluster(broker.name_server, broker.address, BROKER)

    def creates():
        try:
            cluster.topic(queues=2, name=TOPIC)
        except ClientError:
            return False
        return True

    wait_until("a broker that creates topics", creates, SECONDS_MAX)
    return cluster


def consumer_of(broker):
    consumer = SimpleConsumer(GROUP, broker.name_server, start="earliest")
    consumer.subscribe(TOPIC)
    consumer.start()
    return consumer


def received(consumer, count, **options):
    found = []

    def has_come():
        found.extend(consumer.receive(timeout_ms=1_000, **options))
        return len(found) >= count

    wait_until(f"{count} messages", has_come, SECONDS_MAX)
    return found


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("rocketpoll", "rocketmq", marks=pytest.mark.peers),
        pytest.param("rocketmq", "rocketpoll", marks=pytest.mark.peers),
    ],
)
def test_unacknowledged_messages_are_redelivered_by_the_other_broker(tmp_path, first, second):
    broker = started(first, tmp_path)
    try:
        cluster = usable(broker)
        with Producer("senders", broker.name_server) as producer:
            for body in "abcdef":
                producer.send(Message(TOPIC, body.encode()))
        consumer = consumer_of(broker)
        found = sorted(received(consumer, 6, invisible_ms=20_000), key=lambda each: each.body)
        consumer.ack(found[0])
        consumer.ack(found[1:3])
        consumer.change_invisible_duration(found[3], 5_000)
        consumer.shutdown()
        cluster.close()
        broker.stop()
    finally:
        broker.close()

    broker = started(second, tmp_path)
    try:
        cluster = usable(broker)
        consumer = consumer_of(broker)
        again = received(consumer, 3)
        consumer.ack(again)
        time.sleep(5)
        assert consumer.receive(timeout_ms=1_000) == []
        assert sorted((each.body, each.reconsume_times) for each in again) == [
            (b"d", 1),
            (b"e", 1),
            (b"f", 1),
        ]
        consumer.shutdown()
        cluster.close()
        broker.stop()
    finally:
        broker.close()
