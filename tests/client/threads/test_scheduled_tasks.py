"""Scheduled and repeated tasks: due times, limits, failures and stop."""

import logging
import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.manual_scheduler import MovedTasks

from rmq_spark.client.concurrency import deferred_wakeups
from rmq_spark.client.concurrency.scheduler import RepeatedTask, ThreadScheduler

PATIENCE_S = 20


@pytest.fixture
def tasks():
    tasks = ThreadScheduler("test", threads_max=3)
    yield tasks
    assert tasks.stop(PATIENCE_S * 1000)


def test_scheduler_runs_tasks_in_order_of_due_time(tasks):
    done, order = threading.Event(), []
    tasks.schedule(lambda: (order.append("late"), done.set()), 1_000)
    tasks.schedule(lambda: order.append("early"), 300)
    tasks.schedule(lambda: order.append("now"))
    assert done.wait(PATIENCE_S)
    assert order == ["now", "early", "late"]


def test_later_task_with_earlier_due_time_runs_first(tasks):
    idle, done = threading.Barrier(4), threading.Event()
    for _ in range(3):
        tasks.schedule(lambda: idle.wait(PATIENCE_S))
    idle.wait(PATIENCE_S)
    tasks.schedule(lambda: None, 3_600_000)
    tasks.schedule(done.set, 20)
    assert done.wait(PATIENCE_S)


def test_scheduler_runs_several_tasks_concurrently(tasks):
    meeting = threading.Barrier(4)
    for _ in range(3):
        tasks.schedule(lambda: meeting.wait(PATIENCE_S))
    meeting.wait(PATIENCE_S)


def idle(tasks, count):
    """Wait until this number of threads exists and all are idle."""
    meeting = threading.Barrier(count + 1)
    for _ in range(count):
        tasks.schedule(lambda: meeting.wait(PATIENCE_S))
    meeting.wait(PATIENCE_S)
    wait_until("so many threads that wait", lambda: tasks._idle == count)
    return tasks


def test_burst_of_scheduled_tasks_wakes_enough_threads(tasks):
    idle(tasks, 1)
    meeting = threading.Barrier(4)
    with tasks._state:  # the new thread cannot start before all tasks are added
        for _ in range(3):
            tasks.schedule(lambda: meeting.wait(PATIENCE_S))
    meeting.wait(PATIENCE_S)


def test_delayed_task_does_not_wait_for_busy_thread(tasks):
    idle(tasks, 1)
    late, end = threading.Event(), threading.Event()
    with tasks._state:
        tasks.schedule(late.set, 20)
        tasks.schedule(lambda: end.wait(PATIENCE_S * 2))
    assert late.wait(PATIENCE_S)
    end.set()


def test_scheduler_needs_two_threads_for_one_task_at_a_time():
    """One thread runs the due task, the other waits for the next one."""
    tasks, done = idle(ThreadScheduler("test", threads_max=20), 1), threading.Semaphore(0)
    tasks.schedule(lambda: None, 3_600_000)
    for number in range(20):
        tasks.schedule(done.release, number % 3)
        assert done.acquire(timeout=PATIENCE_S)
        wait_until("two threads that wait", lambda: tasks._idle == 2)
    assert tasks.stop(PATIENCE_S * 1000)


def test_scheduler_limits_its_threads():
    tasks, met = ThreadScheduler("test", threads_max=2), []
    names, done = set(), threading.Semaphore(0)
    for number in range(50):
        tasks.schedule(
            lambda: (names.add(threading.current_thread().name), done.release()), number % 3
        )
        met.append(number)
    assert all(done.acquire(timeout=PATIENCE_S) for _ in met)
    assert names <= {"test-1", "test-2"}
    assert tasks.stop(PATIENCE_S * 1000)


def test_cancelled_task_does_not_run(tasks):
    done, order = threading.Event(), []
    tasks.schedule(lambda: order.append("never"), 20).cancel()
    tasks.schedule(done.set, 40)
    assert done.wait(PATIENCE_S)
    assert order == []


def test_scheduled_task_that_raises_is_logged_and_others_run(tasks, caplog):
    done = threading.Event()
    with caplog.at_level(logging.ERROR):
        tasks.schedule(lambda: 1 // 0)
        tasks.schedule(done.set, 10)
        assert done.wait(PATIENCE_S)
        wait_until("a log", lambda: "ZeroDivisionError" in caplog.text)  # perhaps in another thread


def test_scheduler_stop_does_not_wait_for_an_endless_task():
    tasks, began, end = ThreadScheduler("test", threads_max=1), threading.Event(), threading.Event()
    tasks.schedule(lambda: (began.set(), end.wait(PATIENCE_S)))
    tasks.schedule(lambda: None, 100_000)
    assert began.wait(PATIENCE_S)
    assert tasks.pending == 1
    assert not tasks.stop(wait_ms=10)
    assert tasks.pending == 0
    end.set()
    assert tasks.stop(PATIENCE_S * 1000)


def test_stopped_scheduler_cancels_new_tasks():
    tasks = ThreadScheduler("test")
    tasks.stop(0)
    assert tasks.schedule(lambda: None).is_cancelled


def test_scheduled_task_can_stop_its_scheduler():
    tasks, done = ThreadScheduler("test"), threading.Event()
    tasks.schedule(lambda: (tasks.stop(PATIENCE_S * 1000), done.set()))
    assert done.wait(PATIENCE_S)


# ---- repeated tasks


def test_repeated_task_started_twice_runs_once_per_period():
    tasks, at = MovedTasks(), []
    repeated = RepeatedTask(tasks, lambda: at.append(tasks.now_ms), 100)
    repeated.start(10)
    repeated.start(30)
    tasks.move(220)
    assert at == [10, 110, 210]


def test_repeated_task_runs_each_period():
    tasks, at = MovedTasks(), []
    repeated = RepeatedTask(tasks, lambda: at.append(tasks.now_ms), 100)
    repeated.start(10)
    tasks.move(250)
    assert at == [10, 110, 210]


def test_wake_runs_repeated_task_at_once_and_restarts_its_period():
    tasks, at = MovedTasks(), []
    repeated = RepeatedTask(tasks, lambda: at.append(tasks.now_ms), 100)
    repeated.start(100)
    tasks.move(50)
    repeated.wake()
    repeated.wake()
    tasks.move(100)
    assert at == [50, 150]


def test_repeated_task_rests_between_runs_however_often_it_is_woken(tasks):
    ran = threading.Semaphore(0)
    repeated = RepeatedTask(tasks, ran.release, 3_600_000, pause_ms=3_600_000)
    repeated.wake()
    assert ran.acquire(timeout=PATIENCE_S)
    wait_until("it waits for the next run", lambda: tasks.pending == 1)
    repeated.wake()
    assert not ran.acquire(timeout=0.1)
    repeated.stop()


def test_scheduler_can_start_threads_before_tasks(tasks):
    tasks.start_all()
    assert tasks.thread_count == 3


def test_wake_during_a_repeated_task_runs_it_once_more():
    tasks, at = MovedTasks(), []

    def act():
        at.append(tasks.now_ms)
        if len(at) == 1:
            repeated.wake()

    repeated = RepeatedTask(tasks, act, 100)
    repeated.start(0)
    tasks.move(99)
    assert at == [0, 0]


def test_repeated_task_may_choose_its_next_delay():
    tasks, at = MovedTasks(), []
    repeated = RepeatedTask(
        tasks, lambda: at.append(tasks.now_ms) or (7 if len(at) < 3 else None), 100
    )
    repeated.start(0)
    tasks.move(100)
    assert at == [0, 7, 14]


def test_failing_repeated_task_runs_again():
    tasks, at = MovedTasks(), []
    repeated = RepeatedTask(tasks, lambda: at.append(tasks.now_ms) or 1 // 0, 100)
    repeated.start(0)
    tasks.move(100)
    assert at == [0, 100]


def test_stopped_repeated_task_does_not_run():
    tasks, at = MovedTasks(), []
    repeated = RepeatedTask(tasks, lambda: at.append(tasks.now_ms), 100)
    repeated.start(0)
    tasks.move(0)
    repeated.stop()
    repeated.wake()
    tasks.move(1000)
    assert at == [0]
    assert tasks.pending == 0


# ---- wakeups of a turn are deferred to its end


def test_deferred_wakeups_run_in_order_at_the_end_of_a_turn():
    called = []
    deferred_wakeups.begin()
    assert deferred_wakeups.defer(lambda: called.append(1))
    assert deferred_wakeups.defer(lambda: called.append(2))
    assert called == []
    deferred_wakeups.end()
    assert called == [1, 2]
    deferred_wakeups.begin()
    deferred_wakeups.end()
    assert called == [1, 2]


def test_deferred_wakeups_defer_nothing_outside_of_a_turn_or_at_its_end():
    said = [deferred_wakeups.defer(lambda: None)]
    deferred_wakeups.begin()
    deferred_wakeups.defer(lambda: said.append(deferred_wakeups.defer(lambda: None)))
    deferred_wakeups.end()
    assert said == [False, False]


def test_deferred_wakeups_of_one_thread_do_not_defer_another_threads():
    said = []
    deferred_wakeups.begin()
    other = threading.Thread(target=lambda: said.append(deferred_wakeups.defer(lambda: None)))
    other.start()
    other.join(10)
    deferred_wakeups.end()
    assert said == [False]
