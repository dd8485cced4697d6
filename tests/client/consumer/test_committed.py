"""`committed` raises an error in time when the broker does not answer."""

import asyncio

import pytest

from rocketpoll import (
    ClientInstance,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
    aio,
)
from rocketpoll import ConsumeFromWhere as From
from rocketpoll.errors import ClientError

SETTINGS = LitePullSettings(consume_from_where=From.CONSUME_FROM_FIRST_OFFSET, auto_commit=False)


@pytest.fixture
def broker():
    with EmbeddedBroker() as broker:
        broker.create_topic("T", 1)
        with Producer("P", broker.address) as producer:
            producer.send(Message("T", b"one"))
        yield broker


def test_committed_of_a_broker_that_has_stopped_is_an_error(broker):
    instance = ClientInstance(broker.address, request_timeout_ms=300, connect_timeout_ms=300)
    with LitePullConsumer("G", instance=instance, settings=SETTINGS) as consumer:
        consumer.subscribe("T")
        [message] = consumer.poll(10_000)
        broker.stop()
        with pytest.raises(ClientError):
            consumer.committed(message.queue)


def test_committed_in_asyncio_of_a_broker_that_has_stopped_is_an_error(broker):
    async def story():
        client = aio.Client(broker.address, request_timeout_ms=300, connect_timeout_ms=300)
        async with aio.Consumer("G", client=client, settings=SETTINGS) as consumer:
            await consumer.subscribe("T")
            [message] = await consumer.poll(10_000)
            assert await consumer.committed(message.queue) in (None, 0)
            broker.stop()
            with pytest.raises(ClientError):
                await consumer.committed(message.queue)

    asyncio.run(asyncio.wait_for(story(), 60))
