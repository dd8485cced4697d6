"""ForkAware: makes objects with threads, locks or connections harmless in a forked child.

A fork copies objects, held locks and open sockets, but of all threads only the one that forks. So
in the child each such object is called once, before anything can use it. It drops what belongs to
the parent, sends nothing, and acquires no lock that existed before the fork. None of these objects
can be pickled.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from typing import Final, NoReturn


class ForkAware:
    """An object that loses its threads and connections in a forked child."""

    _public_name: str | None = None
    """The name under which users know the object, if it differs from the class name."""

    def __init__(self) -> None:
        _instances[next(_keys)] = self

    def _after_fork(self) -> None:
        """Drop the parent's resources: this process is now a child with a single thread."""
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        name = self._public_name or type(self).__name__
        raise TypeError(
            f"a {name} has threads and connections, and cannot be sent to another process: make "
            "one there"
        )


_keys = itertools.count()
_instances: weakref.WeakValueDictionary[int, ForkAware] = weakref.WeakValueDictionary()


def _notify_all() -> None:
    failure: Exception | None = None
    for bound in list(_instances.values()):
        try:
            bound._after_fork()  # a hook for subclasses, not for users
        except Exception as error:  # noqa: BLE001, PERF203  # the others are notified as well
            failure = failure or error
    if failure is not None:
        raise failure  # Python prints it


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_notify_all)


# ---- Fork locks: locks for calls into OpenSSL, none of which is held when the process forks.
#
# OpenSSL briefly acquires locks within its calls, during which Python has released the GIL. A
# fork copies them as they are: a lock that another thread holds at that moment is never released
# in the child, and the child's next TLS connection would wait for it forever.

_WAIT_SECONDS: Final = 1.0
"""Seconds that a fork waits for the locks: a signal handler may fork in the midst of a call."""

_registry_lock = threading.Lock()
_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_acquired: list[threading.Lock] = []


def fork_lock() -> threading.Lock:
    """Return a lock to hold during calls that must not be running when the process forks.

    Hold it only for short calls that do not block, and never while holding another.
    """
    lock = threading.Lock()
    with _registry_lock:
        _locks.add(lock)
    return lock


def _acquire_all() -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    if not _registry_lock.acquire(timeout=_WAIT_SECONDS):
        return
    _acquired.append(_registry_lock)
    _acquired.extend(
        lock for lock in list(_locks) if lock.acquire(timeout=max(deadline - time.monotonic(), 0))
    )


def _release_all() -> None:
    while _acquired:
        _acquired.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all
    )
