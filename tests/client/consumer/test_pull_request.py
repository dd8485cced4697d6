"""Pulls of a push consumer: repetition, flow control, offset corrections and revocation."""

import sys
from dataclasses import replace

import pytest
from support.clients.manual_scheduler import MovedTasks
from support.messages.received_messages import QUEUE, received, several

from rmq_spark.client.consumer.brokers.broker_client import DecodedPull
from rmq_spark.client.consumer.pull.pull_task import PullLimits, PullRequest
from rmq_spark.client.consumer.push_consumer_impl import PushPullTask
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue
from rmq_spark.client.consumer.queues.queue_identity import (
    UNVERIFIED_MS_MAX,
    QueueFingerprint,
    StartPosition,
)
from rmq_spark.client.errors import ConnectionClosed, SystemBusy
from rmq_spark.client.failure_log import OutageLog
from rmq_spark.client.results import PullStatus
from rmq_spark.wire.codes import ResponseCode

DOWN = ConnectionClosed("b:1", "gone")
LIMITS = PullLimits(
    pull_threshold_for_queue=3, pull_threshold_size_for_queue_mib=1, consume_max_span=100
)


def pulled(*messages, then, status=PullStatus.FOUND):
    return DecodedPull(status, then, 0, 1_000, messages)


class Consumer:
    """A consumer; the test answers its pulls."""

    def __init__(self):
        self.asked, self.consumed, self.corrected, self.illegal_result = [], [], [], []
        self.is_paused, self.is_locked, self.refuses = False, True, None
        self.first_offsets, self.acknowledge_unreadable, self.cached_bytes = [], [], 0
        self.scanned_to, self.stored, self.since = [], {}, 0
        self.abandoned = []

    def may_pull(self, _):
        return self.is_locked

    def first_offset(self, _):
        found = self.first_offsets.pop(0)
        if isinstance(found, Exception):
            raise found
        return StartPosition(found, QueueFingerprint())

    def send_to_dlq(self, _, message):
        self.acknowledge_unreadable.append(message.queue_offset)

    def message_at(self, _, queue_offset):
        self.scanned_to.append(queue_offset)
        return self.stored.get(queue_offset)

    def offset_since(self, _, __):
        return self.since

    def pull(self, request, then, _):
        if self.refuses:
            raise self.refuses
        self.asked.append((request.next_offset, then))
        return lambda: self.abandoned.append(len(self.asked))

    def consume(self, _, messages):
        self.consumed += [each.queue_offset for each in messages]

    def correct_tags_offset(self, request):
        self.corrected.append(request.next_offset)

    def correct_illegal_offset(self, _, offset):
        self.illegal_result.append(offset)


class Bench:
    def __init__(self, pull_interval_ms=0):
        self.tasks, self.consumer = MovedTasks(), Consumer()
        self.request = PullRequest(QUEUE, ProcessQueue(self.tasks), 5)
        self.task = self.request.task = PushPullTask(
            self.request,
            self.consumer,
            self.tasks,
            LIMITS,
            OutageLog("pulling"),
            1_000,
            pull_interval_ms,
        )

    def start(self):
        self.task.start()
        self.tasks.move(0)

    def answer(self, outcome):
        self.consumer.asked[-1][1](outcome)

    @property
    def offsets(self):
        return [offset for offset, _ in self.consumer.asked]

    def comes_back_after(self, ms):
        asked = len(self.offsets)
        self.tasks.move(ms - 1 if ms else 0)
        assert ms == 0 or len(self.offsets) == asked
        self.tasks.move(1)
        return len(self.offsets) == asked + 1


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.parametrize("status", [PullStatus.NO_MATCHED_MSG, PullStatus.NO_NEW_MSG])
def test_pull_without_messages_is_repeated_at_once_with_a_corrected_offset(bench, status):
    bench.start()
    bench.answer(pulled(then=800, status=status))
    assert bench.comes_back_after(0)
    assert bench.offsets == [5, 800]
    assert bench.consumer.corrected == [800]


def test_pulled_messages_reach_the_listener_and_the_pull_is_repeated(bench):
    bench.start()
    bench.answer(pulled(*several(5, 6), then=9))
    assert bench.comes_back_after(0)
    assert (bench.offsets, bench.consumer.consumed) == ([5, 9], [5, 6])
    assert bench.request.process_queue.message_count == 2


def test_held_pull_is_replaced_after_a_new_subscription(bench):
    bench.start()
    bench.task.restart()
    assert bench.consumer.abandoned == [1]
    bench.tasks.move(0)
    assert bench.offsets == [5, 5]
    bench.consumer.asked[0][1](pulled(*several(5), then=6))  # late, so it is ignored
    bench.consumer.asked[0][1](DOWN)
    bench.tasks.move(1_000)
    assert (bench.offsets, bench.consumer.consumed) == ([5, 5], [])
    bench.answer(pulled(*several(7), then=8))
    assert bench.comes_back_after(0)
    assert (bench.offsets, bench.consumer.consumed) == ([5, 5, 8], [7])


@pytest.fixture
def held_on():
    """Return a consumer that received a message; a broker that does not report deletions holds its
    next pull."""
    bench = Bench()
    bench.request.fingerprint = QueueFingerprint(bench.tasks)
    bench.start()
    bench.answer(in_doubt(pulled(*several(5), then=6)))
    bench.tasks.move(0)
    bench.request.process_queue.clear()
    bench.tasks.move(UNVERIFIED_MS_MAX)
    return bench


def in_doubt(outcome):
    return outcome._replace(may_be_recreated=True)


@pytest.mark.parametrize("messages", [(), several(6)], ids=["as long", "longer"])
def test_answer_to_a_long_held_pull_is_verified_against_the_queue(held_on, messages):
    """RocketMQ's brokers keep holding a pull when its topic is recreated."""
    held_on.consumer.stored[5] = replace(
        received(5), store_timestamp=9, commit_log_offset=9, message_id="another"
    )
    held_on.answer(in_doubt(pulled(*messages, then=6 + len(messages))))
    assert held_on.consumer.scanned_to == []  # the reading thread must not wait for the response
    held_on.tasks.move(0)
    assert (held_on.consumer.scanned_to, held_on.consumer.illegal_result) == ([5], [0])
    assert (held_on.consumer.consumed, held_on.consumer.corrected) == ([5], [])


def test_unverified_answer_is_dropped_after_a_new_subscription(held_on):
    held_on.consumer.stored[5] = received(5)
    held_on.answer(in_doubt(pulled(*several(6), then=7)))
    held_on.task.restart()
    held_on.tasks.move(0)
    assert (held_on.offsets, held_on.consumer.consumed) == ([5, 6, 6], [5])


def test_restart_pull_during_a_pull_asks_once_more(bench, monkeypatch):
    pull = bench.consumer.pull

    def meanwhile(*pulled):
        monkeypatch.setattr(bench.consumer, "pull", pull)
        bench.task.restart()
        return pull(*pulled)

    monkeypatch.setattr(bench.consumer, "pull", meanwhile)
    bench.start()
    bench.tasks.move(0)
    assert (bench.offsets, bench.consumer.abandoned) == ([5, 5], [1])


def test_restart_pull_does_not_override_flow_control(bench):
    bench.start()
    bench.answer(pulled(*several(5, 6, 7), then=8))
    bench.tasks.move(0)
    bench.task.restart()
    bench.tasks.move(10)
    assert bench.offsets == [5]
    assert not bench.consumer.abandoned


def test_pull_interval_pauses_between_pulls():
    bench = Bench(pull_interval_ms=70)
    bench.start()
    bench.answer(pulled(*several(5), then=6))
    assert bench.comes_back_after(70)


@pytest.mark.parametrize(
    ("error", "ms"),
    [(DOWN, 1_000), (SystemBusy(ResponseCode.FLOW_CONTROL, "slower", "b:1", 11), 20)],
)
def test_pull_request_is_retried_after_a_delay_that_depends_on_its_failure(bench, error, ms):
    bench.start()
    bench.answer(error)
    assert bench.comes_back_after(ms)
    bench.consumer.refuses = error
    bench.answer(DOWN)
    bench.tasks.move(1_000)
    bench.consumer.refuses = None
    assert bench.comes_back_after(ms)
    assert set(bench.offsets) == {5}


def test_unlocked_orderly_queue_is_pulled_later(bench):
    bench.consumer.is_locked = False
    bench.start()
    bench.consumer.is_locked = True
    assert bench.comes_back_after(1_000)


def test_first_pull_retries_until_the_start_offset_is_known(bench):
    bench.request.next_offset = None
    bench.consumer.first_offsets = [DOWN, ZeroDivisionError(), 7]
    bench.start()
    assert bench.request.process_queue.commit_offset is None
    bench.tasks.move(1_000)
    assert bench.offsets == []
    bench.tasks.move(1_000)
    assert bench.offsets == [7]
    assert bench.request.process_queue.commit_offset == 7


def test_unreadable_message_is_acknowledged_and_does_not_block_the_listener(bench):
    bench.start()
    bench.answer(pulled(*several(5, 7), then=8)._replace(unreadable=several(6)))
    assert (bench.consumer.consumed, bench.consumer.acknowledge_unreadable) == ([5, 7], [6])
    cache = bench.request.process_queue
    cache.acknowledge(several(5, 7), lambda _: None)
    assert cache.commit_offset == 6
    cache.acknowledge(several(6), lambda _: None)
    assert cache.commit_offset == 8


def test_retired_queue_is_pulled_no_more(bench):
    bench.start()
    bench.request.process_queue.retire()
    bench.answer(pulled(*several(5), then=6))
    bench.tasks.move(10_000)
    assert bench.offsets == [5]


def test_global_cache_limit_allows_pulls_of_empty_queues_only(bench):
    bench.start()
    bench.consumer.cached_bytes = LIMITS.bytes_for_all
    bench.answer(pulled(then=6, status=PullStatus.NO_MATCHED_MSG))
    bench.tasks.move(0)
    assert bench.offsets == [5, 6]
    bench.answer(pulled(*several(6), then=7))
    bench.tasks.move(500)
    assert bench.offsets == [5, 6]
    bench.consumer.cached_bytes -= 1
    bench.tasks.move(50)
    assert bench.offsets == [5, 6, 7]


def test_paused_push_consumer_retries_its_pull_later(bench):
    bench.consumer.is_paused = True
    bench.start()
    bench.consumer.is_paused = False
    assert bench.comes_back_after(1_000)


@pytest.mark.parametrize(
    "messages",
    [several(5, 6, 7), several(5, 106), (received(5, bytes(1 << 20)),)],
    ids=["3", "span", "size"],
)
def test_pull_request_waits_while_its_cache_is_full(bench, messages):
    bench.start()
    bench.answer(pulled(*messages, then=200))
    bench.tasks.move(500)
    assert bench.offsets == [5]
    bench.request.process_queue.acknowledge(messages, lambda _: None)
    bench.tasks.move(50)
    assert bench.offsets == [5, 200]


def test_throttled_pull_resumes_once_when_messages_are_acknowledged(bench):
    bench.start()
    bench.answer(pulled(*several(5, 6, 7), then=8))
    bench.tasks.move(10)
    bench.request.process_queue.acknowledge(several(5, 6, 7), lambda _: None)
    bench.task.resume_throttled()
    bench.task.resume_throttled()
    bench.tasks.move(1_000)
    assert bench.offsets == [5, 8]


def test_illegal_offset_is_corrected_outside_the_reading_thread(bench):
    bench.start()
    bench.answer(pulled(then=40, status=PullStatus.OFFSET_ILLEGAL))
    assert bench.consumer.illegal_result == []
    bench.tasks.move(0)
    assert bench.consumer.illegal_result == [40]
    bench.tasks.move(10_000)
    assert bench.offsets == [5]


@pytest.mark.parametrize(
    "outcome",
    [
        pulled(*several(5), then=6),
        pulled(then=6, status=PullStatus.NO_MATCHED_MSG),
        pulled(then=6, status=PullStatus.OFFSET_ILLEGAL),
        DOWN,
    ],
)
@pytest.mark.parametrize("end", [ProcessQueue.drop, ProcessQueue.retire])
def test_pull_of_a_dropped_queue_ends_without_effect(bench, outcome, end, caplog):
    bench.start()
    end(bench.request.process_queue)
    bench.answer(outcome)
    bench.tasks.move(100_000)
    assert caplog.messages == []
    assert bench.offsets == [5]
    assert (bench.consumer.consumed, bench.consumer.corrected, bench.consumer.illegal_result) == (
        [],
        [],
        [],
    )
    assert bench.tasks.pending == 0
    assert bench.request.next_offset == 5


def test_answer_never_counts_as_consumed_while_it_is_added(bench):
    """Another thread may acknowledge between any two lines, and an empty cache would count as
    consumed."""
    cache, seen, before = bench.request.process_queue, [], sys.gettrace()

    def look(*_):
        is_empty = not cache.message_count
        seen.append(bench.request.next_offset if is_empty else cache.commit_offset)
        return look

    bench.start()
    sys.settrace(look)
    try:
        bench.answer(pulled(*several(5, 6), then=9))
    finally:
        sys.settrace(before)
    assert len(seen) > 20
    assert set(seen) == {5}
    assert bench.request.next_offset == 9
