"""Where an operator moves a queue counts behind all that its member was about to store."""

from __future__ import annotations

from collections import deque

import pytest

from rmq_spark.client.consumer import member_offsets
from rmq_spark.client.consumer.last_known import LastKnown
from rmq_spark.client.consumer.member_offsets import MemberOffsets
from rmq_spark.client.consumer.offset_table import ReadOffsetType
from rmq_spark.client.consumer.remote_offset_store import RemoteBrokerOffsetStore
from rmq_spark.client.errors import ConnectionFailed
from rmq_spark.wire.message_queue import MessageQueue

QUEUE, OTHER = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


class Broker:
    """Keeps offsets, and may be down."""

    def __init__(self):
        self.offsets, self.told, self.is_down = {}, [], False

    def query(self, queue):
        return self.offsets.get(queue)

    def update(self, queue, offset, **_):
        if self.is_down:
            raise ConnectionFailed("broker-a", "down")
        self.offsets[queue] = offset
        self.told.append(offset)


class Lane:
    """The lane of the only broker: what is in it begins when it is told to."""

    def __init__(self):
        self._tasks = deque()

    def of(self, _):
        return self

    def schedule(self, task):
        self._tasks.append(task)

    def run(self):
        while self._tasks:
            self._tasks.popleft()()


class Member:
    """A member that has read ten messages of its only queue."""

    def __init__(self):
        self.broker, self.lane, self.known = Broker(), Lane(), {QUEUE: LastKnown()}
        self.store = RemoteBrokerOffsetStore(self.broker.query, self.broker.update)
        self.offsets = MemberOffsets(
            self.store, None, self.lane, None, lambda: self.known, lambda *_: None
        )
        self.reaches(10)

    def reaches(self, offset):
        self.store.update_offset(QUEUE, offset, increase_only=False)

    def gives_up(self):
        self.offsets.forget(QUEUE, self.known.pop(QUEUE))

    def takes_back(self):
        self.known[QUEUE] = LastKnown()


@pytest.fixture
def member():
    return Member()


@pytest.fixture
def clock(monkeypatch):
    """The time in ms, to be moved."""
    now = [1_000]
    monkeypatch.setattr(member_offsets, "monotonic_ms", lambda: now[0])
    return now


def test_what_is_consumed_of_a_queue_that_is_moved_as_it_is_given_up_is_never_stored(member):
    member.gives_up()
    member.offsets.forget_at(QUEUE, 3)
    member.lane.run()
    assert set(member.broker.told) == {3}
    assert member.store.read_offset(QUEUE, ReadOffsetType.READ_FROM_MEMORY) is None


def test_a_queue_that_could_not_be_moved_has_its_offsets_stored_when_it_is_back(member, caplog):
    member.gives_up()
    member.offsets.forget_at(QUEUE, 3)
    member.broker.is_down = True
    member.lane.run()
    assert member.store.read_offset(QUEUE, ReadOffsetType.READ_FROM_MEMORY) is None
    (said,) = [each for each in caplog.messages if "was moved to" in each]
    assert said.startswith("the offset 3 that MessageQueue(topic='T'")
    member.broker.is_down = False
    member.takes_back()
    member.reaches(12)
    member.offsets.persist_now((QUEUE,))
    assert member.broker.offsets == {QUEUE: 12}


def test_who_is_told_a_little_late_stores_it_and_much_later_it_is_anothers(member, clock):
    member.gives_up()
    member.lane.run()
    assert member.broker.offsets == {QUEUE: 10}
    clock[0] += 4_999
    member.offsets.forget_at(QUEUE, 3)
    member.lane.run()
    assert member.broker.offsets == {QUEUE: 3}
    clock[0] += 1
    member.offsets.forget_at(QUEUE, 5)
    member.lane.run()
    assert member.broker.offsets == {QUEUE: 3}


def test_who_leaves_moves_what_was_given_up_just_now_and_nothing_of_others(member):
    member.gives_up()
    assert member.offsets.leave_at(QUEUE, 3)
    assert not member.offsets.leave_at(OTHER, 3)
    member.lane.run()
    assert set(member.broker.told) == {3}
    assert member.broker.offsets == {QUEUE: 3}
