"""PerBrokerExecutor: an executor for each broker, so that a slow broker delays no other.

    broker-a   ──▶ pull, lock, commit ...
    broker-b   ──▶ a connection that is not accepted: three seconds each
    broker-c   ──▶ pull, lock, commit ...

An executor with one thread runs its tasks in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.locks import mutex
from rmq_spark.client.concurrency.scheduler import (
    StoppableScheduler,
    Task,
    ThreadScheduler,
    stop_all,
)


class PerBrokerExecutor(ForkAware):
    """The executors of one client, made on demand. Methods may be called from any thread."""

    def __init__(
        self,
        name: str,
        threads_max: int = 1,
        *,
        create: Callable[[str], StoppableScheduler] | None = None,
    ) -> None:
        """Use up to ``threads_max`` threads for each broker, or the executors of ``create``."""
        self._name = name
        self._threads_max = threads_max
        self._create = create or self._create_own
        self._lock = mutex()
        self._schedulers: dict[str, StoppableScheduler] = {}
        self._is_stopped = False
        ForkAware.__init__(self)

    def _create_own(self, broker: str) -> StoppableScheduler:
        return ThreadScheduler(f"{self._name} {broker}", self._threads_max)

    def for_broker(self, broker: str) -> StoppableScheduler:
        """Return the executor of a broker."""
        with self._lock:
            lane = self._schedulers.get(broker)
            if lane is None:
                lane = self._schedulers[broker] = self._create(broker)
                if self._is_stopped:
                    lane.stop(0)
            return lane

    def run_for_each(
        self, brokers: Iterable[str], action: Callable[[str], object], wait_ms: int
    ) -> bool:
        """Run an action for each broker in parallel; return whether all have finished in time.

        Actions that have not begun at the timeout are cancelled.
        """
        if self._is_stopped:
            return False
        deadline = time.monotonic() + wait_ms / 1000
        begun = [self._start(broker, action) for broker in brokers]
        for _, done in begun:
            done.wait(max(deadline - time.monotonic(), 0))
        for task, _ in begun:
            task.cancel()
        return all(done.is_set() for _, done in begun)

    def _start(self, broker: str, action: Callable[[str], object]) -> tuple[Task, threading.Event]:
        done = threading.Event()

        def act() -> None:
            try:
                action(broker)
            finally:
                done.set()

        return self.for_broker(broker).schedule(act), done

    @property
    def is_stopped(self) -> bool:
        """True if no executor begins another task."""
        return self._is_stopped

    @property
    def thread_count(self) -> int:
        """Number of threads in all executors."""
        with self._lock:
            return sum(lane.thread_count for lane in self._schedulers.values())

    def stop(self, wait_ms: int = 0) -> None:
        """Discard the waiting tasks of all executors; wait at most so long for running ones."""
        with self._lock:
            self._is_stopped = True
            lanes = list(self._schedulers.values())
        stop_all(lanes, wait_ms)

    def _after_fork(self) -> None:
        """Stop, if anything has begun; the lanes themselves do the same."""
        self._lock = mutex()
        self._is_stopped = self._is_stopped or bool(self._schedulers)
