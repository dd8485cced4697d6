"""PullMessageService: pulls for push consumers, one request per queue, in the brokers' executors.

    executor ──▶ pull_message ──▶ locked, first offset known ──▶ broker ──▶ response ──▶ executor
                                                                              │       now or later
                                                                              └──▶ process queue

Each queue of a consumer has one `PullRequest`, which goes round this circle until its process queue
is retired or dropped. After NO_MATCHED_MSG and NO_NEW_MSG it goes on at once with a corrected
offset, after a failure or with a full cache after a delay.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from rmq_spark.client.concurrency.locks import mutex
from rmq_spark.client.concurrency.per_broker_executor import PerBrokerExecutor
from rmq_spark.client.concurrency.scheduler import Scheduler
from rmq_spark.client.consumer.brokers.broker_client import DecodedPull, OutageLog
from rmq_spark.client.consumer.pull.pull_task import (
    BROKER_BUSY_MS,
    FLOW_CONTROL_MS,
    PAUSED_MS,
    AbandonFunction,
    PullCallback,
    PullConsumer,
    PullLimits,
    is_cache_full,
)
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue
from rmq_spark.client.consumer.queues.queue_identity import QueueFingerprint, StartPosition
from rmq_spark.client.consumer.queues.queue_ownership import QueueOwnership
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.message import MessageExt
from rmq_spark.client.results import PullStatus
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

NOT_LOCKED_MS = 1_000


@dataclass(slots=True, eq=False)
class PullRequest:
    """The state of pulling one queue."""

    queue: MessageQueue
    process_queue: ProcessQueue
    next_offset: int | None = None
    """Offset of the next pull; None if the first is yet to be found out."""

    is_throttled: bool = False
    """True while the request waits for listeners to make room."""

    is_suspended: bool = False
    """True while an orderly listener wants the queue only after a while."""

    fingerprint: QueueFingerprint = field(default_factory=QueueFingerprint)
    """The last message that came, which a request that begins the queue again knows as well."""

    lock_requested_at_ms: int | None = None
    """Time of a monotonic clock, in ms, at which the broker was last asked for the lock."""

    ownership: QueueOwnership = field(default_factory=QueueOwnership)
    """State that is shared with other requests of the queue, earlier ones and other members'."""

    turn: int = 0
    """Counts puts and takes: a request that was put in during an earlier turn does not count."""

    pull_turn: int | None = None
    """The turn in which the pull that is under way was begun; None if there is none."""

    abandon: AbandonFunction | None = None
    """Function that gives up the pull that is under way, once it is known."""


class PullServiceConsumer(PullConsumer, Protocol):
    """The part of a consumer that the service needs."""

    @property
    def is_paused(self) -> bool:
        """True while pulling is suspended."""

    def may_pull(self, request: PullRequest) -> bool:
        """Return whether the queue is locked, where that matters; may request the lock."""

    def first_offset(self, request: PullRequest) -> StartPosition:
        """Return the position at which to begin; raise an error if the lookup fails."""

    def pull(self, request: PullRequest, callback: PullCallback) -> AbandonFunction:
        """Pull from the broker; ``callback`` gets the outcome. Return a function to cancel it."""

    def consume(self, request: PullRequest, messages: tuple[MessageExt, ...]) -> None:
        """Hand messages, which are in the process queue already, to the listener."""

    def send_to_dlq(self, request: PullRequest, message: MessageExt) -> None:
        """Have an unreadable message, which is in the process queue already, made a dead letter."""

    def correct_tags_offset(self, request: PullRequest) -> None:
        """Count everything before the next offset as consumed, because the filter skipped it."""

    def correct_illegal_offset(self, request: PullRequest, offset: int) -> None:
        """Begin the queue again at an offset."""


class PullMessageService:
    """Pulls for one consumer. All methods may be called from any thread."""

    def __init__(
        self,
        consumer: PullServiceConsumer,
        broker_executor: PerBrokerExecutor,
        limits: PullLimits,
        pull_interval_ms: int,
        failure_delay_ms: int,
    ) -> None:
        self._consumer = consumer
        self._broker_executor = broker_executor
        self._limits = limits
        self._pull_interval_ms = pull_interval_ms
        self._failure_delay_ms = failure_delay_ms
        self._outage_log = OutageLog("cannot be pulled")
        self._mutex = mutex()

    def execute_pull_request_immediately(self, request: PullRequest) -> None:
        """Submit a request to its broker's executor."""
        self.execute_pull_request_later(request, 0)

    def execute_pull_request_later(
        self, request: PullRequest, delay_ms: int, *, is_throttled: bool = False
    ) -> None:
        """Submit a request to its broker's executor after a delay in milliseconds."""
        with self._mutex:
            self._schedule(request, delay_ms, is_throttled=is_throttled)

    def resume_throttled(self, request: PullRequest) -> None:
        """Resume a request that waits until listeners have made room."""
        with self._mutex:
            if request.is_throttled:
                self._schedule(request, 0, is_throttled=False)

    def restart_pull(self, request: PullRequest) -> None:
        """Abandon the pull that a broker holds, and pull with the present subscription."""
        with self._mutex:
            if request.pull_turn is None:
                return  # the next one looks at the subscription
            request.pull_turn = None
            abandon, request.abandon = request.abandon, None
            self._schedule(request, 0, is_throttled=False)
        if abandon is not None:
            abandon()

    def _schedule(self, request: PullRequest, delay_ms: int, *, is_throttled: bool) -> None:
        request.turn = turn = request.turn + 1
        request.is_throttled = is_throttled
        self._broker_scheduler(request).schedule(lambda: self._run(request, turn), delay_ms)

    def _broker_scheduler(self, request: PullRequest) -> Scheduler:
        return self._broker_executor.for_broker(request.queue.broker_name)

    def _run(self, request: PullRequest, turn: int) -> None:
        with self._mutex:
            if request.turn != turn:
                return
            request.turn += 1
            request.is_throttled = False
        self.pull_message(request)

    def pull_message(self, request: PullRequest) -> None:
        """Pull once, or try again later."""
        queue = request.process_queue
        if queue.is_dropped or queue.is_retired:
            return
        queue.touch_pull()
        if is_cache_full(self._limits, queue, self._consumer):
            self.execute_pull_request_later(request, FLOW_CONTROL_MS, is_throttled=True)
        elif self._consumer.is_paused:
            request.fingerprint.record_pause()
            self.execute_pull_request_later(request, PAUSED_MS)
        elif not self._consumer.may_pull(request):
            self.execute_pull_request_later(request, NOT_LOCKED_MS)
        elif self._resolve_first_offset(request) and not self._relocate(request):
            self._pull(request)

    def _resolve_first_offset(self, request: PullRequest) -> bool:
        if request.next_offset is not None:
            return True
        try:
            first = self._consumer.first_offset(request)
        except Exception as error:  # noqa: BLE001  # no error may stop the queue for good
            self._outage_log.record_failure(request.queue, error)
            self.execute_pull_request_later(request, self._failure_delay_ms)
            return False
        request.process_queue.set_initial_offset(first.offset)
        request.fingerprint = first.fingerprint
        request.next_offset = first.offset
        return True

    def _relocate(self, request: PullRequest) -> bool:
        """Begin a queue again that is another one now, at the time of the last message of it.

        Its topic was made again, or the broker has lost its end.
        What came before is consumed first.
        """
        asked = request.next_offset or 0
        try:
            request.fingerprint.verify(request.queue, self._consumer.message_at)
            if not request.fingerprint.must_relocate:
                return False
            if request.process_queue.message_count:
                self.execute_pull_request_later(request, FLOW_CONTROL_MS)
                return True
            found = request.fingerprint.relocate(request.queue, asked, self._consumer.offset_since)
        except Exception as error:  # noqa: BLE001  # no error may stop the queue for good
            self._on_failure(request, error)
            return True
        if found == asked:
            return False
        self._consumer.correct_illegal_offset(request, found)
        return True

    def _pull(self, request: PullRequest) -> None:
        with self._mutex:
            request.pull_turn = turn = request.turn

        def then(outcome: DecodedPull | BaseException) -> None:
            last_known = request.fingerprint
            if last_known.needs_verification(outcome):
                # It asks brokers, which the thread that reads their answers must not wait for.
                verified = partial(
                    last_known.verify_outcome, request.queue, self._consumer.message_at, outcome
                )
                self._broker_scheduler(request).schedule(lambda: take_over(verified()))
            else:
                take_over(outcome)

        def take_over(outcome: DecodedPull | BaseException) -> None:
            if not self._finish_pull(request, turn):
                return
            try:
                self._on_outcome(request, outcome)
            except Exception as error:  # noqa: BLE001  # no error may stop the queue for good
                self._on_failure(request, error)

        try:
            abandon = self._consumer.pull(request, then)
        except Exception as error:  # noqa: BLE001  # as above
            if self._finish_pull(request, turn):
                self._on_failure(request, error)
            return
        with self._mutex:
            if request.pull_turn == turn:
                request.abandon = abandon
                return
        abandon()  # has no effect if it is answered already

    def _finish_pull(self, request: PullRequest, turn: int) -> bool:
        """Note that the pull of that turn is over; return False if another has taken its place."""
        with self._mutex:
            if request.pull_turn != turn:
                return False
            request.pull_turn = request.abandon = None
            return True

    def _on_outcome(self, request: PullRequest, outcome: DecodedPull | BaseException) -> None:
        if request.process_queue.is_dropped or request.process_queue.is_retired:
            return  # also where the client ends that was kept for a last listener alone
        if isinstance(outcome, BaseException):
            self._on_failure(request, outcome)
            return
        self._outage_log.record_success(request.queue)
        if request.fingerprint.must_relocate:
            self.execute_pull_request_immediately(request)
        elif outcome.status is PullStatus.OFFSET_ILLEGAL:
            asked = request.next_offset or 0
            legal = request.fingerprint.legal_offset(request.queue, asked, outcome)
            if legal is None:
                self.execute_pull_request_immediately(request)
                return
            # It asks brokers, which the thread that reads their answers must not wait for.
            self._broker_scheduler(request).schedule(
                lambda: self._consumer.correct_illegal_offset(request, legal)
            )
        else:
            self._on_messages(request, outcome)

    def _on_messages(self, request: PullRequest, outcome: DecodedPull) -> None:
        # In this order: with an empty process queue, the next offset counts as consumed.
        if not request.process_queue.put_messages(outcome.messages, outcome.unreadable):
            return
        request.next_offset = outcome.next_begin_offset
        request.fingerprint.observe(outcome.messages)
        for message in outcome.unreadable:
            self._consumer.send_to_dlq(request, message)
        if outcome.messages:
            self._consumer.consume(request, outcome.messages)
            self.execute_pull_request_later(request, self._pull_interval_ms)
        else:
            self._consumer.correct_tags_offset(request)
            self.execute_pull_request_immediately(request)

    def _on_failure(self, request: PullRequest, error: BaseException) -> None:
        if isinstance(error, BrokerRefused) and error.code == ResponseCode.FLOW_CONTROL:
            self.execute_pull_request_later(request, BROKER_BUSY_MS)
            return
        request.fingerprint.record_failure(error)
        self._outage_log.record_failure(request.queue, error)
        self.execute_pull_request_later(request, self._failure_delay_ms)
