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
from collections.abc import Callable
from contextlib import suppress

from rmq_spark.client.threads.starting import start_thread

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
