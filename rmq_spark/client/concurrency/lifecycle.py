"""Lifecycle: starts a client once, whole or rolled back, and stops it once, whoever asks and when.

A signal handler may ask for the stop in the middle of a call that holds a lock which stopping
needs. So `SafeStop` stops the client in a thread of its own, and the caller waits for it, up to its
timeout. If the caller is interrupted, as by Ctrl-C, the stop goes on. A program that exits
meanwhile waits once more for as long, so that the last requests reach brokers.

After that, ``__del__`` of remaining objects does nothing: a thread that Python has stopped may hold
any lock, and brokers notice the end of a process.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress

from rmq_spark.client.concurrency.locks import (
    SIGNAL_CHECK_SECONDS,
    condition_mutex,
    mutex,
    start_thread,
)

# ---- SafeStart: starts a client in a thread of its own, so that a signal leaves no half of it.


class SafeStart:
    """A start that is done once: completely, or rolled back."""

    def __init__(self, name: str, work: Callable[[], None], undo: Callable[[], object]) -> None:
        self._name = name
        self._work = work
        self._rollback = undo
        self._token = [None]
        self._state_lock = condition_mutex()
        self._is_done = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Start, and raise what the start raises; if this is interrupted, roll it back."""
        try:
            try:
                start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
            except RuntimeError:  # at a limit of threads
                self._run()
            self._wait()
        except BaseException:
            name = f"{self._name} no more"
            try:
                start_thread(threading.Thread(target=self._undo, name=name, daemon=True))
            except RuntimeError:  # at a limit of threads
                self._undo()
            raise
        if self._error is not None:
            raise self._error

    def _claim(self) -> bool:
        try:
            self._token.pop()  # atomic: of several threads one begins
        except IndexError:
            return False
        return True

    def _run(self) -> None:
        if not self._claim():
            return
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # for the caller
            self._error = error
        with self._state_lock:
            self._is_done = True
            self._state_lock.notify_all()

    def _wait(self) -> None:
        with self._state_lock:
            while not self._is_done:
                self._state_lock.wait(SIGNAL_CHECK_SECONDS)

    def _undo(self) -> None:
        if self._claim():
            return
        self._wait()
        if self._error is None:
            self._rollback()


# ---- Latch: calls a function once all that it counts have ended.


class Latch:
    """Calls a function when the last of several items ends. All methods are thread-safe."""

    def __init__(self, on_zero: Callable[[], object], *items: Hashable) -> None:
        """Wait for these items; the thread that counts down the last one calls ``on_zero``."""
        self._on_zero = on_zero
        self._pending = set(items)
        self._lock = mutex()

    def add(self, *items: Hashable) -> None:
        """Wait for these items as well, unless the latch is released already."""
        with self._lock:
            if self._pending:
                self._pending.update(items)

    def has(self, item: Hashable) -> bool:
        """Return whether the latch still waits for an item."""
        with self._lock:
            return item in self._pending

    def count_down(self, *items: Hashable) -> None:
        """Count down items that have ended; others are ignored."""
        with self._lock:
            was_waiting = bool(self._pending)
            self._pending.difference_update(items)
            is_over = was_waiting and not self._pending
        if is_over:
            self._on_zero()

    def release(self) -> None:
        """Count down all items that are left."""
        with self._lock:
            left = tuple(self._pending)
        self.count_down(*left)


_log = logging.getLogger(__name__)


class SafeStop:
    """Runs a stop function once, in a thread of its own."""

    def __init__(self, name: str, stop: Callable[[], None], seconds: float) -> None:
        self._name = name
        self._stop = stop
        self._seconds = seconds
        self._token = [None]
        self._running_lock = threading.Lock()  # an Event is not safe in signal handlers
        self._running_lock.acquire()
        self._is_done = False
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Run the function, unless another caller has; return at its end or at the timeout."""
        if self._thread is threading.current_thread() or sys.is_finalizing():
            return
        try:
            if self._token:  # also where a signal came before a thread had begun
                self._start()
            self._wait()
        except BaseException:  # Ctrl-C, perhaps before a thread had begun
            if self._token:
                self._start()
            raise

    def _start(self) -> None:
        try:
            start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
        except RuntimeError:  # at a limit
            self._run()

    def _wait(self) -> None:
        try:
            self._running_lock.acquire(timeout=self._seconds)
        finally:
            if self._is_done:  # if that is not so yet, nobody but the thread lets go
                with suppress(RuntimeError):  # another has
                    self._running_lock.release()

    def _run(self) -> None:
        try:
            self._token.pop()  # atomic: one thread alone goes on
        except IndexError:
            return
        self._thread = thread = threading.current_thread()
        _running[thread] = self._seconds
        try:
            self._stop()
        finally:
            _running.pop(
                thread, None
            )  # without threads, one of this thread's may be within another
            self._is_done = True
            with suppress(RuntimeError):  # who waited has let go
                self._running_lock.release()


def run_steps(name: str, *steps: Callable[[], object]) -> None:
    """Run the steps of a shutdown, each even if earlier ones have failed."""
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001, PERF203  # the other steps are done all the same
            _log.warning("%s could not leave in order: %s: %s", name, type(error).__name__, error)


_running: dict[threading.Thread, float] = {}


def _join_all() -> None:
    for thread, seconds in list(_running.items()):
        thread.join(seconds)


atexit.register(_join_all)
