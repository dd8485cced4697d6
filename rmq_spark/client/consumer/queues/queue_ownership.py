"""OwnershipRegistry: which member of this process owns an orderly queue, and if it is in use.

A broker locks a queue for a client, whichever member of it asks. If a member is made where another
of the same group has just been shut down, it gets the lock at once, though a listener of the first
may still be busy. So the members of a process coordinate here: a member acquires a queue only when
no listener uses it, and a member that has lost a queue to another no longer unlocks it. A forked
child starts with an empty registry.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from rmq_spark.client.concurrency.fork_hooks import ForkAware


class QueueOwnership:
    """One queue, for all members of this process that may have it, one after the other."""

    def __init__(self) -> None:
        self.listener_lock = threading.Lock()
        """Held by an orderly listener that has messages of the queue, and while it is unlocked."""

        self._owner: object = None

    def acquire(self, member: object) -> bool:
        """Make a member the owner; return False while another member's listener uses the queue."""
        if self._owner is not member:
            if not self.listener_lock.acquire(blocking=False):
                return False
            self._owner = member
            self.listener_lock.release()
        return True

    def is_owned_by(self, member: object) -> bool:
        """Return whether the member owns the queue, so that a listener that uses it is its own."""
        return self._owner is member

    @contextmanager
    def pin(self, member: object) -> Iterator[bool]:
        """Keep others from acquiring the queue meanwhile; yield False if another owns it."""
        if self._owner is not member:
            yield False
            return
        with self.listener_lock:
            yield self._owner is member


class OwnershipRegistry(ForkAware):
    """The queue ownerships of a process, each kept as long as it is referenced."""

    def __init__(self) -> None:
        self._after_fork()
        ForkAware.__init__(self)

    def get(self, key: Hashable) -> QueueOwnership:
        """Return a queue's ownership, shared by this process's members; ``key`` identifies it."""
        with self._lock:
            return self._ownerships.setdefault(key, QueueOwnership())

    def _after_fork(self) -> None:
        """Begin anew: in this process no listener is at anything."""
        self._lock = threading.Lock()
        self._ownerships: weakref.WeakValueDictionary[Hashable, QueueOwnership] = (
            weakref.WeakValueDictionary()
        )


OWNERSHIPS = OwnershipRegistry()
"""Holdings that the members of this process share."""
