"""The asyncio SimpleConsumer awaits messages without a thread, and returns messages of cancelled
calls."""

import asyncio
import itertools
import threading
import time

import pytest
from support.clients.asyncio_tests import NoWaiting, told_in_a_loop, until
from support.faults.cancellations import Belongings, cancelled_everywhere

from rmq_spark.client.aio.loop_bridge import CALLS_MAX
from rocketpoll import Message, aio
from rocketpoll.errors import ClientError, ClientShutDown, MessageRejected


def bodies(messages):
    return sorted(each.body.decode() for each in messages)


async def received(consumer, count, **options):
    found = []
    while len(found) < count:
        found += await consumer.receive(count - len(found), **options)
    return found


@told_in_a_loop
async def test_aio_simple_consumer_acknowledges_and_gets_redeliveries(broker, topic, group):
    broker.send(topic, *"abc")
    async with (
        aio.Client(broker.address) as client,
        aio.SimpleConsumer(group, client=client, start="earliest") as consumer,
    ):
        await consumer.subscribe(topic)
        found = await received(consumer, 3)
        assert bodies(found) == ["a", "b", "c"]
        first, second, third = sorted(found, key=lambda each: each.body)
        await consumer.ack([first, second])
        later = await consumer.change_invisible_duration(third, 0)
        (again,) = await received(consumer, 1)
        assert (again.body, again.reconsume_times) == (b"c", 1)
        await consumer.ack(again)
        assert await consumer.receive(timeout_ms=0) == []
        with pytest.raises(TypeError, match="messages: needed a message or several"):
            await consumer.ack(Message(topic, b"x"))
        assert later.body == b"c"


@told_in_a_loop
async def test_waiting_aio_receives_use_no_thread_and_are_woken_by_messages(broker, group):
    broker.create_topic(f"of-{group}", 1)
    async with aio.SimpleConsumer(group, broker.address, start="earliest") as consumer:
        await consumer.subscribe(f"of-{group}")
        waiting = [asyncio.create_task(consumer.receive(1)) for _ in range(3 * CALLS_MAX)]
        await asyncio.sleep(0)
        # the waiting receives occupy no threads
        await asyncio.wait_for(consumer.subscribe(f"of-{group}"), 10)
        broker.send(f"of-{group}", *(f"{number}" for number in range(len(waiting))))
        found = list(itertools.chain.from_iterable(await asyncio.gather(*waiting)))
        assert len({each.body for each in found}) == len(waiting)
        await consumer.ack(found)


@told_in_a_loop
async def test_aio_receive_and_ack_never_block_the_loop(broker, topic, group, monkeypatch):
    broker.send(topic, *"abc")
    async with aio.SimpleConsumer(group, broker.address, start="earliest") as consumer:
        await consumer.subscribe(topic)
        with NoWaiting(monkeypatch) as no_waiting:
            await consumer.ack(await received(consumer, 3))
            assert await consumer.receive(timeout_ms=100) == []
    assert no_waiting.faults == []


@told_in_a_loop
async def test_messages_of_a_cancelled_aio_receive_are_delivered_again_at_once(broker, group):
    topic = f"of-{group}"
    broker.create_topic(topic, 1)
    # with a client that outlives the test
    await asyncio.to_thread(broker.send, f"first-{group}", "a")
    heartbeats = f"rocketpoll heartbeat {broker.address}"
    await until(
        "its first heartbeat",
        lambda: any(each.name.startswith(heartbeats) for each in threading.enumerate()),
    )
    belongings, numbers = Belongings(), itertools.count()
    async with aio.SimpleConsumer(group, broker.address, start="earliest") as consumer:
        await consumer.subscribe(topic)

        async def make():
            body = f"{next(numbers)}"
            await asyncio.to_thread(broker.send, topic, body)
            return body

        got = []

        async def receive(_):
            got.extend(await consumer.receive(invisible_ms=600_000))

        async def check(body):
            found = list(got) or await received(consumer, 1, invisible_ms=600_000)
            got.clear()
            assert bodies(found) == [body]
            await consumer.ack(found)

        await cancelled_everywhere(make, receive, check)
    await belongings.are_as_before()


@told_in_a_loop
async def test_cancelled_aio_receive_gives_back_a_message_that_comes_later(broker, group):
    topic = f"of-{group}"
    broker.create_topic(topic, 1)
    async with aio.SimpleConsumer(group, broker.address, start="earliest") as consumer:
        await consumer.subscribe(topic)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.receive(invisible_ms=600_000), 0.3)
        broker.send(topic, "late")
        (message,) = await received(consumer, 1)
        assert message.body == b"late"
        await consumer.ack(message)


@told_in_a_loop
async def test_short_waits_for_aio_receives_leave_no_pops_that_get_the_next_message(broker, group):
    topic = f"of-{group}"
    broker.create_topic(topic, 1)
    async with aio.SimpleConsumer(group, broker.address, start="earliest") as consumer:
        await consumer.subscribe(topic)
        for _ in range(5):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.receive(invisible_ms=600_000), 0.3)
        waiting = asyncio.create_task(consumer.receive(invisible_ms=600_000))
        await asyncio.sleep(0)
        broker.send(topic, "next")
        (message,) = await waiting
        assert (message.body, message.reconsume_times) == (b"next", 0)
        await consumer.ack(message)


@told_in_a_loop
async def test_aio_receive_that_resumes_a_cancelled_one_waits_its_own_time(broker, group):
    topic = f"of-{group}"
    broker.create_topic(topic, 1)
    async with aio.SimpleConsumer(group, broker.address, start="earliest") as consumer:
        await consumer.subscribe(topic)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.receive(timeout_ms=1_000), 0.1)
        waiting = asyncio.create_task(consumer.receive(timeout_ms=600_000))
        short = await consumer.receive(timeout_ms=1_500)  # the cancelled receive has ended too
        assert short == []
        broker.send(topic, "later")
        (message,) = await waiting
        assert (message.body, message.reconsume_times) == (b"later", 0)


@pytest.mark.parametrize("shares", [True, False], ids=["shared-client", "own-client"])
@told_in_a_loop
async def test_closed_aio_consumer_ends_receives_that_wait(broker, topic, group, shares):
    async with aio.Client(broker.address) as client:
        where = {"client": client} if shares else {"namesrv": broker.address}
        consumer = aio.SimpleConsumer(group, **where)
        await consumer.start()
        await consumer.subscribe(topic)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0.05)
        started = time.monotonic()
        await consumer.close()
        with pytest.raises(ClientShutDown, match=r"was closed|was shut down"):
            await waiting
        assert time.monotonic() - started < 15
        with pytest.raises(ClientShutDown):
            await consumer.receive()


@told_in_a_loop
async def test_aio_receive_with_wrong_arguments_is_refused(broker, topic, group):
    async with aio.SimpleConsumer(group, broker.address) as consumer:
        with pytest.raises(MessageRejected, match="Call subscribe first"):
            await consumer.receive()
        await consumer.subscribe(topic)
        with pytest.raises(MessageRejected, match="max_messages"):
            await consumer.receive(33)
        with pytest.raises(MessageRejected, match="invisible_ms"):
            await consumer.receive(invisible_ms=999)
    with pytest.raises(TypeError, match="did you mean client"):
        aio.SimpleConsumer(group, clients=None)


@told_in_a_loop
async def test_error_of_a_pop_reaches_the_aio_receive(broker, topic, group):
    other = f"other-{group}"
    broker.create_topic(other, 1)
    async with aio.SimpleConsumer(group, broker.address) as consumer:
        await consumer.subscribe(other)
        broker.delete_topic(other)

        async def receive_until_error():
            while True:
                await consumer.receive(timeout_ms=500)

        with pytest.raises(ClientError, match=other):
            await receive_until_error()
