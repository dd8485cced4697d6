"""A process queue: its commit offset, order, limits and lock."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmq_spark.client.consumer.queues.process_queue import (
    LOCK_EXPIRES_MS,
    PULL_EXPIRES_MS,
    ProcessQueue,
    monotonic_ms,
)


class Cached(NamedTuple):
    queue_offset: int
    body: bytes = b"body"


class MovedClock:
    def __init__(self, now_ms=1_000_000):
        self.now_ms = now_ms

    def __call__(self):
        return self.now_ms

    def move(self, ms):
        self.now_ms += ms


def numbered(*offsets):
    return [Cached(each) for each in offsets]


@pytest.fixture
def clock():
    return MovedClock()


@pytest.fixture
def queue(clock):
    return ProcessQueue(clock)


def acknowledged(queue, *offsets):
    """Return the published offset after these acknowledgements."""
    said = []
    queue.acknowledge(numbered(*offsets), said.append)
    return said


def test_initial_offset_may_be_committed_before_any_message(clock):
    queue = ProcessQueue(clock)
    queue.set_initial_offset(7)
    assert acknowledged(queue) == [7]


def test_commit_offset_is_the_first_unacknowledged_message(queue):
    queue.put_messages(numbered(10, 11, 12, 13))
    assert acknowledged(queue, 11) == [10]
    assert acknowledged(queue, 10) == [12]
    assert acknowledged(queue, 13) == [12]
    assert acknowledged(queue, 12) == [14]


def test_dropped_process_queue_ignores_messages_and_acknowledgements(queue):
    queue.put_messages(numbered(1))
    queue.drop()
    assert not queue.put_messages(numbered(2))
    assert acknowledged(queue, 1) == []
    assert queue.message_count == 1


def test_process_queue_limits_count_messages_bytes_and_span(queue):
    queue.put_messages([Cached(5, b"12"), Cached(905, b"345")])
    assert (queue.message_count, queue.body_bytes, queue.span) == (2, 5, 900)
    acknowledged(queue, 5)
    assert (queue.message_count, queue.span) == (1, 0)


def test_process_queue_counts_a_repeated_message_once(queue):
    queue.put_messages([Cached(5, b"12")])
    queue.put_messages([Cached(5, b"345")])
    assert (queue.message_count, queue.body_bytes) == (1, 3)


@pytest.mark.parametrize("offsets", [(4, 7, 5), (4, 5, 5, 7), (7, 4, 5, 4)])
def test_process_queue_sorts_and_deduplicates_pulled_messages(queue, offsets):
    queue.put_messages(numbered(*offsets))
    assert (queue.message_count, queue.body_bytes, queue.span) == (3, 12, 3)
    queue.put_messages(numbered(6, 8))
    assert queue.take_messages(9) == numbered(4, 5, 6, 7, 8)
    queue.put_messages(numbered(8, 9))
    assert queue.take_messages(9) == numbered(9)
    assert acknowledged(queue, 4, 5, 6, 7, 8, 9) == [10]


def test_taken_message_that_is_pulled_again_is_not_duplicated(queue):
    queue.put_messages(numbered(1))
    queue.take_messages(1)
    queue.put_messages(numbered(1, 2))
    assert queue.take_messages(9) == numbered(2)


def test_consume_timeout_is_found_by_pop_expired(queue, clock):
    queue.put_messages(numbered(1, 2))
    queue.start_consuming(numbered(1))
    clock.move(900_000)
    assert queue.pop_expired(900_000) == []
    clock.move(1)
    assert queue.pop_expired(900_000) == numbered(1)
    acknowledged(queue, 1)
    assert queue.pop_expired(900_000) == []


def test_process_queue_lock_expires_after_half_a_minute(queue, clock):
    assert not queue.is_locked
    queue.set_locked(clock(), locked=True)
    clock.move(LOCK_EXPIRES_MS)
    assert queue.is_locked
    clock.move(1)
    assert not queue.is_locked
    queue.set_locked(clock(), locked=True)
    queue.set_locked(clock(), locked=False)
    assert not queue.is_locked


def test_process_queue_without_pulls_expires(queue, clock):
    clock.move(PULL_EXPIRES_MS)
    assert not queue.is_pull_expired
    clock.move(1)
    assert queue.is_pull_expired
    queue.touch_pull()
    assert not queue.is_pull_expired
    queue.drop()
    assert queue.is_pull_expired


def test_process_queue_info_shows_the_time_of_day(queue, clock):
    queue.put_messages([Cached(4, bytes(3 << 20)), Cached(6)])
    queue.take_messages(1)
    queue.set_locked(clock(), locked=True)
    clock.move(500)
    info = queue.info(4, wall_ms=1_700_000_000_000)
    assert (info.commit_offset, info.cached_msg_count, info.transaction_msg_count) == (4, 1, 1)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset) == (6, 6)
    assert (info.transaction_msg_min_offset, info.cached_msg_size_in_mi_b) == (4, 3)
    assert info.last_lock_timestamp == 1_700_000_000_000 - 500
    assert info.locked
    assert queue.info(None, 0).commit_offset == -1


def test_last_consume_timestamp_ignores_empty_answers(queue, clock):
    """Operators can see since when a listener hangs, even while pulls return nothing."""
    queue.put_messages(numbered(2))
    queue.take_messages(1)
    taken_ms = queue.info(2, wall_ms=0).last_consume_timestamp
    clock.move(15_000)
    acknowledged(queue)
    assert queue.take_messages(1) == []
    assert queue.info(2, wall_ms=15_000).last_consume_timestamp == taken_ms
    acknowledged(queue, 2)
    assert queue.info(2, wall_ms=15_000).last_consume_timestamp == 15_000


def test_invalidated_queue_lock_needs_a_new_grant(queue, clock):
    asked_at = clock()
    queue.set_locked(asked_at, locked=True)
    queue.invalidate_lock()
    assert not queue.is_locked
    queue.set_locked(asked_at, locked=True)  # an older response
    assert not queue.is_locked
    clock.move(1)
    queue.set_locked(clock(), locked=True)
    assert queue.is_locked


class AgainstAModel(RuleBasedStateMachine):
    """Compares random pulls, takes and acknowledgements with a model of two offset sets."""

    @initialize()
    def start(self):
        self.queue = ProcessQueue(MovedClock())
        self.next, self.waiting, self.taken, self.dropped_total = 0, {}, {}, False

    @rule(gaps=st.lists(st.integers(0, 3), max_size=6), size=st.integers(0, 9))
    def pull(self, gaps, size):
        messages = []
        for gap in gaps:
            messages.append(Cached(self.next + gap, bytes(size)))
            self.next += gap + 1
        assert self.queue.put_messages(messages) is not self.dropped_total
        if not self.dropped_total:
            self.waiting.update((each.queue_offset, each) for each in messages)
            self.end = messages[-1].queue_offset + 1 if messages else getattr(self, "end", None)

    @rule(count=st.integers(0, 4))
    def take(self, count):
        expected = [self.waiting.pop(each) for each in sorted(self.waiting)[:count]]
        assert self.queue.take_messages(count) == expected
        self.taken.update((each.queue_offset, each) for each in expected)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def put_back(self, data):
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.taken)), unique=True))
        self.queue.put_back([self.taken[each] for each in chosen])
        self.waiting.update((each, self.taken.pop(each)) for each in chosen)

    @precondition(lambda self: self.taken or self.waiting)
    @rule(data=st.data())
    def acknowledge(self, data):
        here = {**self.taken, **self.waiting}
        chosen = data.draw(st.lists(st.sampled_from(sorted(here)), unique=True, min_size=1))
        said = []
        assert (
            self.queue.acknowledge([here[each] for each in chosen], said.append)
            is not self.dropped_total
        )
        if not self.dropped_total:
            for each in chosen:
                self.waiting.pop(each, None)
                self.taken.pop(each, None)
            assert said == [min({**self.taken, **self.waiting}, default=self.end)]

    @rule()
    def clear(self):
        self.queue.clear()
        self.waiting.clear()
        self.taken.clear()
        self.end = None

    @precondition(lambda self: len(self.waiting) > 8)
    @rule()
    def drop(self):
        self.queue.drop()
        self.dropped_total = True

    @invariant()
    def the_counts_are_right(self):
        if hasattr(self, "queue"):
            here = [*self.waiting.values(), *self.taken.values()]
            assert self.queue.message_count == len(here)
            assert self.queue.body_bytes == sum(len(each.body) for each in here)
            assert self.queue.span == (max(self.waiting) - min(self.waiting) if self.waiting else 0)
            assert self.queue.has_waiting is bool(self.waiting)


TestAgainstAModel = AgainstAModel.TestCase


# ---- the consumers' clock is monotonic, in milliseconds


def test_monotonic_ms_counts_milliseconds():
    before = time.monotonic_ns()
    seen = [monotonic_ms() for _ in range(100)]
    after = time.monotonic_ns()
    assert seen == sorted(seen)
    assert before // 1_000_000 <= seen[0] <= seen[-1] <= after // 1_000_000
