"""Wrong broker responses never lead to messages of other queues: clients deliver what they
requested, or raise an error that names the broker."""

import random
import threading
from contextlib import suppress

import pytest
from support.servers.wrong_answers import ANSWER_LIES, LIES, WrongBroker
from support.suite.selection import spread

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import ConsumeFromWhere, LitePullSettings, PushSettings
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.message_queue import MessageQueue

BROKER = "broker-a"
COUNT = 40
SEEDS = 3


@pytest.fixture
def filled(rocketpoll_broker, rocketpoll_topic):
    """Fill a topic, and another one with other bodies."""
    rocketpoll_broker.create_topic(rocketpoll_topic, 1)
    rocketpoll_broker.send(rocketpoll_topic, *(f"body {number}" for number in range(COUNT)))
    return rocketpoll_topic


def assert_are_of(topic, messages, lie=""):
    for message in messages:
        assert message.topic == topic
        assert message.queue == MessageQueue(topic, BROKER, 0)
        if lie != "another body":
            assert 0 <= message.queue_offset < COUNT


def by_polls(instance, topic, group):
    settings = LitePullSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    found = []
    with LitePullConsumer(group, instance=instance, settings=settings) as consumer:
        consumer.subscribe(topic)
        for _ in range(4):
            found += consumer.poll(timeout_ms=300)
    return found


def by_listener(instance, topic, group, **more):
    settings = PushSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    found, has_come = [], threading.Event()

    def listen(messages, _context):
        found.extend(messages)
        if len(found) >= COUNT:
            has_come.set()

    kind = more.get("kind", "listener")
    with PushConsumer(group, instance=instance, settings=settings, **{kind: listen}) as consumer:
        consumer.subscribe(topic)
        has_come.wait(1.2)
    return found


def in_order(instance, topic, group):
    return by_listener(instance, topic, group, kind="orderly_listener")


def as_a_table(instance, topic, _group):
    with Admin(instance=instance) as admin:
        table = admin.read_table(topic, columns=["topic", "queueId", "queueOffset", "body"])
    for row in table.to_pylist():
        assert (row["topic"], row["queueId"]) == (topic, 0)
        assert row["body"] == f"body {row['queueOffset']}".encode()
    return []


def at_offsets(instance, topic, _group):
    with Admin(instance=instance) as admin:
        queue = MessageQueue(topic, BROKER, 0)
        return [found for at in range(3) if (found := admin.message_at(queue, at)) is not None]


WAYS = {
    "polls": by_polls,
    "a listener": by_listener,
    "an orderly listener": in_order,
    "a table": as_a_table,
    "single messages": at_offsets,
}


def consumed(wrong, broker, topic, way, group):
    """Return the messages of a client; it may raise only rocketpoll's errors."""
    instance = ClientInstance(
        broker.address, broker_addresses={BROKER: wrong.address}, request_timeout_ms=1_000
    )
    with instance, suppress(RocketPollError):
        return WAYS[way](instance, topic, group)
    return []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "lie", spread(2, [name for name in LIES if "topic" in name or "queue" in name])
)
def test_lying_broker_causes_no_delivery_of_foreign_messages(rocketpoll_broker, filled, lie, way):
    for is_ours in (False, True):
        with WrongBroker(rocketpoll_broker, LIES[lie], is_ours=is_ours) as wrong:
            wrong.dice, wrong.left = random.Random(1), 1_000
            group = f"G{abs(hash((lie, way, is_ours)))}"
            assert_are_of(filled, consumed(wrong, rocketpoll_broker, filled, way, group))
            assert wrong.left < 1_000


@pytest.mark.parametrize("way", ["polls", "a listener", "an orderly listener"])
@pytest.mark.parametrize("lie", spread(4, ANSWER_LIES))
def test_consumer_of_a_lying_broker_ends_and_delivers_no_foreign_messages(
    rocketpoll_broker, filled, lie, way, monkeypatch
):
    ended = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    for seed in range(SEEDS):
        with WrongBroker(rocketpoll_broker, answers=ANSWER_LIES[lie]) as wrong:
            wrong.dice, wrong.left = random.Random(seed), random.Random(seed).choice([1, 4, 30])
            group = f"G{abs(hash((lie, way, seed)))}"
            assert_are_of(filled, consumed(wrong, rocketpoll_broker, filled, way, group))
    assert ended == []
