"""PullMessageService: the thread that pulls for push consumers, one request of a queue at a time.

    pull request queue ──▶ pull_message ──▶ broker ──▶ answer ──▶ back into the queue, at once or later
                                                          └──▶ process queue, listener

Each queue of a consumer has one `PullRequest`, which travels in this circle for as long as its process queue
is not dropped: after NO_MATCHED_MSG and NO_NEW_MSG it goes back at once with a corrected offset, after a
failure or with a full cache after a while. It knows no listener: messages are handed to its consumer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from rmq_spark.client.consumer.group_brokers import Pulled
from rmq_spark.client.consumer.process_queue import ProcessQueue
from rmq_spark.client.consumer.pull_task import BROKER_BUSY_MS, FLOW_CONTROL_MS, PAUSED_MS, PullLimits, Then
from rmq_spark.client.consumer.scheduled_tasks import Scheduler
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.message import MessageExt
from rmq_spark.client.results import PullStatus
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

NOT_LOCKED_MS = 3_000


@dataclass(slots=True, eq=False)
class PullRequest:
    """Where the pulling of one queue stands."""

    queue: MessageQueue
    process_queue: ProcessQueue[MessageExt]
    next_offset: int
    is_throttled: bool = field(default=False)
    """Whether it waits for listeners to make room."""


class PullingConsumer(Protocol):
    """What the service needs of its consumer."""

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be pulled at the moment."""

    def may_pull(self, request: PullRequest) -> bool:
        """Whether the queue is this consumer's alone, where that matters."""

    def pull(self, request: PullRequest, then: Then) -> None:
        """Ask the broker; the outcome comes by ``then``."""

    def consume(self, request: PullRequest, messages: tuple[MessageExt, ...]) -> None:
        """Messages for the listener; they are in the process queue already."""

    def correct_tags_offset(self, request: PullRequest) -> None:
        """Nothing before the next offset was wanted: it may be committed."""

    def correct_illegal_offset(self, request: PullRequest, offset: int) -> None:
        """Start the queue anew from there."""


class PullMessageService:
    """See the module."""

    def __init__(
        self,
        consumer: PullingConsumer,
        scheduler: Scheduler,
        limits: PullLimits,
        pull_interval_ms: int,
        failed_ms: int,
    ) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        self._limits = limits
        self._pull_interval_ms = pull_interval_ms
        self._failed_ms = failed_ms

    def execute_pull_request_immediately(self, request: PullRequest) -> None:
        """Put it into the queue."""
        self._scheduler.schedule(lambda: self.pull_message(request))

    def execute_pull_request_later(self, request: PullRequest, delay_ms: int) -> None:
        """Put it into the queue after a while."""
        self._scheduler.schedule(lambda: self.pull_message(request), delay_ms)

    def pull_message(self, request: PullRequest) -> None:
        """Pull once, or come back later."""
        if request.process_queue.is_dropped:
            return
        request.process_queue.touch_pull()
        delay_ms = self._reason_to_wait_ms(request)
        if delay_ms:
            self.execute_pull_request_later(request, delay_ms)
            return
        try:
            self._consumer.pull(request, lambda outcome: self._answered(request, outcome))
        except RocketPollError as error:
            self._failed(request, error)

    def _reason_to_wait_ms(self, request: PullRequest) -> int:
        if self._consumer.is_paused:
            return PAUSED_MS
        queue, limits = request.process_queue, self._limits
        request.is_throttled = (
            queue.message_count >= limits.pull_threshold_for_queue
            or queue.body_bytes >= limits.pull_threshold_size_for_queue_mib << 20
            or queue.span > limits.consume_max_span
        )
        if request.is_throttled:
            return FLOW_CONTROL_MS
        return 0 if self._consumer.may_pull(request) else NOT_LOCKED_MS

    def _answered(self, request: PullRequest, outcome: Pulled | BaseException) -> None:
        if request.process_queue.is_dropped:
            return
        if isinstance(outcome, BaseException):
            self._failed(request, outcome)
        elif outcome.status is PullStatus.OFFSET_ILLEGAL:
            legal = outcome.legal_offset(request.next_offset)
            _log.warning(
                "%s has offsets %d to %d, not %d: going on at %d",
                *(request.queue, outcome.min_offset, outcome.max_offset, request.next_offset, legal),
            )
            # That asks brokers, which the thread that reads their answers must not wait for.
            self._scheduler.schedule(lambda: self._consumer.correct_illegal_offset(request, legal))
        else:
            self._found(request, outcome)

    def _found(self, request: PullRequest, outcome: Pulled) -> None:
        request.next_offset = outcome.next_begin_offset
        if not outcome.messages:
            self._consumer.correct_tags_offset(request)
            self.execute_pull_request_immediately(request)
        elif request.process_queue.put_messages(outcome.messages):
            self._consumer.consume(request, outcome.messages)
            self.execute_pull_request_later(request, self._pull_interval_ms)

    def _failed(self, request: PullRequest, error: BaseException) -> None:
        if isinstance(error, BrokerRefused) and error.code == ResponseCode.FLOW_CONTROL:
            self.execute_pull_request_later(request, BROKER_BUSY_MS)
            return
        _log.warning("%s cannot be pulled: %s", request.queue, error)
        self.execute_pull_request_later(request, self._failed_ms)
