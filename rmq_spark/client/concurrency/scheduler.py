"""Schedulers: threads that run tasks at once, after a delay, or periodically.

    ThreadScheduler     threads that run tasks, earliest first
    RepeatedTask        an action that a scheduler runs again and again
    PerBrokerExecutor   a scheduler for each broker, so that a slow broker delays no other
    WorkerThreads       the schedulers of a consumer, its own or shared with others

The threads are daemons and are started as needed, up to a limit. Stopping drops the tasks that are
not due yet, and waits for running ones only as long as the caller says: a listener that never
returns must not keep a process from exiting. A task's error is logged and affects no other task.

In a forked process schedulers are stopped: the parent runs their tasks.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol

from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.threads import start_thread
from rmq_spark.client.errors import ThreadNotStarted

_log = logging.getLogger(__name__)

_RETRY_THREADS_MAX: Final = 4
_SERVICE_THREADS_MAX: Final = 3

Action = Callable[[], object]


class Task:
    """An action that runs once; it can be cancelled until it begins."""

    __slots__ = ("_action", "due_at")

    def __init__(self, action: Action, due_at: float) -> None:
        self._action: Action | None = action
        self.due_at = due_at

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
            except BaseException:  # noqa: BLE001  # no error, not even SystemExit, may end the thread
                _log.exception("a task failed")


class Scheduler(Protocol):
    """Runs actions at once or after a delay."""

    def schedule(self, action: Action, delay_ms: int = 0) -> Task:
        """Run an action after a delay in milliseconds, if the scheduler still runs then."""

    @property
    def thread_count(self) -> int:
        """Number of the scheduler's own threads that are alive."""

    def stop(self, wait_ms: int) -> bool:
        """Discard waiting tasks, wait for running ones; return whether all have ended in time."""


def _stop_all(schedulers: Collection[Scheduler | PerBrokerExecutor], wait_ms: int) -> None:
    """Stop several schedulers, and wait for all of them, for at most ``wait_ms`` in total."""
    for each in schedulers:
        each.stop(0)
    deadline = time.monotonic() + wait_ms / 1000
    for each in schedulers:
        each.stop(max(0, int((deadline - time.monotonic()) * 1000)))


class ThreadScheduler(ForkAware):
    """A `Scheduler` with threads of its own."""

    def __init__(self, name: str, threads_max: int = 1) -> None:
        self._name = name
        self._threads_max = threads_max
        self._lock = threading.RLock()
        self._state = threading.Condition(self._lock)
        self._tasks: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._has_leader = False
        self._is_stopped = False
        ForkAware.__init__(self)

    def start_all(self) -> None:
        """Start all threads now instead of on demand."""
        with self._lock:
            while len(self._threads) < self._threads_max:
                self._start_thread()

    def schedule(self, action: Action, delay_ms: int = 0) -> Task:
        """Run an action after a delay in milliseconds; a stopped scheduler discards it."""
        task = Task(action, time.monotonic() + delay_ms / 1000)
        with self._lock:
            if self._is_stopped:
                task.cancel()
                return task
            heapq.heappush(self._tasks, (task.due_at, next(self._numbers), task))
            if self._idle and delay_ms > 0 and self._tasks[0][2] is task:
                self._state.notify_all()  # the thread that waits for the due time must check again
            else:
                self._wake_another()
        return task

    def _wake_another(self) -> None:
        """Wake or start a thread for the tasks that are left.

        One call wakes one thread, which wakes the next if tasks are left (`_next_due`).
        """
        if self._idle:
            self._state.notify()
        elif (count := len(self._threads)) < self._threads_max:
            try:
                self._start_thread()
            except ThreadNotStarted as error:  # the next task tries again
                _log.error(
                    "%s: cannot start another thread (%s), continuing with %d",
                    self._name,
                    error.reason,
                    count,
                )

    def _start_thread(self) -> None:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(thread)
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
        """Stop in the child, if any thread was started: the parent runs the tasks."""
        self._lock = threading.RLock()
        self._state = threading.Condition(self._lock)
        self._is_stopped = self._is_stopped or bool(self._threads)
        self._tasks = []

    def _run(self) -> None:
        while (task := self._next_due()) is not None:
            task.run()

    def _next_due(self) -> Task | None:
        """Return the next task when it is due; None once stopped.

        One idle thread waits for the next due time; the others wait to be notified. A thread that
        takes a task may be busy for long, so it first wakes another one for the remaining tasks.
        """
        with self._lock:
            while not self._is_stopped:
                wait_seconds = self._tasks[0][0] - time.monotonic() if self._tasks else None
                if wait_seconds is not None and wait_seconds <= 0:
                    task = heapq.heappop(self._tasks)[2]
                    if self._tasks:
                        self._wake_another()
                    return task
                self._wait(None if self._has_leader else wait_seconds)
            return None

    def _wait(self, seconds: float | None) -> None:
        is_leader = seconds is not None
        self._has_leader |= is_leader
        self._idle += 1
        self._state.wait(seconds)
        self._idle -= 1
        if is_leader:
            self._has_leader = False


class _SchedulerView:
    """One user's view of a shared scheduler; stopping a view does not stop the scheduler."""

    thread_count: Final = 0

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_stopped = False

    def schedule(self, action: Action, delay_ms: int = 0) -> Task:
        return self._scheduler.schedule(lambda: self._is_stopped or action(), delay_ms)

    def stop(self, wait_ms: int) -> bool:  # noqa: ARG002  # the threads run for others
        """Begin no more tasks of this view; return True, as no thread has to end."""
        self._is_stopped = True
        return True


class RepeatedTask:
    """An action that runs periodically, or at once after `wake`.

    It never runs twice at the same time; a `wake` during a run causes one more run after it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        action: Callable[[], int | None],
        period_ms: int,
        *,
        pause_ms: int = 0,
    ) -> None:
        """Make a task; the action returns the ms until its next run, or None for the period.

        ``pause_ms`` is the least time between two runs, however often it is woken.
        """
        self._scheduler = scheduler
        self._action = action
        self._period_ms = period_ms
        self._pause_ms = min(pause_ms, period_ms)
        self._paused_until = 0.0
        self._lock = threading.RLock()
        self._next: Task | None = None
        self._is_running = False
        self._is_requested = False
        self._is_stopped = False

    def start(self, delay_ms: int) -> None:
        """Schedule the first run after a delay in milliseconds; a second call has no effect."""
        with self._lock:
            if self._next is None:
                self._schedule(delay_ms)

    def wake(self) -> None:
        """Run the action now, or once more if it is running."""
        with self._lock:
            if self._is_running:
                self._is_requested = True
            elif not self._is_stopped:
                if self._next is not None:
                    self._next.cancel()
                self._schedule(0)

    def stop(self) -> None:
        """Stop running the action."""
        with self._lock:
            self._is_stopped = True
            if self._next is not None:
                self._next.cancel()

    def _schedule(self, delay_ms: int) -> None:
        if self._pause_ms:
            pause_ms = math.ceil((self._paused_until - time.monotonic()) * 1000)
            delay_ms = max(delay_ms, pause_ms)
        self._next = self._scheduler.schedule(self._run, delay_ms)

    def _run(self) -> None:
        with self._lock:
            if self._is_stopped or self._is_running:
                return
            self._is_running = True
            self._is_requested = False
        delay_ms: int | None = None
        try:
            delay_ms = self._action()
        finally:
            with self._lock:
                self._is_running = False
                self._paused_until = time.monotonic() + self._pause_ms / 1000
                if not self._is_stopped:
                    delay_ms = self._period_ms if delay_ms is None else delay_ms
                    self._schedule(0 if self._is_requested else delay_ms)


class PerBrokerExecutor(ForkAware):
    """The schedulers of one client, one for each broker, made on demand.

    An executor with a single thread runs its tasks in order. Methods may be called from any thread.
    """

    def __init__(
        self, name: str, threads_max: int = 1, shared: PerBrokerExecutor | None = None
    ) -> None:
        """Use up to ``threads_max`` threads for each broker, or those of a ``shared`` executor."""
        self._name = name
        self._threads_max = threads_max
        self._shared = shared
        self._lock = threading.Lock()
        self._schedulers: dict[str, Scheduler] = {}
        self.is_stopped = False
        """True if no scheduler begins another task."""
        ForkAware.__init__(self)

    def for_broker(self, broker: str) -> Scheduler:
        """Return the scheduler of a broker."""
        with self._lock:
            found = self._schedulers.get(broker)
            if found is None:
                if self._shared is None:
                    found = ThreadScheduler(f"{self._name} {broker}", self._threads_max)
                else:
                    found = _SchedulerView(self._shared.for_broker(broker))
                self._schedulers[broker] = found
                if self.is_stopped:
                    found.stop(0)
            return found

    def run_for_each(
        self, brokers: Iterable[str], action: Callable[[str], object], wait_ms: int
    ) -> bool:
        """Run an action for each broker in parallel; return whether all have finished in time.

        Actions that have not begun at the timeout are cancelled.
        """
        if self.is_stopped:
            return False
        deadline = time.monotonic() + wait_ms / 1000
        started = [self._start(broker, action) for broker in brokers]
        for _, done in started:
            done.wait(max(deadline - time.monotonic(), 0))
        for task, _ in started:
            task.cancel()
        return all(done.is_set() for _, done in started)

    def _start(self, broker: str, action: Callable[[str], object]) -> tuple[Task, threading.Event]:
        done = threading.Event()

        def act() -> None:
            try:
                action(broker)
            finally:
                done.set()

        return self.for_broker(broker).schedule(act), done

    @property
    def thread_count(self) -> int:
        """Number of threads of all schedulers."""
        with self._lock:
            return sum(each.thread_count for each in self._schedulers.values())

    def stop(self, wait_ms: int = 0) -> None:
        """Discard the waiting tasks of all schedulers; wait for running ones, up to ``wait_ms``."""
        with self._lock:
            self.is_stopped = True
            schedulers = list(self._schedulers.values())
        _stop_all(schedulers, wait_ms)

    def _after_fork(self) -> None:
        """Stop in the child, if any scheduler was made; the schedulers stop themselves."""
        self._lock = threading.Lock()
        self.is_stopped = self.is_stopped or bool(self._schedulers)


class WorkerThreads:
    """The threads for a consumer's background work, its own or ``shared`` with others.

    Attributes:
        broker_executor: Requests to brokers, in order, in one thread for each broker.
        retry_executor: Messages that are sent back, up to four at a time for each broker.
        service_scheduler: Periodic work.
    """

    def __init__(
        self,
        name: str,
        shared: WorkerThreads | None = None,
        *,
        service_threads_max: int = _SERVICE_THREADS_MAX,
    ) -> None:
        self.broker_executor: PerBrokerExecutor = PerBrokerExecutor(
            name, shared=None if shared is None else shared.broker_executor
        )
        self.retry_executor: PerBrokerExecutor = PerBrokerExecutor(
            f"{name} gives back",
            _RETRY_THREADS_MAX,
            None if shared is None else shared.retry_executor,
        )
        self.service_scheduler: Scheduler = (
            ThreadScheduler(f"{name} services", service_threads_max)
            if shared is None
            else _SchedulerView(shared.service_scheduler)
        )

    @property
    def thread_count(self) -> int:
        """Number of threads that are alive."""
        return sum(
            each.thread_count
            for each in (self.broker_executor, self.retry_executor, self.service_scheduler)
        )

    def stop(self, wait_ms: int = 0) -> None:
        """Begin no more tasks; wait for running ones, up to ``wait_ms`` in total."""
        _stop_all((self.broker_executor, self.retry_executor, self.service_scheduler), wait_ms)
