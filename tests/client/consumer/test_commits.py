"""A member's immediate commits skip queues of topics that were recreated meanwhile."""

import asyncio
import threading
from contextlib import contextmanager
from functools import partial

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.fake_members import implementation_of
from support.clients.manual_scheduler import MovedTasks

from rmq_spark.client.concurrency.scheduler import WorkerThreads
from rmq_spark.client.consumer.offsets.local_offset_store import LocalFileOffsetStore
from rmq_spark.client.consumer.offsets.offset_manager import CommitRequest, store_offsets
from rmq_spark.client.consumer.offsets.offset_store import RemoteBrokerOffsetStore
from rmq_spark.client.consumer.queues.assigned_queues import AssignedQueue
from rmq_spark.client.consumer.queues.queue_identity import (
    LastMessage,
    QueueFingerprint,
    StartPosition,
)
from rmq_spark.client.errors import ClientError, ConnectionClosed
from rocketpoll import (
    Admin,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    MessageModel,
    MessageQueue,
    PushConsumer,
    PushSettings,
    aio,
)

PATIENCE_S = 30
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def polled(consumer, count):
    """Poll at least this many messages."""
    found = []
    while len(found) < count:
        found += consumer.poll(1_000)
    return found


@pytest.mark.parametrize("auto_commit", [False, True])
@pytest.mark.parametrize("is_paused", [False, True], ids=["polling", "paused"])
def test_commit_after_topic_recreation_skips_no_new_message(is_paused, auto_commit):
    settings = LitePullSettings(auto_commit=auto_commit, consume_from_where=FIRST)
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        broker.create_topic("T", queues=1)
        broker.send("T", *[f"old {number}" for number in range(10)])
        with LitePullConsumer("G", broker.address, settings) as consumer:
            consumer.subscribe("T")
            found = polled(consumer, 10)
            if is_paused:
                consumer.pause(consumer.assignment())
            broker.delete_topic("T")
            broker.create_topic("T", queues=1)
            broker.send("T", *[f"new {number}" for number in range(20)])
            consumer.commit()
        [lag] = admin.lag("G", "T")
        assert lag.consumer_offset in (None, 0)
        with LitePullConsumer("G", broker.address, settings) as consumer:
            consumer.subscribe("T")
            found = polled(consumer, 20)
        assert found[0].body == b"new 0"


def test_broadcasting_commit_keeps_the_last_message_of_its_queue(tmp_path):
    settings = LitePullSettings(
        message_model=MessageModel.BROADCASTING,
        consume_from_where=FIRST,
        local_offset_directory=tmp_path,
        auto_commit=False,
        persist_consumer_offset_interval_ms=600_000,
    )
    with EmbeddedBroker() as broker:
        broker.create_topic("T", queues=1)
        broker.send("T", *[f"{number}" for number in range(10)])
        with LitePullConsumer("G", broker.address, settings) as consumer:
            consumer.subscribe("T")
            found = polled(consumer, 10)
            consumer.commit()
            [path] = tmp_path.rglob("offsets.json")
            kept = LocalFileOffsetStore(lambda: path)
            kept.load()
            [(queue, offset)] = kept.offsets("T").items()
            last = kept.last_messages.get(queue)
    assert (offset, last) == (10, LastMessage.from_message(found[-1]))


class FarBroker:
    """Stores a limited number of offsets at a time; each store takes a round trip."""

    def __init__(self, at_once):
        self._together = threading.Barrier(at_once)
        self.stored = {}

    def store_offset(self, queue, offset):
        self._together.wait(PATIENCE_S)
        self.stored[queue] = offset


@pytest.mark.parametrize(("count", "at_once"), [(1, 1), (7, 1), (32, 8), (64, 16), (256, 16)])
def test_offsets_of_many_queues_are_all_stored(count, at_once):
    store = FarBroker(at_once)
    offsets = {MessageQueue("T", "broker-a", number): number for number in range(count)}
    store_offsets(store, CommitRequest(offsets, {}), offsets, lambda _: 0, lambda _: True)
    assert store.stored == offsets


def test_unreachable_broker_does_not_block_offsets_of_others():
    class Half(FarBroker):
        asked = 0

        def store_offset(self, queue, offset):
            if queue.broker_name == "away":
                self.asked += 1
                raise ConnectionClosed("b:1", "gone")
            super().store_offset(queue, offset)

    store = Half(1)
    offsets = {
        MessageQueue("T", broker, number): 7 for broker in ("away", "here") for number in range(3)
    }
    with pytest.raises(ConnectionClosed):
        store_offsets(store, CommitRequest(offsets, {}), offsets, lambda _: 0, lambda _: True)
    assert store.asked == 1
    assert {each.broker_name for each in store.stored} == {"here"}
    assert len(store.stored) == 3


def test_hanging_broker_does_not_delay_offsets_of_others():
    others_are_stored = threading.Event()

    class Hanging(FarBroker):
        def store_offset(self, queue, offset):
            if queue.broker_name == "hangs":
                assert others_are_stored.wait(PATIENCE_S)
            super().store_offset(queue, offset)
            if queue.broker_name == "here":
                others_are_stored.set()

    store = Hanging(1)
    offsets = {MessageQueue("T", broker, 0): 7 for broker in ("hangs", "here")}
    store_offsets(store, CommitRequest(offsets, {}), offsets, lambda _: 0, lambda _: True)
    assert store.stored == offsets


class Moved:
    """An offset store whose offset an operator or the member changes."""

    def __init__(self, *, by_operator):
        self.moves, self.remembered, self.told, self._by_operator = 0, 8, [], by_operator

    def known_offset(self, _):
        return self.remembered

    def store_offset(self, _, offset):
        if not self.told:
            self.remembered = 3
            self.moves += self._by_operator
        self.told.append(offset)


@pytest.mark.parametrize(("by_operator", "told"), [(True, [8, 3]), (False, [8])])
def test_commit_moved_by_an_operator_stores_the_reset_offset(by_operator, told):
    store, offsets = Moved(by_operator=by_operator), {MessageQueue("T", "broker-a", 0): 8}
    store_offsets(store, CommitRequest(offsets, {}), offsets, lambda _: store.moves, lambda _: True)
    assert store.told == told


def test_commit_after_a_reset_stores_the_reset_offset_only():
    store, queue = Moved(by_operator=True), MessageQueue("T", "broker-a", 0)
    store.moves, store.remembered = 2, 5
    commit = CommitRequest({queue: 8}, {queue: 1})
    store_offsets(store, commit, commit.offsets, lambda _: 2, lambda _: True)
    assert store.told == [5]


def test_commit_to_an_unreachable_broker_is_stored_with_the_next_offsets():
    settings = LitePullSettings(auto_commit=False, consume_from_where=FIRST)
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        broker.create_topic("T", queues=1)
        broker.send("T", *map(str, range(10)))
        with LitePullConsumer("G", broker.address, settings) as consumer:
            consumer.subscribe("T")
            assert len(consumer.poll(PATIENCE_S * 1_000)) == 10
            with broker.away(), pytest.raises(ClientError):
                consumer.commit()

            def is_stored():
                implementation_of(consumer)._persist()
                [lag] = admin.lag("G", "T")
                return lag.consumer_offset == 10

            wait_until("the offset", is_stored)


@pytest.mark.parametrize("given", [False, True], ids=["all", "given"])
@pytest.mark.parametrize("how", ["time", "offset"])
def test_delayed_commit_does_not_undo_an_operators_offset_reset(monkeypatch, how, given):
    """A commit may wait for an unreachable broker until long after the call."""
    waits, may_go_on = threading.Event(), threading.Event()
    real = RemoteBrokerOffsetStore.store_offset

    def keep(store, queue, offset):
        waits.set()
        assert may_go_on.wait(PATIENCE_S)
        real(store, queue, offset)

    monkeypatch.setattr(RemoteBrokerOffsetStore, "store_offset", keep)
    seldom = {"auto_commit": False, "persist_consumer_offset_interval_ms": 3_600_000}
    settings = LitePullSettings(consume_from_where=FIRST, **seldom)
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        broker.create_topic("T", queues=1)
        broker.send("T", *map(str, range(10)))
        with LitePullConsumer("G", broker.address, settings) as consumer:
            consumer.subscribe("T")
            assert len(consumer.poll(PATIENCE_S * 1_000)) == 10
            [queue] = consumer.assignment()
            offsets = {queue: 10} if given else None
            committing = threading.Thread(target=consumer.commit, args=(offsets,))
            committing.start()
            assert waits.wait(PATIENCE_S)
            move(admin, queue, how)
            assert len(consumer.poll(PATIENCE_S * 1_000)) == 10  # redelivered
            may_go_on.set()
            committing.join()
            [lag] = admin.lag("G", "T")
            assert lag.consumer_offset == 0
        [lag] = admin.lag("G", "T")
        assert lag.consumer_offset == 0


def move(admin, queue, how):
    """Reset the group's offset to the beginning."""
    if how == "time":
        assert admin.reset_to_time("G", "T", 0) == {queue: 0}
    else:
        admin.set_offset("G", queue, 0)


def test_commit_from_before_a_reset_applies_to_other_queues_only():
    here, moved = (AssignedQueue(MessageQueue("T", "b", number), lambda: 0) for number in range(2))
    for each in (here, moved):
        each.set_first_offset(0, StartPosition(7, QueueFingerprint()))
    both = [here, moved]
    commit = CommitRequest.from_returned(both)
    given = CommitRequest(
        {here.queue: 5, moved.queue: 6}, {each.queue: each.reset_count for each in both}
    )
    here.seek(2)  # a seek of the user during the commit
    moved.reset(3)
    assert commit.current_offsets(both) == {here.queue: 7}
    assert given.current_offsets(both) == {here.queue: 5}
    assert CommitRequest.from_returned(both).current_offsets(both) == {
        here.queue: 2,
        moved.queue: 3,
    }


QUEUE = MessageQueue("T", "broker-a", 0)


class MovedServices(MovedTasks):
    """A consumer's periodic tasks on a movable clock."""

    thread_count = 0

    def run_until(self, condition):
        wait_until("what the services have begun", lambda: self.move(0) or condition())


@contextmanager
def lite_member(address, services, settings):
    with LitePullConsumer("G", address, LitePullSettings(**settings)) as consumer:
        consumer.subscribe("T")
        services.run_until(consumer.assignment)

        def consume(count):
            assert len(polled(consumer, count)) == count
            consumer.poll(0)  # confirms the previous messages

        yield consume


@contextmanager
def aio_member(address, services, settings):
    loop = asyncio.new_event_loop()
    run = loop.run_until_complete
    consumer = aio.Consumer("G", address, LitePullSettings(**settings))

    async def take(count):
        for _ in range(count):
            await anext(consumer)
        await consumer.poll(0)  # confirms the previous messages

    run(consumer.start())
    run(consumer.subscribe("T"))
    services.run_until(consumer._get_wrapped().assignment)  # outside the event loop
    yield lambda count: run(take(count))
    run(consumer.close())
    loop.close()


@contextmanager
def push_member(address, services, settings, kind):
    seen = []

    def listen(messages, context):  # parameters of a listener
        seen.extend(messages)

    with PushConsumer(
        "G", address, **{kind: listen}, settings=PushSettings(**settings)
    ) as consumer:
        consumer.subscribe("T")
        services.run_until(lambda: QUEUE in consumer.assignment())

        def consume(count):
            services.run_until(lambda: len(seen) >= count)
            del seen[:count]
            pulled = implementation_of(consumer)._pulled_queues()
            services.run_until(lambda: not any(each.process_queue.message_count for each in pulled))

        yield consume


MEMBERS = {
    "lite": lite_member,
    "aio": aio_member,
    "concurrent": partial(push_member, kind="listener"),
    "orderly": partial(push_member, kind="orderly_listener"),
}
INTERVALS = (
    ({}, 5_000),
    ({"persist_consumer_offset_interval_ms": 1_000}, 1_000),
    ({"auto_commit_interval_ms": 1_000}, 1_000),
    ({"auto_commit_interval_ms": 60_000}, 5_000),
    ({"auto_commit_interval_ms": 2_000, "persist_consumer_offset_interval_ms": 60_000}, 2_000),
)
"""Settings, and the longest time for which the offset of a consumed message may be missing at the
broker."""


@pytest.mark.parametrize("phase", [0.01, 0.5, 0.99], ids="{} of the interval".format)
@pytest.mark.parametrize(("settings", "interval_ms"), INTERVALS, ids=str)
@pytest.mark.parametrize("kind", MEMBERS)
def test_offsets_are_stored_within_the_configured_interval(
    monkeypatch, kind, settings, interval_ms, phase
):
    if kind in ("concurrent", "orderly") and "auto_commit_interval_ms" in settings:
        pytest.skip("push consumers have no such setting")
    services = MovedServices()
    in_services = property(lambda _: services, lambda *_: None)
    monkeypatch.setattr(WorkerThreads, "service_scheduler", in_services, raising=False)
    monkeypatch.setattr("rmq_spark.client.consumer.lite_pull_consumer_impl.monotonic_ms", services)
    settings = {**settings, "consume_from_where": FIRST}
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        broker.create_topic("T", queues=1)

        def stored():
            return sum(lag.consumer_offset or 0 for lag in admin.lag("G", "T"))

        with MEMBERS[kind](broker.address, services, settings) as consume:
            services.move(int(interval_ms * (1 + phase)))
            for count in (3, 6):
                broker.send("T", "a", "b", "c")
                consume(3)
                services.move(interval_ms)
                wait_until("its offset", lambda count=count: stored() == count)
