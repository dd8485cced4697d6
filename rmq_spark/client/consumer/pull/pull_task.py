"""PullTask: pulls one queue repeatedly; each kind of consumer has its own subclass.

    run ──▶ room, not paused ──▶ first offset ──▶ still the same queue? ──▶ pull ──▶ answer ──┐
     ▲                                                                                        │
     └─────────── at once, or after a delay if it failed or the cache is full ◀───────────────┘

    after a response                      at once
    a limit of the cache is reached       50 ms, or as soon as there is room
    pulling is paused                     1 s, or as soon as it is resumed
    the broker asks to slow down          20 ms
    any other failure                     1 s; 3 s if a lite pull consumer does not find the first
                                          offset

At most one pull is in flight. Each belongs to an epoch: a seek, or another subscription, begins a
new one and abandons the earlier pull. A cancelled task pulls no more and keeps no object alive;
its last response is ignored.
"""

from __future__ import annotations

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rmq_spark.client.arguments import explain_all_keywords
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.scheduler import Scheduler, Task
from rmq_spark.client.consumer.brokers.broker_client import DecodedPull
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue
from rmq_spark.client.consumer.queues.queue_identity import QueueFingerprint, StartPosition
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.failure_log import OutageLog
from rmq_spark.client.message import MessageExt
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

FLOW_CONTROL_MS = 50
PAUSED_MS = 1_000
BROKER_BUSY_MS = 20
FIRST_OFFSET_MS = 3_000
FAILED_MS = 1_000

PullCallback = Callable[[DecodedPull | BaseException], object]
AbandonFunction = Callable[[], object]
RoomFunction = Callable[[], int]


@explain_all_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class PullLimits:
    """Limits of the messages that a consumer pulls ahead; pulling waits while one is reached.

    Attributes:
        pull_threshold_for_all: Most messages of all queues that are not paused; 10,000 by default.
            A `PushConsumer` ignores it.
        pull_threshold_for_queue: Most messages of one queue; 1,000 by default.
        pull_threshold_size_for_all_mib: Most MiB of bodies of all queues together; 512 by default.
            A queue without cached messages may pull all the same, but of what it pulls at most one
            compressed body is inflated.
        pull_threshold_size_for_queue_mib: Most MiB of bodies of one queue; 100 by default.
        consume_max_span: Greatest distance of the offsets of a queue's first and last cached
            message; 2,000 by default. RocketMQ's push consumer calls it consumeConcurrentlyMaxSpan.
    """

    pull_threshold_for_all: int = 10_000
    pull_threshold_for_queue: int = 1_000
    pull_threshold_size_for_all_mib: int = 512
    pull_threshold_size_for_queue_mib: int = 100
    consume_max_span: int = 2_000

    @property
    def bytes_for_all(self) -> int:
        """The limit ``pull_threshold_size_for_all_mib`` in bytes."""
        return self.pull_threshold_size_for_all_mib << 20


class PulledQueue(Protocol):
    """The state of one queue: an `AssignedQueue`, or the `PullRequest` of a push consumer."""

    queue: MessageQueue
    fingerprint: QueueFingerprint

    @property
    def process_queue(self) -> ProcessQueue:
        """The messages that were pulled and not yet acknowledged."""

    def pull_position(self) -> tuple[int, int | None]:
        """Return the epoch for a pull, and the offset to begin at, if it is known."""

    def is_stale(self, epoch: int) -> bool:
        """Return whether results of that epoch must be dropped."""

    def set_first_offset(self, epoch: int, start: StartPosition) -> None:
        """Begin at a start position, unless the queue has begun already."""


class PullConsumer(Protocol):
    """The part of a consumer that the tasks of both kinds need."""

    def first_offset(self, queue: MessageQueue) -> StartPosition:
        """Return the position at which to begin; raise an error if the lookup fails."""

    def offset_since(self, queue: MessageQueue, store_ms: int) -> int:
        """Return the offset of the first message stored at a time or later; or raise an error."""

    def message_at(self, queue: MessageQueue, queue_offset: int) -> MessageExt | None:
        """Return the message at an offset, None if it is not there; or raise an error."""

    @property
    def cached_bytes(self) -> int:
        """Number of bytes in the bodies of the cached messages of all queues."""


_Queue = TypeVar("_Queue", bound=PulledQueue)
_Consumer = TypeVar("_Consumer", bound=PullConsumer)


class PullTask(ABC, Generic[_Queue, _Consumer]):
    """Pulls one queue. `start` it once, `wake` it when there is room, `cancel` it at the end."""

    first_offset_delay_ms: ClassVar[int | None] = None
    """Milliseconds until the first offset is looked up again; None: as after a failed pull."""

    def __init__(
        self,
        queue: _Queue,
        consumer: _Consumer,
        scheduler: Scheduler,
        limits: PullLimits,
        outage_log: OutageLog,
        failure_delay_ms: int = FAILED_MS,
        pull_interval_ms: int = 0,
    ) -> None:
        self._queue = queue
        self._consumer = consumer
        self._scheduler = scheduler
        self._limits = limits
        self._outage_log = outage_log
        self._failure_delay_ms = failure_delay_ms
        self._pull_interval_ms = pull_interval_ms
        self._mutex = threading.Lock()
        self._next: Task | None = None
        self._pulling_epoch: int | None = None
        self._abandon: AbandonFunction | None = None
        self._is_cancelled = False
        self.is_started = False
        """True once the task may pull; before that, a `wake` has no effect."""
        self.is_throttled = False
        """True while the task waits for room in the cache."""

    # ---- methods that differ between push and lite pull consumers

    @abstractmethod
    def _wait_ms(self) -> int | None:
        """Return the milliseconds to wait before a pull; None if the queue was released."""

    @abstractmethod
    def _restart_at(self, epoch: int, offset: int) -> int | None:
        """Resume at an offset of a recreated queue; return the same as `_on_success`."""

    @abstractmethod
    def _send(self, offset: int, callback: PullCallback) -> AbandonFunction: ...

    @abstractmethod
    def _on_success(self, epoch: int, offset: int, result: DecodedPull) -> int | None:
        """Process a response; return the milliseconds until the next pull, None for none."""

    @abstractmethod
    def _may_continue(self) -> bool:
        """Return whether the thread that reads answers may pull at once, without waiting."""

    # ---- scheduling

    def start(self) -> None:
        """Pull as soon as a thread is free."""
        self.is_started = True
        self._schedule(0)

    def cancel(self) -> None:
        """Pull no more, and abandon the pull in flight."""
        with self._mutex:
            self._is_cancelled = True
            if self._next is not None:
                self._next.cancel()
            abandon, self._abandon = self._abandon, None
        if abandon is not None:
            abandon()

    def wake(self) -> None:
        """Pull now, because there is room, or the queue was resumed or sought in."""
        if self.is_started:
            self._schedule(0)

    def resume_throttled(self) -> None:
        """Pull now, if the task waits for room in the cache."""
        if self.is_throttled:
            self.is_throttled = False
            self.wake()

    def _schedule(self, delay_ms: int) -> None:
        with self._mutex:
            if self._is_cancelled:
                return
            if self._next is not None:
                self._next.cancel()
            self._next = self._scheduler.schedule(self.run, delay_ms)

    def _is_cache_full(self) -> bool:
        queue, limits = self._queue.process_queue, self._limits
        return (
            queue.message_count >= limits.pull_threshold_for_queue
            or queue.body_bytes >= limits.pull_threshold_size_for_queue_mib << 20
            or queue.span > limits.consume_max_span
            or (queue.message_count > 0 and self._consumer.cached_bytes >= limits.bytes_for_all)
        )

    def room_bytes(self) -> int:
        """Return how many bytes may be cached before a limit is reached; negative beyond it."""
        queue, limits = self._queue.process_queue, self._limits
        return min(
            (limits.pull_threshold_size_for_queue_mib << 20) - queue.body_bytes,
            limits.bytes_for_all - self._consumer.cached_bytes,
        )

    # ---- one pull

    def run(self) -> None:
        """Pull once, or try again later."""
        delay_ms = self._wait_ms()
        if delay_ms is None:
            return
        if delay_ms:
            self._schedule(delay_ms)
            return
        with self._mutex:
            # Read under the lock, because a response moves the offset: otherwise messages could be
            # delivered twice.
            epoch, offset = self._queue.pull_position()
            if self._is_cancelled or self._pulling_epoch == epoch or self._queue.is_stale(epoch):
                return
            self._pulling_epoch = epoch
            abandon, self._abandon = self._abandon, None
        if abandon is not None:  # the pull from before the seek
            abandon()
        if offset is None:
            offset = self._resolve_first_offset(epoch)
        if offset is not None and not self._relocate(epoch, offset):
            self._pull(epoch, offset)

    def _resolve_first_offset(self, epoch: int) -> int | None:
        try:
            self._queue.set_first_offset(epoch, self._consumer.first_offset(self._queue.queue))
        except Exception as error:  # noqa: BLE001  # no error may stop the queue for good
            self._outage_log.record_failure(self._queue.queue, error)
            self._finish_pull(epoch, self.first_offset_delay_ms or self._failure_delay_ms)
            return None
        now_epoch, offset = self._queue.pull_position()
        if now_epoch != epoch:
            self._finish_pull(epoch, 0)
            return None
        return offset

    def _relocate(self, epoch: int, offset: int) -> bool:
        """Restart a queue that was recreated or shortened, at the store time of its last message.

        Messages pulled before are consumed first. Return False if the queue can be pulled at once.
        """
        queue, last_known = self._queue.queue, self._queue.fingerprint
        try:
            last_known.verify(queue, self._consumer.message_at)
            if not last_known.must_relocate:
                return False
            if self._queue.process_queue.message_count:
                self._finish_pull(epoch, FLOW_CONTROL_MS)
                return True
            found = last_known.relocate(queue, offset, self._consumer.offset_since)
        except Exception as error:  # noqa: BLE001  # no error may stop the queue for good
            self._finish_pull(epoch, self._on_failure(error))
            return True
        if found == offset:
            return False
        self._finish_pull(epoch, self._restart_at(epoch, found))
        return True

    def _pull(self, epoch: int, offset: int) -> None:
        # a response handled in this thread must not start the next pull
        sender_thread_ids = [threading.get_ident()]

        def finish(outcome: DecodedPull | BaseException, *, is_other_thread: bool) -> None:
            try:
                delay_ms = self._on_outcome(epoch, offset, outcome)
            except Exception as error:  # noqa: BLE001  # as above
                delay_ms = self._on_failure(error)
            self._finish_pull(epoch, delay_ms, continues_in_thread=is_other_thread)

        def on_outcome(outcome: DecodedPull | BaseException) -> None:
            last_known = self._queue.fingerprint
            if last_known.needs_verification(outcome):
                # This waits for brokers, which the thread that reads responses must not do.
                ask = self._consumer.message_at
                verify = partial(last_known.verify_outcome, self._queue.queue, ask, outcome)
                self._scheduler.schedule(lambda: finish(verify(), is_other_thread=False))
            else:
                finish(outcome, is_other_thread=sender_thread_ids != [threading.get_ident()])

        try:
            abandon = self._send(offset, on_outcome)
            with self._mutex:
                if is_pulling := self._pulling_epoch == epoch:
                    self._abandon = abandon
            if not is_pulling:
                abandon()  # no effect after the response
        except Exception as error:  # noqa: BLE001  # as above
            self._finish_pull(epoch, self._on_failure(error))
        finally:
            sender_thread_ids.clear()

    def _on_outcome(
        self, epoch: int, offset: int, outcome: DecodedPull | BaseException
    ) -> int | None:
        if self._is_cancelled or self._queue.is_stale(epoch):
            return 0
        if isinstance(outcome, BaseException):
            return self._on_failure(outcome)
        self._outage_log.record_success(self._queue.queue)
        return (
            0 if self._queue.fingerprint.must_relocate else self._on_success(epoch, offset, outcome)
        )

    def _on_failure(self, error: BaseException) -> int:
        if isinstance(error, BrokerRefused) and error.code == ResponseCode.FLOW_CONTROL:
            return BROKER_BUSY_MS
        self._queue.fingerprint.record_failure(error)
        self._outage_log.record_failure(self._queue.queue, error)
        return self._failure_delay_ms

    def _finish_pull(
        self, epoch: int, delay_ms: int | None, *, continues_in_thread: bool = False
    ) -> None:
        with self._mutex:
            if self._pulling_epoch != epoch or self._is_cancelled:
                return  # after a seek another pull is under way
            self._pulling_epoch = None
            self._abandon = None
        if delay_ms is None:
            return
        if continues_in_thread and not delay_ms and self._may_continue():
            self.run()
        else:
            self._schedule(delay_ms)


NOT_LOCKED_MS = 1_000


class QueueOwnership:
    """The ownership of one queue among the members of this process.

    A broker locks a queue for a client, and does not distinguish its members. If a member is made
    just after another of the same group was shut down, the broker grants it the lock at once,
    although a listener of the first may still be busy. So a member acquires an orderly queue here
    only when no listener uses it, and a member that has lost a queue to another no longer unlocks
    it.
    """

    def __init__(self) -> None:
        self.listener_lock = threading.Lock()
        """Held while an orderly listener has messages of the queue, or a broker unlocks it."""

        self.owner: object = None
        """The member that owns the queue: a listener that uses the queue is this member's."""

    def acquire(self, member: object) -> bool:
        """Make a member the owner; return False while another member's listener uses the queue."""
        if self.owner is not member:
            if not self.listener_lock.acquire(blocking=False):
                return False
            self.owner = member
            self.listener_lock.release()
        return True

    @contextmanager
    def pin(self, member: object) -> Iterator[bool]:
        """Keep others from acquiring the queue meanwhile; yield False if another owns it."""
        if self.owner is not member:
            yield False
            return
        with self.listener_lock:
            yield self.owner is member


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


# ---- PullRequest: one queue of a push consumer. Its task pulls it until its process queue is
# retired or dropped. After NO_MATCHED_MSG and NO_NEW_MSG the next pull follows at once, at the
# corrected offset.


@dataclass(slots=True, eq=False)
class PullRequest:
    """The state of pulling one queue, and of consuming what was pulled."""

    queue: MessageQueue
    process_queue: ProcessQueue
    next_offset: int | None = None
    """Offset of the next pull; None until the initial offset is known."""

    is_suspended: bool = False
    """True while the queue waits because an orderly listener has suspended it."""

    fingerprint: QueueFingerprint = field(default_factory=QueueFingerprint)
    """The queue's identity by its last message; a request that replaces this one may inherit it."""

    lock_requested_at_ms: int | None = None
    """Time of a monotonic clock, in ms, at which the broker was last asked for the lock."""

    ownership: QueueOwnership = field(default_factory=QueueOwnership)
    """State shared with the queue's earlier requests, and with those of other members."""

    epoch: int = 0
    """Number of changed subscriptions so far; responses to earlier pulls are ignored."""

    task: PullTask[Any, Any] | None = None
    """The task that pulls the queue, once it does."""

    def pull_position(self) -> tuple[int, int | None]:
        """Return the epoch for a pull, and the offset to begin at, if it is known."""
        return self.epoch, self.next_offset

    def is_stale(self, epoch: int) -> bool:
        """Return whether results of that epoch must be dropped."""
        queue = self.process_queue
        return epoch != self.epoch or queue.is_dropped or queue.is_retired

    def set_first_offset(self, epoch: int, start: StartPosition) -> None:  # noqa: ARG002  # the same for each
        """Begin at a start position."""
        self.process_queue.set_initial_offset(start.offset)
        self.fingerprint = start.fingerprint
        self.next_offset = start.offset
