"""Pulls of a lite pull consumer: repetition, full caches, seeks and revocation."""

import logging
import threading
from dataclasses import replace

import pytest
from support.clients.manual_scheduler import MovedTasks
from support.messages.received_messages import QUEUE, received, several
from support.suite.log_records import lines_of

from rmq_spark.client.consumer.brokers.broker_client import DecodedPull
from rmq_spark.client.consumer.lite_pull_consumer_impl import LitePullTask
from rmq_spark.client.consumer.pull.pull_task import PullLimits
from rmq_spark.client.consumer.queues.assigned_queues import AssignedQueue, ConsumeRequestCache
from rmq_spark.client.consumer.queues.queue_identity import (
    UNVERIFIED_MS_MAX,
    QueueFingerprint,
    StartPosition,
)
from rmq_spark.client.errors import ConnectionClosed, RequestTimeout, SystemBusy, TopicNotFound
from rmq_spark.client.failure_log import OutageLog
from rmq_spark.client.results import PullStatus
from rmq_spark.wire.codes import ResponseCode

LIMITS = PullLimits(
    pull_threshold_for_all=50,
    pull_threshold_for_queue=20,
    pull_threshold_size_for_queue_mib=1,
    consume_max_span=100,
)
DOWN = ConnectionClosed("b:1", "gone")


def pulled(*messages, then, status=PullStatus.FOUND, least=0, most=1_000):
    return DecodedPull(status, then, least, most, messages)


class Source:
    """A consumer; the test answers its pulls."""

    def __init__(self):
        self.asked, self.first_offsets, self.delivered = [], [5], []
        self.cache = ConsumeRequestCache()
        self.refuses = None
        self.is_connected = True
        self.cached_messages = self.cached_bytes = 0
        self.abandoned, self.acknowledge_unreadable = [], []
        self.scanned_to, self.stored, self.taken_back, self.since = [], {}, [], None

    def first_offset(self, _):
        found = self.first_offsets.pop(0)
        if isinstance(found, Exception):
            raise found
        return StartPosition(found, QueueFingerprint())

    def message_at(self, _, queue_offset):
        self.scanned_to.append(queue_offset)
        return self.stored.get(queue_offset)

    def offset_since(self, _, __):
        return self.since

    def move_offset_back(self, _, offset):
        self.taken_back.append(offset)

    def is_ready(self, _):
        return self.is_connected

    def pull(self, _, queue_offset, then, __):
        if self.refuses:
            raise self.refuses
        self.asked.append((queue_offset, then))
        return lambda: self.abandoned.append(queue_offset)

    def send_to_dlq(self, _, __, message):
        self.acknowledge_unreadable.append(message.queue_offset)

    def deliver(self, request):
        self.delivered += [each.queue_offset for each in request.messages]
        self.cache.put(request)

    @property
    def offsets(self):
        return [offset for offset, _ in self.asked]

    def answer(self, outcome, number=-1):
        # Responses come from the reading thread.
        thread = threading.Thread(target=self.asked[number][1], args=(outcome,))
        thread.start()
        thread.join()


class Bench:
    def __init__(self):
        self.tasks, self.source = MovedTasks(), Source()
        self.assigned = AssignedQueue(QUEUE, self.tasks)
        self.task = LitePullTask(
            self.assigned, self.source, self.tasks, LIMITS, OutageLog("pulling")
        )

    def start(self):
        self.task.start()
        self.tasks.move(0)
        return self

    def waits(self, ms):
        """Check that the task pulls after this time, and not earlier."""
        asked = len(self.source.asked)
        self.tasks.move(ms - 1)
        assert len(self.source.asked) == asked
        self.tasks.move(1)
        return len(self.source.asked) == asked + 1


@pytest.fixture
def bench():
    return Bench()


def test_pull_task_starts_at_first_offset_and_pulls_again_after_each_answer(bench):
    bench.start()
    bench.source.answer(pulled(*several(5, 6), then=7))
    bench.source.answer(pulled(then=9, status=PullStatus.NO_MATCHED_MSG))
    bench.source.answer(pulled(then=9, status=PullStatus.NO_NEW_MSG))
    assert bench.source.offsets == [5, 7, 9, 9]
    assert bench.source.delivered == [5, 6]


def test_pull_task_leaves_connecting_to_another_thread(bench):
    """For example to a suggested slave: other pulls must not wait for the connection."""
    bench.start()
    bench.source.is_connected = False
    bench.source.answer(pulled(*several(5, 6), then=7))
    assert bench.source.offsets == [5]
    bench.tasks.move(0)
    assert bench.source.offsets == [5, 7]


def of_another(message):
    """Return a message with the same offset in a recreated topic."""
    return replace(message, store_timestamp=9, commit_log_offset=9, message_id="another")


class HeldOn(Bench):
    """A member that received a message; a broker that does not report deletions holds its next
    pull."""

    def __init__(self):
        super().__init__()
        self.start()
        self.assigned.fingerprint = QueueFingerprint(self.tasks)
        self.answered(*several(5), then=6)
        self.assigned.process_queue.clear()

    def answered(self, *messages, then, **more):
        self.source.answer(pulled(*messages, then=then, **more)._replace(may_be_recreated=True))


@pytest.mark.parametrize("is_empty", [False, True], ids=["longer", "as long"])
def test_late_long_poll_answer_counts_only_if_the_queue_is_the_same(is_empty):
    """RocketMQ's brokers keep holding a pull when its topic is recreated."""
    bench = HeldOn()
    bench.tasks.move(UNVERIFIED_MS_MAX)
    bench.source.stored[5] = of_another(received(5))
    bench.source.since = 0
    bench.answered(*([] if is_empty else several(6)), then=6 if is_empty else 7)
    assert bench.source.scanned_to == []  # the reading thread must not wait for the response
    bench.tasks.move(0)
    assert (bench.source.scanned_to, bench.source.offsets) == ([5], [5, 6, 0])
    assert (bench.source.delivered, bench.source.taken_back) == ([5], [0])


def test_held_pull_response_is_delivered_if_the_last_message_is_unchanged():
    bench = HeldOn()
    bench.tasks.move(UNVERIFIED_MS_MAX)
    bench.source.stored[5] = received(5)
    bench.answered(*several(6), then=7)
    bench.tasks.move(0)
    assert (bench.source.scanned_to, bench.source.offsets) == ([5], [5, 6, 7])
    assert bench.source.delivered == [5, 6]


def test_early_long_poll_answer_is_not_verified():
    bench = HeldOn()
    bench.tasks.move(UNVERIFIED_MS_MAX - 1)
    bench.answered(*several(6), then=7)
    assert (bench.source.scanned_to, bench.source.delivered) == ([], [5, 6])


def test_unverified_answer_is_pulled_again_after_the_check(monkeypatch):
    def is_down(*_):
        raise DOWN

    bench = HeldOn()
    bench.tasks.move(UNVERIFIED_MS_MAX)
    with monkeypatch.context() as patched:
        patched.setattr(bench.source, "message_at", is_down)
        bench.answered(*several(6), then=7)
        bench.tasks.move(0)
    bench.source.stored[5] = received(5)
    assert bench.waits(1_000)
    assert (bench.source.offsets, bench.source.delivered) == ([5, 6, 6], [5])


def test_unverified_answer_is_dropped_after_a_seek():
    bench = HeldOn()
    bench.tasks.move(UNVERIFIED_MS_MAX)
    bench.answered(*several(6), then=7)
    bench.assigned.seek(40)
    bench.task.wake()
    bench.tasks.move(0)
    assert (bench.source.offsets, bench.source.delivered) == ([5, 6, 40], [5])


def test_failed_first_offset_request_is_repeated(bench):
    bench.source.first_offsets = [RequestTimeout("b:1", 14, 3_000), DOWN, 5]
    bench.start()
    assert bench.source.offsets == []
    bench.tasks.move(2_999)
    assert bench.source.offsets == []
    bench.tasks.move(1)
    assert bench.waits(3_000)
    assert bench.source.offsets == [5]


@pytest.mark.parametrize("where", ["first_offset", "pull", "deliver"])
def test_pull_task_continues_after_unexpected_error(bench, monkeypatch, where):
    def breaks(*_):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(bench.source, where, breaks)
        bench.start()
        if where == "deliver":
            bench.source.answer(pulled(*several(5), then=6))
    bench.tasks.move(3_000)
    assert bench.source.offsets[-1:] == [6 if where == "deliver" else 5]


def test_pull_refused_by_flow_control_is_retried_soon_without_a_warning(bench, caplog):
    bench.start()
    with caplog.at_level(logging.WARNING):
        bench.source.answer(SystemBusy(ResponseCode.FLOW_CONTROL, "slower", "b:1", 11))
    assert bench.waits(20)
    assert lines_of(caplog, "rmq_spark.client.consumer") == []


@pytest.mark.parametrize(
    "messages",
    [
        several(*range(5, 25)),
        several(5, 106),
        (received(5, bytes(1 << 20)),),
    ],
    ids=["count", "span", "size"],
)
def test_pull_task_waits_while_its_cache_is_full(bench, messages):
    bench.start()
    bench.source.answer(pulled(*messages, then=200))
    assert bench.task.is_throttled
    assert len(bench.source.asked) == 1
    bench.tasks.move(500)
    assert len(bench.source.asked) == 1
    assert bench.source.cache.poll(0)
    bench.tasks.move(50)
    assert bench.source.offsets == [5, 200]


def test_pull_task_waits_while_all_caches_together_are_full(bench):
    bench.start()
    bench.source.cached_messages = 50
    bench.source.answer(pulled(*several(5), then=6))
    assert bench.task.is_throttled
    bench.source.cached_messages = 49
    assert bench.waits(50)


def test_pull_continues_at_once_when_the_cache_has_room(bench):
    bench.start()
    bench.source.answer(pulled(*several(*range(5, 25)), then=25))
    bench.source.cache.poll(0)
    bench.task.wake()
    bench.tasks.move(0)
    assert bench.source.offsets == [5, 25]


def test_paused_queue_is_checked_every_second_or_when_resumed(bench):
    bench.assigned.is_paused = True
    bench.start()
    bench.tasks.move(5_000)
    assert bench.source.offsets == []
    bench.assigned.is_paused = False
    assert bench.waits(1_000)


@pytest.mark.parametrize(
    ("answer", "legal"),
    [
        (pulled(then=40, status=PullStatus.OFFSET_ILLEGAL, least=40, most=90), 40),
        (pulled(then=3, status=PullStatus.OFFSET_ILLEGAL, least=1, most=3), 3),
        (pulled(then=5, status=PullStatus.OFFSET_ILLEGAL, least=40, most=90), 40),
        (pulled(then=5, status=PullStatus.OFFSET_ILLEGAL, least=1, most=3), 3),
        (pulled(then=0, status=PullStatus.OFFSET_ILLEGAL, least=1, most=3), 3),
    ],
)
def test_illegal_pull_offset_is_corrected_by_one_response(bench, answer, legal):
    bench.start()
    bench.source.answer(answer)
    assert bench.source.offsets == [5, legal]


def test_late_pull_response_of_a_revoked_queue_is_ignored(bench):
    bench.start()
    bench.task.cancel()
    assert bench.source.abandoned == [5]
    bench.assigned.drop()
    bench.source.answer(pulled(*several(5), then=6))
    bench.tasks.move(100_000)
    assert bench.source.offsets == [5]
    assert bench.source.delivered == []
    assert bench.assigned.consume_offset == 5


def test_seek_replaces_a_held_pull(bench):
    bench.start()
    bench.assigned.seek(50)
    bench.task.wake()
    bench.tasks.move(0)
    assert bench.source.offsets == [5, 50]
    bench.source.answer(pulled(*several(5), then=6), 0)
    assert bench.source.offsets == [5, 50]
    bench.source.answer(pulled(*several(50), then=51), 1)
    assert bench.source.offsets == [5, 50, 51]
    assert bench.source.delivered == [50]


def test_seek_during_missing_topic_wins_over_the_old_offset(bench):
    gone = TopicNotFound(ResponseCode.TOPIC_NOT_EXIST, "no T", "b:1", 11)
    bench.start()
    bench.source.answer(pulled(*several(5), then=6))
    bench.source.answer(gone)
    bench.assigned.seek(50)
    bench.task.wake()
    bench.tasks.move(0)
    assert bench.source.offsets == [5, 6, 50]
    assert bench.source.scanned_to == []


def test_waking_a_pull_task_does_not_pull_twice(bench):
    bench.start()
    bench.task.wake()
    bench.tasks.move(5_000)
    assert bench.source.offsets == [5]


def test_answer_during_wake_of_the_pull_task_is_not_pulled_twice(bench, monkeypatch):
    bench.start()
    begin, goes_on, is_woken = bench.assigned.pull_position, threading.Event(), threading.Event()
    answering = threading.Thread(
        target=bench.source.asked[0][1], args=(pulled(*several(5), then=6),)
    )

    def begin_meanwhile():
        found = begin()
        if threading.current_thread() is answering:
            goes_on.set()
            is_woken.wait()
        else:
            answering.start()
            goes_on.wait(0.2)  # times out, because it waits for the woken thread
        return found

    monkeypatch.setattr(bench.assigned, "pull_position", begin_meanwhile)
    bench.task.wake()
    bench.tasks.move(0)
    is_woken.set()
    answering.join()
    assert bench.source.offsets == [5, 6]


def test_immediate_pull_responses_do_not_recurse():
    bench, depth, deepest = Bench(), 0, 0

    def pull(queue, queue_offset, then, room_bytes):
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        if queue_offset < 3_000:
            then(pulled(then=queue_offset + 1, status=PullStatus.NO_MATCHED_MSG))
        depth -= 1
        return lambda: None

    bench.source.pull = pull
    bench.start()
    assert bench.assigned.pull_position() == (0, 3_000)
    assert deepest == 1


def test_ten_thousand_cancelled_pull_tasks_leave_no_scheduled_task():
    tasks, source = MovedTasks(), Source()
    for number in range(10_000):
        assigned = AssignedQueue(QUEUE, tasks)
        source.first_offsets = [5 if number % 3 else DOWN]
        assigned.is_paused = number % 5 == 0
        task = LitePullTask(assigned, source, tasks, LIMITS, OutageLog("pulling"))
        task.start()
        tasks.move(0)
        if number % 2 and source.asked:
            source.asked[-1][1](DOWN)
        task.cancel()
        assigned.drop()
    assert tasks.pending == 0
