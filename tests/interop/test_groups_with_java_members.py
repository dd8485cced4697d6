"""Groups with members in Java and in Python: they share the queues, and go on where the other has left.

Each test is run with clients of both versions, against a real RocketMQ and against our broker.
"""

from __future__ import annotations

import pytest
from broker_kinds import wait_until
from java_clients import bodies_of, numbered

from rmq_spark.client import LitePullConsumer, LitePullSettings, PushConsumer, PushSettings
from rmq_spark.wire.bodies.clients import ConsumeFromWhere

pytestmark = pytest.mark.interop

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
QUEUES = 8


@pytest.fixture
def ours(java_broker):
    """Makes members in Python, which are shut down at the end."""
    started = []

    def make(kind, group, topic, **more):
        settings = LitePullSettings if kind is LitePullConsumer else PushSettings
        consumer = kind(group, java_broker.name_server, settings=settings(consume_from_where=FIRST), **more)
        consumer.subscribe(topic)
        consumer.start()
        started.append(consumer)
        return consumer

    yield make
    for consumer in started:
        consumer.shutdown()


def queue_ids(consumer, topic):
    return {queue.queue_id for queue in consumer.assignment() if queue.topic == topic}


def share_all(java, consumer, topic):
    """Whether each queue belongs to one of the two, and both have some."""
    theirs, mine = set(java.ask("assigned")), queue_ids(consumer, topic)
    return bool(theirs and mine) and not theirs & mine and theirs | mine == set(range(QUEUES))


def test_a_lite_member_of_each_kind_share_the_queues(scenario, ours):
    topic = scenario.topic(queues=QUEUES)
    java = scenario.lite(topic=topic)
    consumer = ours(LitePullConsumer, scenario.group, topic)
    wait_until("shares that fit", lambda: share_all(java, consumer, topic))
    sent = [*numbered(80)]
    scenario.producer().send(topic, *sent)
    found = []

    def all_have_come():
        java.look()
        found.extend(message.body.decode("latin-1") for message in consumer.poll(20))
        return len(java.received) + len(found) >= 80

    wait_until("all messages", all_have_come)
    assert sorted(found + java.bodies) == sorted(bodies_of(sent))
    java.stop()
    wait_until("all queues", lambda: queue_ids(consumer, topic) == set(range(QUEUES)))


def test_one_goes_on_where_the_other_has_left(scenario, ours):
    topic = scenario.topic(queues=1)
    producer = scenario.producer()
    first, second = [*numbered(10)], [*numbered(10, start=10)]
    producer.send(topic, *first)
    found = []
    consumer = ours(
        PushConsumer,
        scenario.group,
        topic,
        listener=lambda messages, _: found.extend(each.body.decode("latin-1") for each in messages),
    )
    wait_until("all messages", lambda: len(found) == 10)
    consumer.shutdown()
    wait_until("an offset", lambda: scenario.consumed(scenario.group, topic) == {0: 10})
    producer.send(topic, *second)
    java = scenario.lite(topic=topic)
    java.wait_for(bodies_of(second))
    assert java.bodies == bodies_of(second)
