"""The offset at which a group starts in a queue."""

import asyncio
import queue
from datetime import timedelta

import pytest

from rmq_spark.client.consumer.offsets.offset_manager import InitialOffsetRule
from rmq_spark.client.consumer.offsets.offset_store import RemoteBrokerOffsetStore
from rmq_spark.client.errors import RequestTimeout
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import (
    EmbeddedBroker,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    SimpleConsumer,
    aio,
)

QUEUE, RETRY = MessageQueue("T", "b", 0), MessageQueue("%RETRY%G", "b", 0)


class Ends:
    def max_offset(self, _):
        return 90

    def min_offset(self, _):
        return 10

    def search_offset(self, _, timestamp_ms):
        return timestamp_ms - 1_000


def store_of(stored):
    class Brokers:
        def consumer_offset(self, _):
            if isinstance(stored, Exception):
                raise stored
            return stored

    return RemoteBrokerOffsetStore(Brokers())


def begins(where, stored=None, queue=QUEUE):
    return InitialOffsetRule(where, 1_050).resolve(queue, store_of(stored), Ends())


@pytest.mark.parametrize("where", ConsumeFromWhere)
@pytest.mark.parametrize("stored", [0, 50])
def test_stored_offset_wins_over_consume_from_where(where, stored):
    assert begins(where, stored) == stored


@pytest.mark.parametrize(
    ("where", "offset"),
    [
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 90),
        (ConsumeFromWhere.CONSUME_FROM_MAX_OFFSET, 90),
        (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 10),
        (ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET, 10),
        (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 50),
    ],
)
def test_group_without_offset_starts_at_consume_from_where(where, offset):
    assert begins(where) == offset


@pytest.mark.parametrize("where", ConsumeFromWhere)
def test_first_offset_of_a_retry_topic_is_never_the_end(where):
    assert begins(where, queue=RETRY) == 10


@pytest.mark.parametrize("where", ConsumeFromWhere)
def test_failed_request_for_a_first_offset_raises(where):
    with pytest.raises(RequestTimeout):
        begins(where, RequestTimeout("b:1", 14, 3_000))


@pytest.fixture(scope="module")
def orders():
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", queues=1)
        with Producer("P", broker.address) as producer:
            for body in (b"one", b"two"):
                producer.send(Message("orders", body))
        yield broker.address


def test_lite_pull_consumer_with_start_earliest_reads_everything(orders):
    with LitePullConsumer("lite", orders, start="earliest") as consumer:
        consumer.subscribe("orders")
        assert [each.body for each in consumer.poll(timeout_ms=20_000)] == [b"one", b"two"]


def test_push_consumer_started_at_a_time_reads_what_was_stored_later(orders):
    found = queue.Queue()
    listener = lambda messages, _: found.put(messages)  # noqa: E731  # as users write listeners
    with PushConsumer("push", orders, listener=listener, start="-1h") as consumer:
        consumer.subscribe("orders")
        bodies = {each.body for _ in range(2) for each in found.get(timeout=20)}
    assert bodies == {b"one", b"two"}


@pytest.fixture(scope="module")
def hour_later():
    """A broker with a message, and one that it has stored an hour later; and that time."""
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", queues=1)
        broker.send("orders", b"early")
        broker.clock.advance(timedelta(hours=1))
        broker.send("orders", b"late")
        yield broker.address, broker.messages("orders")[1].store_timestamp


def test_lite_pull_consumer_started_at_a_time_skips_earlier_messages_of_a_new_topic(hour_later):
    """Some brokers answer 0 for a group that starts at the end."""
    address, later = hour_later
    with LitePullConsumer("lite", address, start=later) as consumer:
        consumer.subscribe("orders")
        assert [each.body for each in consumer.poll(timeout_ms=20_000)] == [b"late"]


def test_push_consumer_started_at_a_time_skips_earlier_messages_of_a_new_topic(hour_later):
    address, later = hour_later
    found = queue.Queue()
    listener = lambda messages, _: found.put(messages)  # noqa: E731  # as its callers write it
    with PushConsumer("push", address, listener=listener, start=later) as consumer:
        consumer.subscribe("orders")
        assert [each.body for each in found.get(timeout=20)] == [b"late"]


def test_simple_consumer_with_start_earliest_in_any_case_receives_everything(orders):
    consumer = SimpleConsumer("pop", orders, start="Earliest")
    consumer.subscribe("orders")
    with consumer:
        bodies = [each.body for each in consumer.receive(16, timeout_ms=20_000)]
    assert bodies == [b"one", b"two"]


def test_asyncio_consumer_with_start_earliest_reads_everything(orders):
    async def first_body():
        async with aio.Consumer("loop", orders, start="earliest") as consumer:
            await consumer.subscribe("orders")
            return (await anext(consumer)).body

    assert asyncio.run(first_body()) == b"one"
