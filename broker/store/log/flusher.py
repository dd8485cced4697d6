"""FlushService: flushes the log, for group commit and at the interval of ASYNC_FLUSH.

One thread flushes; a caller that waits for an offset gets a future. One fdatasync acknowledges all
appends that were written before it began. When a flush or the work after it fails, these and all
later futures fail, and the service notifies its owner. After a shortage the futures wait, and the
flush is retried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress

from ...common.histogram import Histogram
from ...common.threads import DaemonThreadPool
from ..errors import StoreClosed, StoreError, StoreFailed, is_retryable, is_transient
from ..results import PhysicalOffset

_RETRY_SECONDS = 0.2


class FlushService:
    """A thread that calls ``flush`` when a caller waits, and at an interval."""

    def __init__(
        self,
        flush: Callable[[], int],
        on_flushed: Callable[[], object],
        on_failure: Callable[[StoreError], None],
        interval_seconds: float | None,
    ) -> None:
        """Set what the service calls; ``flush`` returns the offset up to which all is durable.

        Without an interval, flushes happen only on demand.
        """
        self.durations = Histogram()
        """The durations of flushes that have succeeded."""
        self._flush = flush
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._interval_seconds = interval_seconds
        self._flushed_offset = 0
        self._failure: StoreError | None = None
        self._condition = threading.Condition()
        self._waiters: list[tuple[int, Future[None]]] = []
        self._is_stopping = False
        self._is_degraded = False
        self._workers = DaemonThreadPool("FlushService", waits_at_exit=False)
        self._worker: Future[None] = Future()

    def start(self) -> None:
        """Start the thread that flushes."""
        self._worker = self._workers.submit(self._run)

    def ensure_running(self) -> None:
        """Start another thread if the last one failed or could not start.

        Call this periodically; if there is no memory for a thread, the next call retries.
        """
        self._workers.fail_stuck_jobs()
        if self._is_thread_lost() and self._failure is None and not self._is_stopping:
            with suppress(RuntimeError, MemoryError):
                self.start()

    def flush_future(self, end_offset: PhysicalOffset) -> Future[None]:
        """Return a future of a flush of everything before an offset."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # callers cannot cancel what the thread will set
        if end_offset <= self._flushed_offset:
            future.set_result(None)
            return future
        with self._condition:
            if self._failure is not None:
                future.set_exception(self._failure)
            elif self._is_stopping:
                future.set_exception(StoreClosed("the store has been shut down"))
            else:
                self._waiters.append((end_offset, future))
                self._condition.notify()
        return future

    def wait_flushed(self, end_offset: PhysicalOffset) -> None:
        """Wait until everything before an offset is on the disk, or a shortage prevents that."""
        flushed = self.flush_future(end_offset)
        while not self._is_degraded:
            with suppress(FutureTimeoutError):
                flushed.result(_RETRY_SECONDS)
                return
            self._workers.fail_stuck_jobs()
            self.ensure_running()

    def stop(self) -> None:
        """Flush for waiting callers, and end the thread."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        if self._worker.cancel() or self._is_thread_lost():
            self._run()
        else:
            wait([self._worker])
        self._workers.shutdown()

    def _is_thread_lost(self) -> bool:
        """Return whether the thread ended for lack of memory, or could not start."""
        if not self._worker.done() or self._worker.cancelled():
            return False
        error = self._worker.exception()
        return error is not None and is_transient(error)

    def _run(self) -> None:
        stopping = False
        while not stopping and self._failure is None:
            with self._condition:
                if self._is_degraded and not self._is_stopping:
                    self._condition.wait(_RETRY_SECONDS)
                elif not self._waiters and not self._is_stopping:
                    self._condition.wait(self._interval_seconds)
                stopping = self._is_stopping
                idle = (
                    not self._waiters and self._interval_seconds is None and not self._is_degraded
                )
            if not idle or stopping:
                self._flush_for_all()

    def _flush_for_all(self) -> None:
        try:
            started_at = time.perf_counter()
            flushed_offset = self._flush()
            self.durations.add(time.perf_counter() - started_at)
            self._on_flushed()
            self._is_degraded = False
            self._flushed_offset = flushed_offset
            self._complete_futures()
        except StoreError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  # otherwise all callers would wait forever
            if is_retryable(error) and not self._is_stopping:
                self._is_degraded = True
                return
            failure = StoreFailed(f"flushing failed: {error!r}")
            failure.__cause__ = error
            self._fail(failure)

    def _complete_futures(self) -> None:
        with self._condition:
            done = [
                future for end_offset, future in self._waiters if end_offset <= self._flushed_offset
            ]
            self._waiters = [each for each in self._waiters if each[0] > self._flushed_offset]
        for future in done:
            future.set_result(None)

    def _fail(self, failure: StoreError) -> None:
        with self._condition:
            self._failure = failure
            waiting, self._waiters = self._waiters, []
        self._on_failure(failure)
        for _, future in waiting:
            future.set_exception(failure)
