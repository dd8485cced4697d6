"""Sends parked until their topic is saved: dispatched once, in order, limited, and
never for ever."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.brokers.connections import FakeConnection
from support.stores.small_store import small_config

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.processor.sends import pending_topic_sends
from rocketpoll.broker.processor.sends.pending_topic_sends import (
    BYTES_MAX,
    DISPATCHED_PER_STEP,
    PendingTopicSends,
)
from rocketpoll.broker.settings.config import BrokerConfig

LARGE = b"a batch of very many"


class Topics:
    """Topics in memory, and which of them are on the disk."""

    def __init__(self):
        self.made = {}
        self.saved = {}

    def create(self, name):
        return self.made.setdefault(name, TopicConfig(topic_name=name))

    def change(self, name):
        self.made[name] = TopicConfig(topic_name=name)

    def save(self):
        self.saved = dict(self.made)

    def is_saved(self, config):
        return self.saved.get(config.topic_name) is config


class Room:
    """The sends of one client; the test runs the saving thread and the loop's turns."""

    def __init__(self, capacity=1_000):
        self.topics = Topics()
        self.aside = deque()
        self.soon = deque()
        self.stored = []
        self.unwritten = 0
        self.client = FakeConnection()
        self.pending_sends = PendingTopicSends(
            SimpleNamespace(
                topics=self.topics,
                config=BrokerConfig(store=small_config(Path()), send_queue_capacity=capacity),
                run_in_thread=lambda job, then: self.aside.append((job, then)),
                run_steps=self.work,
            ),
            self.dispatch,
            self.end_turn,
        )

    def dispatch(self, connection, request):
        """Handle a request as a handler that stores messages does."""
        topic = request.ext_fields["topic"]
        config = self.topics.create(topic)
        if self.pending_sends.must_wait(config):
            refusal = self.pending_sends.suspend(connection, request, topic)
            if refusal is not None:
                connection.send(refusal)
            return None
        assert self.topics.is_saved(config)
        if request.body == LARGE:
            return self.take_apart(connection, request)
        self.store(connection, request)
        return None

    def take_apart(self, connection, request):
        for _ in range(3):
            yield
        self.store(connection, request)

    def store(self, connection, request):
        self.stored.append((request.ext_fields["topic"], request.opaque))
        self.unwritten += 1
        connection.send(request.respond(ResponseCode.SUCCESS))

    def end_turn(self):
        self.unwritten = 0

    def work(self, steps):
        """Do one step in each turn."""
        if next(steps, self) is not self:
            self.soon.append(lambda: self.work(steps))

    def send(self, topic, opaque, body=b"", flag=0, client=None, more=()):
        fields = {"topic": topic, **dict(more)}
        request = RemotingCommand(10, opaque=opaque, flag=flag, ext_fields=fields, body=body)
        self.dispatch(client or self.client, request)
        self.end_turn()

    def save(self, error=None):
        """Let the thread finish its next job."""
        job, then = self.aside.popleft()
        if error is None:
            job()
        then(error)

    def turns(self):
        """Run turns until no work is left."""
        while self.soon:
            self.soon.popleft()()

    def settle(self):
        self.turns()
        while self.aside:
            self.save()
            self.turns()

    def answers(self):
        return [(each.opaque, each.code) for each in self.client.sent]


@pytest.fixture
def room():
    return Room()


def test_send_after_topic_save_stays_past_parked_sends(room):
    room.send("A", 1)
    room.topics.save()  # in the thread; the broker is not notified yet
    room.send("A", 2)
    assert room.stored == []
    room.settle()
    assert room.stored == [("A", 1), ("A", 2)]


def test_sends_parked_twice_keep_their_order(room):
    for opaque in (1, 2, 3):
        room.send("A", opaque)
    save, then = room.aside.popleft()
    save()
    room.topics.change("A")  # before the broker is notified of the save
    then(None)
    assert room.stored == []
    room.settle()
    assert room.stored == [("A", 1), ("A", 2), ("A", 3)]


def test_parked_sends_count_their_fields_like_their_bodies():
    room = Room()
    for opaque in range(400):
        room.send("A", opaque, more={"x": f"{opaque}" + "y" * 240_000})
    refused = room.answers()
    assert len(refused) == 400 - BYTES_MAX // 240_100
    room.settle()
    assert len(room.stored) + len(refused) == 400


def test_parked_send_copies_its_body(room):
    received = bytearray(1_000)
    room.send("A", 1, body=memoryview(received)[10:20])
    received.clear()  # fails with BufferError if the parked send still had a view
    room.settle()
    assert room.stored == [("A", 1)]


def test_parked_sends_are_dispatched_in_several_turns_in_order():
    room = Room(capacity=3 * DISPATCHED_PER_STEP)
    for opaque in range(2 * DISPATCHED_PER_STEP + 1):
        room.send("A", opaque)
    room.save()
    assert len(room.stored) == DISPATCHED_PER_STEP
    room.send("A", 9_999)
    room.settle()
    assert room.stored == [("A", n) for n in (*range(2 * DISPATCHED_PER_STEP + 1), 9_999)]


def test_send_during_a_stepwise_parked_send_keeps_order(room):
    room.send("A", 1)
    room.send("A", 2, body=LARGE)
    room.send("A", 3)
    room.save()
    assert room.stored == [("A", 1)]
    room.send("A", 4)
    room.settle()
    assert room.stored == [("A", number) for number in (1, 2, 3, 4)]


def test_parked_send_that_cannot_be_answered_does_not_block_others(room, caplog):
    broken = FakeConnection()
    broken.send = None
    room.send("A", 1, client=broken)
    room.send("A", 2)
    room.settle()
    assert room.answers() == [(2, 0)]
    assert broken.closed_because == "its send could not be answered"
    assert "could not be answered" in caplog.text


class ParkingMachine(RuleBasedStateMachine):
    """Random sends, saves that succeed or fail, topic changes, and clients that leave."""

    @initialize()
    def begin(self):
        self.room = Room()
        self.sent = {}
        self.count = 0

    @rule(topic=st.sampled_from("AB"))
    def send(self, topic):
        self.count += 1
        self.sent[self.count] = topic
        self.room.send(topic, self.count)

    @rule(topic=st.sampled_from("AB"))
    def send_large(self, topic):
        """Send to a saved topic: only this connection handles the send."""
        if self.room.pending_sends.must_wait(self.room.topics.create(topic)):
            self.count += 1
            self.sent[self.count] = topic
            self.room.send(topic, self.count, body=LARGE)

    @rule(topic=st.sampled_from("AB"))
    def change_topic(self, topic):
        self.room.topics.change(topic)

    @rule()
    def save_unheard(self):
        """Save in the thread, without notifying the broker yet."""
        self.room.topics.save()

    @precondition(lambda self: self.room.aside)
    @rule(fails=st.booleans())
    def end_save(self, fails):
        self.room.save(OSError("full") if fails else None)

    @precondition(lambda self: self.room.soon)
    @rule()
    def turn(self):
        self.room.soon.popleft()()

    @rule()
    def settle(self):
        self.room.settle()
        assert sorted(opaque for opaque, _ in self.room.answers()) == sorted(self.sent)

    @invariant()
    def each_is_answered_once_and_those_of_a_topic_are_in_order(self):
        answered = [opaque for opaque, _ in self.room.answers()]
        assert len(answered) == len(set(answered))
        for topic in "AB":
            stored = [opaque for name, opaque in self.room.stored if name == topic]
            assert stored == sorted(stored)
            assert {self.sent[opaque] for opaque in stored} <= {topic}


ParkingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)


class TestParking(ParkingMachine.TestCase):
    """Runs the machine with a small turn, so that many turns are needed."""

    @pytest.fixture(autouse=True)
    def _few_in_a_turn(self, monkeypatch):
        monkeypatch.setattr(pending_topic_sends, "DISPATCHED_PER_STEP", 2)
