import pytest
from disks import ManualClock
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll.broker.state.queue_locks import QueueLocks

ONE, TWO, THREE = (MessageQueue("T", "broker-a", number) for number in (1, 2, 3))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def locks(clock):
    return QueueLocks(clock)


def test_a_queue_has_one_owner_who_may_lock_it_again(locks):
    assert locks.lock("g", "a", {ONE, TWO}) == {ONE, TWO}
    assert locks.lock("g", "b", {TWO, THREE}) == {THREE}
    assert locks.lock("g", "a", {ONE, TWO, THREE}) == {ONE, TWO}


def test_who_asks_for_more_than_there_may_be_gets_none_until_some_have_gone(locks, clock, monkeypatch):
    monkeypatch.setattr("rocketpoll.broker.state.queue_locks.LOCKS_MAX", 2)
    assert len(locks.lock("g", "a", {ONE, TWO, THREE})) == 2
    assert locks.lock("h", "b", {ONE}) == set()
    assert len(locks.lock("g", "a", {ONE, TWO, THREE})) == 2
    clock.now_ms += 60_001
    assert locks.lock("h", "b", {ONE}) == {ONE}


def test_groups_do_not_get_in_each_others_way(locks):
    locks.lock("g", "a", {ONE})
    assert locks.lock("h", "b", {ONE}) == {ONE}


def test_a_lock_lasts_a_minute_from_its_last_renewal(locks, clock):
    locks.lock("g", "a", {ONE})
    clock.now_ms += 40_000
    locks.lock("g", "a", {ONE})
    clock.now_ms += 60_000
    assert locks.lock("g", "b", {ONE}) == frozenset()
    clock.now_ms += 1
    assert locks.lock("g", "b", {ONE}) == {ONE}
    assert locks.lock("g", "a", {ONE}) == frozenset()


def test_only_the_owner_lets_go(locks):
    locks.lock("g", "a", {ONE, TWO})
    locks.unlock("g", "b", {ONE})
    locks.unlock("h", "a", {ONE})
    assert locks.lock("g", "b", {ONE}) == frozenset()
    locks.unlock("g", "a", {ONE, THREE})
    assert locks.lock("g", "b", {ONE, TWO}) == {ONE}


def test_a_clock_that_was_set_back_keeps_nobody_out_for_longer_than_a_minute(locks, clock):
    locks.lock("g", "a", {ONE})
    clock.now_ms -= 3_600_000
    assert locks.lock("g", "b", {ONE}) == frozenset()
    clock.now_ms += 60_001
    assert locks.lock("g", "b", {ONE}) == {ONE}


def test_groups_that_are_gone_take_no_room(locks, clock):
    for number in range(1_000):
        locks.lock(f"group-{number}", "a", {ONE})
    assert len(locks) == 1_000
    clock.now_ms += 60_001
    locks.lock("g", "a", {ONE})
    assert len(locks) == 1


class LockMachine(RuleBasedStateMachine):
    """Whatever happens, no queue has two owners within a minute, and nobody is kept out for longer."""

    clients = st.sampled_from("abc")
    queues = st.frozensets(st.sampled_from([ONE, TWO, THREE]))

    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.locks = QueueLocks(self.clock)
        self.model = {}

    @rule(client=clients, queues=queues)
    def lock(self, client, queues):
        free = {
            queue
            for queue in queues
            if queue not in self.model
            or self.model[queue][0] == client
            or self.clock.now_ms - self.model[queue][1] > 60_000
        }
        assert self.locks.lock("g", client, queues) == free
        self.model |= dict.fromkeys(free, (client, self.clock.now_ms))

    @rule(client=clients, queues=queues)
    def unlock(self, client, queues):
        self.locks.unlock("g", client, queues)
        for queue in queues:
            if self.model.get(queue, ("", 0))[0] == client:
                del self.model[queue]

    @rule(ms=st.sampled_from([1, 20_000, 60_000, 60_001]))
    def wait(self, ms):
        self.clock.now_ms += ms

    @invariant()
    def it_keeps_no_more_than_it_has_to(self):
        assert len(self.locks) <= len(self.model)


LockMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestLocks = LockMachine.TestCase
