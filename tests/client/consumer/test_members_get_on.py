"""A member gives up its queue even if its listener is busy beyond all timeouts.

The next member starts soon after the listener ends, or immediately if no lock is involved.
"""

import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.clusters import FIRST
from support.clients.fake_members import implementation_of

from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import PushSettings
from rmq_spark.client.instance.instance import SHUTDOWN_MS

BODIES = ["0", "1", "2", "3"]
PATIENCE_S = 30
BUSY_S = SHUTDOWN_MS / 1000 + 0.5
"""Exceeds the timeout of `shutdown` and of each of its steps, and a rebalance that cannot revoke
the queue."""

GETS_ON_S = 12
"""Seconds until a member gets a free queue: it asks each second; the rest is for busy machines."""


class Member:
    """A member that records its consumed messages; its first call can be blocked."""

    def __init__(self, cluster, group, topic, name, *, orderly):
        self.finished, self.at_it, self.go_on = [], threading.Event(), threading.Event()
        self.go_on.set()
        kind = "orderly_listener" if orderly else "listener"
        settings = PushSettings(
            consume_from_where=FIRST, rebalance_interval_ms=1_000, consume_thread_max=1
        )
        instance = cluster.instance(client_id=f"{name}-{group}")
        self.consumer = PushConsumer(group, instance=instance, **{kind: self}, settings=settings)
        self.consumer.subscribe(topic)
        cluster.until_end(self.consumer)

    def __call__(self, messages, _):
        self.at_it.set()
        assert self.go_on.wait(PATIENCE_S)
        self.finished += [message.body.decode() for message in messages]


def unsubscribes(cluster, consumer, topic):
    consumer.unsubscribe(topic)


def is_reset(cluster, consumer, topic):
    implementation_of(consumer).reset_offsets(topic, {cluster.queue(topic): 0})


def shuts_down(cluster, consumer, topic):
    consumer.shutdown()


def only_rebalances(cluster, consumer, topic):
    implementation_of(consumer).request_rebalance()


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
@pytest.mark.parametrize(
    "happens", [unsubscribes, is_reset, shuts_down, only_rebalances], ids=lambda each: each.__name__
)
def test_next_member_consumes_the_queue_when_a_busy_listener_ends(cluster, happens, orderly):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *BODIES, queue_id=0)
    busy = Member(cluster, group, topic, "b", orderly=orderly)
    busy.go_on.clear()
    busy.consumer.start()
    assert busy.at_it.wait(PATIENCE_S)
    # its name sorts first, so it gets the queue
    other = Member(cluster, group, topic, "a", orderly=orderly)
    other.consumer.start()
    wait_until("two members", lambda: len(cluster.members(group)) == 2, PATIENCE_S)
    happens(cluster, busy.consumer, topic)
    threading.Event().wait(BUSY_S)  # the listener is busy for this long
    assert not orderly or other.finished == []
    busy.go_on.set()

    def all_finished():
        return {*busy.finished, *other.finished} >= set(BODIES)

    wait_until("the other gets on", all_finished, GETS_ON_S)
    if orderly:
        assert other.finished == sorted(other.finished)
    cluster.send(topic, "behind", queue_id=0)
    wait_until("what comes now", lambda: "behind" in other.finished, GETS_ON_S)
    wait_until("the other's offset", lambda: cluster.stored_offset(group, topic) == 5, PATIENCE_S)


def test_next_member_consumes_the_queue_though_a_departed_listener_never_ends(cluster):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *BODIES, queue_id=0)
    busy = Member(cluster, group, topic, "b", orderly=False)
    busy.go_on.clear()
    busy.consumer.start()
    assert busy.at_it.wait(PATIENCE_S)
    other = Member(cluster, group, topic, "a", orderly=False)
    other.consumer.start()
    busy.consumer.shutdown()
    wait_until("all by the other", lambda: sorted(other.finished) == BODIES, GETS_ON_S)
    busy.go_on.set()
    wait_until("its listener has ended", lambda: busy.finished, PATIENCE_S)
    cluster.send(topic, "behind", queue_id=0)
    wait_until("what comes now", lambda: "behind" in other.finished, GETS_ON_S)
    wait_until("the other's offset", lambda: cluster.stored_offset(group, topic) == 5, PATIENCE_S)


def test_busy_listener_does_not_block_another_group_in_the_same_process(cluster):
    topic, instance, may_end = cluster.topic(queues=1), cluster.instance(), threading.Event()
    begun = {group: threading.Event() for group in (cluster.group(), cluster.group())}

    def listener_of(group):
        def listen(_messages, _context):
            begun[group].set()
            assert may_end.wait(PATIENCE_S)

        return listen

    try:
        for group in begun:
            settings = PushSettings(consume_from_where=FIRST)
            consumer = PushConsumer(
                group, instance=instance, orderly_listener=listener_of(group), settings=settings
            )
            consumer.subscribe(topic)
            cluster.until_end(consumer).start()
        cluster.send(topic, "0", queues=1)
        assert all(each.wait(PATIENCE_S) for each in begun.values())
    finally:
        may_end.set()


@pytest.mark.parametrize("kind", ["poll", "listener"])
def test_rebalance_during_unsubscribe_does_not_bring_the_queue_back(cluster, kind):
    topic = cluster.topic(queues=1)
    group, instance = cluster.group(), cluster.instance()
    consumer = (
        LitePullConsumer(group, instance=instance)
        if kind == "poll"
        else PushConsumer(group, instance=instance, listener=lambda *_: None)
    )
    consumer.subscribe(topic)
    cluster.until_end(consumer).start()
    queue = cluster.queue(topic)
    wait_until("its queue", lambda: queue in consumer.assignment())
    member = implementation_of(consumer)
    take_share = member.apply_assignment

    def with_a_round_behind(topic, share):
        member.apply_assignment = take_share
        is_settled = take_share(topic, share)
        member._rebalance_service.do_rebalance()
        return is_settled

    member._rebalance_task.stop()  # the test runs the rounds itself
    member.apply_assignment = with_a_round_behind
    consumer.unsubscribe(topic)
    assert queue not in consumer.assignment()
