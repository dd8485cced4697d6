"""Timer messages and their recall, in threads and asyncio."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from support.servers.fake_servers import FakeCluster

from rmq_spark.client.errors import BrokerRefused, MessageRejected, NotSupported
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.message.properties import decode_properties
from rocketpoll import aio
from rocketpoll.broker.embedded import EmbeddedBroker

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as running:
        running.create_topic("T", queues=1)
        yield running


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"deliver_at": NOON}, "TIMER_DELIVER_MS", "1769860800000"),
        ({"deliver_at": "2026-01-31T13:00:00+01:00"}, "TIMER_DELIVER_MS", "1769860800000"),
        ({"deliver_at": NOON + timedelta(microseconds=1)}, "TIMER_DELIVER_MS", "1769860800001"),
        ({"deliver_after": "90s"}, "TIMER_DELAY_MS", "90000"),
        ({"deliver_after": timedelta(hours=1)}, "TIMER_DELAY_MS", "3600000"),
        ({"deliver_after": timedelta(0)}, "TIMER_DELAY_MS", "0"),
    ],
)
def test_time_of_delivery_becomes_rocketmqs_property(fields, name, value):
    message = Message("T", b"x", **fields)
    message.check()
    assert decode_properties(message.properties_text("id"))[name] == value


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        (
            {"deliver_at": NOON.replace(tzinfo=None)},
            MessageRejected,
            "with a time zone, .+ found '2026-01-31 12:00:00'",
        ),
        ({"deliver_at": "soon"}, MessageRejected, "deliver_at"),
        ({"deliver_at": 5}, TypeError, "a datetime with a time zone"),
        ({"deliver_after": "90"}, MessageRejected, "with its unit"),
        ({"deliver_after": timedelta(seconds=-1)}, MessageRejected, "deliver_after"),
        ({"deliver_after": 90}, TypeError, "a timedelta"),
        ({"deliver_after": "1s", "delay_level": 1}, MessageRejected, "no delay_level"),
        ({"deliver_after": "1s", "deliver_at": NOON}, MessageRejected, "no deliver_at"),
    ],
)
def test_impossible_time_of_delivery_is_refused(fields, error, why):
    with pytest.raises(error, match=why):
        Message("T", b"x", **fields).check()


def test_timer_message_arrives_when_the_embedded_clock_has_reached_its_time(broker):
    broker.create_topic("Late", queues=1)
    with broker.producer() as producer:
        producer.send(Message("Late", b"late", deliver_after="2h"))
        recalled = producer.send(Message("Late", b"recalled", deliver_after="2h"))
        assert producer.recall(recalled) == recalled.message_id
        producer.send(Message("Late", b"prompt"))
    assert [each.body for each in broker.messages("Late")] == [b"prompt"]
    broker.clock.advance(timedelta(hours=2))
    broker.wait_until_arrived("Late", 2)
    assert [each.body for each in broker.messages("Late")] == [b"prompt", b"late"]


def test_asyncio_producer_sends_timer_messages_and_recalls_them(broker):
    async def story():
        async with aio.Producer("P", broker.address) as producer:
            sent = await producer.send(Message("T", b"x", deliver_after=timedelta(hours=1)))
            assert await producer.recall(sent.recall_handle) == sent.message_id

    asyncio.run(story())


def test_recall_without_a_handle_is_refused(broker):
    with broker.producer() as producer:
        sent = producer.send(Message("T", b"x"))
        for handle in (sent, "no handle"):
            with pytest.raises(MessageRejected, match="recall_handle"):
                producer.recall(handle)
        with pytest.raises(TypeError, match="recall_handle"):
            producer.recall(5)
        over = producer.send(Message("T", b"x", deliver_after="10ms")).recall_handle
        broker.clock.advance(timedelta(seconds=1))
        with pytest.raises(BrokerRefused, match="timestamp invalid"):
            producer.recall(over)


def test_batch_has_no_timer_messages(broker):
    with broker.producer() as producer, pytest.raises(MessageRejected, match="deliver_after"):
        producer.send_batch([Message("T", b"x", deliver_after="1s")])


def test_timer_message_is_not_sent_to_a_broker_of_rocketmq_4():
    with FakeCluster(a=lambda _: 0) as cluster, Producer("P", cluster.address) as producer:
        with pytest.raises(NotSupported, match=r"4\.9 delivers .* at once\. Use delay_level"):
            producer.send(Message("T", b"x", deliver_after="1s"))
        with pytest.raises(NotSupported):
            producer.send_async(Message("T", b"x", deliver_at=NOON))
        assert cluster.sends() == {"a": 0}
