"""Worker threads: the threads for a consumer's background work, its own or shared with others.

    DedicatedThreads   threads of one consumer; they end with it
    SharedThreads      few threads for any number of consumers; each stops its own part alone

Both provide the same three executors:

    broker executor    requests to brokers, in order, one executor for each broker
    retry executor     messages that are sent back, several at a time
    service scheduler  what runs periodically
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from rmq_spark.client.concurrency.per_broker_executor import PerBrokerExecutor
from rmq_spark.client.concurrency.scheduler import (
    Action,
    StoppableScheduler,
    Task,
    ThreadScheduler,
    stop_all,
)

_RETRY_THREADS_MAX: Final = 4
_SERVICE_THREADS_MAX: Final = 3
_SHARED_SERVICE_THREADS_MAX: Final = 8


class ConsumerThreads(Protocol):
    """Provides a consumer with threads for its background work."""

    def broker_executor(self, name: str) -> PerBrokerExecutor:
        """Return executors that run the tasks of each broker in order."""

    def retry_executor(self, name: str) -> PerBrokerExecutor:
        """Return executors that run several tasks of a broker at a time."""

    def service_scheduler(self, name: str) -> StoppableScheduler:
        """Return a scheduler for periodic work."""


class DedicatedThreads:
    """Makes threads for one consumer."""

    def broker_executor(self, name: str) -> PerBrokerExecutor:
        """Return executors with one thread for each broker."""
        return PerBrokerExecutor(name)

    def retry_executor(self, name: str) -> PerBrokerExecutor:
        """Return executors with up to four threads for each broker."""
        return PerBrokerExecutor(f"{name} gives back", threads_max=_RETRY_THREADS_MAX)

    def service_scheduler(self, name: str) -> StoppableScheduler:
        """Return a scheduler with up to three threads."""
        return ThreadScheduler(f"{name} services", _SERVICE_THREADS_MAX)


class SharedThreads:
    """Shares the same threads among several consumers, until it is stopped."""

    def __init__(self, name: str) -> None:
        self._broker_executor = PerBrokerExecutor(name)
        self._retry_executor = PerBrokerExecutor(
            f"{name} gives back", threads_max=_RETRY_THREADS_MAX
        )
        self._service_scheduler = ThreadScheduler(f"{name} services", _SHARED_SERVICE_THREADS_MAX)

    def broker_executor(self, name: str) -> PerBrokerExecutor:
        """Return executors that share one thread for each broker."""
        return PerBrokerExecutor(name, create=_view_of(self._broker_executor))

    def retry_executor(self, name: str) -> PerBrokerExecutor:
        """Return executors that share up to four threads for each broker."""
        return PerBrokerExecutor(name, create=_view_of(self._retry_executor))

    def service_scheduler(self, name: str) -> StoppableScheduler:  # noqa: ARG002  # the threads have the crew's name
        """Return a view of a shared scheduler with up to eight threads."""
        return SchedulerView(self._service_scheduler)

    @property
    def thread_count(self) -> int:
        """Number of threads that are alive."""
        return sum(
            each.thread_count
            for each in (self._broker_executor, self._retry_executor, self._service_scheduler)
        )

    def stop(self, wait_ms: int = 0) -> None:
        """Stop the threads; wait at most so long, in total, for running tasks."""
        stop_all((self._broker_executor, self._retry_executor, self._service_scheduler), wait_ms)


class SchedulerView:
    """One user's view of a shared scheduler; stopping it does not stop the others."""

    thread_count: Final = 0
    """Number of threads of this part's own: there are none."""

    def __init__(self, scheduler: StoppableScheduler) -> None:
        self._scheduler = scheduler
        self._is_stopped = False

    def schedule(self, action: Action, delay_ms: int = 0) -> Task:
        """Run an action after a delay in milliseconds; a stopped view discards it."""
        return self._scheduler.schedule(lambda: self._run(action), delay_ms)

    def _run(self, action: Action) -> None:
        if not self._is_stopped:
            action()

    def stop(self, wait_ms: int) -> bool:  # noqa: ARG002  # the threads go on for others
        """Begin no more tasks of this view; return True, as no thread has to end."""
        self._is_stopped = True
        return True


def _view_of(executor: PerBrokerExecutor) -> Callable[[str], StoppableScheduler]:
    return lambda broker: SchedulerView(executor.for_broker(broker))
