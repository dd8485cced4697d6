"""Auto-commit stores the offsets of polled messages, and no others."""

from types import SimpleNamespace

import pytest
from support.clients.manual_scheduler import MovedTasks
from support.messages.received_messages import QUEUE, several

from rmq_spark.client.consumer.offsets.offset_manager import AutoCommit
from rmq_spark.client.consumer.offsets.offset_store import RemoteBrokerOffsetStore
from rmq_spark.client.consumer.queues.assigned_queues import AssignedQueue, ConsumeRequest
from rmq_spark.client.consumer.queues.queue_identity import QueueFingerprint, StartPosition
from rmq_spark.wire.message_queue import MessageQueue

OTHER = MessageQueue("T", "broker-a", 1)


class Bench:
    def __init__(self, *, is_enabled=True):
        self.clock, self.store = MovedTasks(), RemoteBrokerOffsetStore(None)
        self.assigned = AssignedQueue(QUEUE, self.clock)
        self.assigned.set_first_offset(0, StartPosition(10, QueueFingerprint()))
        self.commits = AutoCommit(
            SimpleNamespace(all=lambda: [self.assigned]), self.store, is_enabled=is_enabled
        )

    def poll(self, *offsets):
        self.commits.confirm_returned()
        messages = several(*offsets)
        self.assigned.add_pulled(0, messages, offsets[-1] + 1)
        self.assigned.acquire(ConsumeRequest(self.assigned, 0, messages))
        self.commits.record_returned(self.assigned)


def published(assigned):
    """Return the offsets that the queue reports as processed."""
    found = {}
    assigned.publish_consumed(found.__setitem__)
    return found


@pytest.fixture
def bench():
    return Bench()


def test_auto_commit_publishes_polled_offsets_at_the_next_poll(bench):
    bench.poll(10, 11)
    assert published(bench.assigned) == {QUEUE: 10}
    bench.poll(12)
    assert published(bench.assigned) == {QUEUE: 12}


def test_auto_commit_stores_offsets_only_when_published(bench):
    bench.poll(10, 11)
    bench.poll(12)
    assert bench.store.offsets() == {}
    bench.commits.publish()
    assert bench.store.offsets() == {QUEUE: 12}
    bench.poll(13)
    bench.commits.publish()
    assert bench.store.offsets() == {QUEUE: 13}


def test_auto_commit_stores_only_consumed_offsets_of_a_released_queue(bench):
    bench.poll(10, 11)
    bench.poll(12)
    bench.commits.release(bench.assigned)
    assert bench.store.offsets() == {QUEUE: 12}
    assert published(bench.assigned) == {}


def test_without_auto_commit_only_user_commits_are_stored():
    bench = Bench(is_enabled=False)
    bench.poll(10, 11)
    bench.poll(12)
    bench.commits.publish()
    assert published(bench.assigned) == {QUEUE: 10}
    bench.commits.release(bench.assigned)
    assert bench.store.offsets() == {}


def test_offset_reset_during_auto_commit_is_kept(bench):
    """Each queue's offset is read right before it is stored, not for all queues together."""
    other = AssignedQueue(OTHER, bench.clock)
    other.set_first_offset(0, StartPosition(8, QueueFingerprint()))
    both = SimpleNamespace(all=lambda: [bench.assigned, other])
    bench.commits = AutoCommit(both, bench.store, is_enabled=True)
    update = bench.store.update_offset

    def update_in_the_midst_of_a_move(queue, offset, *, increase_only):
        if queue == QUEUE:
            other.reset(3)
            update(OTHER, 3, increase_only=False)
        update(queue, offset, increase_only=increase_only)

    bench.store.update_offset = update_in_the_midst_of_a_move
    bench.commits.publish()
    assert bench.store.offsets() == {QUEUE: 10, OTHER: 3}
