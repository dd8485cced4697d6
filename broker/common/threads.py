"""Threads: starts all threads of a broker, without ever waiting for one to begin.

`threading.Thread.start` waits without limit until the new thread reports that it runs. A thread
that gets no memory for its first steps never does, and its starter hangs forever: on the event
loop's thread, that stops the whole broker. ``ThreadPoolExecutor.submit`` has the same problem.
Therefore a broker starts all its threads through `DaemonThreadPool`:

    submit ── starts a thread if there may be one more ── returns a future at once
    worker ── records that it has started ── runs jobs, until `shutdown`
    fail_stuck_jobs ── abandons a thread that has not started in time ── fails its jobs with a
                       MemoryError, which their owners treat as any other shortage; the next job
                       starts another thread

An abandoned thread that begins later ends at once, so there are never more threads than allowed.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakSet

Result = TypeVar("Result")
THREAD_START_TIMEOUT_SECONDS: Final = 5.0
"""Seconds until a thread that has not started is abandoned; loaded machines need less."""


_Job = tuple[Future[Any], Callable[[], Any]]
_POLL_SECONDS: Final = 0.2


class _NonBlockingEvent(threading.Event):
    """The event that a new thread sets, and for which its starter does not wait."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return True


class _PoolThread:
    """One thread of `DaemonThreadPool`."""

    def __init__(self) -> None:
        self._start_token = [None]
        self._start_deadline = time.monotonic() + THREAD_START_TIMEOUT_SECONDS
        self.has_ended = False

    def claim_start(self) -> bool:
        """Return True exactly once: to the thread that begins, or the caller that abandons it."""
        try:
            self._start_token.pop()  # atomic
        except IndexError:
            return False
        return True

    @property
    def has_started(self) -> bool:
        return not self._start_token

    def abandon_if_late(self) -> bool:
        """Abandon the thread if it has not started in time; return whether it is abandoned."""
        if not self.has_started and time.monotonic() >= self._start_deadline:
            self.has_ended = self.claim_start()
        return self.has_ended


class DaemonThreadPool:
    """Threads that run jobs in order of submission; each is started when a job needs it.

    They are daemons. At its end, a program waits for running jobs, because a library that is still
    being loaded may crash otherwise; ``waits_at_exit=False`` disables that.
    """

    def __init__(self, name: str, count_max: int = 1, *, waits_at_exit: bool = True) -> None:
        self._name = name
        self._count_max = count_max
        self._waits_at_exit = waits_at_exit
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._unfinished: dict[Future[Any], None] = {}
        self._threads: list[_PoolThread] = []
        self._is_closed = False
        _pools.add(self)

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Queue a job, and return its future, without waiting for a thread.

        A future can be cancelled until its job begins; a cancelled job never begins.

        Raises:
            RuntimeError: No thread is running and none can be started; or `shutdown` was called.
            MemoryError: Memory is exhausted.
        """
        future: Future[Result] = Future()
        with self._lock:
            if self._is_closed or _exit_marks:
                raise RuntimeError(f"{self._name} takes no more jobs")
            self._unfinished[future] = None
            try:
                self._start_thread_if_needed()
                self._jobs.put((future, job))
            except BaseException:
                del self._unfinished[future]
                raise
        return future

    def fail_stuck_jobs(self) -> None:
        """Fail the jobs of a thread that has not started in time, if no other can run them.

        Call it periodically. It never blocks: while another thread submits a job, it does nothing.
        """
        lost: list[Future[Any]] = []
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._discard_abandoned()
            if not self._threads and not self._is_closed:
                with suppress(queue.Empty):
                    while (each := self._jobs.get_nowait()) is not None:
                        lost.append(each[0])
                for future in lost:
                    self._unfinished.pop(future, None)
        finally:
            self._lock.release()
        for future in lost:
            if future.set_running_or_notify_cancel():
                future.set_exception(MemoryError("cannot start a thread"))

    def shutdown(self) -> None:
        """Accept no more jobs, cancel those that have not started, and let the threads end."""
        with self._lock:
            self._is_closed = True
            unfinished = tuple(self._unfinished)
        for future in unfinished:
            future.cancel()
        self._jobs.put(None)

    def shutdown_and_wait(self) -> None:
        """Shut down, and wait until the running jobs are done."""
        self.shutdown()
        with self._lock:
            under_way = [each for each in self._unfinished if not each.done()]
        while under_way and not all(each.has_ended for each in self._threads):
            under_way = list(wait(under_way, _POLL_SECONDS).not_done)

    def _discard_abandoned(self) -> None:
        self._threads = [each for each in self._threads if not each.abandon_if_late()]

    def _start_thread_if_needed(self) -> None:
        """Start a thread if there are more jobs than threads, and the limit permits it."""
        self._discard_abandoned()
        if len(self._threads) >= min(len(self._unfinished), self._count_max):
            return
        name = self._name if self._count_max == 1 else f"{self._name}_{len(self._threads)}"
        worker = _PoolThread()
        self._threads.append(worker)  # added first, because it may run before `start` returns
        _beginning.add(worker)
        try:
            thread = threading.Thread(target=self._run_jobs, args=(worker,), name=name, daemon=True)
            thread._started = _NonBlockingEvent()  # type: ignore[attr-defined]  # `start` waits for this event
            thread.start()
        except (RuntimeError, MemoryError):
            _beginning.discard(worker)
            self._threads.remove(worker)
            if not self._threads:
                raise

    def _run_jobs(self, worker: _PoolThread) -> None:
        _beginning.discard(worker)
        try:
            if not worker.claim_start():
                return
            while (each := self._jobs.get()) is not None:
                self._run_job(*each)
                del each  # release the job's objects
            self._jobs.put(None)  # for the next thread
        finally:
            worker.has_ended = True

    def _run_job(self, future: Future[Any], job: Callable[[], Any]) -> None:
        try:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001  # the future passes it on
                future.set_exception(error)
            else:
                future.set_result(result)
        finally:
            with self._lock:
                self._unfinished.pop(future, None)


def run_in_parallel(jobs: Sequence[Callable[[], object]], threads_max: int, name: str) -> None:
    """Run all jobs in this thread and in as many others as can be started.

    Raises:
        Exception: The exception of a failed job. Other jobs may not have run.
    """
    waiting = iter(jobs)  # shared: each thread takes the next job
    workers = DaemonThreadPool(name, threads_max - 1)
    futures: list[Future[None]] = []
    with suppress(RuntimeError, MemoryError):
        for _ in range(min(threads_max, len(jobs)) - 1):
            futures.append(workers.submit(partial(_run_remaining, waiting)))  # noqa: PERF401  # a later submit may fail
    try:
        _run_remaining(waiting)
    finally:
        workers.shutdown_and_wait()
    for future in futures:
        if not future.cancelled():
            future.result()


def _run_remaining(jobs: Iterator[Callable[[], object]]) -> None:
    for job in jobs:
        job()


# ---- The end of the process.

_pools: WeakSet[DaemonThreadPool] = WeakSet()
_beginning: set[_PoolThread] = set()
"""Threads that were started and have not yet run a line of Python."""

_exit_marks: list[None] = []


def _shutdown_all() -> None:
    _exit_marks.append(None)
    for workers in tuple(_pools):
        if workers._waits_at_exit:
            workers.shutdown_and_wait()
    # Python frees the state of all other threads when it ends. One that begins after that, as on a
    # loaded machine, would crash the process.
    deadline = time.monotonic() + THREAD_START_TIMEOUT_SECONDS
    while _beginning and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS / 100)


def _discard_threads() -> None:
    _pools.clear()
    _beginning.clear()


atexit.register(_shutdown_all)
os.register_at_fork(after_in_child=_discard_threads)  # the parent keeps the threads
