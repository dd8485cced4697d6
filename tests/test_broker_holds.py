"""Pulls held by a whole broker are woken by their messages only, and answered once."""

import asyncio
import os
import random
import threading
from collections import Counter

import pytest
from support.brokers.hold_races import race
from support.brokers.in_process import (
    BrokerThread,
    in_loop,
    make_topic,
    on_broker,
    small_broker,
    started,
    tell,
)
from support.clients.remoting_clients import pull_request, pulled, send_request

from rmq_spark.wire.bodies.clients import SubscriptionData
from rocketpoll.broker.server.event_loop import monotonic_ms

# Longer campaigns: ROCKETPOLL_HOLD_ROUNDS=100000
ROUNDS = int(os.environ.get("ROCKETPOLL_HOLD_ROUNDS", "4000"))
PAIRS = 8
each_loop = pytest.mark.usefixtures("on_each_loop")


def loops():
    """Return asyncio's loop and, if installed, uvloop."""
    try:
        import uvloop  # noqa: PLC0415  # uvloop does not exist on every platform
    except ImportError:
        return [asyncio.new_event_loop]
    return [asyncio.new_event_loop, uvloop.new_event_loop]


def all_gone(controller):
    return (
        controller.server.connections,
        controller.hold_service.hold_count,
        controller.hold_service.queue_count,
        controller.hold_service.next_deadline_ms,
    ) == (0, 0, 0, None)


@pytest.mark.parametrize("new_event_loop", loops(), ids=lambda make: make.__module__)
@pytest.mark.parametrize(
    ("flush_disk_type", "share"), [("ASYNC_FLUSH", 4), ("SYNC_FLUSH", 1)], ids=["async", "sync"]
)
def test_message_arriving_while_its_pull_is_being_held_answers_it(
    tmp_path, dice, flush_disk_type, share, new_event_loop
):
    config = small_broker(tmp_path, flushDiskType=flush_disk_type, mappedFileSizeCommitLog=64 << 20)
    with BrokerThread(config, new_event_loop) as broker:
        broker.ask(lambda controller: make_topic(controller, queues=PAIRS))
        assert race(broker.port, ROUNDS * share // 10, PAIRS, dice) == []
        assert broker.ask(lambda controller: controller.hold_service.rescued_total) == 0
        broker.until(all_gone, seconds=1)


@pytest.fixture
def dice():
    return random.Random(20_260_000)


def own(caplog):
    """Return the log lines of this test's broker; other brokers run in other threads."""
    return [each for each in caplog.records if each.thread == threading.get_ident()]


def test_broker_that_holds_a_pull_too_late_fails_the_race_check(tmp_path, dice):
    """Like RocketMQ, this broker misses a message that arrives before the pull is held."""
    with BrokerThread(small_broker(tmp_path)) as broker:

        def hold_late(controller):
            make_topic(controller, queues=PAIRS)
            processor, suspend = controller.processors.pull, controller.processors.pull._suspend
            loop = asyncio.get_running_loop()
            processor._suspend = lambda held: loop.call_later(0.001, suspend, held) is not None

        broker.ask(hold_late)
        with pytest.raises(AssertionError, match="pulls were not answered"):
            race(broker.port, 4_000, PAIRS, dice, patience_seconds=0.5)


# ---- filters


@pytest.mark.parametrize(
    "asked",
    [
        {"subscription": "wanted"},
        {"subscription": "price = 7", "expression_type": "SQL92"},
        {"subscription": "TAGS = 'wanted' AND price < 8", "expression_type": "SQL92"},
    ],
    ids=["tags", "sql", "sql on tags"],
)
@pytest.mark.parametrize("batches", [False, True], ids=["one by one", "in batches"])
@on_broker
async def test_filtered_held_pull_is_woken_by_its_one_matching_message(broker, asked, batches):
    broker.make_topic("T")
    consumer, producer = await broker.connect(), await broker.connect()
    consumer.send(pull_request(0, suspend_ms=60_000, opaque=5, **asked))
    await broker.held(1)
    others = [
        send_request(each, flag=2, properties={"TAGS": "other", "price": "9"})
        for each in range(999)
    ]
    for at in range(0, 999, 100 if batches else 1):
        producer.send(b"".join(each.encode() for each in others[at : at + (100 if batches else 1)]))
        if at % 50 == 0:
            await producer.ask(0)  # any response shows that earlier requests were processed
            assert broker.holds.hold_count == 1
    await producer.ask(0)
    assert broker.store.queue_offsets("T", 0).next == 999
    assert broker.holds.hold_count == 1
    await producer.put("it", properties={"TAGS": "wanted", "price": "7"})
    found = pulled(await consumer.receive())
    while found.code == 20:  # a woken pull also reads a limited number of messages at a time
        found = await consumer.pull(found.next_offset, opaque=5, **asked)
    assert (found.code, found.bodies, found.next_offset) == (0, ["it"], 1_000)
    assert broker.holds.rescued_total == 0


@on_broker
async def test_held_pull_uses_the_subscription_at_its_wakeup(broker):
    broker.make_topic("T")
    consumer, producer = await broker.connect(), await broker.connect()
    await consumer.heartbeat(
        "G", SubscriptionData(topic="T", sub_string="A", tags_set=frozenset("A"))
    )
    consumer.send(pull_request(0, subscription=None, suspend_ms=60_000, opaque=3))
    await broker.held(1)
    await producer.put("b", properties={"TAGS": "B"})
    assert broker.holds.hold_count == 1
    await producer.put("a", properties={"TAGS": "A"})
    assert pulled(await consumer.receive()).bodies == ["a"]


# ---- time


@each_loop
@on_broker
async def test_held_pull_times_out_exactly(broker):
    client = await broker.connect()
    await client.put("a")
    client.send(pull_request(1, suspend_ms=20_000, opaque=9))
    await broker.held(1)
    broker.move(19)
    await client.ask(0)
    assert broker.holds.hold_count == 1
    broker.move(2)
    found = pulled(await client.receive())
    assert (found.opaque, found.code, found.next_offset, found.max_offset) == (9, 19, 1, 1)
    assert broker.holds.rescued_total == 0


@pytest.mark.parametrize(
    ("asked", "waits"), [(0, 2_000), (-5, 2_000), (3_000, 3_000), (1 << 60, 9_000)]
)
@each_loop
@on_broker(suspendTimeoutMillsMin=2_000, suspendTimeoutMillsMax=9_000)
async def test_suspend_timeout_of_a_pull_is_bounded(broker, asked, waits):
    client = await broker.connect()
    broker.make_topic("T")
    loop = asyncio.get_running_loop()
    before = monotonic_ms(loop)
    client.send(pull_request(0, suspend_ms=asked))
    await broker.held(1)
    after = monotonic_ms(loop)
    assert before + waits <= broker.holds.next_deadline_ms <= after + waits
    broker.move(waits / 1_000)
    assert (await client.receive()).code == 19


@each_loop
@on_broker
async def test_held_pull_deadlines_fire_in_order(broker):
    broker.make_topic("T")
    client = await broker.connect()
    for opaque in (5, 2, 9, 7, 1):
        client.send(pull_request(0, suspend_ms=opaque * 1_000, opaque=opaque, queue_id=opaque % 4))
    await broker.held(5)
    while broker.holds.hold_count:
        broker.move(1)
        await asyncio.sleep(0.01)
    answered = [(await client.receive()).opaque for _ in range(5)]
    assert answered == [1, 2, 5, 7, 9]


@each_loop
@on_broker(longPollingEnable=False, shortPollingTimeMills=700)
async def test_disabled_long_polling_answers_after_short_polling_time(broker):
    broker.make_topic("T")
    consumer, producer = await broker.connect(), await broker.connect()
    consumer.send(pull_request(0, suspend_ms=30_000))
    await broker.held(1)
    await producer.put("a")
    await producer.ask(0)
    assert broker.holds.hold_count == 1
    broker.move(0.7)
    assert pulled(await consumer.receive()).bodies == ["a"]
    assert broker.holds.rescued_total == 0


# ---- disconnected clients


def test_thousands_of_closed_clients_with_held_pulls_leave_nothing(tmp_path, caplog):
    hour_ms = 3_600_000  # on a slow machine, no client may expire

    async def story(broker):
        broker.make_topic("T", queues=8)
        stays = await broker.connect()
        stays.send(pull_request(0, suspend_ms=hour_ms, opaque=4))
        for _ in range(10):
            clients = [await broker.connect() for _ in range(100)]
            for client in clients:
                client.send(
                    b"".join(
                        pull_request(0, queue_id=each, suspend_ms=60_000).encode()
                        for each in range(3)
                    )
                )
            await broker.held(301)
            for client in clients[::2]:
                client.abort()
            for client in clients[1::2]:
                client.close()
            await broker.held(1)
            assert broker.holds.queue_count == 1
        await (await broker.connect()).put("a")
        assert pulled(await stays.receive()).bodies == ["a"]
        await broker.until(lambda: broker.holds.next_deadline_ms is None)

    tell(
        story,
        tmp_path,
        maxAcceptsPerSecond=100_000,
        serverChannelMaxIdleTimeMills=hour_ms,
        suspendTimeoutMillsMax=hour_ms,
    )
    assert not own(caplog)


def test_client_closed_during_its_wakeup_does_not_disturb_others(tmp_path, caplog):
    async def story(broker):
        broker.make_topic("T")
        producer = await broker.connect()
        for number in range(50):
            gone, stays = await broker.connect(), await broker.connect()
            for client in (gone, stays):
                client.send(pull_request(number, suspend_ms=60_000))
            await broker.held(2)
            gone.abort()
            producer.send(send_request(number))
            assert pulled(await stays.receive()).bodies == [str(number)]
            assert (await producer.receive()).code == 0

    tell(story, tmp_path, maxAcceptsPerSecond=100_000)
    assert not own(caplog)


# ---- failing reads


class ReadErrors:
    """A store's reader that fails on demand, as with bad sectors."""

    def __init__(self, store):
        self._reader = store._reader
        self.fails = False
        store._reader = self

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def get_message(self, *given, **named):
        if self.fails:
            raise OSError(5, "Input/output error")
        return self._reader.get_message(*given, **named)


@pytest.mark.parametrize(
    "asked",
    [{}, {"subscription": "A"}, {"subscription": "price = 7", "expression_type": "SQL92"}],
    ids=["all", "tags", "sql"],
)
def test_unreadable_log_while_waking_pulls_answers_each_pull_once(tmp_path, asked, caplog):
    async def story(broker):
        broker.make_topic("T")
        consumers = [await broker.connect() for _ in range(20)]
        producer = await broker.connect()
        for number, consumer in enumerate(consumers):
            consumer.send(pull_request(0, suspend_ms=60_000, opaque=number, **asked))
        await broker.held(20)
        reads = ReadErrors(broker.store)
        reads.fails = True
        await producer.put("a", properties={"TAGS": "A", "price": "7"})
        answers = [await consumer.receive() for consumer in consumers]
        assert [answer.opaque for answer in answers] == list(range(20))
        assert {answer.code for answer in answers} == {2}
        assert broker.holds.hold_count == 0
        reads.fails = False
        for number, consumer in enumerate(
            consumers
        ):  # no other response has come, and all clients are still served
            found = await consumer.pull(0, opaque=100 + number, **asked)
            assert found.bodies == ["a"]

    tell(story, tmp_path)
    assert "Input/output error" in caplog.text


# ---- limits


@each_loop
@on_broker
async def test_client_may_hold_sixteen_pulls_of_a_queue_and_one_more_releases_the_first(
    broker,
):
    broker.make_topic("T")
    client, other = await broker.connect(), await broker.connect()
    for opaque in range(17):
        client.send(pull_request(0, suspend_ms=60_000, opaque=opaque))
    await broker.until(lambda: broker.holds.deferred_total)
    assert broker.holds.hold_count == 16
    broker.move(1)
    answer = await client.receive()
    assert (answer.code, answer.opaque) == (19, 0)
    client.send(pull_request(0, queue_id=1, suspend_ms=60_000))
    other.send(pull_request(0, suspend_ms=60_000))
    await broker.held(18)
    await (await broker.connect()).put("a")
    woken = [await client.receive() for _ in range(16)]
    assert [answer.opaque for answer in woken] == list(range(1, 17))


@on_broker
async def test_abandoned_held_pulls_do_not_block_later_ones(broker):
    """A consumer seeks repeatedly, each time to the end of the queue."""
    producer, consumer = await broker.connect(), await broker.connect()
    await producer.put("old")
    for opaque in range(25):
        consumer.send(pull_request(1, suspend_ms=20_000, opaque=opaque))
    await broker.until(lambda: broker.holds.deferred_total == 9)
    await producer.put("new")
    answers = [pulled(await consumer.receive()) for _ in range(16)]
    assert (answers[-1].opaque, answers[-1].bodies) == (24, ["new"])


@on_broker(maxHolds=200)
async def test_client_with_all_hold_places_yields_one_to_a_newcomer(broker):
    broker.make_topic("T")
    broker.make_topic("Many", queues=50)
    greedy, modest, producer = [await broker.connect() for _ in range(3)]
    for queue_id in range(50):
        for _ in range(4):
            greedy.send(pull_request(0, "Many", queue_id, suspend_ms=60_000))
    await broker.held(200)
    for number in range(3):
        modest.send(pull_request(number, suspend_ms=60_000))
        await broker.until(lambda put_offs=number + 1: broker.holds.deferred_total == put_offs)
        await producer.put(number)
        assert pulled(await modest.receive()).bodies == [str(number)]
        greedy.send(pull_request(0, "Many", suspend_ms=60_000))
        await broker.held(200)


@each_loop
@on_broker(maxHolds=3)
async def test_held_pulls_are_limited_by_max_holds(broker):
    broker.make_topic("T", queues=8)
    clients = [await broker.connect() for _ in range(4)]
    for client in clients[:3]:
        client.send(pull_request(0, suspend_ms=60_000))
    await broker.held(3)
    for opaque in range(4):
        clients[3].send(pull_request(0, suspend_ms=60_000, opaque=opaque))
    answer = await clients[3].receive()
    assert (answer.code, answer.opaque, broker.holds.deferred_total) == (2, 3, 3)
    broker.move(1)
    assert [(await clients[3].receive()).code for _ in range(3)] == [19, 19, 19]
    clients[0].abort()
    await broker.held(2)
    clients[3].send(pull_request(0, suspend_ms=60_000))
    await broker.held(3)
    assert broker.holds.deferred_total == 3


@each_loop
@on_broker(maxWriteBufferBytes=100_000)
async def test_held_pull_of_a_congested_client_is_answered_at_once(broker):
    producer = await broker.connect()
    await producer.put(*["x" * 50_000] * 30)
    slow = await broker.connect(receive_buffer=4_096)
    for _ in range(4):
        slow.send(pull_request(30, queue_id=0, suspend_ms=60_000, opaque=99))
    await broker.held(4)
    slow.send(b"".join(pull_request(0, opaque=number).encode() for number in range(200)))
    connections = broker.controller.server._connections
    await broker.until(lambda: any(connection.is_congested for connection in connections))
    await producer.put("y" * 50_000)
    assert broker.holds.hold_count == 0
    found = Counter()
    while found[99] < 4:
        answer = await slow.receive()
        found[answer.opaque] += 1
        if answer.opaque == 99:
            assert (answer.code, answer.remark) == (19, "congested")
            assert answer.ext_fields["nextBeginOffset"] == "30"


@on_broker
async def test_held_group_past_an_empty_queue_is_moved_to_its_start(broker):
    """A topic was recreated: a group held at its old offset would miss all earlier messages."""
    broker.make_topic("T")
    consumer, producer = await broker.connect(), await broker.connect()
    moved = await consumer.pull(7, suspend_ms=60_000)
    assert (moved.code, moved.remark, moved.next_offset) == (21, "NO_MESSAGE_IN_QUEUE", 0)
    empty = await consumer.pull(moved.next_offset)
    assert (empty.code, empty.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    consumer.send(pull_request(moved.next_offset, suspend_ms=60_000))
    await broker.held(1)
    await producer.put("first")
    assert pulled(await consumer.receive()).bodies == ["first"]


# ---- shutdown and restart


@each_loop
@in_loop
async def test_stopping_broker_answers_all_held_pulls(tmp_path):
    async with started(small_broker(tmp_path)) as broker:
        broker.make_topic("T")
        clients = [await broker.connect() for _ in range(10)]
        for number, client in enumerate(clients):
            client.send(pull_request(0, queue_id=number % 4, suspend_ms=60_000, opaque=number))
        await broker.held(10)
        await broker.controller.stop()
        for number, client in enumerate(clients):
            answer = await client.receive()
            assert (answer.code, answer.opaque) == (19, number)
            assert await client.closed() == b""


@each_loop
@in_loop
async def test_clients_of_held_pulls_find_their_messages_after_a_broker_restart(tmp_path):
    port = 0
    for life in range(3):
        async with started(small_broker(tmp_path, listenPort=port)) as broker:
            port = broker.port
            consumer, producer = await broker.connect(), await broker.connect()
            if life:
                assert len((await consumer.pull(0)).bodies) == life
            consumer.send(pull_request(life, suspend_ms=60_000, commit_offset=life))
            if not life:
                assert (await consumer.receive()).code == 17  # the topic does not exist yet
                broker.make_topic("T")
                consumer.send(pull_request(0, suspend_ms=60_000))
            await broker.held(1)
            await producer.put(life)
            assert pulled(await consumer.receive()).bodies == [str(life)]
            consumer.send(pull_request(life + 1, suspend_ms=60_000))
            await broker.held(1)
            await broker.controller.stop()
            assert (await consumer.receive()).code == 19
