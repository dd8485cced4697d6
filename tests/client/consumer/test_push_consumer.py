"""Tests of `PushConsumer` against whole brokers."""

import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.clusters import FIRST
from support.clients.fake_members import implementation_of

from rmq_spark.client.consumer.pull.pull_task import PullLimits
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.queues.process_queue import PULL_EXPIRES_MS
from rmq_spark.client.consumer.rebalance.rebalance_service import TopicAssignment
from rmq_spark.client.consumer.settings import PushSettings
from rmq_spark.client.instance.instance import SHUTDOWN_MS
from rmq_spark.wire.headers.operators import (
    ResetOffsetRequestHeader,
)
from rocketpoll import Admin, EmbeddedBroker

PATIENCE_S = 30


class Listener:
    """Records its calls; the test sets the result for each body."""

    def __init__(self, says=lambda *_: None):
        self.messages, self.says, self._mutex = [], says, threading.Lock()

    def __call__(self, messages, _):
        with self._mutex:
            self.messages += messages
        said = [self.says(message.body.decode(), message) for message in messages]
        return next((each for each in said if each is not None), None)

    @property
    def bodies(self):
        with self._mutex:
            return [message.body.decode() for message in self.messages]

    def wait_for(self, count):
        wait_until(f"{count} calls", lambda: len(self.messages) >= count)
        return self.bodies


@pytest.fixture
def push(cluster):
    """Return a function that creates consumers that start at the first message."""

    def make(
        listener, group=None, topic=None, *, selector="*", orderly=False, start=True, **settings
    ):
        consumer = PushConsumer(
            group or cluster.group(),
            instance=cluster.instance(),
            **{"orderly_listener" if orderly else "listener": listener},
            settings=PushSettings(**{"consume_from_where": FIRST, **settings}),
        )
        consumer.subscribe(topic, selector)
        if start:
            consumer.start()
        return cluster.until_end(consumer)

    return make


def numbers(count):
    return [f"{number:03}" for number in range(count)]


def test_push_consumer_offsets_follow_consumed_messages(cluster, push):
    topic, group, listener = cluster.topic(queues=1), cluster.group(), Listener()
    cluster.send(topic, *numbers(20), queue_id=0)
    consumer = push(listener, group, topic, persist_consumer_offset_interval_ms=50)
    listener.wait_for(20)
    wait_until("an offset", lambda: cluster.stored_offset(group, topic) == 20)
    consumer.shutdown()
    cluster.send(topic, "new", queue_id=0)
    again = Listener()
    push(again, group, topic)
    assert again.wait_for(1) == ["new"]


def test_push_consumer_commits_offset_past_filtered_messages(cluster, push):
    topic, group, listener = cluster.topic(queues=1), cluster.group(), Listener()
    for tag in ("red", "green", "red", "green", "green"):
        cluster.send(topic, tag, queue_id=0, TAGS=tag)
    push(listener, group, topic, selector="red", persist_consumer_offset_interval_ms=50)
    assert listener.wait_for(2) == ["red", "red"]
    wait_until("the end", lambda: cluster.stored_offset(group, topic) == 5)


def test_push_consume_timeout_does_not_hold_back_the_offset(cluster, push):
    topic, group, free = cluster.topic(queues=1), cluster.group(), threading.Event()

    def slow_at_first(_, message):
        if not message.reconsume_times:
            free.wait(PATIENCE_S)

    listener = Listener(slow_at_first)
    push(
        listener,
        group,
        topic,
        consume_timeout_ms=100,
        persist_consumer_offset_interval_ms=50,
    )
    try:
        cluster.send(topic, "slow", queue_id=0)
        wait_until("an offset", lambda: cluster.stored_offset(group, topic) == 1)
        assert listener.wait_for(2) == ["slow", "slow"]
    finally:
        free.set()


def test_push_consumer_reads_more_messages_than_its_cache_holds(cluster, push):
    topic, listener = cluster.topic(queues=1), Listener()
    cluster.send(topic, *numbers(200), queue_id=0)
    push(listener, topic=topic, limits=PullLimits(pull_threshold_for_queue=10), pull_batch_size=5)
    assert sorted(listener.wait_for(200)) == numbers(200)


def test_push_consumer_limits_its_consume_batch_size(cluster, push):
    topic, sizes = cluster.topic(queues=1), []
    cluster.send(topic, *numbers(40), queue_id=0)
    push(
        lambda messages, _: sizes.append(len(messages)),
        topic=topic,
        consume_message_batch_max_size=16,
    )
    wait_until("all", lambda: sum(sizes) == 40)
    assert max(sizes) <= 16
    assert len(sizes) < 40


def test_ack_index_of_a_batch_redelivers_only_the_rest(cluster, push):
    topic, listener = cluster.topic(queues=1), Listener()

    def half(messages, context):
        listener(messages, context)
        if len(messages) == 4:
            context.ack_index = 1

    cluster.send(topic, *numbers(4), queue_id=0)
    push(half, topic=topic, consume_message_batch_max_size=4)
    assert listener.wait_for(6)[:4] == numbers(4)
    assert sorted(listener.bodies[4:]) == ["002", "003"]


def test_push_consumer_restarts_at_zero_if_offset_is_past_a_recreated_queue(cluster, push):
    topic, group, listener = cluster.topic(queues=1), cluster.group(), Listener()
    cluster.send(topic, *numbers(10), queue_id=0)
    cluster.store_offset(group, topic, 500)
    push(listener, group, topic, persist_consumer_offset_interval_ms=50)
    assert sorted(listener.wait_for(10)) == numbers(10)
    wait_until("the end", lambda: cluster.stored_offset(group, topic) == 10)


@pytest.mark.parametrize("orderly", [False, True])
def test_messages_consumed_while_a_reset_is_stored_are_committed(
    cluster, push, monkeypatch, orderly
):
    topic, group, listener = cluster.topic(queues=2), cluster.group(), Listener()
    cluster.send(topic, *numbers(10), queues=2)
    consumer = push(listener, group, topic, orderly=orderly)
    listener.wait_for(10)
    store = implementation_of(consumer)._offset_store
    keep, queues = store.store_offset, [cluster.queue(topic, queue_id) for queue_id in (0, 1)]

    def is_consumed():
        return store.offsets(topic) == dict.fromkeys(queues, 5)

    def keep_behind_the_listener(queue, offset):
        listener.wait_for(20)
        wait_until("acknowledged", is_consumed)
        keep(queue, offset)

    wait_until("acknowledged", is_consumed)
    monkeypatch.setattr(store, "store_offset", keep_behind_the_listener)
    implementation_of(consumer).reset_offsets(topic, dict.fromkeys(queues, 0))
    assert is_consumed()
    consumer.shutdown()
    assert [cluster.stored_offset(group, topic, queue_id) for queue_id in (0, 1)] == [5, 5]


def test_orderly_push_consumer_restarts_queue_only_after_listener_returns(cluster, push):
    topic, free = cluster.topic(queues=1), threading.Event()
    queue = cluster.queue(topic)
    listener = Listener(lambda *_: free.wait(PATIENCE_S) and None)
    cluster.send(topic, *numbers(3), queue_id=0)
    consumer = push(listener, topic=topic, orderly=True, rebalance_interval_ms=1_000)
    try:
        listener.wait_for(1)
        implementation_of(consumer).reset_offsets(topic, {queue: 0})
        request = implementation_of(consumer)._requests[queue]
        wait_until(
            "a turn that is put off", lambda: request.is_suspended or len(listener.messages) > 1
        )
        assert len(listener.messages) == 1
        assert not implementation_of(consumer)._release_queue(
            request
        )  # two consumers would own the queue at the same time
    finally:
        free.set()
    assert listener.wait_for(4) == ["000", *numbers(3)]


def test_push_consumer_redelivers_after_a_reset_through_the_broker(cluster, push):
    topic, group, listener = cluster.topic(queues=1), cluster.group(), Listener()
    cluster.send(topic, *numbers(10), queue_id=0)
    push(listener, group, topic, persist_consumer_offset_interval_ms=200)
    listener.wait_for(10)
    wait_until("a stored offset", lambda: cluster.stored_offset(group, topic))
    header = ResetOffsetRequestHeader(topic=topic, group=group, timestamp=0, is_force=True)
    offsets = cluster.api.admin.reset_offset(cluster.address, header)
    assert offsets == {cluster.queue(topic): 0}
    assert sorted(listener.wait_for(20)[10:]) == numbers(10)


def test_orderly_queue_retired_during_consume_is_pulled_again_afterwards(cluster, push):
    topic, free = cluster.topic(queues=1), threading.Event()
    listener = Listener(lambda *_: free.wait(PATIENCE_S) and None)
    consumer = push(listener, topic=topic, orderly=True)
    cluster.send(topic, "000", queue_id=0)
    try:
        listener.wait_for(1)
        request = implementation_of(consumer)._requests[cluster.queue(topic)]
        consumer.unsubscribe(topic)
        cluster.send(topic, "001", queue_id=0)
        assert request.process_queue.is_retired
        assert not request.process_queue.is_dropped
        consumer.subscribe(topic)
    finally:
        free.set()
    assert listener.wait_for(2) == ["000", "001"]


def test_orderly_queue_of_an_unsubscribed_topic_is_unlocked_when_its_listener_ends(cluster, push):
    """The unlock waits for the listener, however long that takes."""
    topic, group, free = cluster.topic(queues=1), cluster.group(), threading.Event()
    queue = cluster.queue(topic)
    listener = Listener(lambda *_: free.wait(PATIENCE_S) and None)
    consumer = push(listener, group, topic, orderly=True, await_termination_ms=0)
    cluster.send(topic, "000", queue_id=0)

    def another_may_have_it():
        return cluster.api.lock(cluster.address, group, "another", [queue])

    try:
        listener.wait_for(1)
        consumer.unsubscribe(topic)
        for _ in range(3):
            implementation_of(consumer)._rebalance_service.do_rebalance()
        assert not another_may_have_it()
    finally:
        free.set()
    wait_until("it is let go of", another_may_have_it)
    assert cluster.stored_offset(group, topic) == 1


def test_suspended_push_consumer_gets_nothing_until_resumed(cluster, push):
    topic, listener = cluster.topic(queues=1), Listener()
    consumer = push(listener, topic=topic, start=False)
    consumer.suspend()
    consumer.start()
    cluster.send(topic, "new", queue_id=0)
    wait_until("queues", lambda: cluster.queue(topic) in consumer.assignment())
    assert listener.bodies == []
    consumer.resume()
    assert listener.wait_for(1) == ["new"]


def test_push_consumer_shutdown_does_not_wait_for_an_endless_listener(cluster, push):
    topic, group, free, began = (
        cluster.topic(queues=1),
        cluster.group(),
        threading.Event(),
        threading.Event(),
    )

    def stuck(*_):
        began.set()
        free.wait(PATIENCE_S)

    consumer = push(stuck, group, topic)
    cluster.send(topic, "one", queue_id=0)
    assert began.wait(PATIENCE_S)
    closing = threading.Thread(target=consumer.shutdown)
    closing.start()
    closing.join(SHUTDOWN_MS / 1000 + 10)
    assert not closing.is_alive()
    free.set()
    assert cluster.stored_offset(group, topic) == 0


@pytest.mark.parametrize("both", [True, False])
def test_push_consumer_needs_exactly_one_listener(cluster, both):
    listener = Listener() if both else None
    with pytest.raises(TypeError, match="has one listener"):
        PushConsumer("G", instance=cluster.instance(), listener=listener, orderly_listener=listener)


def test_queues_are_reset_while_their_broker_is_away():
    """Each queue is consumed again when its broker is back, and its offset is stored then."""
    seen = []

    def listen(messages, _):
        seen.extend(message.body.decode() for message in messages)

    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        broker.create_topic("T", queues=2)
        broker.send("T", "of 0", "of 1")
        settings = PushSettings(consume_from_where=FIRST, persist_consumer_offset_interval_ms=100)
        consumer = PushConsumer("G", broker.address, listener=listen, settings=settings)
        consumer.subscribe("T")
        with consumer:
            wait_until("both", lambda: len(seen) == 2)
            queues = [lag.queue for lag in admin.lag("G", "T")]
            with broker.away():
                implementation_of(consumer).reset_offsets("T", dict.fromkeys(queues, 0))
            wait_until("both again", lambda: len(seen) == 4)
            wait_until(
                "their offsets", lambda: {lag.consumer_offset for lag in admin.lag("G", "T")} == {1}
            )
        assert sorted(seen) == ["of 0", "of 0", "of 1", "of 1"]


@pytest.mark.parametrize("orderly", [False, True])
def test_queue_with_a_lost_pull_request_is_pulled_again(cluster, push, orderly):
    topic, listener = cluster.topic(queues=1), Listener()
    consumer = push(listener, topic=topic, orderly=orderly)
    cluster.send(topic, "000", queue_id=0)
    listener.wait_for(1)
    member, queue = implementation_of(consumer), cluster.queue(topic)
    lost = member._requests[queue]

    def is_pulled_anew():
        lost.process_queue._pulled_at_ms -= PULL_EXPIRES_MS  # as if it had not pulled for that long
        member.apply_assignment(topic, TopicAssignment((queue,), (queue,)))
        return member._requests.get(queue) not in (None, lost)

    wait_until("another request", is_pulled_anew)
    cluster.send(topic, "001", queue_id=0)
    assert listener.wait_for(2)[-1] == "001"
