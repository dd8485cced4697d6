"""Unprocessed messages are delivered again, whatever a listener or an operator does.

The listener counts the messages that it has finished. In the end it must have finished all, in this
member or the group's next one: a message that is committed but not processed would be lost.
"""

import asyncio
import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.clusters import FIRST
from support.clients.fake_members import implementation_of
from support.suite.selection import spread

from rmq_spark.client.consumer.dispatch.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
)
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import PushSettings
from rmq_spark.client.errors import OffsetFileFailed
from rmq_spark.client.message import Message
from rmq_spark.client.producer.prepared_message import SendRules
from rmq_spark.client.producer.producer import Producer

BODIES = ["0", "1", "2", "3"]
PATIENCE_S = 30
STORED_EVERY_MS = 200


class Listener:
    """Finishes every message; for "1" it first runs the tested action."""

    def __init__(self, first_does=lambda _: None):
        self.finished, self._first_does, self._mutex = [], first_does, threading.Lock()
        self._is_first = True

    def __call__(self, messages, context):
        [message] = messages
        body = message.body.decode()
        with self._mutex:
            is_first, self._is_first = (
                self._is_first and body == "1",
                self._is_first and body != "1",
            )
        if is_first and (said := self._first_does(context)) is not None:
            return said
        with self._mutex:
            self.finished.append(body)
        return None


@pytest.fixture
def join(cluster):
    """Return a function that creates members of a group, each with its own client."""

    def make(group, topic, listener, *, orderly):
        name = "orderly_listener" if orderly else "listener"
        settings = PushSettings(consume_from_where=FIRST, suspend_current_queue_time_ms=10)
        consumer = PushConsumer(
            group, instance=cluster.instance(), **{name: listener}, settings=settings
        )
        consumer.subscribe(topic)
        consumer.start()
        return cluster.until_end(consumer)

    return make


def raises(error):
    def act(_):
        raise error

    return act


async def coroutine():
    pass


async def async_generator():
    yield  # never consumed


def generator():
    yield  # never consumed


def begun_generator():
    def steps():
        try:
            yield
        finally:
            raise RuntimeError("what cannot be cleaned up")

    begun = steps()
    next(begun)
    return begun


SAID = {
    "False": lambda _: False,
    "a number": lambda _: 0,
    "a text": lambda _: "CONSUME_SUCCESS",
    "a coroutine": lambda _: coroutine(),
    "a generator": lambda _: generator(),
    "an async generator": lambda _: async_generator(),
    "a generator that fails when it is closed": lambda _: begun_generator(),
    "what cannot be shown": lambda _: [10**5_000],
    "later": lambda _: ConsumeConcurrentlyStatus.RECONSUME_LATER,
    "a moment": lambda _: ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
}
RAISED = [
    ValueError("x"),
    OffsetFileFailed("path", "written", "one of our own"),
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
]
DOES = {**SAID, **{type(error).__name__: raises(error) for error in RAISED}}


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
@pytest.mark.parametrize("does", spread(6, DOES.values()), ids=list(DOES))
def test_message_unfinished_by_a_listener_is_redelivered(cluster, join, does, orderly):
    topic, listener = cluster.topic(queues=1), Listener(does)
    cluster.send(topic, *BODIES, queue_id=0)
    join(cluster.group(), topic, listener, orderly=orderly)
    wait_until("all are finished", lambda: len(listener.finished) >= len(BODIES), PATIENCE_S)
    assert sorted(listener.finished) == BODIES
    assert not orderly or listener.finished == BODIES


LARGE = {
    "properties without room for more": {"body": b"x", "properties": {"a": "y" * 32_600}},
    "a body that is small only as it was compressed": {"body": bytes(6 << 20)},
}


@pytest.mark.parametrize("large", LARGE.values(), ids=list(LARGE))
def test_message_too_large_for_send_back_ends_in_the_dlq(cluster, large, monkeypatch):
    # Java's limit
    monkeypatch.setattr("rmq_spark.client.message.PROPERTIES_BYTES_SENT_MAX", 32_767)
    if "properties" in large and cluster.address != cluster.name_server:
        pytest.skip("RocketMQ takes such a message in no way: docs/rocketmq-differences.md")
    topic, group, seen = cluster.topic(queues=1), cluster.group(), []

    def listen(messages, _):
        seen.append((len(messages[0].body), messages[0].reconsume_times))
        return None if messages[0].body == b"behind" else 1 / 0

    rules = SendRules("P", max_message_bytes=16 << 20)
    with Producer("P", instance=cluster.instance(), rules=rules) as producer:
        producer.send(Message(topic, **large))
        producer.send(Message(topic, b"behind"))
    settings = PushSettings(
        consume_from_where=FIRST, suspend_current_queue_time_ms=10, max_reconsume_times=1
    )
    consumer = PushConsumer(
        group, instance=cluster.instance(), orderly_listener=listen, settings=settings
    )
    consumer.subscribe(topic)
    with consumer:
        wait_until("the one behind", lambda: (len(b"behind"), 0) in seen, PATIENCE_S)
    size = len(large["body"])
    assert seen == [(size, 0), (size, 1), (len(b"behind"), 0)]
    wait_until("its dead letter", lambda: cluster.dead_letters(group) == 1, PATIENCE_S)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
def test_listener_may_modify_its_message_list(cluster, orderly, batch, fails):
    topic, group, finished, failed = cluster.topic(queues=1), cluster.group(), [], []

    def listen(messages, _):
        bodies = [messages.pop(0).body.decode() for _ in range(len(messages))]
        if fails and "1" in bodies and not failed:
            failed.append(bodies)
            raise ValueError("1")
        finished.extend(bodies)

    name = "orderly_listener" if orderly else "listener"
    settings = PushSettings(
        consume_from_where=FIRST,
        consume_message_batch_max_size=batch,
        persist_consumer_offset_interval_ms=STORED_EVERY_MS,
        suspend_current_queue_time_ms=10,
    )
    consumer = PushConsumer(group, instance=cluster.instance(), **{name: listen}, settings=settings)
    consumer.subscribe(topic)
    cluster.send(topic, *BODIES, queue_id=0)
    with consumer:
        wait_until("all are finished", lambda: len(finished) >= len(BODIES), PATIENCE_S)
        wait_until(
            "all are committed",
            lambda: cluster.stored_offset(group, topic) == len(BODIES),
            PATIENCE_S,
        )
    assert sorted(finished) == BODIES
    assert not orderly or finished == BODIES


def sets(value):
    def act(context):
        context.ack_index = value
        context.delay_level_when_next_consume = 1

    return act


@pytest.mark.parametrize("ack_index", [-1, -2, -(1 << 40), "x", None, 1.5, True])
def test_invalid_ack_index_commits_no_unfinished_message(cluster, ack_index):
    topic, group, seen, finished = cluster.topic(queues=1), cluster.group(), [], set()

    def listen(messages, context):
        bodies = [message.body.decode() for message in messages]
        if not seen and ack_index is not None:
            sets(ack_index)(context)
        else:
            finished.update(bodies)
        seen.append(bodies)

    cluster.send(topic, *BODIES, queue_id=0)
    settings = PushSettings(consume_from_where=FIRST, consume_message_batch_max_size=4)
    consumer = cluster.until_end(
        PushConsumer(group, instance=cluster.instance(), listener=listen, settings=settings)
    )
    consumer.subscribe(topic)
    consumer.start()
    wait_until("all are finished", lambda: finished >= set(BODIES), PATIENCE_S)


# ---- listeners and operators that interfere


def unsubscribes(cluster, consumer, topic, _):
    consumer.unsubscribe(topic)


def unsubscribes_and_comes_back(cluster, consumer, topic, _):
    consumer.unsubscribe(topic)
    consumer.subscribe(topic)


def suspends(cluster, consumer, topic, _):
    consumer.suspend()


def resets(cluster, consumer, topic, _):
    implementation_of(consumer).reset_offsets(topic, {cluster.queue(topic): 0})


def shuts_down(cluster, consumer, topic, _):
    threading.Thread(target=consumer.shutdown).start()
    wait_until("the end has begun", lambda: not consumer.is_running)


def loses_its_lock(cluster, consumer, topic, _):
    for request in implementation_of(consumer)._requests.values():
        request.process_queue.set_locked(0, locked=False)


def is_joined_by_another(cluster, consumer, topic, join_another):
    join_another()
    wait_until("another member", lambda: len(cluster.members(consumer.group)) == 2)
    implementation_of(consumer).request_rebalance()


INTERFERENCE = [
    unsubscribes,
    unsubscribes_and_comes_back,
    suspends,
    resets,
    shuts_down,
    loses_its_lock,
    is_joined_by_another,
]
ENDS = {"and succeeds": lambda: None, "and fails": lambda: 1 / 0}


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
@pytest.mark.parametrize("ends", ENDS.values(), ids=list(ENDS))
@pytest.mark.parametrize("interferes", INTERFERENCE, ids=lambda each: each.__name__)
def test_interference_during_consume_commits_nothing_unfinished(
    cluster, join, interferes, ends, orderly
):
    topic, group = cluster.topic(queues=1), cluster.group()
    at_it, go_on = threading.Event(), threading.Event()

    def is_interfered_with(_):
        at_it.set()
        assert go_on.wait(PATIENCE_S)
        ends()

    listener, others = Listener(is_interfered_with), Listener()
    cluster.send(topic, *BODIES, queue_id=0)
    consumer = join(group, topic, listener, orderly=orderly)
    assert at_it.wait(PATIENCE_S)
    interferes(cluster, consumer, topic, lambda: join(group, topic, others, orderly=orderly))
    go_on.set()
    consumer.shutdown()
    join(group, topic, others, orderly=orderly)

    def all_finished():
        return {*listener.finished, *others.finished} >= set(BODIES)

    wait_until("all are finished, by whomever", all_finished, PATIENCE_S)
    if orderly:
        assert others.finished == sorted(others.finished)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
def test_subscription_during_a_held_pull_delivers_all_wanted_messages(cluster, orderly):
    topic, group, seen = cluster.topic(queues=1), cluster.group(), []
    name = "orderly_listener" if orderly else "listener"
    settings = PushSettings(
        consume_from_where=FIRST,
        broker_suspend_max_time_ms=1_000,
        persist_consumer_offset_interval_ms=STORED_EVERY_MS,
    )
    consumer = PushConsumer(
        group,
        instance=cluster.instance(),
        **{name: lambda messages, _: seen.extend(each.tags for each in messages)},
        settings=settings,
    )
    consumer.subscribe(topic, "a")
    with consumer:
        cluster.send(topic, "first", queue_id=0, TAGS="a")
        # By now the broker holds the next pull, by tag a.
        wait_until("the first", lambda: cluster.stored_offset(group, topic) == 1, PATIENCE_S)
        consumer.subscribe(topic, "a || b")
        for tags in "bba":
            cluster.send(topic, "x", queue_id=0, TAGS=tags)
        wait_until("all that is wanted now", lambda: len(seen) >= 4, PATIENCE_S)
    assert sorted(seen) == ["a", "a", "b", "b"]
