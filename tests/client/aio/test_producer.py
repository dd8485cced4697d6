"""The asyncio producer: limit of pending sends, order, cancellation and retries."""

import asyncio
import threading
from functools import partial

import pytest
from support.clients.asyncio_tests import NoWaiting, steps, told_in_a_loop, until
from support.servers.fake_servers import FakeCluster

from rmq_spark.client.aio.producer import LARGE_BODY_BYTES
from rocketpoll import EmbeddedBroker, Message, MessageQueue, aio
from rocketpoll.errors import (
    BrokerRefused,
    ClientError,
    ClientShutDown,
    MessageRejected,
    SendFailed,
    TooManyPending,
)

X = Message("T", b"x")


def ok(_):
    return 0


def refused(_):
    return 14


@told_in_a_loop
async def test_aio_send_futures_need_no_tasks_and_get_their_own_answers(broker, topic, group):
    async with aio.Producer(group, broker.address) as producer:
        await producer.send(Message(topic, b"first"))
        tasks = asyncio.all_tasks()
        bodies = [b"%d" % number for number in range(500)]
        futures = [producer.send_async(Message(topic, body)) for body in bodies]
        assert asyncio.all_tasks() == tasks
        results = await asyncio.gather(*futures)
        where = {(each.queue, each.queue_offset): each.body for each in broker.messages(topic)}
        assert [where[result.queue, result.queue_offset] for result in results] == bodies
        keyed = [producer.send_async(Message(topic, b"x", sharding_key="k")) for _ in range(4)]
        chosen = producer.send_async(Message(topic, b"x"), lambda queues: queues[-1])
        new = producer.send_async(Message(f"{topic}-new", b"x"))
        assert len({result.queue for result in await asyncio.gather(*keyed)}) == 1
        assert (await chosen).queue.queue_id == 1
        assert (await new).queue.topic == f"{topic}-new"


@told_in_a_loop
async def test_aio_send_async_raises_rejections_at_the_call(broker, topic, group):
    async with aio.Producer(group, broker.address) as producer:
        with pytest.raises(MessageRejected):
            producer.send_async(Message(topic, b""))
        with pytest.raises(MessageRejected, match="timeout_ms"):
            producer.send_async(Message(topic, b"x"), timeout_ms=-1)
        with pytest.raises(SendFailed), broker.away():
            await producer.send_async(Message(topic, b"x"), timeout_ms=200)
    with pytest.raises(ClientShutDown, match="was closed"):
        producer.send_async(Message(topic, b"x"))


@told_in_a_loop
async def test_aio_sends_after_a_large_waiting_one_keep_order(broker, topic, group):
    async with aio.Producer(group, broker.address, pending_bytes_max=100) as producer:
        await producer.send(Message(topic, b"first"))  # fetches the route, so that no thread has to
        for _ in range(20):  # a response may arrive within a turn, and then no send has to wait
            ended, futures, pending = [], [], []
            for name, size in (("before", 60), ("large", 90), ("small", 1)):
                future = producer.send_async(Message(topic, b"x" * size))
                future.add_done_callback(partial(_note, ended, name))
                futures.append(future)
                pending.append(producer.health().pending_sends)
            await asyncio.gather(*futures)
            if pending == [1, 1, 1]:
                break
    assert pending == [1, 1, 1]
    assert ended[:2] == ["before", "large"]


def _note(ended, name, _):
    ended.append(name)


@told_in_a_loop
async def test_aio_send_cancelled_before_it_waits_frees_its_place(broker, topic, group):
    async with aio.Producer(group, broker.address, pending_bytes_max=100) as producer:
        await producer.send(Message(topic, b"first"))
        before, large, small = (
            producer.send_async(Message(topic, b"x" * size)) for size in (60, 90, 1)
        )
        large.cancel()
        await asyncio.gather(before, small)
        assert large.cancelled()
        assert not producer._waiter_queue.waiters


@told_in_a_loop
async def test_cancelled_or_dropped_aio_send_futures_free_their_places(broker, topic, group):
    async with aio.Producer(group, broker.address, pending_max=4) as producer:
        futures = [producer.send_async(Message(topic, b"%d" % number)) for number in range(12)]
        for future in futures[::3]:
            future.cancel()
        del future
        results = await asyncio.gather(*futures, return_exceptions=True)
        cancelled = [isinstance(each, asyncio.CancelledError) for each in results]
        assert cancelled == [number % 3 == 0 for number in range(12)]
        # a cancelled send occupies its place until the broker answers
        await until("nothing pending", lambda: not producer.health().pending_sends)


@told_in_a_loop
async def test_aio_producer_never_blocks_the_event_loop(monkeypatch, group):
    """Name resolution, routes, connections, threads and a vanished broker do not block it."""
    with EmbeddedBroker() as broker:
        waits = NoWaiting(monkeypatch)
        address = broker.address.replace("127.0.0.1", "localhost")
        with waits:
            async with aio.Producer(group, address) as producer:
                await producer.send(Message("new-topic", b"x"))
                await producer.send(Message("new-topic", b"x", sharding_key="k"))
                await producer.send(Message("newer-topic", b"x", sharding_key="k"))
                await producer.send(Message("new-topic", b"x" * LARGE_BODY_BYTES))
                away = await asyncio.to_thread(_enter, broker.away())
                with pytest.raises(SendFailed):
                    await producer.send(Message("new-topic", b"x"), timeout_ms=500)
                await asyncio.to_thread(away.__exit__, None, None, None)
                await producer.send(Message("new-topic", b"back"), timeout_ms=20_000)
        assert waits.faults == []


def _enter(context):
    context.__enter__()
    return context


@told_in_a_loop
async def test_aio_send_is_retried_on_another_broker_when_a_connection_fails():
    with FakeCluster(a=ok, b=ok) as cluster:
        async with aio.Producer("P", cluster.address) as producer:
            await producer.send(X)
            await asyncio.to_thread(cluster.servers["a"].__exit__)
            results = await asyncio.gather(*[producer.send(X) for _ in range(6)])
            assert {result.queue.broker_name for result in results} == {"b"}


@told_in_a_loop
async def test_async_producer_retries_a_lost_broker_three_times_and_a_refusal_never():
    with FakeCluster(a=ok) as cluster:
        async with aio.Producer("P", cluster.address) as producer:
            await producer.send(X)
            await asyncio.to_thread(cluster.servers["a"].__exit__)
            with pytest.raises(SendFailed) as raised:
                await producer.send(X)
            assert len(raised.value.tries) == 3
    with FakeCluster(a=refused) as cluster:
        async with aio.Producer("P", cluster.address) as producer:
            with pytest.raises(BrokerRefused):
                await producer.send(X)
            assert cluster.sends() == {"a": 1}


@told_in_a_loop
async def test_aio_send_refuses_invalid_message_before_any_request(broker, topic, group):
    async with aio.Producer(group, broker.address) as producer:
        with pytest.raises(MessageRejected):
            await producer.send(Message(topic, b""))
        with pytest.raises(TypeError, match="a Message"):
            await producer.send("one")
        with pytest.raises(MessageRejected):
            await producer.send(Message(topic, b"x"), MessageQueue("other", "broker-a", 0))
        with pytest.raises(MessageRejected, match="timeout_ms"):
            await producer.send(Message(topic, b"x"), timeout_ms=-1)
    with pytest.raises(ClientShutDown, match="was closed"):
        await producer.send(Message(topic, b"x"))
    with pytest.raises(ClientShutDown, match="was not started yet"):
        await aio.Producer(group, broker.address).send(Message(topic, b"x"))


class Gate:
    """A broker that answers sends only when allowed to."""

    def __init__(self):
        self.asked, self._open = 0, threading.Semaphore(0)

    def __call__(self, _):
        self.asked += 1
        assert self._open.acquire(timeout=60)
        return 0

    def open(self, times):
        self._open.release(times)


@told_in_a_loop
async def test_aio_sends_past_pending_max_wait_in_order_or_time_out():
    gate = Gate()
    with FakeCluster(a=gate) as cluster:
        async with aio.Producer("P", cluster.address, pending_max=1) as producer:
            first = asyncio.create_task(producer.send(X, timeout_ms=60_000))
            await until("the first", lambda: gate.asked == 1)
            with pytest.raises(TooManyPending):
                await producer.send(X, timeout_ms=1)
            later = [asyncio.create_task(producer.send(X, timeout_ms=60_000)) for _ in range(5)]
            await steps(5)
            assert producer.health().pending_sends == 1
            later[0].cancel()  # cancelled before it was sent
            gate.open(5)
            results = await asyncio.gather(first, *later[1:])
            assert len(results) == 5
            assert cluster.sends() == {"a": 5}


@told_in_a_loop
async def test_aio_send_cancelled_in_flight_is_dropped_and_frees_its_place():
    gate = Gate()
    with FakeCluster(a=gate) as cluster:
        async with aio.Producer("P", cluster.address, pending_max=1) as producer:
            first = asyncio.create_task(producer.send(X, timeout_ms=60_000))
            await until("the first", lambda: gate.asked == 1)
            second = asyncio.create_task(producer.send(X, timeout_ms=60_000))
            await steps(3)
            first.cancel()
            await steps(3)
            assert first.cancelled()
            gate.open(2)
            await second
            assert producer.health().pending_sends == 0


@told_in_a_loop
async def test_cancelled_aio_send_is_not_retried():
    with FakeCluster(a=ok) as cluster:
        async with aio.Producer("P", cluster.address) as producer:
            await producer.send(X)
            await asyncio.to_thread(cluster.servers["a"].__exit__)
            sending = asyncio.create_task(producer.send(X, timeout_ms=60_000))
            await steps(1)
            sending.cancel()
            await until("the end of it", lambda: producer.health().pending_sends == 0)
            assert sending.cancelled()


@told_in_a_loop
async def test_closed_aio_producer_ends_tasks_that_wait_for_room():
    gate = Gate()
    with FakeCluster(a=gate) as cluster:
        producer = aio.Producer("P", cluster.address, pending_max=1)
        await producer.start()
        under_way, waiting = (
            asyncio.create_task(producer.send(X, timeout_ms=60_000)) for _ in range(2)
        )
        await until("the first", lambda: gate.asked == 1)
        await producer.close()
        for each in (under_way, waiting):
            with pytest.raises(ClientError):
                await each
        gate.open(2)


@told_in_a_loop
async def test_async_producer_serializer_runs_in_a_thread(broker, topic, group):
    threads = []

    class Doubled:
        def dumps(self, value):
            threads.append(threading.current_thread().name)
            return value.encode() * 2

        def loads(self, body):
            return body.decode()

    async with aio.Producer(group, broker.address, serializer=Doubled()) as producer:
        await producer.send(Message(topic, "ab"))
    assert [message.body for message in broker.messages(topic)] == [b"abab"]
    assert threads[0].startswith("rocketpoll calls")
