"""Pulled messages wait in order of arrival; those of paused or revoked queues are left out."""

import random
import threading

import pytest
from support.messages.received_messages import several

from rmq_spark.client.consumer.queues.assigned_queues import (
    AssignedQueue,
    ConsumeRequest,
    ConsumeRequestCache,
)
from rmq_spark.client.consumer.queues.queue_identity import QueueFingerprint, StartPosition
from rmq_spark.wire.message_queue import MessageQueue

PATIENCE_MS = 20_000


@pytest.fixture
def cache():
    return ConsumeRequestCache()


def assigned_queue(number=0):
    assigned = AssignedQueue(MessageQueue("T", "broker-a", number), lambda: 0)
    assigned.set_first_offset(0, StartPosition(0, QueueFingerprint()))
    return assigned


def put(cache, assigned, *offsets):
    epoch, _ = assigned.pull_position()
    messages = several(*offsets)
    assert assigned.add_pulled(epoch, messages, offsets[-1] + 1)
    cache.put(ConsumeRequest(assigned, epoch, messages))


def polled(cache, timeout_ms=0):
    request = cache.poll(timeout_ms)
    return request and [each.queue_offset for each in request.messages]


def test_empty_consume_request_cache_polls_nothing(cache):
    assert polled(cache) is None
    assert polled(cache, 1) is None


def test_poll_returns_messages_in_arrival_order(cache):
    assigned = assigned_queue()
    put(cache, assigned, 0, 1)
    put(cache, assigned, 2)
    assert polled(cache) == [0, 1]
    assert polled(cache) == [2]


def test_waiting_poll_is_woken_by_a_message(cache):
    assigned, found = assigned_queue(), []
    waiter = threading.Thread(target=lambda: found.append(polled(cache, PATIENCE_MS)))
    waiter.start()
    put(cache, assigned, 0)
    waiter.join()
    assert found == [[0]]


def test_waiting_poll_skips_dropped_queue(cache):
    gone, there = assigned_queue(0), assigned_queue(1)
    put(cache, gone, 0)
    put(cache, there, 5)
    gone.drop()
    assert polled(cache) == [5]


def test_paused_queues_keep_their_cached_messages_in_order(cache):
    paused, there = assigned_queue(0), assigned_queue(1)
    put(cache, paused, 0)
    put(cache, paused, 1)
    put(cache, there, 5)
    paused.is_paused = True
    assert polled(cache) == [5]
    assert polled(cache) is None
    paused.is_paused = False
    assert [polled(cache), polled(cache)] == [[0], [1]]


def test_waiting_poll_is_woken_when_paused_queue_resumes(cache):
    paused, found = assigned_queue(), []
    put(cache, paused, 0)
    paused.is_paused = True
    waiter = threading.Thread(target=lambda: found.append(polled(cache, PATIENCE_MS)))
    waiter.start()
    paused.is_paused = False
    cache.wake()
    waiter.join()
    assert found == [[0]]


def test_discard_stale_forgets_messages_from_before_a_seek(cache):
    """The first pull after a seek may be answered before the seek has finished."""
    sought, gone, there = (assigned_queue(number) for number in range(3))
    for assigned in (sought, gone):
        put(cache, assigned, 0, 1)
    put(cache, there, 5)
    sought.seek(7)
    put(cache, sought, 7, 8, 9)
    gone.drop()
    cache.discard_stale()
    assert len(cache._requests) == 2
    assert [polled(cache), polled(cache)] == [[5], [7, 8, 9]]


def test_closed_consume_request_cache_wakes_all_waiters(cache):
    found = []
    waiter = threading.Thread(target=lambda: found.append(polled(cache, PATIENCE_MS)))
    waiter.start()
    cache.close()
    waiter.join()
    put(cache, assigned_queue(), 0)
    assert found == [None]
    assert polled(cache) is None


def test_rest_of_a_split_pull_waits_for_resume_and_is_discarded_by_seek(cache):
    assigned = assigned_queue()
    put(cache, assigned, 0, 1, 2)
    assert len(cache.poll(0, 1).messages) == 1
    assigned.is_paused = True
    assert cache.poll(0, 1) is None
    assigned.is_paused = False
    assert len(cache.poll(0, 1).messages) == 1
    assigned.seek(0)
    assert cache.poll(0, 1) is None


def test_change_callback_runs_on_put_wake_and_close(cache):
    told = []
    cache.on_change = lambda: told.append(cache.poll(0) is not None)
    put(cache, assigned_queue(), 0)
    cache.wake()
    cache.close()
    assert told == [True, False, False]


@pytest.mark.parametrize("seed", range(20))
def test_poll_keeps_queue_order_with_random_pauses(cache, seed):
    dice = random.Random(seed)
    queues = [assigned_queue(number) for number in range(3)]
    came, ends = {queue: [] for queue in queues}, dict.fromkeys(queues, 0)

    def poll(most):
        request = cache.poll(0, most)
        if request is not None:
            assert not request.assigned.is_paused
            came[request.assigned] += [each.queue_offset for each in request.messages]
        return request

    for _ in range(80):
        queue, count = dice.choice(queues), dice.randint(1, 3)
        match dice.choice(["put", "put", "poll", "poll", "pause", "resume"]):
            case "put":
                put(cache, queue, *range(ends[queue], ends[queue] + count))
                ends[queue] += count
            case "poll":
                poll(dice.choice([None, 1, 2]))
            case act:
                queue.is_paused = act == "pause"
    for queue in queues:
        queue.is_paused = False
    while poll(None):
        pass
    assert came == {queue: list(range(end)) for queue, end in ends.items()}
