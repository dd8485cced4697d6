"""Simple consumers: popped messages are acknowledged, changed, or delivered again."""

import threading

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.consumer.simple_consumer import SimpleConsumer
from rmq_spark.client.errors import ClientShutDown, MessageRejected
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.subscriptions import by_sql


@pytest.fixture
def simple(brokers, cluster):
    """Return a function that starts consumers of a topic."""
    if "4.9" in brokers[0]:
        pytest.skip("RocketMQ 4.9 cannot pop")
    started = []

    def start(topic, group=None, selector="*", **options):
        consumer = SimpleConsumer(
            group or cluster.group(), cluster.name_server, start="earliest", **options
        )
        consumer.subscribe(topic, selector)
        consumer.start()
        started.append(consumer)
        return consumer

    yield start
    for consumer in started:
        consumer.shutdown()


def send(clients, topic, *bodies, **more):
    producer = clients.producer()
    for body in bodies:
        producer.send(Message(topic, body.encode(), **more))


def received(consumer, count, **options):
    """Receive this number of messages."""
    found = []
    wait_until(
        f"{count} messages",
        lambda: found.extend(consumer.receive(timeout_ms=500, **options)) or len(found) >= count,
    )
    return found


def test_group_state_counts_popped_messages_until_they_are_acknowledged(
    is_ours, cluster, clients, simple
):
    topic, group = cluster.topic(), cluster.group()
    send(clients, topic, *"abcd")
    consumer = simple(topic, group)
    held = received(consumer, 4)
    with Admin(cluster.name_server) as admin:

        def in_flight():
            return admin.describe_group(group).in_flight

        wait_until("all in flight", lambda: in_flight() == (4 if is_ours else None))
        assert admin.describe_group(group).is_popping
        consumer.ack(held)
        wait_until("none in flight", lambda: not in_flight())


def texts(messages):
    return sorted(each.body.decode() for each in messages)


def test_messages_are_received_once_and_acknowledged_singly_and_together(cluster, clients, simple):
    topic, group = cluster.topic(), cluster.group()
    send(clients, topic, *"abcdef")
    first, second = simple(topic, group), simple(topic, group)
    found = received(first, 6)
    assert texts(found) == list("abcdef")
    assert second.receive(timeout_ms=0) == []
    first.ack(found[0])
    first.ack(found[1:])
    assert second.receive(timeout_ms=0) == []


def test_message_whose_time_is_over_is_redelivered_with_its_number_of_attempts(
    cluster, clients, simple
):
    topic = cluster.topic()
    send(clients, topic, "a", "b")
    consumer = simple(topic)
    found = received(consumer, 2, invisible_ms=20_000)
    keeps = next(each for each in found if each.body == b"a")
    back = next(each for each in found if each.body == b"b")
    consumer.ack(keeps)
    consumer.change_invisible_duration(back, 1_000)
    again = received(consumer, 1)
    assert [(each.body, each.reconsume_times, each.topic) for each in again] == [(b"b", 1, topic)]
    consumer.ack(consumer.change_invisible_duration(again[0], 60_000))


def test_held_pop_is_answered_when_a_message_comes_and_filters_apply(cluster, clients, simple):
    topic = cluster.topic()
    tags, sql = simple(topic, selector="red"), simple(topic, selector=by_sql("a = '1'"))
    assert tags.receive(timeout_ms=0) == sql.receive(timeout_ms=0) == []
    send(clients, topic, "no", tags="blue")
    send(clients, topic, "yes", tags="red", properties={"a": "1"})
    for consumer in (tags, sql):
        (message,) = received(consumer, 1)
        assert message.body == b"yes"
        consumer.ack(message)


def test_messages_in_order_come_when_those_before_are_acknowledged(cluster, clients, simple):
    topic = cluster.topic(queues=1)
    send(clients, topic, *"abc")
    consumer = simple(topic, in_order=True)
    a, b = consumer.receive(2, timeout_ms=10_000)
    assert (a.body, b.body) == (b"a", b"b")
    assert consumer.receive(timeout_ms=0) == []
    consumer.ack([a, b])
    (c,) = received(consumer, 1)
    assert c.body == b"c"
    consumer.ack(c)


def test_acknowledgement_of_a_pulled_message_is_refused(cluster, clients, simple):
    topic = cluster.topic()
    send(clients, topic, "a")
    (pulled,) = clients.read(topic, 1)
    with pytest.raises(MessageRejected, match="receive has returned"):
        simple(topic).ack(pulled)


@pytest.mark.parametrize("reads_itself", [False, True])
def test_closed_consumer_of_a_shared_instance_ends_a_receive_that_waits(
    cluster, simple, reads_itself
):
    topic = cluster.topic()
    simple(topic)  # skips if the cluster has no POP
    with ClientInstance(cluster.name_server, reads_itself=reads_itself) as instance:
        consumer = SimpleConsumer(cluster.group(), instance=instance)
        consumer.subscribe(topic)
        consumer.start()
        raised = []

        def receive():
            try:
                consumer.receive(timeout_ms=600_000)
            except ClientShutDown as error:
                raised.append(error)

        receiver = threading.Thread(target=receive)
        receiver.start()
        wait_until("the pop", lambda: consumer._pending_pops)
        consumer.close()
        receiver.join(60)
        assert len(raised) == 1
