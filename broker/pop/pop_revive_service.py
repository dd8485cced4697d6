"""PopReviveService: redelivers popped messages that nobody has acknowledged in time.

    revive topic ─> check points, with the bits of their acknowledgements
        ─> two seconds after a check point came, for each message that is not acknowledged:
               another attempt in %RETRY%group_topic; after the group's retryMaxTimes, %DLQ%group
        ─> the offset of CID_RMQ_SYS_REVIVE_GROUP moves past the check point

The log has all state of the service: a start reads the revive queues again from the group's
offsets, which move only when the redelivered messages are stored. Redelivery is at least once.

Timers deliver a check point a second before its messages are visible again, and acknowledgements
when they are visible. So two seconds after a check point came, all its acknowledgements have been
there for a second. If timers are late, `AckBarrier` makes the redelivery wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from rmq_spark.errors import RecordError, WireError
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.bodies.pop import PopCheckPoint
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, change_properties
from rmq_spark.wire.message.record import StoredMessage, decode_record, magic_of
from rmq_spark.wire.names import RETRY_PREFIX, dlq_topic
from rmq_spark.wire.pop import FIRST_POP_TIME, ORIGIN_GROUP, normal_topic, pop_retry_topic
from rmq_spark.wire.remoting.java_numbers import INT32_MAX

from ..schedule.delayed_message import WITHOUT_DELAY
from ..schedule.real_topic_delivery import RETRY_MS, DeliveryBudget, RealTopicDelivery
from ..state.tables.consumer_offset import ConsumerOffsetManager
from ..state.tables.subscription_group import SubscriptionGroupManager
from ..state.tables.topic_config import TopicConfigManager
from ..store.errors import Degradations, EndUnknown, UnreadableFile
from ..store.message_store import MessageStore
from ..store.results import (
    GetMessageStatus,
    PutMessageResult,
    PutMessageStatus,
    QueueOffset,
)
from .ack_barrier import REVIVE_AFTER_MS, AckBarrier
from .pop_counters import PopCounters
from .revive_log import (
    REVIVE_GROUP,
    CheckPointKey,
    acked_offsets,
    decode_revive_message,
    key_of_ack,
    key_of_check_point,
)

PENDING_MAX: Final = 20_000
"""The maximum number of check points of a revive queue in memory; at this number, the service
continues to read when the first check point is finished."""
BARRIER_MS: Final = 5
"""Milliseconds between two checks for late acknowledgements."""
_MESSAGES_PER_READ: Final = 256
_BYTES_PER_READ: Final = 1 << 20
_KEPT_FLAGS = ~MessageSysFlag.TRANSACTION_MASK.value


@dataclass(slots=True)
class _PendingCheckPoint:
    check_point: PopCheckPoint
    key: CheckPointKey
    revive_offset: int
    due_ms: int
    acked: set[int] = field(default_factory=set)
    redelivered: int = 0
    """The number of messages at the start that are redelivered, or need no redelivery."""


@dataclass(slots=True)
class _ReviveQueue:
    """One queue of the revive topic: how far it is read, and its unfinished check points."""

    queue_id: int
    next_offset: int
    pending: dict[CheckPointKey, _PendingCheckPoint] = field(default_factory=dict)
    """The check points in the order of the queue."""


class ReviveRules(NamedTuple):
    """The names and numbers that the service needs."""

    topic: str
    queue_nums: int
    broker_name: str
    retry_topic_v2: bool


class PopReviveService:
    """The redelivery of popped messages; one for each broker."""

    def __init__(
        self,
        *,
        store: MessageStore,
        offsets: ConsumerOffsetManager,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        delivery: RealTopicDelivery,
        barrier: AckBarrier,
        when_stored: Callable[[PutMessageResult, Callable[[PutMessageResult], None]], None],
        counters: PopCounters,
        rules: ReviveRules,
    ) -> None:
        """Begin at the stored offsets; ``when_stored`` calls back when an append is stored."""
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._delivery = delivery
        self._barrier = barrier
        self._when_stored = when_stored
        self._counters = counters
        self._rules = rules
        self._degradations = Degradations[int]()
        self._queues = [self._open(queue_id) for queue_id in range(rules.queue_nums)]

    def revive_due(self, now_ms: int) -> int | None:
        """Redeliver some or all of the messages that are due.

        Return the monotonic time of the next call; None to wait for an arrival.
        """
        budget = DeliveryBudget()
        if self._is_due(now_ms):
            self._barrier.advance(now_ms)
        due = [self._try_queue(queue, now_ms, budget) for queue in self._queues]
        self._delivery.confirm()
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    @property
    def dropped_total(self) -> int:
        """Messages that could not be redelivered: deleted, unreadable, or of a deleted topic."""
        return self._delivery.dropped_total

    def _is_due(self, now_ms: int) -> bool:
        """Return whether a check point is due, but acknowledgements for it may still arrive."""
        first_pending = (next(iter(queue.pending.values()), None) for queue in self._queues)
        return any(
            first is not None and self._barrier.passed_ms < first.due_ms <= now_ms
            for first in first_pending
        )

    # ---- one revive queue

    def _open(self, queue_id: int) -> _ReviveQueue:
        return _ReviveQueue(queue_id, self._done_offset(queue_id) + 1)

    def _done_offset(self, queue_id: int) -> int:
        """Return the offset of the last message that is done; -1 for none."""
        done = self._offsets.query(REVIVE_GROUP, self._rules.topic, queue_id)
        return -1 if done is None else done

    def _try_queue(self, queue: _ReviveQueue, now_ms: int, budget: DeliveryBudget) -> int | None:
        """Work on one queue; if its file is unreadable, the other queues continue."""
        try:
            next_ms = self._revive_queue(queue, now_ms, budget)
        except EndUnknown:  # the store logs the cause
            return now_ms + RETRY_MS
        except UnreadableFile as error:
            self._degradations.begin(
                queue.queue_id, f"popped messages of revive queue {queue.queue_id} wait", error
            )
            return now_ms + RETRY_MS
        self._degradations.end(queue.queue_id)
        return next_ms

    def _revive_queue(self, queue: _ReviveQueue, now_ms: int, budget: DeliveryBudget) -> int | None:
        is_read = self._read(queue, now_ms)
        while queue.pending:
            pending = next(iter(queue.pending.values()))
            is_acked = len(pending.acked) >= pending.check_point.count
            if pending.due_ms > now_ms and not is_acked:
                return pending.due_ms if is_read else now_ms
            if not is_read and len(queue.pending) < PENDING_MAX:
                return now_ms  # an acknowledgement may follow
            if pending.due_ms > self._barrier.passed_ms and not is_acked:
                return now_ms + BARRIER_MS
            if not budget:
                return now_ms
            if not self._finish(queue, pending, budget):
                return now_ms + RETRY_MS
        if not is_read:
            return now_ms
        if queue.next_offset - 1 > self._done_offset(queue.queue_id):
            self._commit(queue.queue_id, queue.next_offset - 1)
        return None

    def _read(self, queue: _ReviveQueue, now_ms: int) -> bool:
        """Read some messages of the queue; return whether it is read to its end."""
        if len(queue.pending) >= PENDING_MAX:
            return False
        found = self._store.get_message(
            self._rules.topic,
            queue.queue_id,
            QueueOffset(queue.next_offset),
            count_max=_MESSAGES_PER_READ,
            bytes_max=_BYTES_PER_READ,
        )
        if found.status is not GetMessageStatus.FOUND:
            if found.next_begin_offset > queue.next_offset:
                self._delivery.report_dropped(
                    f"queue {queue.queue_id} of the revive topic continues at "
                    f"{found.next_begin_offset} instead of {queue.next_offset}: "
                    f"{found.status.name}",
                    level=logging.WARNING,
                )
                queue.next_offset = found.next_begin_offset
                return False
            return True
        for record in found.each_record():
            self._process_message(queue, record, now_ms)
        queue.next_offset = found.next_begin_offset
        return queue.next_offset >= found.max_offset

    def _process_message(self, queue: _ReviveQueue, record: memoryview, now_ms: int) -> None:
        """Add a check point, or an acknowledgement to its earlier check point."""
        try:
            message = decode_record(record)
            content = decode_revive_message(message)
        except WireError as error:
            self._delivery.report_dropped(
                f"a message of revive queue {queue.queue_id} is skipped, because it cannot be "
                f"read: {error}"
            )
            return
        if isinstance(content, PopCheckPoint):
            key = key_of_check_point(content, self._rules.broker_name)
            queue.pending[key] = _PendingCheckPoint(
                content, key, message.queue_offset, now_ms + REVIVE_AFTER_MS
            )
        elif content is not None:
            pending = queue.pending.get(key_of_ack(content, self._rules.broker_name))
            if pending is not None:
                pending.acked.update(
                    set(pending.check_point.queue_offsets).intersection(acked_offsets(content))
                )

    # ---- one check point

    def _finish(
        self, queue: _ReviveQueue, pending: _PendingCheckPoint, budget: DeliveryBudget
    ) -> bool:
        """Redeliver what is not acknowledged; return False if the store refuses it for now."""
        check_point = pending.check_point
        group = self._group_of(check_point)
        for queue_offset in self._unacknowledged(pending) if group is not None else ():
            message = self._message(check_point, queue_offset)
            if message is not None and group is not None:
                if not budget:
                    return True
                if not self._redeliver(pending, message, group):
                    return False
                budget.spend(len(message.body))
            pending.redelivered += 1
        del queue.pending[pending.key]
        self._commit(queue.queue_id, pending.revive_offset)
        return True

    def _unacknowledged(self, pending: _PendingCheckPoint) -> Iterator[int]:
        offsets = pending.check_point.queue_offsets
        bits = pending.check_point.bit_map
        for index in range(pending.redelivered, len(offsets)):
            if offsets[index] in pending.acked or bits >> index & 1:
                pending.redelivered += 1
                continue
            yield offsets[index]

    def _group_of(self, check_point: PopCheckPoint) -> SubscriptionGroupConfig | None:
        """Return the group of a check point; None if it or the topic is deleted."""
        if check_point.topic is None or check_point.group is None:
            return None
        if self._topics.get(normal_topic(check_point.topic, check_point.group)) is None:
            return None
        return self._groups.get(check_point.group)

    def _message(self, check_point: PopCheckPoint, queue_offset: int) -> StoredMessage | None:
        """Return a popped message; None if it is deleted or damaged."""
        found = self._store.get_message(
            check_point.topic or "",
            check_point.queue_id,
            QueueOffset(queue_offset),
            count_max=1,
            scan_max=1,
        )
        reason: object = found.status.name
        if found.message_count:
            try:
                message = decode_record(found.buffers[0])
            except RecordError as error:
                reason = error
            else:
                if message.queue_offset == queue_offset:
                    return message
        self._delivery.report_dropped(
            f"message {queue_offset} of queue {check_point.queue_id} of {check_point.topic} "
            f"cannot be redelivered: {reason}",
            f"Group {check_point.group} has not acknowledged it.",
        )
        return None

    def _redeliver(
        self, pending: _PendingCheckPoint, message: StoredMessage, group: SubscriptionGroupConfig
    ) -> bool:
        check_point = pending.check_point
        is_dead = not check_point.is_suspended and message.reconsume_times >= group.retry_max_times
        target = self._retry_message(check_point, message, is_dead=is_dead)
        try:
            if self._topics.get(target.topic) is None:
                self._topics.create_in_send_back(target.topic, 1)
                if not is_dead:
                    self._offsets.advance(group.group_name, target.topic, 0, 0)
        except ValueError as error:  # the names of group and topic are too long together
            self._delivery.drop(message, str(error))
            return True
        if not self._delivery.deliver(target, lambda same: same):
            return False
        queue = message.topic, group.group_name, message.queue_id
        self._counters.revive(queue, check_point.pop_time, is_dead=is_dead)
        return True

    def _retry_message(
        self, check_point: PopCheckPoint, message: StoredMessage, *, is_dead: bool
    ) -> StoredMessage:
        group, topic = check_point.group or "", check_point.topic or ""
        origin = normal_topic(topic, group)
        properties = message.properties
        changes: dict[str, str | None] = {**WITHOUT_DELAY, ORIGIN_GROUP: group}
        if message.reconsume_times == 0 or FIRST_POP_TIME not in properties:
            changes[FIRST_POP_TIME] = str(check_point.pop_time)
        if is_dead:
            target = dlq_topic(group)
            changes[RETRY_TOPIC] = properties.get(RETRY_TOPIC, origin)
            changes[ORIGIN_MESSAGE_ID] = properties.get(
                ORIGIN_MESSAGE_ID, message.offset_message_id
            )
        elif topic.startswith(RETRY_PREFIX):
            target = topic
        else:
            target = pop_retry_topic(topic, group, is_v2=self._rules.retry_topic_v2)
        attempts = 0 if check_point.is_suspended else 1
        return replace(
            message,
            topic=target,
            queue_id=0,
            sys_flag=message.sys_flag & _KEPT_FLAGS,
            reconsume_times=min(message.reconsume_times + attempts, INT32_MAX),
            prepared_transaction_offset=0,
            properties_text=change_properties(message.properties_text, changes),
            magic=magic_of(target),
        )

    def _commit(self, queue_id: int, revive_offset: int) -> None:
        """Commit the progress in one queue when all redelivered messages are stored."""
        if revive_offset < 0:
            return

        def commit(result: PutMessageResult) -> None:
            if result.status is PutMessageStatus.PUT_OK:
                self._offsets.advance(REVIVE_GROUP, self._rules.topic, queue_id, revive_offset)

        self._when_stored(self._delivery.last_put, commit)
