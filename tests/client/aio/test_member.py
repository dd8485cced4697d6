"""Lifecycle of asyncio producers, consumers and admins, stopped in every state."""

import asyncio
import inspect
import pickle
import threading

import pytest
from support.clients.asyncio_tests import FIRST, steps, told_in_a_loop, until

from rmq_spark.client.admin.admin import Admin as ThreadedAdmin
from rmq_spark.client.aio.loop_bridge import CALLS_MAX
from rmq_spark.client.aio.wrapper import run_in_thread
from rmq_spark.client.instance.instance import ClientInstance
from rocketpoll import aio
from rocketpoll.errors import ClientShutDown

KINDS = [
    pytest.param(lambda group, client: aio.Producer(group, client=client), id="producer"),
    pytest.param(
        lambda group, client: aio.Consumer(group, client=client, settings=FIRST), id="consumer"
    ),
    pytest.param(
        lambda group, client: aio.SimpleConsumer(group, client=client), id="simple-consumer"
    ),
    pytest.param(lambda _, client: aio.Admin(client=client), id="admin"),
]


@pytest.fixture(params=KINDS)
def make(request, group):
    """Return a function that creates an object of a kind, in the test's group."""
    return lambda client: request.param(group, client)


@told_in_a_loop
async def test_aio_member_runs_from_start_to_close(broker, make):
    member = make(aio.Client(broker.address))
    assert not member.is_running
    await member.start()
    await member.start()  # a second start does nothing
    assert member.is_running
    await member.close()
    await member.close()
    assert not member.is_running
    with pytest.raises(ClientShutDown, match=r"was closed\. Make a new one"):
        await member.start()


@told_in_a_loop
async def test_aio_member_closed_before_start_never_starts(broker, make):
    member = make(aio.Client(broker.address))
    await member.close()
    with pytest.raises(ClientShutDown, match="was closed"):
        await member.start()


@told_in_a_loop
async def test_error_in_an_async_with_block_closes_the_member(broker, make):
    with pytest.raises(KeyError):
        async with make(aio.Client(broker.address)) as member:
            raise KeyError
    assert not member.is_running


class HeldStarts:
    """Blocks starts of instances until they are released."""

    def __init__(self, monkeypatch):
        self.begun, self.go_on, real = threading.Event(), threading.Event(), ClientInstance.start

        def start(instance):
            self.begun.set()
            self.go_on.wait(60)
            real(instance)

        monkeypatch.setattr(ClientInstance, "start", start)


@told_in_a_loop
async def test_cancelled_aio_start_is_undone(broker, make, monkeypatch):
    held, client = HeldStarts(monkeypatch), aio.Client(broker.address)
    member = make(client)
    starting = asyncio.create_task(member.start())
    await until("the start", held.begun.is_set)
    starting.cancel()
    await steps(3)
    assert starting.cancelled()
    held.go_on.set()
    await until("the end", lambda: client.instance().is_shut_down)
    assert not member.is_running
    with pytest.raises(ClientShutDown):
        await member.start()


@told_in_a_loop
async def test_aio_member_closed_during_start_ends_with_client_shut_down(broker, make, monkeypatch):
    held, client = HeldStarts(monkeypatch), aio.Client(broker.address)
    member = make(client)
    starting = asyncio.create_task(member.start())
    await until("the start", held.begun.is_set)
    closing = asyncio.create_task(member.close())
    await steps(3)
    held.go_on.set()
    await closing
    with pytest.raises(ClientShutDown):
        await starting
    await until("the end", lambda: client.instance().is_shut_down)


@told_in_a_loop
async def test_cancelled_async_close_continues_in_the_background(broker, make):
    client = aio.Client(broker.address)
    member = make(client)
    await member.start()
    closing = asyncio.create_task(member.close())
    await steps(1)
    closing.cancel()
    await asyncio.wait([closing])
    await until("the end", lambda: client.instance().is_shut_down)
    await member.close()


@told_in_a_loop
async def test_async_close_does_not_wait_for_calls_of_others(broker, make):
    go_on = threading.Event()
    async with aio.Client(broker.address) as client, aio.Admin(client=client) as admin:
        member, own = make(client), aio.Client(broker.address)
        async with own:
            await member.start()
            asked = [admin._call(lambda _: go_on.wait(60)) for _ in range(2 * CALLS_MAX)]
            await member.close()
        assert not any(each.done() for each in asked)
        go_on.set()
        await asyncio.gather(*asked)


@told_in_a_loop
async def test_failed_aio_start_leaks_no_thread(broker, make):
    client = aio.Client(broker.address)
    async with client:
        member = make(client)
        client.instance().shutdown()
        with pytest.raises(ClientShutDown):
            await member.start()
        with pytest.raises(ClientShutDown):
            await member.start()
    await until("no threads", lambda: client.threads.thread_count == 0)


@told_in_a_loop
async def test_started_aio_member_cannot_be_pickled(broker, make):
    async with make(aio.Client(broker.address)) as member:
        with pytest.raises(TypeError, match="cannot be sent to another process"):
            pickle.dumps(member)


def test_run_in_thread_coroutine_keeps_name_and_docstring():
    topics = run_in_thread(ThreadedAdmin.topics)
    assert topics.__name__ == "topics"
    assert topics.__doc__ == ThreadedAdmin.topics.__doc__
    assert inspect.iscoroutinefunction(topics)
