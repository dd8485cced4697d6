"""TransactionalMessageService: checks half messages that their producers have not ended.

    RMQ_SYS_TRANS_HALF_TOPIC       half messages, in order of arrival; checked ones again at the end
    RMQ_SYS_TRANS_OP_HALF_TOPIC    op messages: which half messages have ended
    consumerOffset.json            CID_RMQ_SYS_TRANS: how far both queues are done

A round begins each transactionCheckInterval. It passes half messages that have ended, and ends at
the first that is younger than transactionTimeOut. Any other half message is stored again at the end
of its queue, its producer is asked for its state, and the copy is checked in a later round. One
that was checked transactionCheckMax times, or is older than fileReservedTime, is given up: it goes
to TRANS_CHECK_MAX_TIME_TOPIC.

Each half message is passed only when the store has accepted what replaces it, and the progress is
recorded only when that is on the disk. So after a crash some are checked once more, and none is
lost. The first round after a start looks for copies past the saved progress: only the last copy of
a half message is checked again, and none if one of them has an op message.

A round has the steps of RocketMQ's `TransactionalMessageServiceImpl.check`, with two differences.
The op message of an immune half message counts, although it has the message's first queue offset.
The age by which a half message is given up does not grow when the time of day is set forward.

`check` does a bounded amount of work, and returns the time at which it must be called again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.record import StoredMessage, decode_record
from rmq_spark.wire.names import CHECK_GROUP, CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC

from ..common.recent_losses import LossKind, RecentLosses
from ..schedule.real_topic_delivery import RETRY_MS, DeliveryBudget
from ..schedule.schedule_message_service import StartTime
from ..state.tables.consumer_offset import ConsumerOffsetManager
from ..state.tables.table import TooMany
from ..store.errors import Degradation, EndUnknown, UnreadableFile
from ..store.message_store import MessageStore
from ..store.results import (
    LOG_START,
    GetMessageResult,
    GetMessageStatus,
    PhysicalOffset,
    PutMessageResult,
    PutMessageStatus,
    QueueOffset,
)
from .commits import Commits
from .half_copies import HalfCopies
from .half_message import (
    QUEUE_ID,
    check_times,
    decode_op,
    immunity_seconds,
    prepared_queue_offset,
    size_of,
    to_check_max_time_topic,
    to_checked,
    to_immune,
)
from .op_queue import OpQueue

PASSED_PER_CALL: Final = 5_000
"""Half messages that one call may pass without reading them, because they have ended."""
OPS_PER_CALL: Final = 256

_MESSAGES_PER_READ = 16
_OPS_PER_READ = 32
_BYTES_PER_READ = 1 << 18
_HOUR_MS = 3_600_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckRules:
    """The settings of checks.

    Attributes:
        timeout_ms: The age from which a half message is checked, unless its producer sets another.
        interval_ms: The time between the beginnings of two rounds.
        checks_max: The number of checks after which a half message is given up.
        reserved_hours: Returns the maximum age of a half message; a reload may change it.
    """

    timeout_ms: int
    interval_ms: int
    checks_max: int
    reserved_hours: Callable[[], int]


@dataclass
class _Round:
    """A round in progress: ``end`` is the end of the half queue when it began."""

    end: int
    budget: DeliveryBudget
    passed_left: int = 0
    ops_left: int = 0
    checked: int = 0


class TransactionalMessageService:
    """The checks of half messages. Times are monotonic, in milliseconds."""

    def __init__(
        self,
        store: MessageStore,
        offsets: ConsumerOffsetManager,
        rules: CheckRules,
        when_stored: Callable[[PutMessageResult, Callable[[PutMessageResult], None]], None],
        is_topic_ready: Callable[[str], bool],
        send_check: Callable[[StoredMessage], bool],
        now_ms: Callable[[], int],
        start: StartTime,
        losses: RecentLosses,
    ) -> None:
        """Continue from the recorded progress.

        ``when_stored`` calls a function with the final result of a put, once the message is as
        safe as that of an acknowledged send: before that, the broker could not end it.
        ``is_topic_ready`` creates a system topic, and returns whether it is saved. ``send_check``
        asks the producer of a half message for its state, and returns whether one is connected.
        ``now_ms`` returns the time of day.
        """
        self._store = store
        self._offsets = offsets
        self._rules = rules
        self._when_stored = when_stored
        self._is_topic_ready = is_topic_ready
        self._send_check = send_check
        self._now_ms = now_ms
        self._start = start
        self._losses = losses
        self._half_offset = offsets.query(CHECK_GROUP, HALF_TOPIC, QUEUE_ID) or 0
        self._ops = OpQueue(offsets.query(CHECK_GROUP, OP_HALF_TOPIC, QUEUE_ID) or 0)
        self._has_started = False
        self._clock_ms = start.monotonic_ms
        self._next_round_ms = start.monotonic_ms + rules.interval_ms
        self._round: _Round | None = None
        self._ending: set[int] = set()
        """Half messages whose end was requested, and whose op message was not read yet."""
        self.commits = Commits(store)
        self._copies = HalfCopies()
        self._read: deque[StoredMessage] = deque()
        self._end_offset = LOG_START
        """The end, in the log, of all that the progress depends on."""
        self._unrecorded: tuple[int, int] | None = None
        """Progress in both queues that waits for a flush up to `_end_offset`."""
        self._degradation = Degradation("half messages of transactions are not checked")
        self.committed_total = 0
        self.rolled_back_total = 0
        self.checks_total = 0
        self.unsent_checks_total = 0
        self.given_up_total = 0
        self.lost_total = 0
        """Half messages that could not be read or moved: damaged, or deleted with old files."""

    def check(self, now_ms: int) -> int:
        """Do a bounded part of a round, if it is time; return when to call again."""
        self._clock_ms = now_ms
        self._record_progress()
        try:
            next_ms = self._check(now_ms)
        except (EndUnknown, UnreadableFile) as error:  # the store is not open yet, or cannot read
            self._degradation.begin(error)
            return now_ms + RETRY_MS
        self._degradation.end()
        return next_ms if self._unrecorded is None else min(next_ms, now_ms + RETRY_MS)

    def begin_end(self, half_offset: int) -> None:
        """Do not check a half message any more, because its op message will follow."""
        self._ending.add(half_offset)

    def cancel_end(self, half_offset: int) -> None:
        """Check a half message after all, because its op message could not be stored."""
        self._ending.discard(half_offset)

    def save_final(self) -> None:
        """Record the progress of the checks at a stop, when all of the log is on the disk."""
        self._unrecorded = self._half_offset, self._ops.progress
        self._record_progress()

    @property
    def pending_count(self) -> int:
        """The approximate number of half messages neither ended nor given up."""
        try:
            halves, ops = self._end_of(HALF_TOPIC), self._end_of(OP_HALF_TOPIC)
        except (EndUnknown, UnreadableFile):
            return 0
        unread_ops = max(ops - self._ops.next_offset, 0)
        return max(halves - self._half_offset - self._ops.ended_count - unread_ops, 0)

    # ---- progress

    def _end_of(self, topic: str) -> int:
        return self._store.queue_offsets(topic, QUEUE_ID).next

    def _record_progress(self) -> None:
        if self._unrecorded is None:
            return
        if self._end_offset > self._store.state().flushed_offset:
            self._store.flush_future(self._end_offset)
            return
        for topic, offset in zip((HALF_TOPIC, OP_HALF_TOPIC), self._unrecorded, strict=True):
            stored = self._offsets.query(CHECK_GROUP, topic, QUEUE_ID)
            if offset != (stored or 0):
                try:
                    self._offsets.commit(CHECK_GROUP, topic, QUEUE_ID, offset)
                except TooMany as error:
                    _log.warning(
                        "the progress of transactions is not saved, and the next start checks "
                        "half messages again: %s",
                        error,
                    )
        self._unrecorded = None

    # ---- one round

    def _check(self, now_ms: int) -> int:
        if self._round is None:
            if now_ms < self._next_round_ms:
                return self._next_round_ms
            self._round = self._begin_round()
            self._next_round_ms = now_ms + self._rules.interval_ms
        running = self._round
        running.budget = DeliveryBudget()
        running.passed_left, running.ops_left = PASSED_PER_CALL, OPS_PER_CALL
        while running.budget and running.passed_left > 0 and running.ops_left > 0:
            step = self._run_step(running)
            if step is None:  # something cannot be stored for now
                return now_ms + RETRY_MS
            if not step:
                self._end_round(running)
                return self._next_round_ms
        return now_ms

    def _begin_round(self) -> _Round:
        halves = self._store.queue_offsets(HALF_TOPIC, QUEUE_ID)
        ops = self._store.queue_offsets(OP_HALF_TOPIC, QUEUE_ID)
        if not self._has_started:
            self._has_started = True
            if self._offsets.query(CHECK_GROUP, HALF_TOPIC, QUEUE_ID) is None:
                self._half_offset = int(halves.first)
            if self._offsets.query(CHECK_GROUP, OP_HALF_TOPIC, QUEUE_ID) is None:
                self._ops.skip_to(ops.first)
            # A log that a crash has shortened may end before the progress.
            self._half_offset = min(self._half_offset, halves.next)
            self._copies.begin_scan(self._half_offset, halves.next)
            self._ops.skip_to(min(self._ops.next_offset, ops.next))
        return _Round(halves.next, DeliveryBudget())

    def _end_round(self, ended: _Round) -> None:
        self._round = None
        self._read.clear()
        if self._copies.end_scan(self._half_offset):
            self._ops.discard_passed(self._half_offset)
        if ended.checked:
            _log.info(
                "%d half messages of transactions were checked; %d checks so far found no producer "
                "of their group connected",
                ended.checked,
                self.unsent_checks_total,
            )
        self._unrecorded = self._half_offset, self._ops.progress
        self._record_progress()

    def _run_step(self, running: _Round) -> bool | None:
        """Pass a half message, or read op messages; return False at the end of the round.

        Return None if a message cannot be stored for now.
        """
        if self._copies.is_scanning:
            found = self._get(HALF_TOPIC, self._copies.next_offset, _MESSAGES_PER_READ)
            running.passed_left -= 1
            running.budget.spend(self._copies.scan(found, self._half_offset))
            return True
        at = self._half_offset
        has_ended = self._ops.pop_ended(at)
        if not has_ended and self._ops.next_offset < self._end_of(OP_HALF_TOPIC):
            self._read_ops(running)
            return True
        if has_ended or self._copies.is_superseded(at):
            running.passed_left -= 1
            self._pass(has_ended=has_ended)
            return True
        if self._half_offset >= running.end:
            return False
        message = self._half_message()
        if message is None:
            running.passed_left -= 1
            return True
        return self._resolve_half_message(message, running)

    def _resolve_half_message(self, message: StoredMessage, running: _Round) -> bool | None:
        """Check or give up a half message without an op message; return as `_run_step`."""
        prepared_offset = prepared_queue_offset(message)
        if prepared_offset is not None:
            self._ops.hold(prepared_offset)
            self._copies.add(message.queue_offset, prepared_offset)
            if self._ops.pop_ended(prepared_offset) or self._copies.has_ended(prepared_offset):
                self._pass(has_ended=True)
                return True
        if message.queue_offset in self._ending or prepared_offset in self._ending:
            return False  # the next round reads its op message
        reason = self._reason_to_give_up(message)
        if reason is not None:
            return self._give_up(message, reason)
        # A producer's clock may be a little ahead; a clock that was set back must not delay checks.
        age_ms = abs(self._now_ms() - message.born_timestamp)
        immunity = immunity_seconds(message)
        is_immune = immunity is not None and age_ms <= immunity * 1_000
        if immunity is None and age_ms <= self._rules.timeout_ms:
            return False
        renewed = to_immune(message) if is_immune else to_checked(message, check_times(message) + 1)
        result = self._store.put_message(renewed)
        if result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            return None
        if not result.is_stored:  # the added properties made the message too large
            return self._give_up(message, result.remark or result.status.name)
        self._note_stored(result)
        self._copies.discard(self._half_offset, has_ended=False)
        self._half_offset += 1
        running.budget.spend(size_of(message))
        known_offset = prepared_queue_offset(renewed)
        if known_offset is not None:
            self._ops.hold(known_offset)
            self._copies.add(result.queue_offset, known_offset)
        if not is_immune:
            running.checked += 1
            self.checks_total += 1
            self._when_stored(result, partial(self._ask_producer, renewed))
        return True

    def _ask_producer(self, half: StoredMessage, result: PutMessageResult) -> None:
        stored = replace(
            half,
            queue_offset=result.queue_offset,
            physical_offset=result.physical_offset,
            store_timestamp=result.store_timestamp,
        )
        if not self._send_check(stored):
            self.unsent_checks_total += 1

    def _reason_to_give_up(self, message: StoredMessage) -> str | None:
        times = check_times(message)
        if times >= self._rules.checks_max:
            return f"it was checked {times} times (transactionCheckMax={self._rules.checks_max})"
        # the smaller of two ages; one of them ignores changes of the time of day
        elapsed_ms = self._clock_ms - self._start.monotonic_ms
        wall_ms = min(self._now_ms(), self._start.wall_ms + elapsed_ms)
        age_ms = wall_ms - message.born_timestamp
        reserved_hours = self._rules.reserved_hours()
        if times and age_ms > reserved_hours * _HOUR_MS:
            return f"it is older than fileReservedTime={reserved_hours} hours"
        return None

    def _give_up(self, message: StoredMessage, reason: str) -> bool | None:
        if not self._is_topic_ready(CHECK_MAX_TIME_TOPIC):
            return None
        result = self._store.put_message(to_check_max_time_topic(message))
        if result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            return None
        if result.is_stored:
            self._note_stored(result)
            self.given_up_total += 1
            self._losses.report(
                LossKind.HALF_MESSAGE,
                f"half message {message.message_id} is given up, and moved to "
                f"{CHECK_MAX_TIME_TOPIC}: {reason}",
            )
        else:
            self.lost_total += 1
            self._losses.report(
                LossKind.HALF_MESSAGE,
                f"half message {message.message_id} is given up, left at "
                f"{message.physical_offset}: {reason}; {result.remark or result.status.name}",
            )
        self._pass(has_ended=False)
        return True

    def _pass(self, *, has_ended: bool) -> None:
        first_offset = self._copies.discard(self._half_offset, has_ended=has_ended)
        if first_offset is not None:
            self._ops.release(first_offset)
        self._half_offset += 1

    def _note_stored(self, result: PutMessageResult) -> None:
        self._end_offset = max(self._end_offset, result.end_offset)

    # ---- reading

    def _half_message(self) -> StoredMessage | None:
        """Return the next half message; None if it is missing or damaged, and was skipped."""
        read, at = self._read, self._half_offset
        while read and read[0].queue_offset < at:
            read.popleft()
        if not read:
            found = self._get(HALF_TOPIC, at, _MESSAGES_PER_READ)
            if found.status is not GetMessageStatus.FOUND:
                self._half_offset = self._skip_missing(HALF_TOPIC, at, found)
                return None
            read.extend(self._decode(found))
            if not read:
                self.lost_total += 1
                self._half_offset += 1
                return None
        self._half_offset = read[0].queue_offset
        return read[0] if self._half_offset == at else None

    def _read_ops(self, running: _Round) -> None:
        at = self._ops.next_offset
        found = self._get(OP_HALF_TOPIC, at, _OPS_PER_READ)
        if found.status is not GetMessageStatus.FOUND:
            running.ops_left -= 1
            self._ops.skip_to(self._skip_missing(OP_HALF_TOPIC, at, found))
            return
        ops = self._decode(found)
        running.ops_left -= max(len(ops), 1)
        hole_ends = {end for _, end in self._store.state().holes}
        for op in ops:
            # The committed message before it may be in the hole: its producer is asked again.
            ended = decode_op(op) if op.physical_offset not in hole_ends else []
            self._ending.difference_update(ended)
            self._ops.add(op.queue_offset, ended, self._half_offset)
        if not ops:
            self._ops.skip_to(at + 1)

    def _get(self, topic: str, queue_offset: int, count_max: int) -> GetMessageResult:
        return self._store.get_message(
            topic,
            QUEUE_ID,
            QueueOffset(queue_offset),
            count_max=count_max,
            bytes_max=_BYTES_PER_READ,
        )

    def _decode(self, found: GetMessageResult) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        for record in found.each_record():
            try:
                message = decode_record(record)
            except RecordError as error:
                if not messages:
                    self._losses.report(
                        LossKind.HALF_MESSAGE,
                        f"a damaged message of transactions is skipped: {error}",
                    )
                break
            messages.append(message)
            end_offset = PhysicalOffset(message.physical_offset + len(record))
            self._end_offset = max(self._end_offset, end_offset)
        return messages

    def _skip_missing(self, internal_topic: str, at: int, found: GetMessageResult) -> int:
        """Return where to continue after messages that a queue has lost."""
        to = found.next_begin_offset
        if to <= at:  # nothing can be read here, although the queue is longer
            to = QueueOffset(at + 1)
        text = (
            f"checks of transactions continue at {to} instead of {at} of {internal_topic}: "
            f"{found.status.name}; it holds {found.min_offset} to {found.max_offset}"
        )
        if internal_topic == HALF_TOPIC:
            self._copies.discard_before(to)
        lost = to - at - self._ops.pop_ended_before(to) if internal_topic == HALF_TOPIC else 0
        if lost:
            self.lost_total += lost
            level = logging.WARNING
            self._losses.report(LossKind.HALF_MESSAGE, text, count=lost, level=level)
        else:
            _log.warning("%s", text)
        return int(to)
