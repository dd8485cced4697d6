"""A topic is recreated while a group consumes it: no message of the new topic is skipped."""

import itertools
import shutil
import threading
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.fake_members import implementation_of
from support.suite.selection import spread

from rmq_spark.client.admin.group_offsets import LATEST_MS
from rocketpoll import (
    Admin,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    PullLimits,
    PushConsumer,
    PushSettings,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
OLD = [f"old {number}" for number in range(20)]
LAST = "the last"
PATIENCE_S = 30
STORED_EVERY_MS = 200
SMALL_FILES = {  # the test copies them, and an almost empty file has its full size
    "mappedFileSizeCommitLog": str(1 << 20),
    "maxMessageSize": str(1 << 19),
    "maxHashSlotNum": "64",
    "maxIndexNum": "256",
}


class Member:
    """A consumer of the topic, and its received messages."""

    def __init__(self, kind, address, lite_settings=None):
        self.had = []
        if kind == "lite":
            settings = lite_settings or LitePullSettings(
                consume_from_where=FIRST,
                persist_consumer_offset_interval_ms=STORED_EVERY_MS,
                auto_commit_interval_ms=1_000,
            )
            self.consumer = LitePullConsumer("G", address, settings)
        else:
            name = "orderly_listener" if kind == "orderly" else "listener"
            settings = PushSettings(
                consume_from_where=FIRST, persist_consumer_offset_interval_ms=STORED_EVERY_MS
            )
            self.consumer = PushConsumer("G", address, **{name: self.listen}, settings=settings)
        self.consumer.subscribe("T")

    def listen(self, messages, _):
        self.had += [message.body.decode() for message in messages]

    def has(self, bodies):
        if isinstance(self.consumer, LitePullConsumer):
            self.listen(self.consumer.poll(50), None)
        return set(bodies) <= set(self.had)

    def has_or_holds(self, body):
        """Return whether the body has arrived; a paused lite consumer caches it."""
        is_lite = isinstance(self.consumer, LitePullConsumer)
        return body in self.had or (is_lite and self.consumer.health().cached_messages == 1)

    def pause(self):
        if isinstance(self.consumer, LitePullConsumer):
            self.consumer.pause(self.consumer.assignment())
        else:
            self.consumer.suspend()

    def resume(self):
        if isinstance(self.consumer, LitePullConsumer):
            self.consumer.resume(self.consumer.assignment())
        else:
            self.consumer.resume()


@contextmanager
def broker_with_the_old_ones():
    with EmbeddedBroker() as broker:
        broker.create_topic("T", queues=1)
        broker.send("T", *OLD)
        yield broker


@pytest.mark.parametrize("kind", ["concurrently", "orderly", "lite"])
@pytest.mark.parametrize("count", [5, 40], ids=["shorter", "longer"])
def test_member_continues_at_the_first_message_of_a_recreated_topic(kind, count):
    new = [f"new {number}" for number in range(count)]
    with broker_with_the_old_ones() as broker, Admin(broker.address) as admin:
        member = Member(kind, broker.address)
        with member.consumer:
            wait_until("the old ones are there", lambda: member.has(OLD), PATIENCE_S)
            make_again(broker, new)
            wait_until("the new ones are there", lambda: member.has(new), PATIENCE_S)

            def is_committed():
                member.has([])
                [lag] = admin.lag("G", "T")
                return lag.consumer_offset == count

            wait_until("they are committed", is_committed, PATIENCE_S)


@contextmanager
def ended(consumer):
    try:
        yield
    finally:
        consumer.shutdown()


@contextmanager
def member_that_has_the_old_ones(kind):
    with broker_with_the_old_ones() as broker:
        member = Member(kind, broker.address)
        with member.consumer:
            wait_until("the old ones are there", lambda: member.has(OLD), PATIENCE_S)
            yield broker, member


def wait_until_held(broker, member):
    """Wait until the broker holds all pulls of a member, including those of the retry topic."""
    held = 1 if isinstance(member.consumer, LitePullConsumer) else 2
    holds = broker._runner._controller.hold_service
    wait_until("all its pulls are held", lambda: holds.hold_count == held, PATIENCE_S)


def make_again_unnoticed(broker, member, new):
    """Recreate a topic between two pulls of a member."""
    wait_until_held(broker, member)
    member.pause()
    broker.send("T", LAST)
    wait_until("the last one is there", lambda: member.has_or_holds(LAST), PATIENCE_S)
    make_again(broker, new)


def make_again(broker, new):
    """Delete the topic, and create it again with other messages."""
    broker.delete_topic("T")
    broker.create_topic("T", queues=1)
    broker.send("T", *new)


def give_up_pulls(member):
    """End the held pulls without a response, as a lost connection does."""
    implementation_of(member.consumer)._restart_pulls("T")


@pytest.mark.parametrize("kind", ["concurrently", "orderly", "lite"])
def test_paused_member_continues_at_the_first_message_of_a_recreated_topic(kind):
    new = [f"new {number}" for number in range(40)]
    with member_that_has_the_old_ones(kind) as (broker, member):
        make_again_unnoticed(broker, member, new)
        member.resume()
        wait_until("the new ones are there", lambda: member.has(new), PATIENCE_S)
    assert member.had == [*OLD, LAST, *new]


def reset_to_the_end(broker, _):
    with Admin(broker.address) as admin:
        assert admin.reset_to_time("G", "T", LATEST_MS)


def reset_to_a_time(broker, _):
    with Admin(broker.address) as admin:
        assert admin.reset_to_time("G", "T", time.time_ns() // 1_000_000)


def set_an_offset(broker, _):
    with Admin(broker.address) as admin:
        admin.set_offset("G", admin.lag("G", "T")[0].queue, 15)


def seek_to_a_time(_, member):
    [queue] = member.consumer.assignment()
    member.consumer.seek_to_time(queue, time.time_ns() // 1_000_000)


def seek_to_the_end(_, member):
    [queue] = member.consumer.assignment()
    member.consumer.seek_to_end(queue)


def seek_an_offset(_, member):
    [queue] = member.consumer.assignment()
    member.consumer.seek(queue, 15)


def what_is_known(member):
    [known] = [
        known
        for queue, known in implementation_of(member.consumer)._fingerprints().items()
        if queue.topic == "T"
    ]
    return known


def wait_until_it_knows_its_place(member, before):
    """Wait until a member was notified, and has looked up the message at its new offset."""

    def has_asked():
        known = what_is_known(member)
        return known is not before and known._offset is not None

    wait_until("it knows its place", has_asked, PATIENCE_S)


MOVES = [
    *itertools.product(
        ["concurrently", "orderly", "lite"], [reset_to_the_end, reset_to_a_time, set_an_offset]
    ),
    *(("lite", move) for move in (seek_to_a_time, seek_to_the_end, seek_an_offset)),
]


@pytest.mark.parametrize(("kind", "move"), spread(6, MOVES))
@pytest.mark.parametrize("count", [5, 40], ids=["shorter", "longer"])
def test_reset_member_begins_recreated_topic_before_it_pulls(kind, move, count):
    new = [f"new {number}" for number in range(count)]
    with member_that_has_the_old_ones(kind) as (broker, member):
        wait_until_held(broker, member)
        member.pause()
        broker.send("T", LAST)
        wait_until("the last one is there", lambda: member.has_or_holds(LAST), PATIENCE_S)
        before = what_is_known(member)
        move(broker, member)
        wait_until_it_knows_its_place(member, before)
        make_again(broker, new)
        member.resume()
        wait_until("the new ones are there", lambda: member.has(new), PATIENCE_S)
    assert [body for body in member.had if body in new] == new


@pytest.mark.parametrize("kind", ["concurrently", "orderly", "lite"])
@pytest.mark.parametrize("count", [5, 40], ids=["shorter", "longer"])
def test_member_without_messages_begins_recreated_topic_at_zero(kind, count):
    new = [f"new {number}" for number in range(count)]
    with broker_with_the_old_ones() as broker:
        before = Member("lite", broker.address)
        with before.consumer:
            wait_until("the old ones are there", lambda: before.has(OLD), PATIENCE_S)
            before.consumer.commit()
        member = Member(kind, broker.address)
        with member.consumer:
            wait_until_held(broker, member)
            member.pause()
            give_up_pulls(member)
            make_again(broker, new)
            member.resume()
            wait_until("the new ones are there", lambda: member.has(new), PATIENCE_S)
        assert member.had == new


@pytest.mark.parametrize("kind", ["concurrently", "orderly", "lite"])
def test_busy_member_detects_recreated_topic_after_its_pause(kind, monkeypatch):
    """The member's pull thread checks the queue only after it is resumed."""
    monkeypatch.setattr(
        "rmq_spark.client.consumer.queues.queue_identity.UNVERIFIED_MS_MAX", 600_000
    )
    new, is_free = [f"new {number}" for number in range(40)], threading.Event()
    with member_that_has_the_old_ones(kind) as (broker, member):
        [queue] = [each for each in member.consumer.assignment() if each.topic == "T"]
        wait_until_held(broker, member)
        implementation_of(member.consumer)._broker_executor.for_broker(queue.broker_name).schedule(
            is_free.wait
        )
        make_again_unnoticed(broker, member, new)
        member.resume()
        is_free.set()
        wait_until("the new ones are there", lambda: member.has(new), PATIENCE_S)
    assert member.had == [*OLD, LAST, *new]


@pytest.mark.parametrize("kind", ["concurrently", "orderly", "lite"])
@pytest.mark.parametrize("more", [-3, 0, 20], ids=["shorter", "as long", "longer"])
def test_restored_older_store_resumes_at_the_first_different_message(tmp_path, kind, more):
    new = [f"new {number}" for number in range(len(OLD) + more)]
    store, copy = tmp_path / "store", tmp_path / "copy"
    with EmbeddedBroker(store, **SMALL_FILES) as broker:
        broker.create_topic("T", queues=1)
        broker.send("T", *OLD)
        port = int(broker.address.rpartition(":")[2])
    shutil.copytree(store, copy)
    with EmbeddedBroker(store, port=port, **SMALL_FILES) as broker:
        broker.send("T", *(f"lost {number}" for number in range(len(OLD))))
        member = Member(kind, broker.address)
        member.consumer.start()
        wait_until("all are there", lambda: member.has(["lost 19"]), PATIENCE_S)
    with ended(member.consumer), EmbeddedBroker(copy, port=port, **SMALL_FILES) as broker:
        broker.send("T", *new)
        wait_until("the new ones are there", lambda: member.has(new), PATIENCE_S)
    assert Counter(member.had).most_common(1)[0][1] == 1


def left_for_the_next(broker):
    """Return the messages of a member that joins the group now."""
    member = Member("lite", broker.address)
    with member.consumer:
        wait_until("it has the end", lambda: member.has(["new 39"]), PATIENCE_S)
    return member.had


def test_uncommitted_messages_of_recreated_topic_go_to_the_next_member():
    new = [f"new {number}" for number in range(40)]
    with broker_with_the_old_ones() as broker:
        settings = LitePullSettings(auto_commit=False, consume_from_where=FIRST)
        member = Member("lite", broker.address, settings)
        with member.consumer:
            wait_until("the old ones are there", lambda: member.has(OLD), PATIENCE_S)
            member.consumer.commit()
            make_again(broker, new)
            wait_until("the new ones are there", lambda: member.has(new), PATIENCE_S)
        assert left_for_the_next(broker) == new


@pytest.mark.parametrize("kind", ["concurrently", "orderly", "lite"])
def test_member_leaving_a_recreated_topic_unnoticed_stores_no_old_offset(kind):
    new = [f"new {number}" for number in range(40)]
    with broker_with_the_old_ones() as broker:
        member = Member(kind, broker.address)
        with member.consumer:
            wait_until("the old ones are there", lambda: member.has(OLD), PATIENCE_S)
            make_again_unnoticed(broker, member, new)
        assert left_for_the_next(broker) == new


def test_full_member_commits_no_old_offset_to_a_recreated_topic(monkeypatch):
    """The new topic has no message at the last offset yet; the member leaves before it finds its
    new position."""
    monkeypatch.setattr("rmq_spark.client.consumer.queues.queue_identity.UNVERIFIED_MS_MAX", 0)
    new = [f"new {number}" for number in range(40)]
    others_go_on, last_goes_on = threading.Event(), threading.Event()

    def listen(messages, _):
        is_last = messages[0].body == OLD[-1].encode()
        (last_goes_on if is_last else others_go_on).wait(PATIENCE_S)

    settings = PushSettings(
        consume_from_where=FIRST,
        consume_message_batch_max_size=1,
        limits=PullLimits(pull_threshold_for_queue=2),
        persist_consumer_offset_interval_ms=600_000,
    )
    with broker_with_the_old_ones() as broker:
        with PushConsumer("G", broker.address, listener=listen, settings=settings) as consumer:
            consumer.subscribe("T")
            wait_until(
                "it is full", lambda: consumer.health().cached_messages == len(OLD), PATIENCE_S
            )
            broker.delete_topic("T")
            broker.create_topic("T", queues=1)
            broker.send("T", new[0])
            others_go_on.set()
            [queue] = [each for each in consumer.assignment() if each.topic == "T"]
            known = implementation_of(consumer)._fingerprints()[queue]
            wait_until("it has pulled", lambda: known.must_relocate, PATIENCE_S)
            broker.send("T", *new[1:])
        last_goes_on.set()
        assert left_for_the_next(broker) == new


def test_seek_in_a_recreated_topic_reads_its_current_messages():
    new = [f"new {number}" for number in range(10)]
    with broker_with_the_old_ones() as broker:
        member = Member("lite", broker.address)
        with member.consumer:
            wait_until("the old ones are there", lambda: member.has(OLD), PATIENCE_S)
            make_again(broker, new)
            [queue] = member.consumer.assignment()
            member.consumer.seek(queue, 5)
            wait_until("the new ones are there", lambda: member.has(new[5:]), PATIENCE_S)
        assert member.had == OLD + new[5:]


@pytest.mark.parametrize("kind", ["concurrently", "orderly"])
def test_member_resumes_at_the_reset_offset_in_a_recreated_topic(kind):
    new = [f"new {number}" for number in range(10)]
    with broker_with_the_old_ones() as broker, Admin(broker.address) as admin:
        member = Member(kind, broker.address)
        with member.consumer:
            wait_until("the old ones are there", lambda: member.has(OLD), PATIENCE_S)
            make_again_unnoticed(broker, member, new)
            [lag] = admin.lag("G", "T")
            admin.set_offset("G", lag.queue, 5)
            member.resume()
            wait_until("the new ones are there", lambda: member.has(new[5:]), PATIENCE_S)
        assert [each for each in member.had if each.startswith("new")] == new[5:]
