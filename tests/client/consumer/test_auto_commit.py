from __future__ import annotations

import pytest
from moved_tasks import MovedTasks
from received_messages import QUEUE, several

from rmq_spark.client.consumer.assigned_queues import AssignedQueue, ConsumeRequest
from rmq_spark.client.consumer.auto_commit import AutoCommit, consume_offsets
from rmq_spark.client.consumer.last_known import LastKnown, Place
from rmq_spark.client.consumer.offset_table import OffsetTable

INTERVAL_MS = 5_000


class Bench:
    def __init__(self, interval_ms=INTERVAL_MS):
        self.clock, self.store = MovedTasks(), OffsetTable()
        self.store.update_offset = self.store.update
        self.assigned = AssignedQueue(QUEUE, self.clock)
        self.assigned.set_first_offset(0, Place(10, LastKnown()))
        self.commits = AutoCommit(lambda: [self.assigned], self.store, interval_ms, self.clock)

    def poll(self, *offsets):
        self.commits.more_is_wanted()
        messages = several(*offsets)
        self.assigned.found(0, messages, offsets[-1] + 1)
        self.assigned.take(ConsumeRequest(self.assigned, 0, messages))
        self.commits.returned(self.assigned)


@pytest.fixture
def bench():
    return Bench()


def test_what_was_returned_counts_when_more_is_wanted(bench):
    bench.poll(10, 11)
    assert consume_offsets([bench.assigned]) == {QUEUE: 10}
    bench.poll(12)
    assert consume_offsets([bench.assigned]) == {QUEUE: 12}


def test_offsets_go_to_the_store_when_it_is_time_and_not_before(bench):
    bench.poll(10, 11)
    bench.clock.move(INTERVAL_MS - 1)
    bench.poll(12)
    assert bench.store.all() == {}
    bench.clock.move(1)
    bench.commits.commit_if_due()
    assert bench.store.all() == {QUEUE: 12}
    bench.poll(13)
    bench.clock.move(INTERVAL_MS)
    bench.commits.more_is_wanted()
    assert bench.store.all() == {QUEUE: 14}


def test_a_queue_that_is_left_has_its_offset_stored_and_none_that_was_not_dealt_with(bench):
    bench.poll(10, 11)
    bench.poll(12)
    bench.commits.leave(bench.assigned)
    assert bench.store.all() == {QUEUE: 12}
    assert consume_offsets([bench.assigned]) == {}


def test_without_auto_commit_nothing_counts_but_what_the_user_commits():
    bench = Bench(interval_ms=None)
    bench.poll(10, 11)
    bench.poll(12)
    bench.clock.move(INTERVAL_MS)
    bench.commits.commit_if_due()
    assert consume_offsets([bench.assigned]) == {QUEUE: 10}
    bench.commits.leave(bench.assigned)
    assert bench.store.all() == {}
