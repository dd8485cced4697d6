"""Java push consumers of 5.x whose group pops: each message once, retries, and order.

RocketMQ's own command sets the mode. Each test runs on a real RocketMQ as well.
"""

import pytest
from support.brokers.broker_kinds import wait_until
from support.rocketmq.java_clients import bodies_of, numbered
from support.rocketmq.mqadmin import MqAdmin

pytestmark = pytest.mark.interop

INVISIBLE_MS_MIN = 10_000
"""The shortest invisible time that Java's push consumer accepts."""


@pytest.fixture
def pops(scenario, java_broker):
    """Return a function that starts consumers of a topic whose group pops."""
    if java_broker.version.startswith("4."):
        pytest.skip("RocketMQ 4.9 cannot pop")
    admin = MqAdmin(scenario.clients, java_broker.version)
    admin.run("updateSubGroup", "-b", scenario.address, "-g", scenario.group)

    def start(topic, **options):
        arguments = ("-b", scenario.address, "-t", topic, "-g", scenario.group, "-m", "POP")
        assert "success" in admin.run("setConsumeMode", *arguments, "-q", "0")
        return scenario.push(topic=topic, leavesRebalance=True, **options)

    return start


def test_java_pop_consumers_share_one_queue(scenario, pops):
    topic = scenario.topic(queues=1)
    producer = scenario.producer()
    producer.send(topic, *numbered(40))
    first, second = pops(topic), pops(topic)
    wait_until(
        "all messages",
        lambda: (
            (first.look() is not None and len(first.received) >= 40)
            or (second.look() is not None and len(first.received) + len(second.received) >= 40)
        ),
    )
    producer.send(topic, *numbered(20, start=40))  # pops are held by now
    wait_until(
        "all messages",
        lambda: [first.look(), second.look()] and len(first.bodies + second.bodies) >= 60,
    )
    assert sorted(first.bodies + second.bodies) == sorted(bodies_of(numbered(60)))


def test_java_pop_consumer_gets_a_failed_message_again(scenario, pops):
    topic = scenario.topic()
    scenario.producer().send(topic, *numbered(3))
    consumer = pops(topic, failTimes=1, failBody="message 1")
    wait_until("a retry", lambda: consumer.look() is not None and len(consumer.received) == 4, 60)
    assert [
        each["reconsumeTimes"] for each in consumer.received if each["body"] == "message 1"
    ] == [
        0,
        1,
    ]
    assert {each["topic"] for each in consumer.received} == {topic}


def test_java_orderly_pop_consumer_gets_messages_in_order(scenario, pops):
    topic = scenario.topic(queues=1)
    producer = scenario.producer()
    producer.send_to_queue(topic, 0, *numbered(20))
    consumer = pops(topic, orderly=True)
    consumer.wait_for(bodies_of(numbered(20)))
    assert consumer.bodies == [f"message {number}" for number in range(20)]
