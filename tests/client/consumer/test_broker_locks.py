"""Queue locks are requested together, expire, and are released after the offsets are stored."""

import logging

import pytest
from support.clients.manual_scheduler import MovedTasks

from rmq_spark.client.consumer.dispatch import consume_services
from rmq_spark.client.consumer.dispatch.consume_services import BrokerQueueLocks
from rmq_spark.client.consumer.pull.pull_task import PullRequest, QueueOwnership
from rmq_spark.client.consumer.queues.process_queue import (
    LOCK_EXPIRES_MS,
    ProcessQueue,
    monotonic_ms,
)
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.wire.message_queue import MessageQueue


class AtOnce:
    """An executor that runs tasks immediately, ordered by broker name."""

    def for_broker(self, _broker):
        return self

    def schedule(self, action):
        action()

    def run_for_each(self, brokers, action, _wait_ms):
        for broker in brokers:
            action(broker)


class Brokers:
    """Brokers that grant free locks and record requests."""

    def __init__(self):
        self.asked, self.unlocked, self.fails, self.of_others = [], [], None, set()
        self.before_unlocking = lambda: None

    def lock(self, queues):
        queues = frozenset(queues)
        self.asked.append(queues)
        return queues - self.of_others

    def unlock(self, queues):
        self.before_unlocking()
        if self.fails:
            raise self.fails
        self.unlocked += queues

    def may_be_at(self, broker_name, address):
        return broker_name == address


class Member:
    """The queue locks of a member."""

    def __init__(self, *requests):
        self.requests, self.brokers, self.persisted, self.told = [*requests], Brokers(), [], []
        self.expected = []
        self.locks = BrokerQueueLocks(
            self.brokers,
            AtOnce(),
            lambda: [*self.requests],
            self.persisted.extend,
            self.told.extend,
            self.expected.extend,
        )


def request(number=0, broker="a", holding=None):
    queue = MessageQueue("T", broker, number)
    return PullRequest(queue, ProcessQueue(monotonic_ms), ownership=holding or QueueOwnership())


def test_queue_locks_of_a_broker_are_requested_together_at_most_once_a_second():
    requests = [request(0), request(1), request(0, "b")]
    member = Member(*requests)
    member.brokers.of_others = {requests[1].queue}
    assert member.locks.ensure_locked(requests[0])
    assert member.brokers.asked == [{requests[0].queue, requests[1].queue}]
    assert member.locks.ensure_locked(requests[0])
    assert not member.locks.ensure_locked(requests[1])
    assert not member.locks.check_locked(requests[1])
    assert len(member.brokers.asked) == 1


def test_queue_lock_expiry_counts_from_the_lock_request(monkeypatch):
    clock = MovedTasks()
    monkeypatch.setattr(consume_services, "monotonic_ms", clock)
    asked = PullRequest(MessageQueue("T", "a", 0), ProcessQueue(clock), ownership=QueueOwnership())
    member = Member(asked)
    lock = member.brokers.lock

    def late(queues):
        clock.move(LOCK_EXPIRES_MS - 1_000)
        return lock(queues)

    member.brokers.lock = late
    assert member.locks.ensure_locked(asked)
    clock.move(1_000)
    assert asked.process_queue.is_locked
    clock.move(1)
    assert not asked.process_queue.is_locked


def test_locked_queues_are_prefetched_together():
    requests = [request(0), request(1), request(2), request(0, "b")]
    member = Member(*requests)
    member.brokers.of_others = {requests[1].queue}
    requests[2].next_offset = 7
    member.locks.ensure_locked(requests[0])
    assert member.expected == [requests[0].queue]


def test_dropped_queue_is_not_locked_again():
    requests = [request(0), request(1)]
    member = Member(*requests)
    requests[0].process_queue.drop()
    requests[1].process_queue.retire()  # its listener is still running
    member.locks.lock_all()
    assert member.brokers.asked == [{requests[1].queue}]


def test_queue_held_by_another_local_listener_is_not_locked():
    holding = QueueOwnership()
    mine, free = request(holding=holding), request(1)
    member, other = Member(mine, free), Member(request(holding=holding))
    other.locks.lock_all()
    with holding.listener_lock:
        assert not member.locks.ensure_locked(mine)
    assert member.brokers.asked == [{free.queue}]
    assert member.locks.ensure_locked(mine)


def test_unlock_stores_offsets_first_and_notifies_waiters():
    requests, stored = [request(0), request(1)], []
    member = Member(*requests)
    member.brokers.before_unlocking = lambda: stored.extend(member.persisted)
    member.locks.lock_all()
    member.locks.unlock(requests)
    assert stored == member.brokers.unlocked == [each.queue for each in requests]
    assert member.told == requests


def test_unlock_skips_queue_taken_over_by_another_member():
    holding = QueueOwnership()
    mine, kept = request(holding=holding), request(1)
    member, other = Member(mine, kept), Member(request(holding=holding))
    member.locks.lock_all()
    other.locks.lock_all()
    member.locks.unlock([mine, kept])
    assert member.brokers.unlocked == member.persisted == [kept.queue]
    assert member.told == [mine, kept]


@pytest.mark.parametrize("fails", [ClientShutDown("it was shut down"), None])
def test_failed_unlock_notifies_waiters(caplog, fails):
    caplog.set_level(logging.WARNING)
    mine = request()
    member = Member(mine)
    member.locks.lock_all()
    member.brokers.fails = fails
    member.locks.unlock([mine])
    assert member.told == [mine]
    assert ("stays locked for a minute" in caplog.text) == bool(fails)
    assert not mine.ownership.listener_lock.locked()


def test_lost_connection_invalidates_the_queue_locks_of_its_broker():
    requests = [request(0), request(0, "b")]
    member = Member(*requests)
    member.locks.lock_all()
    member.locks.invalidate("b")
    assert [each.process_queue.is_locked for each in requests] == [True, False]
