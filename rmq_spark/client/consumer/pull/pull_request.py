"""PullRequest: the state of one queue of a push consumer; PushPullTask pulls it.

    executor ──▶ run ──▶ locked, first offset known ──▶ broker ──▶ response ──▶ executor
                                                                      │         now or later
                                                                      └──▶ process queue

The task goes round this circle until the process queue is retired or dropped. After NO_MATCHED_MSG
and NO_NEW_MSG it goes on at once with a corrected offset.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.locks import mutex
from rmq_spark.client.concurrency.scheduler import Scheduler
from rmq_spark.client.consumer.brokers.broker_client import DecodedPull, OutageLog
from rmq_spark.client.consumer.pull.pull_task import (
    FLOW_CONTROL_MS,
    PAUSED_MS,
    AbandonFunction,
    PullCallback,
    PullConsumer,
    PullLimits,
    PullTask,
)
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue
from rmq_spark.client.consumer.queues.queue_identity import QueueFingerprint, StartPosition
from rmq_spark.client.message import MessageExt
from rmq_spark.client.results import PullStatus
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
        """Begin anew: in this process no listener is at anything."""
        self._lock = mutex()
        self._ownerships: weakref.WeakValueDictionary[Hashable, QueueOwnership] = (
            weakref.WeakValueDictionary()
        )


OWNERSHIPS = OwnershipRegistry()
"""Holdings that the members of this process share."""


# ---- PullRequest and its task


@dataclass(slots=True, eq=False)
class PullRequest:
    """The state of pulling one queue, and of consuming what was pulled."""

    queue: MessageQueue
    process_queue: ProcessQueue
    next_offset: int | None = None
    """Offset of the next pull; None if the first is yet to be found out."""

    is_suspended: bool = False
    """True while an orderly listener wants the queue only after a while."""

    fingerprint: QueueFingerprint = field(default_factory=QueueFingerprint)
    """The last message that came, which a request that begins the queue again knows as well."""

    lock_requested_at_ms: int | None = None
    """Time of a monotonic clock, in ms, at which the broker was last asked for the lock."""

    ownership: QueueOwnership = field(default_factory=QueueOwnership)
    """State that is shared with other requests of the queue, earlier ones and other members'."""

    epoch: int = 0
    """Number of restarts by another subscription; answers to earlier pulls do not count."""

    task: PushPullTask | None = None
    """What pulls the queue, once it does."""

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


class PushPullSource(PullConsumer, Protocol):
    """The part of a push consumer that its tasks need."""

    @property
    def is_paused(self) -> bool:
        """True while pulling is suspended."""

    def may_pull(self, request: PullRequest) -> bool:
        """Return whether the queue is locked, where that matters; may request the lock."""

    def pull(self, request: PullRequest, callback: PullCallback) -> AbandonFunction:
        """Pull from the broker; ``callback`` gets the outcome. Return a function to cancel it."""

    def consume(self, request: PullRequest, messages: tuple[MessageExt, ...]) -> None:
        """Hand messages, which are in the process queue already, to the listener."""

    def send_to_dlq(self, request: PullRequest, message: MessageExt) -> None:
        """Have an unreadable message, which is in the process queue already, made a dead letter."""

    def correct_tags_offset(self, request: PullRequest) -> None:
        """Count everything before the next offset as consumed, because the filter skipped it."""

    def correct_illegal_offset(self, request: PullRequest, offset: int) -> None:
        """Begin the queue again at an offset, with another request."""


class PushPullTask(PullTask):
    """Pulls one queue of a push consumer; another subscription begins a new epoch."""

    def __init__(
        self,
        request: PullRequest,
        source: PushPullSource,
        scheduler: Scheduler,
        limits: PullLimits,
        outage_log: OutageLog,
        failure_delay_ms: int,
        pull_interval_ms: int,
    ) -> None:
        super().__init__(request, source, scheduler, limits, outage_log, failure_delay_ms)
        self._request = request
        self._source = source
        self._pull_interval_ms = pull_interval_ms

    def restart(self) -> None:
        """Abandon the pull that a broker holds, and pull with the present subscription."""
        with self._mutex:
            if self._pulling_epoch is None:
                return  # the next one looks at the subscription
            self._request.epoch += 1
            abandon, self._abandon = self._abandon, None
        self._schedule(0)
        if abandon is not None:
            abandon()

    def _wait_ms(self) -> int | None:
        queue = self._request.process_queue
        if queue.is_dropped or queue.is_retired:
            return None
        queue.touch_pull()
        self.is_throttled = self._is_cache_full()
        if self.is_throttled:
            return FLOW_CONTROL_MS
        if self._source.is_paused:
            self._request.fingerprint.record_pause()
            return PAUSED_MS
        return 0 if self._source.may_pull(self._request) else NOT_LOCKED_MS

    def _restart_at(self, epoch: int, offset: int) -> None:  # noqa: ARG002  # this task ends
        self._source.correct_illegal_offset(self._request, offset)

    def _send(self, offset: int, callback: PullCallback) -> AbandonFunction:  # noqa: ARG002  # the request has it
        return self._source.pull(self._request, callback)

    def _on_answer(self, epoch: int, offset: int, answer: DecodedPull) -> int | None:
        request, source = self._request, self._source
        if answer.status is PullStatus.OFFSET_ILLEGAL:
            legal = request.fingerprint.legal_offset(request.queue, offset, answer)
            if legal is None:
                return 0
            # It asks brokers, which the thread that reads their answers must not wait for.
            self._scheduler.schedule(lambda: source.correct_illegal_offset(request, legal))
            return None
        with self._mutex:  # another subscription comes before, or continues after this answer
            # In this order: with an empty process queue, the next offset counts as consumed.
            if epoch != request.epoch or not request.process_queue.put_messages(
                answer.messages, answer.unreadable
            ):
                return 0
            request.next_offset = answer.next_begin_offset
        request.fingerprint.observe(answer.messages)
        for message in answer.unreadable:
            source.send_to_dlq(request, message)
        if answer.messages:
            source.consume(request, answer.messages)
            return self._pull_interval_ms
        source.correct_tags_offset(request)
        return 0

    def _may_continue(self) -> bool:
        return False  # it may have to lock the queue, and to find its first offset
