"""Locks: mutexes that a signal handler's exception never leaves locked, whenever it comes.

A handler may raise in any thread that polls or sends, as Ctrl-C does: after any call, and where a
function written in Python begins. Between two such points no exception comes.

    with lock:                   safe up to Python 3.13. From 3.14 on, acquiring a lock is such a
                                 call: the lock would be held forever. A `mutex` is released.
    with Condition():            never safe, as its own ``with`` calls functions written in Python.
                                 Use the mutex that it was made of, or a `condition_mutex`.
    lock.acquire(timeout=1)      never safe: call it in ``try`` with a `reentrant_mutex`; release it
                                 as the first thing in ``finally``, whether it was acquired or not

Only the thread that acquired a mutex releases it.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from _thread import allocate_lock, get_ident
from typing import Any, Final

from rmq_spark.client.errors import ThreadNotStarted

SIGNAL_CHECK_SECONDS: Final = 1.0
"""Longest wait: a signal that comes just before a wait begins is handled when it ends."""

_python_rlock = threading.RLock
_RLock: Any = type(threading.RLock())
_is_rlock_builtin = _RLock is _thread.RLock
"""False where gevent has patched the threads: its locks are made of those of greenlets."""


if sys.version_info < (3, 14):
    _Mutex: Any = _RLock

    def mutex() -> threading.Lock:
        """Return a new mutex."""
        return threading.Lock()

    def reentrant_mutex() -> threading.RLock:
        """Return a new mutex that its owner may acquire again."""
        return threading.RLock()

else:

    class _Mutex(_RLock):
        """A mutex made of Python's own RLock; gevent replaces that with another."""

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:
                if self._is_owned():  # it had been taken when the signal came
                    self.release()
                raise

    def mutex() -> Any:
        """Return a new mutex."""
        return reentrant_mutex()

    def reentrant_mutex() -> Any:
        """Return a new mutex that its owner may acquire again."""
        if threading.RLock is _python_rlock:
            return _Mutex()
        return threading.RLock()  # the threads are simulated


class _ConditionMutex(_Mutex):  # type: ignore[misc]  # the class of a builtin
    """A mutex with wait and notify; a waiter has acquired it once."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Any] = []

    def wait(self, timeout: float | None = None) -> bool:
        seconds = -1 if timeout is None else max(timeout, 0)
        once = (1, get_ident())
        notified = allocate_lock()
        notified.acquire()
        self._waiting.append(notified)
        try:
            self._release_save()
            return notified.acquire(timeout=seconds)
        finally:
            self._acquire_restore(once)  # no signal comes in between, as no call does
            if notified in self._waiting:
                self._waiting.remove(notified)

    def notify_all(self) -> None:
        while self._waiting:
            self._waiting.pop().release()


def condition_mutex() -> Any:
    """Return a new mutex whose owner can wait and notify, as with a Condition."""
    if _is_rlock_builtin and threading.RLock is _python_rlock:
        return _ConditionMutex()
    return threading.Condition()  # the threads are gevent's, or simulated


def is_owned(lock: Any) -> bool:
    """Return whether this thread owns a reentrant mutex."""
    return bool(lock._is_owned())


def wait_slice(deadline: float | None) -> float:
    """Return the seconds to wait before the next check, at most up to a monotonic deadline."""
    if deadline is None:
        return SIGNAL_CHECK_SECONDS
    return min(deadline - time.monotonic(), SIGNAL_CHECK_SECONDS)


# ---- Starting a thread while signals may come.


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; an exception of a signal handler meanwhile is raised unchanged.

    Raises:
        ThreadNotStarted: A limit of threads is reached, or Python is exiting.
    """
    before = sys.exc_info()[1]
    if sys.is_finalizing():
        raise ThreadNotStarted("can't start new thread at interpreter shutdown")
    try:
        thread.start()
    except RuntimeError as error:
        raised = error.__context__
        if raised is None or raised is before:
            raise ThreadNotStarted(str(error)) from error
        raise raised from None
