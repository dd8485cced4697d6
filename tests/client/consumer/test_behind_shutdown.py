"""An orderly listener that is busy when its consumer shuts down may finish its message.

Until then, no other consumer gets its queue, in this process or another; right after, the next one
does.
"""

import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.clusters import FIRST
from support.clients.fake_members import implementation_of

from rmq_spark.client.consumer import push_consumer_impl
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import PushSettings

BODIES = ["0", "1", "2", "3"]
PATIENCE_S = 30
LOOKS_S = 1.5
"""Seconds within which a member retries a queue that another owns: it tries each second."""


class Listener:
    """Records the messages that it starts and ends; blocks at the first until released."""

    def __init__(self, *, busy=False):
        self.begun, self.ended, self.go_on = [], [], threading.Event()
        if not busy:
            self.go_on.set()

    def __call__(self, messages, _):
        bodies = [message.body.decode() for message in messages]
        self.begun += bodies
        assert self.go_on.wait(PATIENCE_S)
        self.ended += bodies


def member(cluster, group, topic, listener, instance, **settings):
    settings = PushSettings(
        consume_from_where=FIRST, rebalance_interval_ms=1_000, await_termination_ms=0, **settings
    )
    place = {"namesrv" if isinstance(instance, str) else "instance": instance}
    consumer = PushConsumer(group, **place, orderly_listener=listener, settings=settings)
    consumer.subscribe(topic)
    consumer.start()
    return cluster.until_end(consumer)


def on_the_same_instance(cluster, instance):
    return instance


def of_the_same_name(cluster, instance):
    return cluster.instance(client_id=instance.client_id)


def with_an_instance_of_its_own(cluster, instance):
    return cluster.name_server


@pytest.fixture
def instance(cluster):
    """Return a client that outlives its consumers."""
    with cluster.instance() as instance:
        yield instance


@pytest.fixture
def busy():
    listener = Listener(busy=True)
    yield listener
    listener.go_on.set()


def shut_down_while_busy(cluster, group, topic, listener, instance, **settings):
    consumer = member(cluster, group, topic, listener, instance, **settings)
    wait_until("it is busy", lambda: listener.begun, PATIENCE_S)
    consumer.shutdown()
    return consumer


@pytest.mark.parametrize(
    "where",
    [on_the_same_instance, of_the_same_name, with_an_instance_of_its_own],
    ids=lambda each: each.__name__,
)
def test_member_started_in_the_same_process_resumes_after_the_busy_listener(
    cluster, where, instance, busy
):
    topic, group, after = cluster.topic(queues=1), cluster.group(), Listener()
    cluster.send(topic, *BODIES, queue_id=0)
    shut_down_while_busy(cluster, group, topic, busy, instance)
    member(cluster, group, topic, after, where(cluster, instance))
    threading.Event().wait(LOOKS_S)
    assert after.begun == []
    busy.go_on.set()
    wait_until("the next one gets on", lambda: after.ended == BODIES[1:], PATIENCE_S)
    assert busy.ended == BODIES[:1]
    wait_until("the offset", lambda: cluster.stored_offset(group, topic) == 4, PATIENCE_S)


@pytest.mark.parametrize("is_its_own", [True, False], ids=["own instance", "shared"])
def test_threads_and_connections_end_with_a_busy_listener_after_shutdown(
    cluster, instance, busy, is_its_own
):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *BODIES, queue_id=0)
    used = cluster.name_server if is_its_own else instance
    consumer = shut_down_while_busy(cluster, group, topic, busy, used)
    assert not consumer.is_running
    assert consumer.health().threads > 0
    assert consumer.health().instance_threads > 0
    busy.go_on.set()
    wait_until("no threads", lambda: consumer.health().threads == 0, PATIENCE_S)
    assert busy.ended == BODIES[:1]
    assert cluster.stored_offset(group, topic) == 1
    if is_its_own:
        wait_until("no connections", lambda: not consumer.health().instance_threads, PATIENCE_S)
    assert not instance.is_shut_down


def test_member_waiting_for_a_busy_listener_can_shut_down(cluster, instance, busy):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *BODIES, queue_id=0)
    shut_down_while_busy(cluster, group, topic, busy, instance)
    waiting = member(cluster, group, topic, Listener(), instance)
    wait_until("its queue", lambda: cluster.queue(topic) in waiting.assignment(), PATIENCE_S)
    waiting.shutdown()
    wait_until("no threads", lambda: waiting.health().threads == 0, PATIENCE_S)
    assert busy.ended == []


def test_queue_lock_is_renewed_after_shutdown_while_the_listener_runs(
    cluster, instance, busy, monkeypatch, caplog
):
    topic, group, asked = cluster.topic(queues=2), cluster.group(), []
    monkeypatch.setattr(push_consumer_impl, "LOCK_INTERVAL_MS", 50)
    cluster.send(topic, *BODIES, queue_id=0)
    consumer = shut_down_while_busy(cluster, group, topic, busy, instance, consume_timeout_ms=1_000)
    brokers = implementation_of(consumer)._brokers
    lock = brokers.lock
    monkeypatch.setattr(
        brokers, "lock", lambda queues: lock(asked.append(each) or each for each in queues)
    )
    wait_until("renewals", lambda: len(asked) > 3, PATIENCE_S)
    assert set(asked) == {cluster.queue(topic)}  # no queue that nobody holds
    wait_until("an end", lambda: "a listener still runs" in caplog.text, PATIENCE_S)
    # only the listener's thread
    wait_until("no more", lambda: consumer.health().threads == 1, PATIENCE_S)
    assert not cluster.api.lock(cluster.address, group, "another", [cluster.queue(topic)])
    assert cluster.api.lock(cluster.address, group, "another", [cluster.queue(topic, 1)])


def test_queues_without_a_busy_listener_are_unlocked_with_one_request(
    cluster, instance, monkeypatch
):
    topic, group, unlocked = cluster.topic(queues=4), cluster.group(), []
    consumer = member(cluster, group, topic, Listener(), instance)
    queues = {cluster.queue(topic, number) for number in range(4)}
    wait_until("its queues", lambda: consumer.assignment() >= queues, PATIENCE_S)
    lanes, api = implementation_of(consumer)._broker_executor, instance.api
    unlock, stop = api.unlock, lanes.stop
    monkeypatch.setattr(
        lanes, "stop", lambda: lanes.run_for_each([cluster.broker_name], bool, 5_000)
    )
    monkeypatch.setattr(
        api, "unlock", lambda *about: unlocked.append(set(about[-1])) or unlock(*about)
    )
    consumer.shutdown()
    stop()
    assert [each >= queues for each in unlocked] == [True]


def test_orderly_listener_that_shuts_down_its_consumer_commits_its_message(cluster):
    topic, group, done = cluster.topic(queues=1), cluster.group(), threading.Event()
    cluster.send(topic, *BODIES, queue_id=0)
    seen, after = [], Listener()

    def listen(messages, _):
        seen.extend(message.body.decode() for message in messages)
        consumer.shutdown()
        done.set()

    settings = PushSettings(consume_from_where=FIRST)
    consumer = PushConsumer(
        group, instance=cluster.instance(), orderly_listener=listen, settings=settings
    )
    consumer.subscribe(topic)
    consumer.start()
    assert done.wait(PATIENCE_S)
    member(cluster, group, topic, after, cluster.instance())
    wait_until("the next one gets on", lambda: after.ended == BODIES[1:], PATIENCE_S)
    assert seen == BODIES[:1]
