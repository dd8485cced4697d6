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

_making = threading.Lock()
_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_held: list[threading.Lock] = []


def fork_lock() -> threading.Lock:
    """Return a lock to hold in calls that must not be under way when the process forks.

    Hold it for short calls only, which wait for nothing; make none while holding another.
    """
    lock = threading.Lock()
    with _making:
        _locks.add(lock)
    return lock


def _hold_all() -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    if not _making.acquire(timeout=_WAIT_SECONDS):
        return
    _held.append(_making)
    _held.extend(
        lock for lock in list(_locks) if lock.acquire(timeout=max(deadline - time.monotonic(), 0))
    )


def _let_go() -> None:
    while _held:
        _held.pop().release()


os.register_at_fork(before=_hold_all, after_in_parent=_let_go, after_in_child=_let_go)
