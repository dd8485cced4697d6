"""The asyncio client belongs to its loop and process, and closes with its last user."""

import asyncio
import inspect
import logging
import os
import re
import threading
import time
from functools import partial

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.asyncio_tests import (
    FIRST,
    names_of_threads,
    steps,
    taken,
    told_in_a_loop,
    until,
)
from support.clients.conformance_clients import bodies_of
from support.faults.cancellations import Belongings
from support.programs.python_programs import python_program

from rmq_spark.client.aio.client import LOOP_CHECK_MS
from rmq_spark.client.instance.instance import ClientInstance
from rocketpoll import ClientInstance as PublicInstance
from rocketpoll import Message, MessageQueue, aio
from rocketpoll.errors import ClientShutDown, MessageRejected, NoNameServer


@told_in_a_loop
async def test_shared_aio_client_ends_with_its_last_user(broker, topic, group):
    broker.send(topic, "one")
    client = aio.Client(broker.address)
    async with (
        aio.Producer(group, client=client) as producer,
        aio.Consumer(group, client=client, settings=FIRST) as one,
    ):
        await one.subscribe(topic)
        assert await taken(one, 1) == ["one"]
        await producer.send(Message(topic, b"two"))
        assert await taken(one, 1) == ["two"]
        assert client.instance().connections.ready_addresses() == (broker.address,)
    assert client.instance().is_shut_down
    await until("no threads", lambda: client.threads.thread_count == 0)
    with pytest.raises(ClientShutDown):
        await aio.Producer(group, client=client).start()


@told_in_a_loop
async def test_aio_client_as_context_manager_outlives_its_users(broker, topic, group):
    async with aio.Client(broker.address) as client:
        for _ in range(2):
            async with aio.Producer(group, client=client) as producer:
                await producer.send(Message(topic, b"x"))
        assert not client.instance().is_shut_down
    assert client.instance().is_shut_down


@told_in_a_loop
async def test_hundred_aio_consumers_share_the_clients_threads(broker, topic):
    broker.send(topic, "one")
    before = len(names_of_threads("rocketpoll"))
    async with aio.Client(broker.address) as client:
        consumers = [
            aio.Consumer(f"{topic}-{number}", client=client, settings=FIRST)
            for number in range(100)
        ]
        await asyncio.gather(*[consumer.start() for consumer in consumers])
        await asyncio.gather(*[consumer.subscribe(topic) for consumer in consumers])
        found = await asyncio.gather(*[taken(consumer, 1) for consumer in consumers])
        assert found == [["one"]] * 100
        ours = names_of_threads("rocketpoll")
        assert len(ours) - before < 30, ours
        assert client.threads.thread_count <= 1 + 8 + 4
        await asyncio.gather(*[consumer.close() for consumer in consumers])


@told_in_a_loop
async def test_aio_client_errors_are_raised_by_the_first_awaited_call(group):
    with pytest.raises(MessageRejected, match="request_timeout_ms"):
        await aio.Producer(group, client=aio.Client("127.0.0.1:9", request_timeout_ms=-1)).start()
    with pytest.raises(NoNameServer):
        async with aio.Admin("127.0.0.1:9") as admin:
            await admin.topics()
    with pytest.raises(MessageRejected, match="group"):
        aio.Consumer("no group!", "127.0.0.1:9")


@told_in_a_loop
async def test_cancelled_aio_client_start_is_shut_down(broker, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    real = ClientInstance.start

    def start(instance):
        begun.set()
        go_on.wait(60)
        real(instance)

    monkeypatch.setattr(ClientInstance, "start", start)
    client = aio.Client(broker.address)
    entering = asyncio.create_task(client.__aenter__())
    await until("the start", begun.is_set)
    entering.cancel()
    await steps(3)
    assert entering.cancelled()
    go_on.set()
    await until("the end", lambda: client.instance().is_shut_down)


QUEUE = MessageQueue("T", "broker-a", 0)
KINDS = {
    "producer": (
        lambda group, client: aio.Producer(group, client=client),
        "the producer {group!r}",
    ),
    "consumer": (
        lambda group, client: aio.Consumer(group, client=client),
        "the consumer {group!r}",
    ),
    "admin": (lambda _, client: aio.Admin(client=client), "the admin"),
}


def every_call(member):
    """Return a call of each method by name, including special methods that statements use."""
    for name, method in inspect.getmembers(member, inspect.ismethod):
        if name.startswith("_") and name not in ("__aenter__", "__anext__"):
            continue
        parameters = inspect.signature(method).parameters.values()
        needed = [each for each in parameters if each.default is each.empty]
        yield name, partial(method, *[QUEUE for each in needed if each.kind < each.VAR_POSITIONAL])


async def error_of(call):
    try:
        answer = call()
        if inspect.isawaitable(answer):
            await answer
    except ClientShutDown as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_async_calls_in_another_event_loop_are_refused_in_one_line(broker, group, kind):
    make, said = KINDS[kind]
    said = said.format(group=group)
    elsewhere = f"{said} belongs to another event loop. Make one in this loop"
    need = "needs a running event loop of asyncio (trio's does not count)"
    nowhere = f"{said} {need}. Use it in a coroutine of its loop"

    async def errors(member):
        return {name: await error_of(call) for name, call in every_call(member)}

    async def first():
        async with make(group, aio.Client(broker.address)) as member:
            told = await asyncio.to_thread(asyncio.run, errors(member))
            assert set(told.values()) == {elsewhere}, told
            assert len(told) >= 8
            for name in {"health", "assignment"} & set(told):
                with pytest.raises(ClientShutDown, match=re.escape(nowhere)):
                    await asyncio.to_thread(getattr(member, name))
            assert member.is_running
        return member

    ended = asyncio.run(first())
    # a second event loop, as of programs that call asyncio.run repeatedly
    told = asyncio.run(errors(ended))
    assert set(told.values()) == {elsewhere}, told


def test_aio_client_in_another_event_loop_is_refused(broker):
    client = aio.Client(broker.address)

    async def enter():
        async with client:
            pass

    asyncio.run(enter())
    with pytest.raises(ClientShutDown, match=r"another event loop\. Make one"):
        asyncio.run(enter())


def test_async_consumer_of_a_closed_loop_stops_and_leaves_its_group(broker, topic, group, caplog):
    consumer = aio.Consumer(group, broker.address, FIRST)

    async def leave_open():
        await consumer.start()
        await consumer.subscribe(topic)
        await until("queues", lambda: len(consumer.assignment()) == 2)

    with caplog.at_level(logging.WARNING), PublicInstance(broker.address) as asked:
        asyncio.run(leave_open())
        assert len(asked.api.consumer_ids(broker.address, group)) == 1
        broker.send(topic, "nobody takes it")
        wait_until("the group is left", lambda: not asked.api.consumer_ids(broker.address, group))
    said = (
        f"the event loop was closed before the consumer {group!r}: stopping, and leaving the groups"
    )
    assert said in caplog.messages
    assert LOOP_CHECK_MS == 1_000


def beats_for(broker):
    """Return the threads that send the broker its clients' heartbeats."""
    name = f"rocketpoll heartbeat {broker.address}"
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


@pytest.mark.parametrize("kind", [*KINDS, "client"])
def test_closed_event_loop_leaves_no_threads_and_no_connections(broker, topic, group, kind):
    """All tasks of the loop, and so the pending calls, are cancelled."""
    broker.send(topic, "one")
    wait_until("the broker's own client has threads of its own", lambda: beats_for(broker))
    made = []

    async def leave_open():
        made.append(Belongings())
        client = aio.Client(broker.address)
        member = client if kind == "client" else KINDS[kind][0](group, client)
        await member.__aenter__()
        under_way = {
            "client": lambda: aio.Admin(client=client).start(),
            "producer": lambda: member.send(Message(topic, b"x")),
            "consumer": lambda: member.poll(60_000),
            "admin": lambda: member.topic_offsets(topic),
        }[kind]
        made.extend(asyncio.create_task(under_way()) for _ in range(20))
        await steps(2)

    asyncio.run(leave_open())
    wait_until("the end of threads", lambda: not made[0].new_threads())
    wait_until("the end of connections", lambda: not made[0].new_sockets())


@told_in_a_loop
async def test_event_loop_blocked_beyond_all_timeouts_loses_nothing(broker, topic, group):
    """Threads send heartbeats, pull and read responses meanwhile, so nothing expires."""
    short = {"heartbeat_interval_ms": 20, "request_timeout_ms": 500}
    async with (
        aio.Client(broker.address, **short) as client,
        aio.Producer(group, client=client, send_timeout_ms=500, pending_max=1) as producer,
        aio.Consumer(group, client=client, settings=FIRST) as consumer,
    ):
        await producer.send(Message(topic, b"0"))
        await consumer.subscribe(topic)
        assert await taken(consumer, 1) == ["0"]
        queues = consumer.assignment()
        asked = asyncio.create_task(consumer.poll(500))
        sends = [asyncio.create_task(producer.send(Message(topic, b"1"))) for _ in range(2)]
        await steps(1)  # one send is pending, the other waits for room
        assert len(producer._waiter_queue.waiters) == 1
        over = asyncio.get_running_loop().time() + 0.7
        wait_until("the end of all timeouts", lambda: time.monotonic() > over)  # blocks the loop
        assert {result.queue.topic for result in await asyncio.gather(*sends)} == {topic}
        found = bodies_of(await asked)
        assert found
        assert consumer.assignment() == queues
        while len(found) < 2:
            found += await taken(consumer, 1)
        with PublicInstance(broker.address) as other:
            (member,) = other.api.consumer_ids(broker.address, group)
        assert client.instance().client_id == member


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is nothing to fork")
def test_aio_producer_made_before_a_fork_is_refused_in_the_child(broker, topic, tmp_path):
    done = python_program(
        f"""
        import asyncio, os
        from rocketpoll import aio, Message
        from rocketpoll.errors import ClientShutDown

        made = []

        async def send(producer):
            await producer.send(Message({topic!r}, b"x"))

        async def parent():
            made.append(aio.Producer("shop", {broker.address!r}))
            await made[0].start()
            await send(made[0])

        async def own():
            async with aio.Producer("shop", {broker.address!r}) as producer:
                await send(producer)
                print("sent", flush=True)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(parent())
        if child := os.fork():
            print(os.waitpid(child, 0)[1], flush=True)
            loop.run_until_complete(send(made[0]))
            loop.run_until_complete(made[0].close())
        else:
            try:
                asyncio.run(send(made[0]))
            except ClientShutDown as error:
                print(error, flush=True)
            asyncio.run(own())
            os._exit(0)
        """,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == [
        "the producer 'shop' was made before this process was forked. Make a new one here",
        "sent",
        "0",
    ], done.stderr


def test_asyncio_client_works_on_uvloop(broker, group):
    async def story():
        broker.create_topic(f"of-{group}", 1)
        async with (
            aio.Client(broker.address) as client,
            aio.Producer("shop", client=client) as producer,
        ):
            await asyncio.gather(*[producer.send(Message(f"of-{group}", b"x")) for _ in range(50)])
            async with aio.Consumer(group, client=client, settings=FIRST) as consumer:
                await consumer.subscribe(f"of-{group}")
                waiting = asyncio.create_task(consumer.poll(20_000))
                await asyncio.sleep(0)
                waiting.cancel()  # receives nothing
                return len(await taken(consumer, 50))

    uvloop = pytest.importorskip("uvloop")
    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(story()) == 50
    finally:
        loop.close()
