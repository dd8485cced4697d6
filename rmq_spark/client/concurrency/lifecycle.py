"""Ending: ends a client once, however often and at whatever moment that is asked for.

A signal handler may ask, in the midst of a call that holds a lock which ending needs. So a thread
ends the client; the caller waits for it, and no longer than is said. Who is interrupted while it
begins, as by Ctrl-C, leaves it under way all the same. A program that ends meanwhile waits once
more for as long, so that the last words to brokers are sent.

Behind that, in ``__del__`` of what is left, nothing is done: a thread that Python has stopped may
hold any lock, and brokers notice the end of a process. Nothing here knows what is ended.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress

from rmq_spark.client.concurrency.locks import SIGNALS_SECONDS, mutex, start_thread, waited_mutex

# ---- Beginning: begins a client in a thread of its own, so that a signal cannot leave half of
# it.


class Beginning:
    """Work that is done once, whole, or taken back."""

    def __init__(
        self, name: str, work: Callable[[], None], take_back: Callable[[], object]
    ) -> None:
        self._name = name
        self._work = work
        self._take_back = take_back
        self._still_to_begin = [None]
        self._changing = waited_mutex()
        self._is_over = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work, and raise what it raises; if this is interrupted, it is taken back."""
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

    def _has_taken_it(self) -> bool:
        try:
            self._still_to_begin.pop()  # atomic: of several threads one begins
        except IndexError:
            return False
        return True

    def _run(self) -> None:
        if not self._has_taken_it():
            return
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # for the caller
            self._error = error
        with self._changing:
            self._is_over = True
            self._changing.notify_all()

    def _wait(self) -> None:
        with self._changing:
            while not self._is_over:
                self._changing.wait(SIGNALS_SECONDS)

    def _undo(self) -> None:
        if self._has_taken_it():
            return
        self._wait()
        if self._error is None:
            self._take_back()


# ---- Countdown: does something once, when all that it waits for has ended.


class Countdown:
    """Calls a function when the last one has ended. Methods may be called from any thread."""

    def __init__(self, then: Callable[[], object], *those: Hashable) -> None:
        """Wait for those; ``then`` is called by whoever says of the last one that it has ended."""
        self._then = then
        self._left = set(those)
        self._lock = mutex()

    def wait_for(self, *those: Hashable) -> None:
        """Wait for these as well, if anything is waited for still."""
        with self._lock:
            if self._left:
                self._left.update(those)

    def waits_for(self, thing: Hashable) -> bool:
        """Return whether this has not ended yet."""
        with self._lock:
            return thing in self._left

    def ended(self, *those: Hashable) -> None:
        """Note that these have ended, if they are waited for."""
        with self._lock:
            was_waiting = bool(self._left)
            self._left.difference_update(those)
            is_over = was_waiting and not self._left
        if is_over:
            self._then()

    def end(self) -> None:
        """Wait for nothing any more."""
        with self._lock:
            left = tuple(self._left)
        self.ended(*left)


_log = logging.getLogger(__name__)


class Ending:
    """Runs a function once, in a thread of its own."""

    def __init__(self, name: str, end: Callable[[], None], seconds: float) -> None:
        self._name = name
        self._end = end
        self._seconds = seconds
        self._still_to_begin = [None]
        self._under_way = threading.Lock()  # an Event is not safe in signal handlers
        self._under_way.acquire()
        self._is_over = False
        self._ender: threading.Thread | None = None

    def run(self) -> None:
        """Begin, unless another has; return when it is done, or the time is over."""
        if self._ender is threading.current_thread() or sys.is_finalizing():
            return
        try:
            if self._still_to_begin:  # also where a signal came before a thread had begun
                self._begin()
            self._wait()
        except BaseException:  # Ctrl-C, perhaps before a thread had begun
            if self._still_to_begin:
                self._begin()
            raise

    def _begin(self) -> None:
        try:
            start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
        except RuntimeError:  # at a limit
            self._run()

    def _wait(self) -> None:
        try:
            self._under_way.acquire(timeout=self._seconds)
        finally:
            if self._is_over:  # if that is not so yet, nobody but the thread lets go
                with suppress(RuntimeError):  # another has
                    self._under_way.release()

    def _run(self) -> None:
        try:
            self._still_to_begin.pop()  # atomic: one thread alone goes on
        except IndexError:
            return
        self._ender = thread = threading.current_thread()
        _under_way[thread] = self._seconds
        try:
            self._end()
        finally:
            _under_way.pop(
                thread, None
            )  # without threads, one of this thread's may be within another
            self._is_over = True
            with suppress(RuntimeError):  # who waited has let go
                self._under_way.release()


def do_all(who: str, *steps: Callable[[], object]) -> None:
    """Do the steps in which somebody leaves, each whatever became of those before it."""
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001, PERF203  # the other steps are done all the same
            _log.warning("%s could not leave in order: %s: %s", who, type(error).__name__, error)


_under_way: dict[threading.Thread, float] = {}


def _wait_for_all() -> None:
    for thread, seconds in list(_under_way.items()):
        thread.join(seconds)


atexit.register(_wait_for_all)
