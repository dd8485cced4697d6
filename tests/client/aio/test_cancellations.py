"""Cancelling any await leaks nothing, loses nothing, and does not affect other tasks."""

import asyncio
import itertools

import pyarrow as pa
import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.asyncio_tests import (
    BY_HAND,
    FIRST,
    names_of_threads,
    taken,
    told_in_a_loop,
    until,
)
from support.faults.cancellations import Belongings, cancelled_everywhere

from rmq_spark.client.aio.producer import LARGE_BODY_BYTES
from rocketpoll import Message, MessageQueue, aio

TABLE = pa.table({"body": [b"x"] * 3})
SENDS = {
    "alone": lambda producer, topic: producer.send(Message(topic, b"x")),
    "to-a-queue": lambda producer, topic: producer.send(Message(topic, b"x"), lambda all_: all_[0]),
    "by-a-key": lambda producer, topic: producer.send(Message(topic, b"x", sharding_key="k")),
    "long": lambda producer, topic: producer.send(Message(topic, b"x" * LARGE_BODY_BYTES)),
    "as-json": lambda producer, topic: producer.send(Message(topic, {"n": 1})),
    "batch": lambda producer, topic: producer.send_batch([Message(topic, b"x")] * 3),
    "one-way": lambda producer, topic: producer.send_one_way(Message(topic, b"x")),
    "table": lambda producer, topic: producer.send_table(TABLE, topic),
    "queues": lambda producer, topic: producer.publish_queues(topic),
}


async def nothing():
    pass


@pytest.fixture(scope="module", autouse=True)
def _the_brokers_own_client(broker):
    """Start the fixtures' client before the first test, so that its threads do not
    count as leaks."""
    broker.create_topic("T", 1)
    broker.send("T", "x")
    wait_until("its heartbeats", lambda: names_of_threads("rocketpoll heartbeat 127"))


@pytest.fixture
def queue(broker, group):
    broker.create_topic(f"of-{group}", 1)
    return MessageQueue(f"of-{group}", "broker-a", 0)


@pytest.mark.parametrize("how", SENDS)
@told_in_a_loop
async def test_cancelled_aio_send_leaves_nothing_behind(broker, topic, group, how):
    belongings, numbers = Belongings(), itertools.count()
    async with aio.Client(broker.address) as client:

        async def make():
            producer = aio.Producer(f"{group}-{next(numbers)}", client=client, serializer="json")
            await producer.start()
            return producer

        async def check(producer):
            assert (await producer.send(Message(topic, b"next"))).queue.topic == topic
            await until("nothing pending", lambda: not producer.health().pending_sends)
            await producer.close()

        await cancelled_everywhere(make, lambda producer: SENDS[how](producer, topic), check)
    await belongings.are_as_before()
    bodies = [message.body for message in broker.messages(topic)]
    assert bodies.count(b"next") == next(numbers)


@told_in_a_loop
async def test_cancelled_aio_send_that_waits_for_room_leaves_nothing_behind(broker, topic, group):
    belongings = Belongings()
    async with aio.Producer(group, broker.address, pending_max=1) as producer:
        others = []

        async def make():
            others[:] = [asyncio.create_task(producer.send(Message(topic, b"y"))) for _ in range(3)]
            await asyncio.sleep(0)

        async def check(_):
            assert len(await asyncio.gather(*others)) == 3
            await until("nothing pending", lambda: not producer.health().pending_sends)

        await cancelled_everywhere(make, lambda _: producer.send(Message(topic, b"x")), check)
    await belongings.are_as_before()


TAKING = {
    "poll": lambda consumer: consumer.poll(20_000),
    "one": lambda consumer: consumer.poll(20_000, max_messages=1),
    "next": anext,
    "in-time": lambda consumer: asyncio.wait_for(anext(consumer), 20),
}


@pytest.mark.parametrize("is_there", [True, False], ids=["is-there", "comes"])
@pytest.mark.parametrize("how", TAKING)
@told_in_a_loop
async def test_cancelled_aio_poll_loses_no_message(broker, queue, group, how, is_there):
    broker.send(queue.topic, "0")
    belongings, numbers, got = Belongings(), itertools.count(1), ["0"]
    async with aio.Consumer(group, broker.address, FIRST) as consumer:
        await consumer.subscribe(queue.topic)
        assert await taken(consumer, 1) == got

        async def make():
            body = f"{next(numbers)}"
            sending = asyncio.create_task(asyncio.to_thread(broker.send, queue.topic, body))
            if is_there:
                await sending
                await until("the message", lambda: consumer.health().cached_messages)
            return body, sending

        async def take(_):
            consumer._yield_at = 0.0  # make the consumer yield to other tasks
            found = await TAKING[how](consumer)
            messages = found if isinstance(found, list) else [found]
            got.extend(message.body.decode() for message in messages)

        async def check(made):
            body, sending = made
            await sending
            if got[-1] != body:
                got.extend(await taken(consumer, 1))
            assert got[-1] == body

        await cancelled_everywhere(make, take, check)
        assert await consumer.poll(0) == []
    assert got == [f"{number}" for number in range(next(numbers))]
    await belongings.are_as_before()


@told_in_a_loop
async def test_cancelled_aio_iteration_loses_no_message(broker, queue, group):
    broker.send(queue.topic, *map(str, range(200)))
    belongings, got = Belongings(), []
    async with aio.Consumer(group, broker.address, FIRST) as consumer:
        await consumer.subscribe(queue.topic)

        async def iterate(_):
            enough = len(got) + 5
            async for message in consumer:
                got.append(message.body.decode())
                await asyncio.sleep(0)  # a cancellation point outside the client
                if len(got) == enough:
                    break

        async def check(_):
            got.extend(await taken(consumer, 1))

        await cancelled_everywhere(nothing, iterate, check, least=4)
    assert got == [f"{number}" for number in range(len(got))]
    await belongings.are_as_before()


CALLS = {
    "commit": lambda consumer, _: consumer.commit(),
    "commit-offsets": lambda consumer, queue: consumer.commit({queue: 1}),
    "committed": lambda consumer, queue: consumer.committed(queue),
    "seek": lambda consumer, queue: consumer.seek(queue, 7),
    "seek-to-begin": lambda consumer, queue: consumer.seek_to_begin(queue),
    "seek-to-end": lambda consumer, queue: consumer.seek_to_end(queue),
    "seek-to-time": lambda consumer, queue: consumer.seek_to_time(queue, 1),
    "time": lambda consumer, queue: consumer.offset_for_timestamp(queue, 1),
    "queues": lambda consumer, queue: consumer.fetch_message_queues(queue.topic),
    "assign": lambda consumer, queue: consumer.assign([queue]),
    "assign-none": lambda consumer, _: consumer.assign([]),
}


@pytest.mark.parametrize("how", CALLS)
@told_in_a_loop
async def test_cancelled_aio_consumer_call_leaves_the_consumer_usable(broker, queue, group, how):
    """The next call finds the consumer intact, and does not see the cancelled one."""
    broker.send(queue.topic, *map(str, range(10)))
    belongings, offsets = Belongings(), itertools.cycle(range(2, 9))
    async with aio.Consumer(group, broker.address, BY_HAND) as consumer:

        async def make():
            await consumer.assign([queue])
            await consumer.seek(queue, 5)
            assert await taken(consumer, 2) == ["5", "6"]

        async def check(_):
            await consumer.assign([queue])
            await consumer.seek(queue, 3)
            assert await taken(consumer, 7) == [f"{number}" for number in range(3, 10)]
            wanted = next(offsets)
            await consumer.commit({queue: wanted})
            assert await consumer.committed(queue) == wanted

        await cancelled_everywhere(make, lambda _: CALLS[how](consumer, queue), check)
    await belongings.are_as_before()


@pytest.mark.parametrize("leaves", [False, True], ids=["subscribe", "unsubscribe"])
@told_in_a_loop
async def test_cancelled_aio_subscription_change_leaves_the_consumer_usable(
    broker, queue, group, leaves
):
    broker.send(queue.topic, "0", "1")
    belongings, numbers = Belongings(), itertools.count()
    async with aio.Client(broker.address) as client:

        async def make():
            consumer = aio.Consumer(f"{group}-{next(numbers)}", client=client, settings=FIRST)
            await consumer.start()
            if leaves:
                await consumer.subscribe(queue.topic)
            return consumer

        async def change(consumer):
            await (consumer.unsubscribe if leaves else consumer.subscribe)(queue.topic)

        async def check(consumer):
            await consumer.subscribe(queue.topic)
            assert await taken(consumer, 2) == ["0", "1"]
            await consumer.close()

        await cancelled_everywhere(make, change, check)
    await belongings.are_as_before()


LIVES = {
    "producer": lambda group, client: aio.Producer(group, client=client),
    "consumer": lambda group, client: aio.Consumer(group, client=client, settings=FIRST),
    "admin": lambda _, client: aio.Admin(client=client),
    "client": lambda _, client: client,
}


@pytest.mark.parametrize("kind", LIVES)
@told_in_a_loop
async def test_cancelled_async_with_block_leaves_nothing_behind(broker, group, kind):
    belongings = Belongings()

    async def make():
        return LIVES[kind](group, aio.Client(broker.address))

    async def live(member):
        async with member:
            await asyncio.sleep(0)

    async def check(_):
        await belongings.are_as_before()

    await cancelled_everywhere(make, live, check, least=3)


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin"])
@told_in_a_loop
async def test_cancelled_aio_start_or_close_leaves_nothing_behind(broker, group, kind):
    belongings, made_before = Belongings(), []

    async def make():
        made_before[:] = [LIVES[kind](group, aio.Client(broker.address))]
        return made_before[0]

    async def ended(member):
        await member.close()
        assert not member.is_running
        await belongings.are_as_before()

    await cancelled_everywhere(make, lambda member: member.start(), ended)
    await made_before[0].close()

    async def started():
        member = await make()
        await member.start()
        return member

    await cancelled_everywhere(started, lambda member: member.close(), ended)


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin"])
@told_in_a_loop
async def test_start_of_a_running_member_can_be_cancelled_anywhere(broker, group, kind):
    async with LIVES[kind](group, aio.Client(broker.address)) as member:

        async def runs(_):
            assert member.is_running

        await cancelled_everywhere(nothing, lambda _: member.start(), runs, least=0)


@told_in_a_loop
async def test_cancelled_aio_consumer_start_leaves_no_group_member(broker, topic, group):
    """A cancelled subscriber must not stay a member, because the other members would leave queues
    to it."""
    async with aio.Admin(broker.address) as admin:

        async def make():
            consumer = aio.Consumer(group, broker.address, FIRST)
            await consumer.subscribe(topic)
            return consumer

        async def is_alone(consumer):
            await consumer.close()
            async with aio.Consumer(group, broker.address, FIRST) as next_one:
                await next_one.subscribe(topic)
                await until("all queues", lambda: len(next_one.assignment()) == 2)
            assert await admin.members(group) == ()

        await cancelled_everywhere(make, lambda consumer: consumer.start(), is_alone)


ASKED = {
    "topics": lambda admin, _: admin.topics(),
    "create-topic": lambda admin, queue: admin.create_topic(f"{queue.topic}-more"),
    "topic-offsets": lambda admin, queue: admin.topic_offsets(queue.topic),
    "set-offset": lambda admin, queue: admin.set_offset("G", queue, 1, missing_ok=True),
    "message-at": lambda admin, queue: admin.message_at(queue, 0),
    "read-table": lambda admin, queue: admin.read_table(queue.topic),
    "masters": lambda admin, _: admin.masters(),
}


@pytest.mark.parametrize("how", ASKED)
@told_in_a_loop
async def test_cancelled_aio_admin_call_leaves_the_admin_usable(broker, queue, how):
    broker.send(queue.topic, "0")
    belongings = Belongings()
    async with aio.Admin(broker.address) as admin:

        async def check(_):
            assert queue.topic in await admin.topics()
            assert (await admin.message_at(queue, 0)).body == b"0"

        await cancelled_everywhere(nothing, lambda _: ASKED[how](admin, queue), check)
    await belongings.are_as_before()
