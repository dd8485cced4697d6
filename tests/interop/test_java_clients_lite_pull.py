"""Java polling consumers: messages, positions, and where they resume.

Each test runs on a real RocketMQ and on our broker, with clients of both versions.
"""

from __future__ import annotations

import pytest
from support.brokers.broker_kinds import RocketMQBroker, wait_until
from support.rocketmq.java_clients import JavaError, bodies_of, in_order, numbered, queue, to_send

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import NotSupported

pytestmark = pytest.mark.interop

POLLS_IN_VAIN = 5  # after which no more messages are expected; available messages came earlier


def test_java_lite_consumer_gets_all_messages_once_in_queue_order(scenario):
    topic = scenario.topic(queues=4)
    sent = [*numbered(100)]
    scenario.producer().send(topic, *sent)
    consumer = scenario.lite(topic=topic)
    consumer.wait_for(bodies_of(sent))
    assert sorted(consumer.bodies) == sorted(bodies_of(sent))
    assert consumer.ask("assigned") == [0, 1, 2, 3]
    for queue_id in range(4):
        offsets = [each["queueOffset"] for each in consumer.received if each["queueId"] == queue_id]
        assert offsets == list(range(25))


def test_lite_pull_assign_gives_exactly_these_queues(scenario):
    topic = scenario.topic(queues=3)
    producer = scenario.producer()
    for queue_id in range(3):
        producer.send_to_queue(topic, queue_id, to_send(f"of queue {queue_id}"))
    consumer = scenario.lite()
    consumer.assign(topic, 0, 2)
    consumer.wait_for(["of queue 0", "of queue 2"])
    consumer.assign(topic, 1)
    consumer.wait_for(["of queue 1"])
    assert sorted(consumer.bodies) == ["of queue 0", "of queue 1", "of queue 2"]


def test_seek_goes_to_any_message_and_to_both_ends(scenario):
    topic = scenario.topic()
    producer = scenario.producer()
    producer.send(topic, *numbered(30))
    consumer = scenario.lite()
    consumer.assign(topic, 0)
    consumer.wait_for(bodies_of(numbered(30)))

    def after(what: str, expected: list[str], **fields) -> None:
        consumer.received.clear()
        consumer.ask(what, **queue(topic, 0), **fields)
        consumer.wait_for(expected)
        assert consumer.bodies == expected

    after("seek", bodies_of(numbered(20, start=10)), queueOffset=10)
    after("seek to begin", bodies_of(numbered(30)))
    consumer.ask("seek to end", **queue(topic, 0))
    producer.send(topic, to_send("new"))
    consumer.received.clear()
    consumer.wait_for(["new"])
    assert consumer.bodies == ["new"]
    with pytest.raises(JavaError, match="illegal"):
        consumer.ask("seek", **queue(topic, 0), queueOffset=32)


def test_java_lite_consumer_gets_nothing_of_a_paused_queue_until_resumed(scenario):
    topic = scenario.topic(queues=2)
    producer = scenario.producer()
    consumer = scenario.lite()
    consumer.assign(topic, 0, 1)
    producer.send_to_queue(topic, 0, to_send("before"))
    consumer.wait_for(["before"])
    consumer.ask("pause", **queue(topic, 0))
    # Otherwise the first message may still come, by a pull that the broker holds.
    consumer.ask("seek to end", **queue(topic, 0))
    producer.send_to_queue(topic, 0, to_send("paused"))
    producer.send_to_queue(topic, 1, to_send("not paused"))
    consumer.wait_for(["not paused"])
    for _ in range(POLLS_IN_VAIN):
        assert consumer.look() == []
    consumer.ask("resume", **queue(topic, 0))
    consumer.wait_for(["paused"])
    assert consumer.bodies == ["before", "not paused", "paused"]


def test_java_lite_consumer_continues_at_the_committed_offset_of_its_group(scenario):
    topic = scenario.topic()
    producer = scenario.producer()
    producer.send(topic, *numbered(10))
    consumer = scenario.lite()
    consumer.assign(topic, 0)
    consumer.wait_for(bodies_of(numbered(10)))
    assert (
        consumer.committed(topic, 0) == 0
    )  # as a broker reports while no message of the queue has expired
    consumer.ask("commit")
    assert consumer.committed(topic, 0) == 10
    producer.send(topic, *numbered(5, start=10))
    consumer.wait_for(bodies_of(numbered(5, start=10)))  # without a commit
    consumer.stop()

    following = scenario.lite()
    following.assign(topic, 0)
    following.wait_for(bodies_of(numbered(5, start=10)))
    assert following.bodies == bodies_of(numbered(5, start=10))
    other = scenario.lite(group=f"{scenario.group}-other")
    other.assign(topic, 0)
    other.wait_for(bodies_of(numbered(15)))
    assert following.committed(topic, 0) == 10
    assert other.committed(topic, 0) == 0


def test_java_lite_consumer_finds_an_offset_by_time(scenario):
    topic = scenario.topic()
    producer = scenario.producer()
    for number in range(5):
        producer.send(topic, to_send(f"{number}"))
    consumer = scenario.lite()
    consumer.assign(topic, 0)
    consumer.wait_for("01234")
    times = [each["storeTimestamp"] for each in consumer.received]
    for queue_offset, timestamp in enumerate(times):
        if times.count(timestamp) == 1:
            assert (
                consumer.ask("offset for time", **queue(topic, 0), timestamp=timestamp)
                == queue_offset
            )


def test_java_lite_consumer_reads_a_queue_in_order_across_many_pulls(scenario):
    topic = scenario.topic()
    producer = scenario.producer()
    for start in range(0, 2000, 200):
        producer.send_batch(topic, *numbered(200, start=start))
    found = scenario.read(topic, 2000)
    assert bodies_of(in_order(found)) == bodies_of(found) == bodies_of(numbered(2000))
    assert [each["queueOffset"] for each in found] == list(range(2000))


def test_offset_reset_moves_a_java_lite_consumer_or_is_refused(scenario, java_broker):
    """The consumer ignores notifications of brokers; RocketMQ 5 answers its next pull with the new
    offset."""
    topic = scenario.topic()
    sent = [*numbered(10)]
    scenario.producer().send(topic, *sent)
    consumer = scenario.lite(topic=topic, autoCommit=True)
    consumer.wait_for(bodies_of(sent))

    def has_committed():
        consumer.look()
        return scenario.consumed(consumer.group, topic) == {0: 10}

    wait_until("all are committed", has_committed)
    with Admin(java_broker.name_server) as admin:
        if isinstance(java_broker, RocketMQBroker) and java_broker.version.startswith("5"):
            admin.reset_to_time(consumer.group, topic, 0)
            consumer.received.clear()
            consumer.wait_for(bodies_of(sent))
        else:
            with pytest.raises(NotSupported, match="Java's pull consumers"):
                admin.reset_to_time(consumer.group, topic, 0)
            assert scenario.consumed(consumer.group, topic) == {0: 10}
