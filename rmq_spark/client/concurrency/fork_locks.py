"""Locks for calls into OpenSSL that nobody holds while the process forks.

OpenSSL takes locks within its calls, for a moment each, and Python's lock is not held there. A fork
copies them as they are: one that another thread has at that moment is never let go of in the child,
whose next connection under TLS would wait for it for ever. So each call is made under a lock of
`fork_lock`, and whoever forks waits until it has them all, but no longer than a second: a
signal handler may fork in a thread that is within such a call. This module knows no TLS.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Final

_WAIT_SECONDS: Final = 1.0

_registry_lock = threading.Lock()
_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_acquired: list[threading.Lock] = []


def fork_lock() -> threading.Lock:
    """Return a lock to hold in calls that must not be under way when the process forks.

    Hold it for short calls only, which wait for nothing; make none while holding another.
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


os.register_at_fork(before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all)
