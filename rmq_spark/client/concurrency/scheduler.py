"""Schedulers: threads that run tasks at once, after a delay, or periodically.

The threads are daemons and are started as needed, up to a limit. Stopping drops the tasks that are
not due yet, and waits for running ones only as long as the caller says: a listener that never
returns must not keep a process from exiting. Errors of a task are logged and affect no other task.

In a forked process schedulers are stopped: the parent runs their tasks.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.locks import condition_mutex, mutex, reentrant_mutex, start_thread
from rmq_spark.client.errors import ClientError

# ---- PeriodicThread: a thread that repeats a job, or runs it at once on request.

_log = logging.getLogger(__name__)

REST_MS: Final = 1_000
"""Least milliseconds of rest between two runs, however often the job is hurried."""


class PeriodicThread:
    """Runs a job in a thread of its own, after each period, or earlier after `wake`."""

    def __init__(
        self, name: str, period_ms: int, job: Callable[[], object], *, rest_ms: int = REST_MS
    ) -> None:
        self._period = period_ms / 1000
        self._rest_seconds = min(rest_ms, period_ms) / 1000
        self._job = job
        self._clock = time.monotonic
        self._state_lock = (
            condition_mutex()
        )  # no Event: a signal's handler may raise in who is in a hurry
        self._is_requested = False
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=f"rocketpoll {name}", daemon=True)

    def start(self) -> None:
        """Start the thread; the job runs for the first time after a period."""
        start_thread(self._thread)

    def wake(self) -> None:
        """Run the job now, or after the rest period if it has just run."""
        with self._state_lock:
            self._is_requested = True
            self._state_lock.notify_all()

    @property
    def is_alive(self) -> bool:
        """True if the thread was started and has not ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop running the job, without waiting for a run that has begun."""
        with self._state_lock:
            self._is_requested = self._is_stopped = True
            self._state_lock.notify_all()

    def join(self, seconds: float) -> None:
        """Wait at most so many seconds until the thread has ended."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        rested_at = 0.0
        while True:
            with self._state_lock:
                self._wait(lambda: self._is_requested, self._clock() + self._period)
                self._wait(lambda: self._is_stopped, rested_at)
                if self._is_stopped:
                    return
                self._is_requested = False
            try:
                self._job()
            except ClientError as error:
                _log.warning("%s: %s", self._thread.name, error)
            except BaseException:  # noqa: BLE001  # the next run may succeed
                _log.exception("%s failed", self._thread.name)
            rested_at = self._clock() + self._rest_seconds

    def _wait(self, condition: Callable[[], bool], deadline: float) -> None:
        while not condition() and (seconds := deadline - self._clock()) > 0:
            self._state_lock.wait(seconds)


Action = Callable[[], object]


class Task:
    """An action that runs once; it can be cancelled until it begins."""

    __slots__ = ("_action", "due_s")

    def __init__(self, action: Action, due_s: float) -> None:
        self._action: Action | None = action
        self.due_s = due_s

    def cancel(self) -> None:
        """Cancel the action, unless it has begun."""
        self._action = None

    @property
    def is_cancelled(self) -> bool:
        """True if the action was cancelled or has run."""
        return self._action is None

    def run(self) -> None:
        """Run the action, unless it was cancelled or has run."""
        action, self._action = self._action, None
        if action is not None:
            try:
                action()
            except BaseException:  # noqa: BLE001  # what a task raises, sys.exit as well, harms no other
                _log.exception("a task failed")


class Scheduler(Protocol):
    """Runs actions at once or after a delay."""

    def schedule(self, action: Action, delay_ms: int = 0) -> Task:
        """Run an action after a delay in milliseconds, if the scheduler still runs then."""


class StoppableScheduler(Scheduler, Protocol):
    """A `Scheduler` that can be stopped, and that counts its threads."""

    @property
    def thread_count(self) -> int:
        """Number of threads of its own that are alive."""

    def stop(self, wait_ms: int) -> bool:
        """Discard waiting tasks, wait for running ones; return whether all have ended in time."""


class Stoppable(Protocol):
    """An object that can be stopped with a timeout."""

    def stop(self, wait_ms: int) -> object:
        """Begin nothing more, and wait at most so long for what is running."""


def stop_all(stoppables: Collection[Stoppable], wait_ms: int) -> None:
    """Stop several objects, and wait for all of them, at most so many milliseconds in total."""
    for each in stoppables:
        each.stop(0)
    deadline = time.monotonic() + wait_ms / 1000
    for each in stoppables:
        each.stop(max(0, int((deadline - time.monotonic()) * 1000)))


class ThreadScheduler(ForkAware):
    """A `Scheduler` with threads of its own."""

    def __init__(self, name: str, threads_max: int = 1) -> None:
        self._name = name
        self._threads_max = threads_max
        self._lock = reentrant_mutex()
        self._state = threading.Condition(self._lock)
        self._tasks: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._has_leader = False
        self._is_stopped = False
        ForkAware.__init__(self)

    def schedule(self, action: Action, delay_ms: int = 0) -> Task:
        """Run an action after a delay in milliseconds; a stopped scheduler discards it."""
        task = Task(action, time.monotonic() + delay_ms / 1000)
        with self._lock:
            if self._is_stopped:
                task.cancel()
                return task
            heapq.heappush(self._tasks, (task.due_s, next(self._numbers), task))
            if self._idle and delay_ms > 0 and self._tasks[0][2] is task:
                self._state.notify_all()  # the thread that looks at the clock must look again
            else:
                self._wake_another()
        return task

    def _wake_another(self) -> None:
        """Wake or start a thread for the tasks that are left.

        An idle thread that was called before wakes the next.
        """
        if self._idle:
            self._state.notify()
        elif len(self._threads) < self._threads_max:
            self._start_thread()

    def _start_thread(self) -> None:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            start_thread(thread)
        except RuntimeError as error:  # at a limit of threads; the next task tries again
            count = len(self._threads)
            _log.error(
                "%s: another thread cannot be started (%s): there are %d", self._name, error, count
            )
            return
        self._threads.append(thread)

    @property
    def pending(self) -> int:
        """Number of waiting tasks."""
        with self._lock:
            return sum(not task.is_cancelled for _, _, task in self._tasks)

    @property
    def thread_count(self) -> int:
        """Number of threads that are alive."""
        with self._lock:
            return sum(thread.is_alive() for thread in self._threads)

    def stop(self, wait_ms: int) -> bool:
        """Discard waiting tasks, wait for running ones; return whether all have ended in time."""
        with self._lock:
            self._is_stopped = True
            self._tasks.clear()
            self._state.notify_all()
            threads = [each for each in self._threads if each is not threading.current_thread()]
        deadline = time.monotonic() + wait_ms / 1000
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _after_fork(self) -> None:
        """Stop, if any thread has begun."""
        self._lock = reentrant_mutex()
        self._state = threading.Condition(self._lock)
        self._is_stopped = self._is_stopped or bool(self._threads)
        self._tasks = []

    def _run(self) -> None:
        while (task := self._next_due()) is not None:
            task.run()

    def _next_due(self) -> Task | None:
        """Return the next task when it is due; None once stopped.

        One idle thread looks at the clock; the others wait to be called. A thread that takes a task
        leaves the clock, and may be gone for long: it calls another for what is left.
        """
        with self._lock:
            while not self._is_stopped:
                wait_s = self._tasks[0][0] - time.monotonic() if self._tasks else None
                if wait_s is not None and wait_s <= 0:
                    task = heapq.heappop(self._tasks)[2]
                    if self._tasks:
                        self._wake_another()
                    return task
                self._wait(None if self._has_leader else wait_s)
            return None

    def _wait(self, seconds: float | None) -> None:
        leads = seconds is not None
        self._has_leader |= leads
        self._idle += 1
        self._state.wait(seconds)
        self._idle -= 1
        if leads:
            self._has_leader = False


class RepeatedTask:
    """An action that runs periodically, or at once after `wake`.

    It never runs twice at the same time; a `wake` during a run causes one more run after it.
    """

    def __init__(
        self, scheduler: Scheduler, action: Callable[[], int | None], period_ms: int
    ) -> None:
        """Make it; the action returns the ms until its next run, or None for the period."""
        self._scheduler = scheduler
        self._action = action
        self._period_ms = period_ms
        self._mutex = mutex()
        self._next: Task | None = None
        self._is_running = False
        self._is_requested = False
        self._is_stopped = False

    def start(self, delay_ms: int) -> None:
        """Schedule the first run after a delay in milliseconds; a second call has no effect."""
        with self._mutex:
            if self._next is None:
                self._next = self._scheduler.schedule(self._run, delay_ms)

    def wake(self) -> None:
        """Run the action now, or once more if it is running."""
        with self._mutex:
            if self._is_stopped:
                return
            if self._is_running:
                self._is_requested = True
                return
            if self._next is not None:
                self._next.cancel()
            self._next = self._scheduler.schedule(self._run)

    def stop(self) -> None:
        """Stop running the action."""
        with self._mutex:
            self._is_stopped = True
            if self._next is not None:
                self._next.cancel()

    def _run(self) -> None:
        with self._mutex:
            if self._is_stopped or self._is_running:
                return
            self._is_running = True
            self._is_requested = False
        delay_ms: int | None = None
        try:
            delay_ms = self._action()
        finally:
            with self._mutex:
                self._is_running = False
                if not self._is_stopped:
                    delay_ms = self._period_ms if delay_ms is None else delay_ms
                    self._next = self._scheduler.schedule(
                        self._run, 0 if self._is_requested else delay_ms
                    )
