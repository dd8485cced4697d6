"""Orderly listeners: order, suspension, locks, and dead letters after too many failures."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.manual_scheduler import MovedTasks
from support.messages.received_messages import QUEUE, several

from rmq_spark.client.consumer.dispatch.consume_services import ConsumeMessageOrderlyService
from rmq_spark.client.consumer.dispatch.listeners import ConsumeOrderlyStatus
from rmq_spark.client.consumer.pull.pull_task import PullRequest
from rmq_spark.client.consumer.queues.process_queue import LOCK_EXPIRES_MS, ProcessQueue

SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class Retries:
    """Brokers that accept dead letters, or refuse them."""

    def __init__(self, max_reconsume_times=2):
        self.max_reconsume_times, self.dead, self.accepts = max_reconsume_times, [], True
        self.fails = False

    def send_to_dlq(self, message):
        if self.fails:
            self.fails = False
            raise RuntimeError("nobody expects this")
        assert "attempt" not in message.properties
        if self.accepts:
            self.dead.append(message.queue_offset)
        return self.accepts


class Bench:
    def __init__(self, listener, batch_size=1, locks=True, retries=None):
        self.tasks, self.committed, self.asked_for_locks, self.grants = MovedTasks(), [], 0, True
        self.fails, self.ended = False, []
        self.request = PullRequest(QUEUE, ProcessQueue(self.tasks), 0)
        self.request.process_queue.set_locked(self.tasks(), locked=True)
        self.service = ConsumeMessageOrderlyService(
            listener,
            self.tasks,
            retries,
            self.acknowledge,
            self.lock if locks else None,
            self.ended.append,
            batch_size,
            1_000,
        )

    def acknowledge(self, request, messages):
        if self.fails:
            self.fails = False
            raise RuntimeError("nobody expects this")
        return request.process_queue.acknowledge(messages, self.committed.append)

    def lock(self, request):
        if not request.process_queue.is_locked:
            self.asked_for_locks += 1
            request.process_queue.set_locked(self.tasks(), locked=self.grants)
        return request.process_queue.is_locked

    def submit(self, *offsets, **properties):
        self.request.process_queue.put_messages(several(*offsets, **properties))
        self.service.submit(self.request)
        self.tasks.move(0)


class Listener:
    def __init__(self, *fails):
        self.seen, self.fails = [], list(fails)

    def __call__(self, messages, _):
        self.seen.append([(each.queue_offset, each.reconsume_times) for each in messages])
        if self.fails and messages[0].queue_offset == self.fails[0]:
            del self.fails[0]
            return SUSPEND
        return ConsumeOrderlyStatus.SUCCESS

    @property
    def offsets(self):
        return [[offset for offset, _ in batch] for batch in self.seen]


def test_orderly_consume_runs_batches_in_order():
    listener = Listener()
    bench = Bench(listener, batch_size=2)
    bench.submit(0, 1, 2)
    bench.submit(3)
    assert listener.offsets == [[0, 1], [2], [3]]
    assert bench.committed == [2, 3, 4]


def test_orderly_failure_suspends_queue_until_retry():
    listener = Listener(1, 1)
    bench = Bench(listener)
    bench.submit(0, 1, 2)
    assert listener.seen == [[(0, 0)], [(1, 0)]]
    bench.submit(3)
    bench.tasks.move(999)
    assert len(listener.seen) == 2
    bench.tasks.move(1)
    assert listener.seen[2:] == [[(1, 1)]]
    bench.tasks.move(1_000)
    assert listener.seen[3:] == [[(1, 2)], [(2, 0)], [(3, 0)]]
    assert bench.committed[-1] == 4


def test_orderly_listener_sets_its_suspend_time():
    times = []

    def listen(_, context):
        times.append(bench.tasks.now_ms)
        context.suspend_current_queue_time_ms = 70
        return SUSPEND if len(times) == 1 else None

    bench = Bench(listen)
    bench.submit(0)
    bench.tasks.move(1_000)
    assert times == [0, 70]


@pytest.mark.parametrize(
    ("wait_ms", "at_ms"), [("70", 1_000), (None, 1_000), (-1, 1_000), (0, 10), (9, 10)]
)
def test_orderly_suspend_time_is_clamped(wait_ms, at_ms):
    times = []

    def listen(_, context):
        times.append(bench.tasks.now_ms)
        context.suspend_current_queue_time_ms = wait_ms
        return SUSPEND if len(times) == 1 else None

    bench = Bench(listen)
    bench.submit(0)
    bench.tasks.move(1_000)
    assert times == [0, at_ms]


def test_negative_suspend_time_falls_back_to_the_setting_and_is_logged(caplog):
    times = []

    def listen(_, context):
        times.append(bench.tasks.now_ms)
        context.suspend_current_queue_time_ms = -7
        return SUSPEND

    bench = Bench(listen)
    bench.submit(0)
    bench.tasks.move(3_000)
    assert times == [0, 1_000, 2_000, 3_000]
    assert "set suspend_current_queue_time_ms to -7: needed" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_orderly_error_does_not_let_later_messages_overtake(error):
    seen = []

    def listen(messages, _):
        seen.append(messages[0].queue_offset)
        if seen == [0]:
            raise error

    bench = Bench(listen)
    bench.submit(0)
    bench.submit(1)
    bench.tasks.move(1_000)
    assert seen == [0, 0, 1]
    assert bench.committed == [0, 1, 2]


def test_orderly_listener_that_raises_gets_the_same_message_again():
    calls = []

    def listen(messages, _):
        calls.append(messages[0].queue_offset)
        if len(calls) == 1:
            raise RuntimeError("no")

    bench = Bench(listen)
    bench.submit(0, 1)
    bench.tasks.move(1_000)
    assert calls == [0, 0, 1]


class Unshown:
    def __repr__(self):
        raise SystemExit("what has no text")


@given(
    failures=st.lists(
        st.sampled_from(["raise", "return", "time", "written", "dead letter", "offset"]),
        max_size=6,
    ),
    batch_size=st.integers(1, 3),
)
def test_orderly_consume_with_random_failures_keeps_order_and_finishes_all(failures, batch_size):
    """Each failure occurs once, at the next message."""
    left, finished = list(failures), []

    def listen(messages, context):
        assert all(each.properties == {"colour": "red"} for each in messages)
        how = left.pop() if left else None
        for message in messages:
            message.properties["attempt"] = 3
        if how == "raise":
            raise SystemExit
        if how == "return":
            return Unshown()
        if how == "time":
            context.suspend_current_queue_time_ms = Unshown()
            return SUSPEND
        if how in {"written", "dead letter"}:
            retries.fails = how == "dead letter"
            return SUSPEND
        bench.fails = how == "offset"
        finished.extend(each.queue_offset for each in messages)
        return None

    retries = Retries(max_reconsume_times=1)
    bench = Bench(listen, batch_size, retries=retries)
    bench.submit(0, 1, colour="red")
    bench.submit(2, 3, 4, colour="red")
    bench.tasks.move(60_000)
    assert not bench.request.process_queue.message_count
    assert bench.request.process_queue.commit_offset == 5
    first_times = list(dict.fromkeys(finished))
    assert first_times == sorted(first_times)
    assert {*finished, *retries.dead} == set(range(5))


@pytest.mark.parametrize("takes", [True, False])
def test_orderly_message_becomes_dead_letter_after_max_reconsume_times(takes):
    listener, retries = Listener(*[0] * 5), Retries(max_reconsume_times=2)
    retries.accepts = takes
    bench = Bench(listener, retries=retries)
    bench.submit(0, 1)
    bench.tasks.move(3_500)
    if takes:
        assert retries.dead == [0]
        assert listener.seen == [[(0, 0)], [(0, 1)], [(0, 2)], [(1, 0)]]
    else:
        assert listener.seen == [[(0, number)] for number in range(4)]
        assert bench.request.process_queue.commit_offset == 0


def test_orderly_consume_needs_the_queue_lock():
    listener = Listener()
    bench = Bench(listener)
    bench.grants = False
    bench.request.process_queue.set_locked(bench.tasks(), locked=False)
    bench.submit(0)
    assert (listener.seen, bench.asked_for_locks) == ([], 1)
    bench.grants = True
    bench.tasks.move(1_000)
    assert listener.offsets == [[0]]


def test_expired_queue_lock_is_requested_again():
    bench = Bench(Listener())
    bench.tasks.move(LOCK_EXPIRES_MS + 1)
    bench.submit(0)
    assert bench.asked_for_locks == 1


def test_broadcasting_orderly_consumer_needs_no_queue_lock():
    listener = Listener()
    bench = Bench(listener, locks=False)
    bench.request.process_queue.set_locked(bench.tasks(), locked=False)
    bench.submit(0)
    assert listener.offsets == [[0]]


def test_orderly_service_skips_a_dropped_queue():
    listener = Listener()
    bench = Bench(listener)
    bench.request.process_queue.put_messages(several(0, 1))
    bench.request.process_queue.drop()
    bench.service.submit(bench.request)
    bench.tasks.move(0)
    assert listener.seen == []


def test_orderly_submit_during_consume_leaves_messages_to_the_running_one():
    seen = []

    def listen(messages, _):
        seen.extend(each.queue_offset for each in messages)
        if seen == [0]:
            bench.submit(1)

    bench = Bench(listen)
    bench.submit(0)
    assert seen == [0, 1]
    assert not bench.request.process_queue.consuming.locked()


def test_orderly_submit_as_failed_queue_is_released_waits_for_the_backoff():
    class LetGo:
        """Another thread that checks the queue when its lock is released."""

        def __init__(self, lock):
            self._lock, self.acquire = lock, lock.acquire

        def release(self):
            self._lock.release()
            bench.service.submit(bench.request)
            bench.tasks.move(0)

    listener = Listener(0)
    bench = Bench(listener)
    bench.request.process_queue.consuming = LetGo(bench.request.process_queue.consuming)
    bench.submit(0)
    bench.tasks.move(999)
    assert listener.seen == [[(0, 0)]]
    bench.tasks.move(1)
    assert listener.seen == [[(0, 0)], [(0, 1)]]


def test_orderly_queue_retired_during_consume_reports_its_end():
    def listen(messages, _context):
        calls.append(messages)
        assert bench.request.ownership.listener_lock.locked()
        assert bench.ended == []
        if len(calls) == 2:
            bench.request.process_queue.retire()

    calls, bench = [], Bench(listen)
    bench.submit(0, 1, 2)
    assert bench.ended == [bench.request]
    assert bench.committed == [1, 2]
    assert bench.request.process_queue.has_waiting


def test_orderly_restarted_queue_waits_for_listener_of_the_previous_one():
    seen = []

    def listen(messages, _):
        seen.extend(each.queue_offset for each in messages)
        if seen == [5]:
            before.process_queue.drop()
            bench.submit(0)
            bench.tasks.move(30)
            seen.append("gives back")

    bench = Bench(listen)
    before, bench.request = (
        bench.request,
        replace(bench.request, process_queue=ProcessQueue(bench.tasks)),
    )
    bench.request.process_queue.set_locked(bench.tasks(), locked=True)
    before.process_queue.put_messages(several(5, 6))
    bench.service.submit(before)
    bench.tasks.move(0)
    bench.tasks.move(1_000)
    assert seen == [5, "gives back", 0]
    assert not bench.request.ownership.listener_lock.locked()


def test_orderly_lock_lost_during_consume_discards_later_messages():
    bench = Bench(lambda *_: None)
    seen = []

    def listener(messages, _):
        seen.extend(each.queue_offset for each in messages)
        if seen == [0, 1]:
            bench.grants = False  # the broker has restarted, and gives the lock to another member
            bench.tasks.move(1)
            bench.request.process_queue.invalidate_lock()
        return ConsumeOrderlyStatus.SUCCESS

    bench.service.listener = listener
    bench.submit(0, 1, 2, 3)
    assert seen == [0, 1]
    bench.grants = True
    bench.tasks.move(2_000)
    assert seen == [0, 1, 2, 3]
