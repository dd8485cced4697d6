"""Fork locks: locks for calls into OpenSSL, none of which is held when the process forks.

OpenSSL acquires locks within its calls, for a moment each, while Python's lock is not held. A fork
copies them as they are: a lock that another thread holds at that moment is never released in the
child, and the child's next TLS connection would wait for it forever. So each call is made under a
lock of `fork_lock`, and a fork waits until it holds all of these, but at most a second: a signal
handler may fork in a thread that is within such a call.
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


os.register_at_fork(before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all)
