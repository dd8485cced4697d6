"""Lifecycle: stops a client exactly once, even if signal handlers or several threads ask for it.

A signal handler may ask for the stop in the middle of a call that holds a lock which stopping
needs. So `SafeStop` stops the client in a thread of its own, and the caller waits for it, up to its
timeout. If the caller is interrupted, as by Ctrl-C, the stop continues. A program that exits
meanwhile waits for it once more, up to the same timeout, so that the last requests reach brokers.

After that, ``__del__`` of remaining objects does nothing: a thread that Python has stopped may hold
any lock, and brokers notice the end of a process.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import TypeVar

from rmq_spark.client.concurrency.threads import start_thread
from rmq_spark.client.errors import ThreadNotStarted

_log = logging.getLogger(__name__)

_Started = TypeVar("_Started", bound="StartsInBlock")


class Latch:
    """Calls a function when the last of several items ends. All methods are thread-safe."""

    def __init__(self, on_zero: Callable[[], object], *items: Hashable) -> None:
        """Wait for these items; the thread that counts down the last one calls ``on_zero``."""
        self._on_zero = on_zero
        self._pending = set(items)
        self._lock = threading.Lock()

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


class SafeStop:
    """Runs a stop function once, in a thread of its own."""

    def __init__(self, name: str, stop: Callable[[], None], seconds: float) -> None:
        self._name = name
        self._stop = stop
        self._seconds = seconds
        self._token = [None]
        self._running_lock = threading.Lock()  # an Event is not safe in signal handlers
        self._running_lock.acquire()
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Run the function unless it was already run; return when it ends or at the timeout."""
        if self._thread is threading.current_thread() or sys.is_finalizing():
            return
        if self._token:
            try:
                start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
            except ThreadNotStarted:
                self._run()
        if self._running_lock.acquire(timeout=self._seconds):
            self._running_lock.release()  # so that the next caller can acquire it

    def _run(self) -> None:
        try:
            self._token.pop()  # atomic: only one thread continues
        except IndexError:
            return
        self._thread = thread = threading.current_thread()
        _running[thread] = self._seconds
        try:
            self._stop()
        finally:
            # If no thread can be started, this thread may run one stop within another.
            _running.pop(thread, None)
            self._running_lock.release()


def run_steps(name: str, *steps: Callable[[], object]) -> None:
    """Run the steps of a shutdown, each even if earlier ones have failed."""
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001, PERF203  # the other steps are done all the same
            _log.warning(
                "%s: a step of the shutdown failed: %s: %s", name, type(error).__name__, error
            )


_running: dict[threading.Thread, float] = {}


def _join_all() -> None:
    for thread, seconds in list(_running.items()):
        thread.join(seconds)


atexit.register(_join_all)


class StartsInBlock(ABC):
    """A client that a ``with`` statement starts, and closes at its end."""

    @abstractmethod
    def start(self) -> None:
        """Start the client."""

    @abstractmethod
    def close(self) -> None:
        """Close the client; calling it again has no effect."""

    def __enter__(self: _Started) -> _Started:
        try:
            self.start()
        except BaseException:  # Ctrl-C, perhaps when all was done: the block is not entered
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        except BaseException:  # Ctrl-C, perhaps before anything was done
            self.close()
            raise
