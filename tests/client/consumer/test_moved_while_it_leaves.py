"""An operator resets a group while a member leaves it or gives up a queue.

Messages that this member's listeners finish later, and offsets that it has not stored yet, no
longer move the group.
"""

import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.clusters import FIRST
from support.clients.fake_members import implementation_of

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import PushSettings
from rocketpoll import Admin

BODIES = ["0", "1", "2", "3"]
PATIENCE_S = 30
KINDS = ["listener", "orderly_listener"]


class Busy:
    """A listener that blocks after its first message until released."""

    def __init__(self):
        self.begun, self.may_end = [], threading.Event()

    def __call__(self, messages, _):
        self.begun += [message.queue_offset for message in messages]
        assert len(self.begun) == 1 or self.may_end.wait(PATIENCE_S)


@pytest.fixture
def busy():
    listener = Busy()
    yield listener
    listener.may_end.set()


@pytest.fixture
def topic(cluster):
    """Create a topic of one queue with four messages."""
    topic = cluster.topic(queues=1)
    cluster.send(topic, *BODIES, queue_id=0)
    return topic


def busy_member(cluster, group, topic, busy, kind, **more):
    settings = PushSettings(
        consume_from_where=FIRST, persist_consumer_offset_interval_ms=200, **more
    )
    consumer = PushConsumer(group, cluster.name_server, **{kind: busy}, settings=settings)
    consumer.subscribe(topic)
    consumer.start()
    wait_until("it is busy", lambda: len(busy.begun) > 1, PATIENCE_S)
    wait_until("the offset", lambda: cluster.stored_offset(group, topic) >= 1, PATIENCE_S)
    return cluster.until_end(consumer)


def idle_member(cluster, group, topic, busy, kind):
    """Return a member that has consumed everything."""
    busy.may_end.set()
    consumer = busy_member(cluster, group, topic, busy, kind)
    wait_until("all of them", lambda: busy.begun == [0, 1, 2, 3], PATIENCE_S)
    return consumer


def reset(cluster, group, topic):
    with Admin(cluster.name_server) as admin:
        assert admin.reset_to_time(group, topic, 0) == {cluster.queue(topic): 0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", ["_stop_consuming", "_persist", "_stop_after_listeners"])
def test_reset_during_shutdown_is_the_last_stored_offset(
    cluster, topic, busy, kind, step, monkeypatch
):
    group = cluster.group()
    consumer = busy_member(cluster, group, topic, busy, kind, await_termination_ms=1_000)
    take_the_step = getattr(implementation_of(consumer), step)

    def behind_a_reset():
        reset(cluster, group, topic)
        busy.may_end.set()
        take_the_step()

    monkeypatch.setattr(implementation_of(consumer), step, behind_a_reset)
    consumer.shutdown()
    wait_until("its end", lambda: consumer.health().threads == 0, PATIENCE_S)
    assert not cluster.members(group)
    assert cluster.stored_offset(group, topic) == 0


def test_reset_wins_over_offsets_of_a_member_that_shuts_down_during_it(
    cluster, topic, busy, monkeypatch
):
    group = cluster.group()
    consumer = idle_member(cluster, group, topic, busy, KINDS[0])
    real = Admin._store_offsets

    def leaves_behind(*arguments):
        stored = real(*arguments)
        consumer.shutdown()
        wait_until("nobody is told", lambda: not cluster.members(group), PATIENCE_S)
        return stored

    monkeypatch.setattr(Admin, "_store_offsets", leaves_behind)
    reset(cluster, group, topic)
    assert cluster.stored_offset(group, topic) == 0


def test_reset_during_the_last_offset_store_is_sent_afterwards(cluster, topic, busy, monkeypatch):
    group = cluster.group()
    consumer = idle_member(cluster, group, topic, busy, KINDS[0])
    member, told = implementation_of(consumer), []
    brokers, stop_consuming = member._brokers, member._stop_consuming
    real = brokers.update_consumer_offset

    def tells_behind_a_reset(queue, offset, *, is_one_way):
        if queue.topic == topic and not told:
            told.append(offset)
            reset(cluster, group, topic)
        real(queue, offset, is_one_way=is_one_way)

    def stops():
        monkeypatch.setattr(brokers, "update_consumer_offset", tells_behind_a_reset)
        stop_consuming()

    monkeypatch.setattr(member, "_stop_consuming", stops)
    consumer.shutdown()
    assert told == [4]
    assert cluster.stored_offset(group, topic) == 0


def test_listener_that_ends_after_shutdown_does_not_overwrite_a_reset(cluster, topic, busy, caplog):
    group = cluster.group()
    consumer = busy_member(cluster, group, topic, busy, KINDS[1], await_termination_ms=0)
    consumer.shutdown()
    wait_until("nobody is told", lambda: not cluster.members(group), PATIENCE_S)
    cluster.store_offset(group, topic, 3)  # as `mqadmin` does for a group without members
    busy.may_end.set()
    wait_until("its end", lambda: consumer.health().threads == 0, PATIENCE_S)
    assert cluster.stored_offset(group, topic) == 3
    assert (
        f"the stored offset of {cluster.queue(topic)} was changed elsewhere, from 1 to 3"
        in caplog.text
    )


@pytest.mark.parametrize("shuts_down", [False, True], ids=["runs on", "shuts down"])
def test_queue_reset_while_a_listener_is_busy_is_released(cluster, topic, busy, shuts_down):
    """The next member waits for that listener only."""
    group = cluster.group()
    consumer = busy_member(
        cluster, group, topic, busy, KINDS[1], await_termination_ms=0, rebalance_interval_ms=600_000
    )
    consumer.unsubscribe(topic)
    reset(cluster, group, topic)
    if shuts_down:
        consumer.shutdown()
    busy.may_end.set()
    if not shuts_down:
        own = cluster.queue(topic)
        wait_until("it is given up", lambda: own not in consumer.assignment(), PATIENCE_S)
        consumer.shutdown()
    wait_until("its end", lambda: consumer.health().threads == 0, PATIENCE_S)
    again = Busy()
    again.may_end.set()
    busy_member(cluster, group, topic, again, KINDS[1])
    wait_until("all once more", lambda: again.begun == [0, 1, 2, 3], PATIENCE_S)


@pytest.mark.parametrize("kind", KINDS)
def test_released_queue_keeps_its_reset_offset(cluster, topic, busy, kind, monkeypatch):
    group, tells, may_tell = cluster.group(), threading.Event(), threading.Event()
    consumer = idle_member(cluster, group, topic, busy, kind)
    real = BrokerApi.update_consumer_offset

    def late(*arguments, is_one_way=False, **more):
        if is_one_way and not tells.is_set():
            tells.set()
            assert may_tell.wait(PATIENCE_S)
        return real(*arguments, is_one_way=is_one_way, **more)

    monkeypatch.setattr(BrokerApi, "update_consumer_offset", late)
    consumer.unsubscribe(topic)
    assert tells.wait(PATIENCE_S)
    reset(cluster, group, topic)
    may_tell.set()
    busy.begun.clear()
    consumer.subscribe(topic)
    wait_until("all once more", lambda: sorted(busy.begun) == [0, 1, 2, 3], PATIENCE_S)
