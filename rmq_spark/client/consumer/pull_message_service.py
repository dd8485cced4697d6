"""PullMessageService: pulls for push consumers, in their brokers' lanes, one request of a queue at a time.

    lane ──▶ pull_message ──▶ locked, first offset known ──▶ broker ──▶ answer ──▶ back into the lane, at once
                                                                          │        or later
                                                                          └──▶ process queue, listener

Each queue of a consumer has one `PullRequest`, which travels in this circle until its process queue is
retired or dropped: after NO_MATCHED_MSG and NO_NEW_MSG it goes back at once with a corrected offset, after a
failure or with a full cache after a while. It knows no listener: messages are handed to its consumer.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Protocol

from rmq_spark.client.consumer.group_brokers import Pulled
from rmq_spark.client.consumer.outages import Outages
from rmq_spark.client.consumer.process_queue import ProcessQueue
from rmq_spark.client.consumer.pull_task import BROKER_BUSY_MS, FLOW_CONTROL_MS, PAUSED_MS, PullLimits, Then
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.message import MessageExt
from rmq_spark.client.results import PullStatus
from rmq_spark.client.scheduled_tasks import Scheduler
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

NOT_LOCKED_MS = 1_000


@dataclass(slots=True, eq=False)
class PullRequest:
    """Where the pulling of one queue stands."""

    queue: MessageQueue
    process_queue: ProcessQueue[MessageExt]
    next_offset: int | None = None
    """None: the first is yet to be found out."""

    is_throttled: bool = field(default=False)
    """Whether it waits for listeners to make room."""

    is_suspended: bool = field(default=False)
    """Whether an orderly listener wants the queue only after a while."""

    lock_asked_at_ms: int | None = field(default=None)
    """When its broker was last asked to lock it."""

    listening: threading.Lock = field(default_factory=threading.Lock)
    """Held by an orderly listener while it has messages of the queue, be they from before it began anew."""

    turn: int = field(default=0)
    """Counted up whenever it is put into the queue, or taken out: what was put in earlier does not count."""


class PullingConsumer(Protocol):
    """What the service needs of its consumer."""

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be pulled at the moment."""

    def may_pull(self, request: PullRequest) -> bool:
        """Whether the queue is this consumer's alone, where that matters; its broker may be asked."""

    def first_offset(self, request: PullRequest) -> int:
        """Where to begin; raises where that cannot be found out."""

    @property
    def cached_bytes(self) -> int:
        """How much the messages of all queues take up."""

    def pull(self, request: PullRequest, then: Then) -> None:
        """Ask the broker; the outcome comes by ``then``."""

    def consume(self, request: PullRequest, messages: tuple[MessageExt, ...]) -> None:
        """Messages for the listener; they are in the process queue already."""

    def bury(self, request: PullRequest, message: MessageExt) -> None:
        """A message that cannot be read, for the dead letters; it is in the process queue already."""

    def correct_tags_offset(self, request: PullRequest) -> None:
        """Nothing before the next offset was wanted: it may be committed."""

    def correct_illegal_offset(self, request: PullRequest, offset: int) -> None:
        """Start the queue anew from there."""


class LaneOf(Protocol):
    """Where the lanes are."""

    def of(self, broker: str, /) -> Scheduler:
        """The lane of a broker."""


class PullMessageService:
    """Pulls for one consumer. All methods may be called from any thread."""

    def __init__(
        self,
        consumer: PullingConsumer,
        lanes: LaneOf,
        limits: PullLimits,
        pull_interval_ms: int,
        failed_ms: int,
    ) -> None:
        self._consumer = consumer
        self._lanes = lanes
        self._limits = limits
        self._pull_interval_ms = pull_interval_ms
        self._failed_ms = failed_ms
        self._outages = Outages("cannot be pulled")
        self._mutex = threading.Lock()

    def execute_pull_request_immediately(self, request: PullRequest) -> None:
        """Put it into the queue."""
        self.execute_pull_request_later(request, 0)

    def execute_pull_request_later(
        self, request: PullRequest, delay_ms: int, *, is_throttled: bool = False
    ) -> None:
        """Put it into the queue after a while."""
        with self._mutex:
            self._put(request, delay_ms, is_throttled=is_throttled)

    def room_was_made(self, request: PullRequest) -> None:
        """Listeners have made room: a request that waits for that goes on."""
        with self._mutex:
            if request.is_throttled:
                self._put(request, 0, is_throttled=False)

    def _put(self, request: PullRequest, delay_ms: int, *, is_throttled: bool) -> None:
        request.turn = turn = request.turn + 1
        request.is_throttled = is_throttled
        self._lane(request).schedule(lambda: self._take(request, turn), delay_ms)

    def _lane(self, request: PullRequest) -> Scheduler:
        return self._lanes.of(request.queue.broker_name)

    def _take(self, request: PullRequest, turn: int) -> None:
        with self._mutex:
            if request.turn != turn:
                return
            request.turn += 1
            request.is_throttled = False
        self.pull_message(request)

    def pull_message(self, request: PullRequest) -> None:
        """Pull once, or come back later."""
        queue = request.process_queue
        if queue.is_dropped or queue.is_retired:
            return
        queue.touch_pull()
        if self._is_full(request):
            self.execute_pull_request_later(request, FLOW_CONTROL_MS, is_throttled=True)
        elif self._consumer.is_paused:
            self.execute_pull_request_later(request, PAUSED_MS)
        elif not self._consumer.may_pull(request):
            self.execute_pull_request_later(request, NOT_LOCKED_MS)
        elif self._has_first_offset(request):
            self._pull(request)

    def _has_first_offset(self, request: PullRequest) -> bool:
        if request.next_offset is not None:
            return True
        try:
            first = self._consumer.first_offset(request)
        except Exception as error:  # noqa: BLE001  # whatever it is, the queue must not stop for good
            self._outages.failed(request.queue, error)
            self.execute_pull_request_later(request, self._failed_ms)
            return False
        request.process_queue.begin_at(first)
        request.next_offset = first
        return True

    def _pull(self, request: PullRequest) -> None:
        def then(outcome: Pulled | BaseException) -> None:
            try:
                self._answered(request, outcome)
            except Exception as error:  # noqa: BLE001  # whatever it is, the queue must not stop for good
                self._failed(request, error)

        try:
            self._consumer.pull(request, then)
        except Exception as error:  # noqa: BLE001  # the same
            self._failed(request, error)

    def _is_full(self, request: PullRequest) -> bool:
        queue, limits = request.process_queue, self._limits
        return (
            queue.message_count >= limits.pull_threshold_for_queue
            or queue.body_bytes >= limits.pull_threshold_size_for_queue_mib << 20
            or queue.span > limits.consume_max_span
            or (queue.message_count > 0 and self._consumer.cached_bytes >= limits.bytes_for_all)
        )

    def _answered(self, request: PullRequest, outcome: Pulled | BaseException) -> None:
        if request.process_queue.is_dropped:
            return
        if isinstance(outcome, BaseException):
            self._failed(request, outcome)
            return
        self._outages.went_well(request.queue)
        if outcome.status is PullStatus.OFFSET_ILLEGAL:
            legal = outcome.legal_offset(request.next_offset or 0)
            _log.warning(
                "%s has offsets %d to %d, not %d: going on at %d",
                *(request.queue, outcome.min_offset, outcome.max_offset, request.next_offset, legal),
            )
            # That asks brokers, which the thread that reads their answers must not wait for.
            self._lane(request).schedule(lambda: self._consumer.correct_illegal_offset(request, legal))
        else:
            self._found(request, outcome)

    def _found(self, request: PullRequest, outcome: Pulled) -> None:
        # In this order: the next offset counts as consumed when nothing is in the process queue.
        if not request.process_queue.put_messages(outcome.messages, outcome.unreadable):
            return
        request.next_offset = outcome.next_begin_offset
        for message in outcome.unreadable:
            self._consumer.bury(request, message)
        if outcome.messages:
            self._consumer.consume(request, outcome.messages)
            self.execute_pull_request_later(request, self._pull_interval_ms)
        else:
            self._consumer.correct_tags_offset(request)
            self.execute_pull_request_immediately(request)

    def _failed(self, request: PullRequest, error: BaseException) -> None:
        if isinstance(error, BrokerRefused) and error.code == ResponseCode.FLOW_CONTROL:
            self.execute_pull_request_later(request, BROKER_BUSY_MS)
            return
        self._outages.failed(request.queue, error)
        self.execute_pull_request_later(request, self._failed_ms)
