"""PullTask: pulls one assigned queue, again and again, for a lite pull consumer.

    after a response                      at once
    a limit of the cache is reached       50 ms, or as soon as `poll` has made room
    the queue is paused                   1 s, or as soon as it is resumed
    the broker asks to slow down          20 ms
    any other failure                     1 s; 3 s if the first offset could not be found

At most one pull is in flight. A seek abandons the pull from before it. A cancelled task pulls no
more and keeps no object alive; its last response is ignored.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rmq_spark.client.concurrency.locks import mutex
from rmq_spark.client.concurrency.scheduler import Scheduler, Task
from rmq_spark.client.consumer.brokers.broker_client import DecodedPull, OutageLog
from rmq_spark.client.consumer.queues.assigned_queues import AssignedQueue, ConsumeRequest
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue
from rmq_spark.client.consumer.queues.queue_identity import StartPosition
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.message import MessageExt
from rmq_spark.client.results import PullStatus
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PullLimits:
    """Limits of the messages that a consumer pulls ahead; pulling waits while one is reached.

    Attributes:
        pull_threshold_for_all: Most messages of all queues that are not paused; 10,000 by default.
            A `PushConsumer` ignores it.
        pull_threshold_for_queue: Most messages of one queue; 1,000 by default.
        pull_threshold_size_for_all_mib: Most MiB of bodies of all queues together; 512 by default.
            A queue without cached messages may pull all the same.
        pull_threshold_size_for_queue_mib: Most MiB of bodies of one queue; 100 by default.
        consume_max_span: Greatest distance of the offsets of a queue's first and last cached
            message; 2,000 by default. RocketMQ's push consumer calls it consumeConcurrentlyMaxSpan.
    """

    pull_threshold_for_all: int = 10_000
    pull_threshold_for_queue: int = 1_000
    pull_threshold_size_for_all_mib: int = 512
    pull_threshold_size_for_queue_mib: int = 100
    consume_max_span: int = 2_000


class PullConsumer(Protocol):
    """The part of a consumer that the pulls of both kinds need."""

    def offset_since(self, queue: MessageQueue, store_ms: int) -> int:
        """Return the offset of the first message stored at a time or later; or raise an error."""

    def message_at(self, queue: MessageQueue, queue_offset: int) -> MessageExt | None:
        """Return the message at an offset, None if it is not there; or raise an error."""

    @property
    def cached_bytes(self) -> int:
        """Number of bytes in the bodies of the cached messages of all queues."""


def is_cache_full(limits: PullLimits, queue: ProcessQueue, consumer: PullConsumer) -> bool:
    """Return whether a queue may not be pulled, because too much of it or of all is cached."""
    bytes_for_all = limits.pull_threshold_size_for_all_mib << 20
    return (
        queue.message_count >= limits.pull_threshold_for_queue
        or queue.body_bytes >= limits.pull_threshold_size_for_queue_mib << 20
        or queue.span > limits.consume_max_span
        or (queue.message_count > 0 and consumer.cached_bytes >= bytes_for_all)
    )


class PullSource(PullConsumer, Protocol):
    """The part of a consumer that a pull task needs."""

    def first_offset(self, queue: MessageQueue) -> StartPosition:
        """Return the position at which to begin; raise an error if the lookup fails."""

    def move_offset_back(self, queue: MessageQueue, offset: int) -> None:
        """Move the group's offset back to an offset of a queue that was recreated."""

    def is_ready(self, queue: MessageQueue) -> bool:
        """Return whether `pull` can send at once, without waiting."""

    def pull(
        self, queue: MessageQueue, queue_offset: int, callback: PullCallback
    ) -> AbandonFunction:
        """Pull from the broker; ``callback`` gets the outcome. Return a function to cancel it."""

    def send_to_dlq(self, assigned: AssignedQueue, epoch: int, message: MessageExt) -> None:
        """Make a dead letter of an unreadable message."""

    def deliver(self, request: ConsumeRequest) -> None:
        """Hand pulled messages to `poll`."""

    @property
    def cached_messages(self) -> int:
        """Number of messages that `poll` may return; those of paused queues do not count."""


class PullTask:
    """Pulls one queue. `start` it once, `wake` it when there is room, `cancel` it at the end."""

    def __init__(
        self,
        assigned: AssignedQueue,
        source: PullSource,
        scheduler: Scheduler,
        limits: PullLimits,
        outage_log: OutageLog,
        failure_delay_ms: int = FAILED_MS,
    ) -> None:
        self.assigned = assigned
        self._source = source
        self._scheduler = scheduler
        self._limits = limits
        self._outage_log = outage_log
        self._failure_delay_ms = failure_delay_ms
        self._mutex = mutex()
        self._next: Task | None = None
        self._pulling_epoch: int | None = None
        self._abandon: AbandonFunction | None = None
        self._is_cancelled = False
        self.is_started = False
        """True once the task may pull; before that, a `wake` has no effect."""
        self.is_throttled = False
        """True while the task waits for `poll` to make room."""

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

    def _schedule(self, delay_ms: int) -> None:
        with self._mutex:
            if self._is_cancelled:
                return
            if self._next is not None:
                self._next.cancel()
            self._next = self._scheduler.schedule(self.run, delay_ms)

    # ---- one pull

    def run(self) -> None:
        """Pull once, or try again later."""
        delay_ms = self._wait_ms()
        if delay_ms:
            self._schedule(delay_ms)
            return
        with self._mutex:
            # Read under the lock, as an answer moves the offset: else messages could come twice.
            epoch, offset = self.assigned.pull_position()
            if self._is_cancelled or self.assigned.is_dropped or self._pulling_epoch == epoch:
                return
            self._pulling_epoch = epoch
            abandon, self._abandon = self._abandon, None
        if abandon is not None:  # the pull from before the seek
            abandon()
        if offset is None:
            offset = self._resolve_first_offset(epoch)
        if offset is not None and not self._relocate(epoch, offset):
            self._pull(epoch, offset)

    def _wait_ms(self) -> int:
        queue, limits = self.assigned.process_queue, self._limits
        queue.touch_pull()
        if self.assigned.is_paused:
            self.assigned.fingerprint.record_pause()
            return PAUSED_MS
        self.is_throttled = (
            self._source.cached_messages >= limits.pull_threshold_for_all
            or is_cache_full(limits, queue, self._source)
        )
        return FLOW_CONTROL_MS if self.is_throttled else 0

    def _resolve_first_offset(self, epoch: int) -> int | None:
        try:
            self.assigned.set_first_offset(epoch, self._source.first_offset(self.assigned.queue))
        except Exception as error:  # noqa: BLE001  # no error may stop the queue for good
            self._outage_log.record_failure(self.assigned.queue, error)
            self._finish_pull(epoch, FIRST_OFFSET_MS)
            return None
        now_epoch, offset = self.assigned.pull_position()
        if now_epoch != epoch:
            self._finish_pull(epoch, 0)
            return None
        return offset

    def _relocate(self, epoch: int, offset: int) -> bool:
        """Begin a queue again that is another one now, at the time of the last message of it.

        Its topic was made again, or the broker has lost its end. What came before is polled first.
        """
        queue, last_known = self.assigned.queue, self.assigned.fingerprint
        try:
            last_known.verify(queue, self._source.message_at)
            if not last_known.must_relocate:
                return False
            if self.assigned.process_queue.message_count:
                self._finish_pull(epoch, FLOW_CONTROL_MS)
                return True
            found = last_known.relocate(queue, offset, self._source.offset_since)
        except Exception as error:  # noqa: BLE001  # no error may stop the queue for good
            self._finish_pull(epoch, self._on_failure(error))
            return True
        if found == offset:
            return False
        if self.assigned.restart_at(epoch, found) != epoch:
            self._source.move_offset_back(queue, found)
        self._finish_pull(epoch, 0)
        return True

    def _pull(self, epoch: int, offset: int) -> None:
        asking = [threading.get_ident()]  # an answer in this thread must not pull again here

        def take_over(outcome: DecodedPull | BaseException, *, goes_on: bool) -> None:
            try:
                delay_ms = self._on_outcome(epoch, offset, outcome)
            except Exception as error:  # noqa: BLE001  # as above
                delay_ms = self._on_failure(error)
            self._finish_pull(epoch, delay_ms, continues_in_thread=goes_on)

        def then(outcome: DecodedPull | BaseException) -> None:
            last_known = self.assigned.fingerprint
            if last_known.needs_verification(outcome):
                # It asks brokers, which the thread that reads their answers must not wait for.
                ask = self._source.message_at
                look = partial(last_known.verify_outcome, self.assigned.queue, ask, outcome)
                self._scheduler.schedule(lambda: take_over(look(), goes_on=False))
            else:
                take_over(outcome, goes_on=asking != [threading.get_ident()])

        try:
            abandon = self._source.pull(self.assigned.queue, offset, then)
            with self._mutex:
                if self._pulling_epoch == epoch:
                    self._abandon = abandon
        except Exception as error:  # noqa: BLE001  # as above
            self._finish_pull(epoch, self._on_failure(error))
        finally:
            asking.clear()

    def _on_outcome(self, epoch: int, offset: int, outcome: DecodedPull | BaseException) -> int:
        """Take over the messages of an answer; return the milliseconds until the next pull."""
        if self._is_cancelled or self.assigned.is_stale(epoch):
            return 0
        if isinstance(outcome, BaseException):
            return self._on_failure(outcome)
        self._outage_log.record_success(self.assigned.queue)
        last_known = self.assigned.fingerprint  # of this epoch, should it be sought in meanwhile
        if last_known.must_relocate:
            return 0
        next_offset = outcome.next_begin_offset
        if outcome.status is PullStatus.OFFSET_ILLEGAL:
            legal = last_known.legal_offset(self.assigned.queue, offset, outcome)
            if legal is None:
                return 0
            next_offset = legal
        if not self.assigned.add_pulled(epoch, outcome.messages, next_offset, outcome.unreadable):
            return 0
        if next_offset < offset:
            self._source.move_offset_back(self.assigned.queue, next_offset)
        last_known.observe(outcome.messages)
        for message in outcome.unreadable:
            self._source.send_to_dlq(self.assigned, epoch, message)
        if outcome.messages:
            self._source.deliver(ConsumeRequest(self.assigned, epoch, outcome.messages))
        return 0

    def _on_failure(self, error: BaseException) -> int:
        if isinstance(error, BrokerRefused) and error.code == ResponseCode.FLOW_CONTROL:
            return BROKER_BUSY_MS
        self.assigned.fingerprint.record_failure(error)
        self._outage_log.record_failure(self.assigned.queue, error)
        return self._failure_delay_ms

    def _finish_pull(self, epoch: int, delay_ms: int, *, continues_in_thread: bool = False) -> None:
        with self._mutex:
            if self._pulling_epoch != epoch or self._is_cancelled:
                return  # or, after a seek, another pull is under way
            self._pulling_epoch = None
            self._abandon = None
        last_known = self.assigned.fingerprint
        if (
            continues_in_thread
            and not (delay_ms or last_known.must_relocate or last_known.is_unverified)
            and self._source.is_ready(self.assigned.queue)
        ):
            self.run()  # in the reading thread, which must not wait
        else:
            self._schedule(delay_ms)
