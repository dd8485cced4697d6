"""Queue locks: owners, expiry and limits."""

from collections import defaultdict
from sys import getsizeof

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.brokers.connections import FakeConnection
from support.disks.faulty_disk import ManualClock

from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll.broker.common.channel import Identity
from rocketpoll.broker.state.members.queue_locks import QueueLocks

ONE, TWO, THREE = (MessageQueue("T", "broker-a", number) for number in (1, 2, 3))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def locks(clock):
    return QueueLocks(clock)


CONNECTIONS = defaultdict(FakeConnection)
"""Connections by client name."""


def lock(locks, group, client_id, queues, *, by=None, is_member=True):
    """Lock queues on a client's own connection, or on another one."""
    return locks.lock(CONNECTIONS[by or client_id], group, client_id, queues, is_member=is_member)


def unlock(locks, group, client_id, queues, *, by=None):
    """Unlock queues on a client's own connection, or on another one."""
    locks.unlock(CONNECTIONS[by or client_id], group, client_id, queues)


def close(locks, by, *, is_member=False):
    """Close a connection, whose client is a member of all its groups, or of none."""
    for _ in locks.connection_closed(CONNECTIONS[by], lambda _group, _client_id: is_member):
        pass


def many(count):
    return [MessageQueue("T", "broker-a", number) for number in range(count)]


@pytest.fixture
def small_room(monkeypatch):
    """Limit locks to 64 queues, 4 for each member and 2 for each other client."""
    one = 512 + 2 * getsizeof("x")  # a lock, a group and a client's id of one letter each
    monkeypatch.setattr("rocketpoll.broker.state.members.queue_locks.LOCK_BYTES_MAX", 64 * one)
    monkeypatch.setattr("rocketpoll.broker.state.members.queue_locks.NON_MEMBER_SHARE", 32)


def test_queue_lock_has_one_owner_who_may_renew_it(locks):
    assert lock(locks, "g", "a", {ONE, TWO}) == {ONE, TWO}
    assert lock(locks, "g", "b", {TWO, THREE}) == {THREE}
    assert lock(locks, "g", "a", {ONE, TWO, THREE}) == {ONE, TWO}


def test_skipped_time_expires_no_queue_lock(locks, clock):
    lock(locks, "g", "a", {ONE})
    clock.now_ms += 120_000
    locks.skip_time(120_000)
    assert lock(locks, "g", "b", {ONE}) == set()
    clock.now_ms += 60_001
    assert lock(locks, "g", "b", {ONE}) == {ONE}


@pytest.mark.usefixtures("small_room")
def test_queue_locks_are_limited_per_client_across_groups(locks):
    assert len(lock(locks, "g", "a", many(64))) == 4
    assert len(lock(locks, "h", "a", many(64))) == 0
    assert len(lock(locks, "h", "b", many(64))) == 4


@pytest.mark.usefixtures("small_room")
def test_queue_locks_give_less_space_to_strangers(locks):
    assert len(lock(locks, "g", "a", many(64), is_member=False)) == 2
    assert len(lock(locks, "g", "a", many(64))) == 4
    assert len(lock(locks, "g", "a", many(64), is_member=False)) == 4


@pytest.mark.usefixtures("small_room")
def test_queue_lock_holder_renews_beyond_the_share(locks, clock):
    for number in range(16):
        assert len(lock(locks, f"{number:x}", f"{number:x}", many(4))) == 4
    assert not lock(locks, "x", "x", many(1))
    clock.now_ms += 50_000
    close(locks, "a", is_member=True)
    assert len(lock(locks, "a", "a", many(5), by="x", is_member=False)) == 4
    clock.now_ms += 50_000
    assert not lock(locks, "a", "b", many(4))
    assert len(lock(locks, "b", "x", many(4))) == 2  # it has renewed two of the other's


@pytest.mark.usefixtures("small_room")
def test_full_queue_locks_evict_members_that_disconnected_first(locks):
    for number in range(16):
        lock(locks, f"{number:x}", f"{number:x}", many(4))
    close(locks, "3", is_member=True)
    close(locks, "2", is_member=True)
    assert not lock(locks, "3", "x", many(4))
    assert len(lock(locks, "g", "x", many(3))) == 3
    assert len(lock(locks, "3", "3", many(4), by="back")) == 4
    assert len(locks) == 64
    assert len(lock(locks, "2", "2", many(4), by="also back")) == 1
    assert not lock(locks, "h", "y", many(1))


def test_queue_lock_bytes_count_the_length_of_names(locks):
    lock(locks, "g", "a", many(1))
    short = locks.bytes
    lock(locks, "h", "\N{PILE OF POO}" * 1_024, many(1))
    assert locks.bytes > short + 4_096
    clear = [*many(1)]
    unlock(locks, "g", "a", clear)
    unlock(locks, "h", "\N{PILE OF POO}" * 1_024, clear)
    assert locks.bytes == 0


def test_queue_lock_of_a_stranger_ends_with_its_connection(locks):
    lock(locks, "g", "a", {ONE}, is_member=False)
    lock(locks, "g", "a", {TWO}, by="a, dialled again", is_member=False)
    close(locks, "a")
    assert lock(locks, "g", "b", {ONE, TWO}) == {ONE}


def test_reconnected_member_without_heartbeat_keeps_its_queue_locks(locks):
    lock(locks, "g", "a", {ONE, TWO, THREE}, is_member=False)
    close(locks, "a", is_member=True)
    for _ in range(2):
        lock(locks, "g", "a", {ONE, TWO}, by="a, dialled again", is_member=False)
        close(locks, "a, dialled again")
    assert not lock(locks, "g", "b", {ONE, TWO, THREE})


def test_queue_lock_of_a_stranger_that_became_member_stays(locks):
    lock(locks, "g", "a", {ONE}, is_member=False)
    lock(locks, "h", "a", {ONE}, is_member=False)
    locks.mark_member(CONNECTIONS["a"], "g")
    locks.mark_member(FakeConnection(), "h")
    close(locks, "a")
    assert not lock(locks, "g", "b", {ONE})
    assert lock(locks, "h", "b", {ONE}) == {ONE}


def test_queue_lock_of_a_disconnected_member_lasts_a_minute(locks, clock):
    lock(locks, "g", "a", {ONE, TWO})
    close(locks, "a", is_member=True)
    clock.now_ms += 60_000
    assert not lock(locks, "g", "b", {ONE, TWO})
    assert lock(locks, "g", "a", {ONE}, by="a, dialled again") == {ONE}
    clock.now_ms += 1
    assert lock(locks, "g", "b", {ONE, TWO}) == {TWO}


def test_queue_locks_of_groups_are_independent(locks):
    lock(locks, "g", "a", {ONE})
    assert lock(locks, "h", "b", {ONE}) == {ONE}


def test_queue_lock_lasts_a_minute_from_its_last_renewal(locks, clock):
    lock(locks, "g", "a", {ONE})
    clock.now_ms += 40_000
    lock(locks, "g", "a", {ONE})
    clock.now_ms += 60_000
    assert lock(locks, "g", "b", {ONE}) == frozenset()
    clock.now_ms += 1
    assert lock(locks, "g", "b", {ONE}) == {ONE}
    assert lock(locks, "g", "a", {ONE}) == frozenset()


def test_queue_lock_is_released_by_its_owner_only(locks):
    lock(locks, "g", "a", {ONE, TWO})
    unlock(locks, "g", "b", {ONE})
    unlock(locks, "h", "a", {ONE})
    assert lock(locks, "g", "b", {ONE}) == frozenset()
    unlock(locks, "g", "a", {ONE, THREE})
    assert lock(locks, "g", "b", {ONE, TWO}) == {ONE}


def test_queue_lock_is_neither_renewed_nor_released_by_another_connection(locks, clock):
    lock(locks, "g", "a", {ONE})
    unlock(locks, "g", "a", {ONE}, by="thief")
    assert lock(locks, "g", "a", {ONE}, by="thief") == frozenset()
    clock.now_ms += 60_000
    assert lock(locks, "g", "a", {ONE}) == {ONE}


def test_queue_lock_of_a_closed_connection_goes_to_its_client_at_the_same_address_only(locks):
    CONNECTIONS["elsewhere"] = FakeConnection(remote="10.0.0.8:1")
    lock(locks, "g", "a", {ONE, TWO})
    close(locks, "a", is_member=True)
    unlock(locks, "g", "a", {ONE, TWO}, by="elsewhere")
    assert lock(locks, "g", "a", {ONE, TWO}, by="elsewhere") == frozenset()
    unlock(locks, "g", "a", {ONE}, by="a, dialled again")
    assert lock(locks, "g", "b", {ONE, TWO}) == {ONE}
    assert lock(locks, "g", "a", {TWO}, by="a, dialled again") == {TWO}


def test_queue_lock_of_a_closed_connection_stays_with_its_user(locks):
    for client, user in (("of alice", "alice"), ("alice again", "alice"), ("of bob", "bob")):
        CONNECTIONS[client].identity = Identity(user)
    lock(locks, "g", "a", {ONE}, by="of alice")
    close(locks, "of alice", is_member=True)
    unlock(locks, "g", "a", {ONE}, by="of bob")
    assert lock(locks, "g", "a", {ONE}, by="of bob") == frozenset()
    assert lock(locks, "g", "a", {ONE}, by="alice again") == {ONE}


def test_queue_lock_expires_within_a_minute_after_clock_moves_back(locks, clock):
    lock(locks, "g", "a", {ONE})
    clock.now_ms -= 3_600_000
    assert lock(locks, "g", "b", {ONE}) == frozenset()
    clock.now_ms += 60_001
    assert lock(locks, "g", "b", {ONE}) == {ONE}


def test_queue_locks_of_gone_groups_are_removed(locks, clock):
    for number in range(1_000):
        lock(locks, f"group-{number}", "a", {ONE})
    assert len(locks) == 1_000
    clock.now_ms += 60_001
    lock(locks, "g", "a", {ONE})
    assert len(locks) == 1


class LockMachine(RuleBasedStateMachine):
    """Checks that no queue has two owners within a minute, and that no client waits longer."""

    clients = st.sampled_from("abc")
    connections = st.sampled_from("xyz")
    queues = st.frozensets(st.sampled_from([ONE, TWO, THREE]))

    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.locks = QueueLocks(self.clock)
        self.model = {}

    def is_owner(self, client, by, queue):
        owner, _, holder, _ = self.model[queue]
        return owner == client and holder in (None, by)

    @rule(client=clients, by=connections, queues=queues, is_member=st.booleans())
    def lock(self, client, by, queues, is_member):
        free = {
            queue
            for queue in queues
            if queue not in self.model
            or self.is_owner(client, by, queue)
            or self.clock.now_ms - self.model[queue][1] > 60_000
        }
        assert lock(self.locks, "g", client, queues, by=by, is_member=is_member) == free
        for queue in free:
            before, at_ms, _, was_members = self.model.get(queue, ("", 0, None, False))
            is_renewed = before == client and self.clock.now_ms - at_ms <= 60_000
            is_members = is_member or (is_renewed and was_members)
            self.model[queue] = client, self.clock.now_ms, by, is_members

    @rule(by=connections)
    def join(self, by):
        self.locks.mark_member(CONNECTIONS[by], "g")
        for queue, (client, at_ms, holder, is_members) in self.model.items():
            self.model[queue] = client, at_ms, holder, is_members or holder == by

    @rule(by=connections, is_member=st.booleans())
    def close(self, by, is_member):
        close(self.locks, by, is_member=is_member)
        for queue, (client, at_ms, holder, is_members) in tuple(self.model.items()):
            if holder == by and (is_member or is_members):
                self.model[queue] = client, at_ms, None, True
            elif holder == by:
                del self.model[queue]

    @rule(client=clients, by=connections, queues=queues)
    def unlock(self, client, by, queues):
        unlock(self.locks, "g", client, queues, by=by)
        for queue in queues & self.model.keys():
            if self.is_owner(client, by, queue):
                del self.model[queue]

    @rule(ms=st.sampled_from([1, 20_000, 60_000, 60_001]))
    def wait(self, ms):
        self.clock.now_ms += ms

    @invariant()
    def it_keeps_no_more_than_it_has_to(self):
        assert len(self.locks) <= len(self.model)
        held = self.locks._by_connection.values()
        assert sum(len(one.keys) for one in held) + len(self.locks._orphaned) == len(self.locks)
        assert self.locks.bytes == sum(lock.size for lock in self.locks._locks.values())
        assert sum(one.bytes for one in held) <= self.locks.bytes
        assert all(one.keys for one in held)


LockMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestLocks = LockMachine.TestCase


@pytest.mark.parametrize("steps", range(4))
def test_reconnected_client_keeps_locks_renewed_while_its_old_connection_ends(locks, steps):
    lock(locks, "g", "a", [ONE, TWO], by="old", is_member=False)
    CONNECTIONS["old"].is_closed = True
    ending = locks.connection_closed(CONNECTIONS["old"], lambda *_: False)
    for _ in range(steps):
        next(ending, None)
    assert lock(locks, "g", "a", [ONE, TWO], by="new", is_member=False) == {ONE, TWO}
    for _ in ending:
        pass
    assert lock(locks, "g", "b", [ONE, TWO]) == set()
    close(locks, "new")
    assert lock(locks, "g", "b", [ONE, TWO]) == {ONE, TWO}
