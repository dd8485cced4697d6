"""PullRequest: the state of one queue of a push consumer, and which member of a process owns it.

The request is pulled repeatedly by its task (`PushPullTask`) until its process queue is retired or
dropped. After NO_MATCHED_MSG and NO_NEW_MSG, the next pull follows at once, at the corrected
offset.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.consumer.pull.pull_task import (
    PullTask,
)
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue
from rmq_spark.client.consumer.queues.queue_identity import QueueFingerprint, StartPosition
from rmq_spark.wire.message_queue import MessageQueue

NOT_LOCKED_MS = 1_000


# ---- QueueOwnership: which member of this process owns an orderly queue, and if it is in use.


class QueueOwnership:
    """One queue, for all members of this process that may have it, one after the other.

    A broker locks a queue for a client, whichever member of it asks. If a member is made where
    another of the same group has just been shut down, it gets the lock at once, though a listener
    of the first may still be busy. So a member acquires a queue here only when no listener uses it,
    and a member that has lost a queue to another no longer unlocks it.
    """

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
        self._lock = threading.Lock()
        self._ownerships: weakref.WeakValueDictionary[Hashable, QueueOwnership] = (
            weakref.WeakValueDictionary()
        )


OWNERSHIPS = OwnershipRegistry()
"""The queue ownerships that the members of this process share."""


# ---- PullRequest


@dataclass(slots=True, eq=False)
class PullRequest:
    """The state of pulling one queue, and of consuming what was pulled."""

    queue: MessageQueue
    process_queue: ProcessQueue
    next_offset: int | None = None
    """Offset of the next pull; None until the initial offset is known."""

    is_suspended: bool = False
    """True while an orderly listener wants the queue only after a while."""

    fingerprint: QueueFingerprint = field(default_factory=QueueFingerprint)
    """The last message that came, which a request that begins the queue again knows as well."""

    lock_requested_at_ms: int | None = None
    """Time of a monotonic clock, in ms, at which the broker was last asked for the lock."""

    ownership: QueueOwnership = field(default_factory=QueueOwnership)
    """State that is shared with other requests of the queue, earlier ones and other members'."""

    epoch: int = 0
    """Number of restarts by another subscription; responses to earlier pulls are ignored."""

    task: PullTask | None = None
    """The task that pulls the queue, once it does."""

    def pull_position(self) -> tuple[int, int | None]:
        """Return the epoch for a pull, and the offset to begin at, if it is known."""
        return self.epoch, self.next_offset

    def is_stale(self, epoch: int) -> bool:
        """Return whether results of that epoch must be dropped."""
        queue = self.process_queue
        return epoch != self.epoch or queue.is_dropped or queue.is_retired

    def set_first_offset(self, epoch: int, start: StartPosition) -> None:  # noqa: ARG002  # true of each
        """Begin at a start position."""
        self.process_queue.set_initial_offset(start.offset)
        self.fingerprint = start.fingerprint
        self.next_offset = start.offset
