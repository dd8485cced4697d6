"""The asyncio consumer: polls, iteration, commits, listeners and cancellation in one loop."""

import asyncio
import random
import threading
from contextlib import AsyncExitStack

import pytest
from support.clients.asyncio_tests import (
    BY_HAND,
    FIRST,
    PATIENCE_S,
    NoWaiting,
    steps,
    taken,
    told_in_a_loop,
    until,
)
from support.suite.selection import count

from rmq_spark.client import observer
from rmq_spark.client.aio import loop_bridge
from rmq_spark.client.concurrency import deferred_wakeups as turns
from rmq_spark.client.consumer.brokers.broker_client import GroupBrokerClient
from rocketpoll import EmbeddedBroker, LitePullSettings, Message, MessageQueue, aio
from rocketpoll.errors import (
    ClientShutDown,
    MessageRejected,
    NotAssigned,
    RouteNotFound,
    SubscriptionConflict,
)


def numbers(how_many, start=0):
    return [f"{number:03}" for number in range(start, start + how_many)]


def bodies_of(messages):
    return [message.body.decode() for message in messages]


@pytest.fixture
def queue(broker, group):
    broker.create_topic(f"of-{group}", 1)
    return MessageQueue(f"of-{group}", "broker-a", 0)


@told_in_a_loop
async def test_aio_poll_returns_messages_or_times_out(broker, queue, group):
    broker.send(queue.topic, *numbers(10))
    async with aio.Consumer(group, broker.address, FIRST) as consumer:
        await consumer.assign([queue])
        found = bodies_of(await consumer.poll(20_000, max_messages=3))
        assert found == numbers(3)
        while len(found) < 10:
            found += bodies_of(await consumer.poll(20_000))
        assert found == numbers(10)
        assert await consumer.poll(0) == await consumer.poll(1) == []
        for wrong in ({"timeout_ms": -1}, {"max_messages": 0}):
            with pytest.raises(MessageRejected):
                await consumer.poll(**wrong)


class Watching:
    """An observer that records consumed messages."""

    def __init__(self):
        self.bodies = []

    def on_send(self, _):
        return None

    def on_poll(self, _, messages):
        self.bodies += bodies_of(messages)


@told_in_a_loop
async def test_aio_iteration_and_poll_alternate_without_loss_or_repeat(
    broker, queue, group, monkeypatch
):
    watching = Watching()
    monkeypatch.setattr(observer, "_observer", watching)
    broker.send(queue.topic, *numbers(20))
    async with aio.Consumer(group, broker.address, BY_HAND) as consumer:
        await consumer.assign([queue])
        await until("all", lambda: consumer.health().cached_messages == 20)
        found = await taken(consumer, 3)
        assert consumer.health().cached_messages == 17
        found += bodies_of(await consumer.poll(0, max_messages=4))
        found += await taken(consumer, 2)
        consumer.pause([queue])
        assert await consumer.poll(0) == []
        consumer.resume([queue])
        found += await taken(consumer, 2)
        await consumer.commit()
        assert await consumer.committed(queue) == len(found)
        while len(found) < 20:
            found += bodies_of(await consumer.poll(20_000))
        assert found == watching.bodies == numbers(20)


@told_in_a_loop
async def test_aio_auto_commit_covers_exactly_the_polled_messages(broker, queue, group):
    broker.send(queue.topic, *numbers(10))
    async with aio.Consumer(group, broker.address, FIRST) as consumer:
        await consumer.subscribe(queue.topic)
        assert await taken(consumer, 4) == numbers(4)  # the fourth may arrive late
    async with aio.Consumer(group, broker.address, FIRST) as consumer:
        await consumer.subscribe(queue.topic)
        assert await taken(consumer, 7) == numbers(7, start=3)


@told_in_a_loop
async def test_aio_commit_stores_the_offsets_returned_when_it_was_called(broker, queue, group):
    broker.send(queue.topic, *numbers(20))
    async with aio.Consumer(group, broker.address, BY_HAND) as consumer:
        await consumer.subscribe(queue.topic)
        await taken(consumer, 5)
        committing = asyncio.create_task(consumer.commit())
        await steps(1)
        await taken(consumer, 5)
        await committing
        async with aio.Admin(broker.address) as admin:
            (lag,) = await admin.lag(group, queue.topic)
            assert lag.consumer_offset == 5
            await consumer.commit({queue: 3})
            (lag,) = await admin.lag(group, queue.topic)
            assert lag.consumer_offset == 3
        assert await consumer.committed(queue) == 3
        with pytest.raises(NotAssigned):
            await consumer.commit({MessageQueue(queue.topic, "broker-a", 7): 1})


@told_in_a_loop
async def test_aio_rebalance_listener_runs_in_the_loop(broker, topic, group):
    told, loop = [], asyncio.get_running_loop()

    def listen(name, everything, own):
        assert asyncio.get_running_loop() is loop
        told.append((name, len(everything), len(own)))

    first = aio.Consumer(group, broker.address, FIRST, message_queue_listener=listen)
    async with first:
        await first.subscribe(topic)
        await until("all queues", lambda: told == [(topic, 2, 2)])
        async with aio.Consumer(group, broker.address, FIRST) as second:
            await second.subscribe(topic)
            await until("one queue", lambda: told[-1] == (topic, 2, 1))
            await until("the other", lambda: len(second.assignment()) == 1)
            assert first.assignment().isdisjoint(second.assignment())
        await until("all queues again", lambda: told[-1] == (topic, 2, 2))
        await first.unsubscribe(topic)
        assert first.assignment() == frozenset()


@told_in_a_loop
async def test_aio_queue_listener_can_seek_before_the_first_message(
    broker, queue, group, monkeypatch
):
    monkeypatch.setattr("rmq_spark.client.consumer.lite_pull_consumer_impl.LISTENER_RETRY_MS", 10)
    broker.send(queue.topic, *numbers(100))
    may_seek, calls = asyncio.Event(), []

    async def listen(_, __, own):
        calls.append(own)
        await may_seek.wait()
        if len(calls) == 1:
            raise OSError("the database is away")
        for each in own:
            await consumer.seek(each, 90)

    consumer = aio.Consumer(group, broker.address, FIRST, message_queue_listener=listen)
    async with consumer:
        await consumer.subscribe(queue.topic)
        await until("its call", lambda: calls)
        assert consumer.assignment() == {queue}
        assert await consumer.poll(200) == []
        may_seek.set()
        found = [await anext(consumer) for _ in range(10)]
    assert bodies_of(found) == numbers(10, start=90)
    assert len(calls) == 2


@told_in_a_loop
async def test_aio_queue_listener_is_cancelled_by_close(broker, queue, group):
    ended = []

    async def listen(*_):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    consumer = aio.Consumer(group, broker.address, FIRST, message_queue_listener=listen)
    async with consumer:
        await consumer.subscribe(queue.topic)
        await until("its call", lambda: consumer._listener_tasks)
    await until("its end", lambda: ended)


@told_in_a_loop
async def test_aio_consumers_with_messages_of_one_read_are_woken_together(
    broker, queue, group, monkeypatch
):
    monkeypatch.setattr(loop_bridge, "DEFER_SECONDS_MAX", 60.0)
    wakes, loop = [], asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe

    def read(consumers):
        turns.begin()
        for consumer in consumers:
            consumer._on_arrival()
        wakes.append("all that was read")
        turns.end()

    async with aio.Client(broker.address) as client, AsyncExitStack() as stack:
        consumers = [
            aio.Consumer(f"{group}-{number}", client=client, settings=FIRST) for number in range(5)
        ]
        looks = []
        for consumer in consumers:
            await stack.enter_async_context(consumer)
            held = consumer._get_started()
            monkeypatch.setattr(held, "poll_now", lambda _, one=consumer: looks.append(one))
        waiting = [asyncio.create_task(consumer.poll(20_000)) for consumer in consumers]
        await steps(3)
        looks.clear()
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call: wakes.append(wake(*call)))
        thread = threading.Thread(target=read, args=(consumers,))
        thread.start()
        thread.join()
        assert wakes[0] == "all that was read"
        assert len(wakes) == 2
        await steps(3)
        assert looks == consumers
        monkeypatch.undo()
        for each in waiting:
            each.cancel()


@told_in_a_loop
async def test_aio_consumer_refuses_bad_input_like_the_threaded_consumer(broker, queue, group):
    async def listen(*_):
        yield

    with pytest.raises(TypeError, match="an asynchronous generator function"):
        aio.Consumer(group, broker.address, message_queue_listener=listen)
    with pytest.raises(TypeError, match="LitePullSettings"):
        aio.Consumer(group, broker.address, {"pull_batch_size": 1})
    with pytest.raises(MessageRejected, match="pull_batch_size"):
        await aio.Consumer(group, broker.address, LitePullSettings(pull_batch_size=0)).start()
    consumer = aio.Consumer(group, broker.address)
    with pytest.raises(ClientShutDown, match="was not started yet"):
        await consumer.poll()
    await consumer.subscribe(queue.topic)
    with pytest.raises(ClientShutDown, match="was not started yet"):
        await anext(consumer)
    with pytest.raises(SubscriptionConflict):
        await consumer.assign([queue])
    await consumer.close()
    missing = aio.Consumer(group, broker.address)
    await missing.subscribe("no-such-topic")
    with pytest.raises(RouteNotFound):
        await missing.start()
    await missing.close()


@told_in_a_loop
async def test_aio_consumer_close_ends_waiting_iterations_and_polls(broker, queue, group):
    consumer = aio.Consumer(group, broker.address, FIRST)
    await consumer.start()
    await consumer.assign([queue])

    async def iterate():
        return [message async for message in consumer]

    waiting = [asyncio.create_task(each) for each in (iterate(), consumer.poll(60_000))]
    await steps(5)
    await consumer.close()
    assert await asyncio.gather(*waiting) == [[], []]
    assert await iterate() == []
    with pytest.raises(ClientShutDown):
        await consumer.poll()


@told_in_a_loop
async def test_message_arriving_during_a_cancelled_poll_is_kept(broker, queue, group):
    async with aio.Consumer(group, broker.address, FIRST) as consumer:
        await consumer.assign([queue])
        for number in range(20):
            waiting = asyncio.create_task(anext(consumer))
            await steps(3)
            broker.send(queue.topic, f"{number}")
            consumer._on_arrival()  # woken, and cancelled before it runs
            await steps(1 + number % 3)
            waiting.cancel()
            await asyncio.wait([waiting])
            if waiting.cancelled():
                assert await taken(consumer, 1) == [f"{number}"]
            else:
                assert waiting.result().body == b"%d" % number


@told_in_a_loop
async def test_aio_consumer_never_blocks_the_loop_during_an_outage(monkeypatch, group):
    with EmbeddedBroker() as broker:
        broker.create_topic("T", 1)
        broker.send("T", "one")
        waits = NoWaiting(monkeypatch)
        with waits:
            address = broker.address.replace("127.0.0.1", "localhost")
            async with aio.Consumer(group, address, FIRST) as consumer:
                await consumer.subscribe("T")
                assert await taken(consumer, 1) == ["one"]
                (queue,) = consumer.assignment()
                consumer.pause([queue])
                consumer.resume([queue])
                away = broker.away()
                await asyncio.to_thread(away.__enter__)
                assert await consumer.poll(100) == []
                await asyncio.to_thread(away.__exit__, None, None, None)
                await asyncio.to_thread(broker.send, "T", "two")
                assert await taken(consumer, 1) == ["two"]
                await consumer.commit()
                await consumer.seek(queue, 0)
                assert await taken(consumer, 2) == ["one", "two"]
        assert waits.faults == []


@told_in_a_loop
async def test_aio_poll_with_messages_at_hand_yields_to_other_tasks(broker, queue, group):
    broker.send(queue.topic, *numbers(1_000))
    settings = LitePullSettings(consume_from_where=FIRST.consume_from_where, pull_batch_size=1_000)
    async with aio.Consumer(group, broker.address, settings) as consumer:
        await consumer.assign([queue])
        await taken(consumer, 1)
        await until("all", lambda: consumer.health().cached_messages == 999)
        turns = 0

        async def other():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        await steps(1)
        consumer._yield_at = before = 0.0
        await taken(consumer, 1)
        assert turns >= 2
        assert consumer._yield_at > before
        beside.cancel()


@pytest.mark.parametrize("is_given", [False, True], ids=["all", "given"])
@told_in_a_loop
async def test_aio_commit_in_line_does_not_undo_an_operators_offset_reset(
    broker, queue, group, is_given, monkeypatch
):
    broker.send(queue.topic, *numbers(3))
    waits, may_go_on = threading.Event(), threading.Event()
    min_offset = GroupBrokerClient.min_offset

    def of_a_broker_that_is_slow(*arguments):
        waits.set()
        assert may_go_on.wait(PATIENCE_S)
        return min_offset(*arguments)

    async with (
        aio.Consumer(group, broker.address, BY_HAND) as consumer,
        aio.Admin(broker.address) as admin,
    ):
        await consumer.subscribe(queue.topic)
        assert await taken(consumer, 3) == numbers(3)
        with monkeypatch.context() as patched:
            patched.setattr(GroupBrokerClient, "min_offset", of_a_broker_that_is_slow)
            seeking = asyncio.create_task(consumer.seek_to_begin(queue))
            await until("a call that is under way", waits.is_set)
            committing = asyncio.create_task(consumer.commit({queue: 3} if is_given else None))
            await steps(3)
            assert await admin.reset_to_time(group, queue.topic, 0) == {queue: 0}
            assert await taken(consumer, 3) == numbers(3)  # the consumer was notified of the reset
            may_go_on.set()
            await asyncio.gather(seeking, committing)
        [lag] = await admin.lag(group, queue.topic)
        assert lag.consumer_offset == 0


@told_in_a_loop
async def test_consumer_of_a_blocked_event_loop_keeps_its_queues_and_messages(broker, queue, group):
    limits = LitePullSettings(
        consume_from_where=FIRST.consume_from_where,
        limits=type(FIRST.limits)(pull_threshold_for_queue=10),
        pull_batch_size=5,
    )
    async with aio.Consumer(group, broker.address, limits) as consumer:
        await consumer.subscribe(queue.topic)
        await until("the queue", lambda: consumer.assignment() == {queue})
        broker.send(queue.topic, *numbers(100))
        held = consumer._get_started()
        while held.cached_messages < 10:  # blocks the loop
            held._rebalance_service.do_rebalance()
        assert held.cached_messages <= 15  # the limit, and one pull
        assert held.assignment() == {queue}
        assert await taken(consumer, 100) == numbers(100)


async def cancelled_at(task, step):
    """Cancel a task after a number of turns of the loop, unless it is done by then."""
    await steps(step)
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


async def producing(producer, topic, chance, how_many):
    """Send bodies and cancel some sends; return the acknowledged bodies, and all bodies."""

    async def one(body):
        sending = asyncio.create_task(producer.send(Message(topic, body.encode())))
        if chance.random() < 0.4:
            return await cancelled_at(sending, chance.randrange(6)) and body
        await sending
        return body

    done = []
    for start in range(0, how_many, 10):
        done += await asyncio.gather(*[one(body) for body in numbers(10, start)])
        await steps(chance.randrange(20))
    return {body for body in done if body}


async def consuming(consumer, chance, found, is_enough):
    """Consume until ``is_enough``; any wait and any commit may be cancelled."""
    while not is_enough():
        if chance.random() < 0.3:
            asking = asyncio.create_task(
                consumer.poll(200, max_messages=chance.choice([1, 3, None]))
            )
        else:
            asking = asyncio.create_task(_next_in_time(consumer))
        got = await _outcome(asking, chance)
        found += got if isinstance(got, list) else [got] if got else []
        if chance.random() < 0.1:
            await _outcome(asyncio.create_task(consumer.commit()), chance)


async def _next_in_time(consumer):
    return await asyncio.wait_for(anext(consumer), 0.2)


async def _outcome(task, chance):
    if chance.random() < 0.5:
        return await cancelled_at(task, chance.randrange(8))
    try:
        return await task
    except asyncio.TimeoutError:
        return None


@pytest.mark.parametrize("seed", range(count("ROCKETPOLL_CANCELS", 6, wide=100)))
@told_in_a_loop
async def test_aio_cancellation_at_any_await_loses_and_repeats_no_message(
    broker, topic, group, seed
):
    """One member gets each message once and in order; the next one continues at a
    committed offset."""
    chance, found, again = random.Random(seed), [], []
    async with aio.Client(broker.address) as client, aio.Producer(group, client=client) as producer:
        async with aio.Consumer(group, client=client, settings=BY_HAND) as consumer:
            await consumer.subscribe(topic)
            sending = asyncio.create_task(producing(producer, topic, chance, 100))
            await consuming(consumer, chance, found, lambda: len(found) >= 40)
            sure = await sending
        stored = {message.body.decode() for message in broker.messages(topic)}
        assert sure <= stored
        assert len(stored) == len(broker.messages(topic))
        async with aio.Consumer(group, client=client, settings=BY_HAND) as consumer:
            await consumer.subscribe(topic)
            everything = lambda: {*bodies_of(found), *bodies_of(again)} >= stored  # noqa: E731  # reads as one condition
            await consuming(consumer, chance, again, everything)
    for one_life in (found, again):
        for queue in {message.queue for message in one_life}:
            offsets = [message.queue_offset for message in one_life if message.queue == queue]
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    assert {*bodies_of(found), *bodies_of(again)} == stored
