"""ScheduleMessageService: delivers delayed messages to their real topics when they are due.

    SCHEDULE_TOPIC_XXXX    queue = level - 1, in order of time: all its messages wait equally long
    delayOffset.json       level -> the next message to deliver

Delivery is at least once. A level advances only when the store has accepted its message, and its
progress is saved only once these messages are on the disk: after a crash some are delivered again
and none is lost. Delays use a monotonic clock (`DelayLevel`), so that setting the time of day does
not affect them.

`deliver_due` does a bounded amount of work, and returns the time at which it must be called again.
If `record_arrival` reports a delayed message, call it earlier.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rmq_spark.errors import RecordError, format_count
from rmq_spark.wire.bodies.configs import DelayOffsetSerializeWrapper
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.names import SCHEDULE_TOPIC

from ..state.tables.table import SavedTable, Table
from ..store.errors import Degradations, EndUnknown, UnreadableFile
from ..store.message_store import MessageStore
from ..store.results import GetMessageResult, GetMessageStatus, QueueOffset
from .delayed_message import to_real_topic
from .real_topic_delivery import RETRY_MS, DeliveryBudget, RealTopicDelivery

# ---- One delay level: its progress, and the due times of its messages.

RESOLUTION_MS_MIN: Final = 10
MARKS_PER_DELAY: Final = 1_000
"""The maximum number of marks, which one or two may exceed."""

_ROUNDED_MS = 1
"""Clocks show whole milliseconds: the actual time may be nearly one millisecond later."""


class StartTime(NamedTuple):
    """The time at which the broker was started, as time of day and by a monotonic clock."""

    wall_ms: int
    monotonic_ms: int


class _ArrivalMark(NamedTuple):
    end_queue_offset: int
    first_ms: int
    last_ms: int


class DelayLevel:
    """The due times of the messages of one delay level. Offsets and times never go back.

        stored since the start    its delay after it was known to be stored, by a monotonic clock
        stored before the start   when due by the time of day, at most its delay after the start

    A mark records the time by which all messages before a queue offset were stored. Messages that
    arrive within the resolution of the level share a mark, which has the time of the last. So no
    message is early, whatever the clock is set to, and none is late by more than the resolution.
    """

    def __init__(self, delay_ms: int, start: StartTime, end_queue_offset: int) -> None:
        """Begin a level; ``end_queue_offset`` is where its queue ended at the start."""
        self.delay_ms = delay_ms
        self._start = start
        self._end_at_start = self._end = end_queue_offset
        self._resolution_ms = max(RESOLUTION_MS_MIN, -(-delay_ms // MARKS_PER_DELAY))
        self._marks: deque[_ArrivalMark] = deque()

    def record_arrival(self, end_queue_offset: int, now_ms: int) -> None:
        """Record that all messages before a queue offset are stored by now."""
        if end_queue_offset <= self._end:
            return
        self._end = end_queue_offset
        marks = self._marks
        first_ms = now_ms
        if marks and now_ms < marks[-1].first_ms + self._resolution_ms:
            first_ms = marks.pop().first_ms
        marks.append(_ArrivalMark(end_queue_offset, first_ms, now_ms))
        while len(marks) > 1 and self._due_ms(marks[1]) <= now_ms:
            marks.popleft()

    def due_ms(self, queue_offset: int, store_timestamp: int) -> int:
        """Return the monotonic due time of a stored message; call it in the order of the queue."""
        if queue_offset < self._end_at_start:
            left_ms = store_timestamp + self.delay_ms - self._start.wall_ms + 2 * _ROUNDED_MS
            return self._start.monotonic_ms + min(max(left_ms, 0), self.delay_ms + _ROUNDED_MS)
        while self._marks[0].end_queue_offset <= queue_offset:
            self._marks.popleft()
        return self._due_ms(self._marks[0])

    def _due_ms(self, mark: _ArrivalMark) -> int:
        return mark.last_ms + _ROUNDED_MS + self.delay_ms


_MESSAGES_PER_READ = 16
_BYTES_PER_READ = 1 << 18

_log = logging.getLogger(__name__)


class ScheduleMessageService(SavedTable[DelayOffsetSerializeWrapper]):
    """Delivers delayed messages when they are due; all times are monotonic, in milliseconds."""

    def __init__(
        self,
        store: MessageStore,
        table: Table[DelayOffsetSerializeWrapper],
        levels_ms: Sequence[int],
        delivery: RealTopicDelivery,
        start: StartTime,
    ) -> None:
        """Load the progress of each level; ``levels_ms`` are the delays from level 1 on."""
        self._store = store
        self._levels_ms = tuple(levels_ms)
        self._delivery = delivery
        self._start = start
        super().__init__(table, self._durable_offsets)
        loaded = table.load(DelayOffsetSerializeWrapper())
        self._data_version = loaded.data_version
        # A level that was removed from the settings may still have messages: they wait as long as
        # those of the last level.
        self._offsets = dict.fromkeys(range(1, len(self._levels_ms) + 1), 0)
        self._offsets |= {
            level: max(at, 0) for level, at in loaded.offset_table.items() if level > 0
        }
        for level in range(1, store.queue_nums().get(SCHEDULE_TOPIC, 0) + 1):
            if level not in self._offsets and self._end_of(level):
                # the level was removed before its first delivery
                self._offsets[level] = 0
        self._has_saved_offsets = bool(loaded.offset_table)
        self._delay_levels = {
            level: self._new_level(level, self._end_of(level)) for level in self._offsets
        }
        self._due_ms: dict[int, int | None] = {}
        """The due time of each level's next message; None if the level has no message."""
        self._next_level = 1
        self._degradations = Degradations[int]()

    def record_arrival(self, queue_id: int, now_ms: int) -> None:
        """Record that a queue of SCHEDULE_TOPIC_XXXX has new messages."""
        level = queue_id + 1
        if level not in self._offsets:
            self._offsets[level] = 0
            self._delay_levels[level] = self._new_level(level, 0)
        self._delay_levels[level].record_arrival(self._end_of(level), now_ms)
        if self._due_ms.get(level, 0) is None:
            del self._due_ms[level]

    def deliver_due(self, now_ms: int) -> int | None:
        """Deliver some or all due messages; return when to call again, None for an arrival."""
        room = DeliveryBudget()
        levels = sorted(self._offsets)
        first = next((at for at, level in enumerate(levels) if level >= self._next_level), 0)
        due = [self._try_level(level, now_ms, room) for level in levels[first:] + levels[:first]]
        self._delivery.confirm()
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    @property
    def dropped_total(self) -> int:
        """Delayed messages that can never be delivered, such as those of deleted topics."""
        return self._delivery.dropped_total

    def offsets(self) -> DelayOffsetSerializeWrapper:
        """Return the progress of each level, in the form of GET_ALL_DELAY_OFFSET."""
        return DelayOffsetSerializeWrapper(
            offset_table=dict(self._offsets), data_version=self._data_version
        )

    def progress(self) -> Iterator[tuple[int, int, int]]:
        """Yield each level, the queue offset that it has delivered to, and the end of its queue."""
        for level, delivered in sorted(self._offsets.items()):
            yield level, delivered, self._end_of(level)

    def save_final(self) -> None:
        """Save at a stop, even without a delivery: a missing table would indicate loss."""
        if not self._has_saved_offsets and SCHEDULE_TOPIC in self._store.queue_nums():
            self.is_dirty = True
        self.save()
        self._has_saved_offsets = True

    def _durable_offsets(self) -> DelayOffsetSerializeWrapper:
        """Flush delivered messages, and return the progress to save. Any thread may call this.

        Nothing is changed if the flush fails.
        """
        offsets = self.offsets()
        self._delivery.flush()  # flush after reading the offsets, to cover them
        return offsets

    # ---- one level

    def _new_level(self, level: int, end_queue_offset: int) -> DelayLevel:
        delay_ms = self._levels_ms[min(level, len(self._levels_ms)) - 1]
        return DelayLevel(delay_ms, self._start, end_queue_offset)

    def _end_of(self, level: int) -> int:
        return self._store.queue_offsets(SCHEDULE_TOPIC, level - 1, allow_incomplete=True).next

    def _try_level(self, level: int, now_ms: int, budget: DeliveryBudget) -> int | None:
        """Deliver a level's due messages; an unreadable one does not delay other levels."""
        try:
            due_ms = self._deliver_level(level, now_ms, budget)
        except EndUnknown:  # the store logs the cause
            return now_ms + RETRY_MS
        except UnreadableFile as error:
            self._degradations.begin(
                level, f"messages of delay level {level} are not delivered", error
            )
            return now_ms + RETRY_MS
        self._degradations.end(level)
        return due_ms

    def _deliver_level(self, level: int, now_ms: int, budget: DeliveryBudget) -> int | None:
        """Deliver a level's due messages; return when the next is due, or now if more are due."""
        if level in self._due_ms:
            due_ms = self._due_ms[level]
            if due_ms is None or due_ms > now_ms:
                return due_ms
            del self._due_ms[level]
        while budget:
            found = self._store.get_message(
                SCHEDULE_TOPIC,
                level - 1,
                QueueOffset(self._offsets[level]),
                count_max=min(budget.messages, _MESSAGES_PER_READ),
                bytes_max=_BYTES_PER_READ,
            )
            if found.status is GetMessageStatus.FOUND:
                waits, due_ms = self._deliver_found(level, found, now_ms, budget)
            else:
                waits, due_ms = not self._skip_missing(level, found), None
            if waits:
                self._due_ms[level] = due_ms
                return due_ms
        self._next_level = level
        return now_ms

    def _skip_missing(self, level: int, found: GetMessageResult) -> bool:
        """Skip messages that the queue has lost; return whether there were any."""
        before = self._offsets[level]
        if found.next_begin_offset == before:
            return False
        if found.status is GetMessageStatus.OFFSET_TOO_SMALL:
            count = found.next_begin_offset - before
            self._delivery.report_dropped(
                f"{format_count(count, 'message')} of delay level {level} were deleted with old "
                "files of the log before they were due, or before their delivery was recorded:",
                "fileReservedTime is shorter than their delay, the disk was full, or the time of "
                "day has jumped ahead",
                count=count,
                level=logging.WARNING,
            )
            self._advance(level, found.next_begin_offset)
            return True
        _log.warning(
            "delay level %d continues at %d instead of %d: %s; its queue holds %d to %d",
            level,
            found.next_begin_offset,
            before,
            found.status.name,
            found.min_offset,
            found.max_offset,
        )
        self._advance(level, found.next_begin_offset)
        return True

    def _deliver_found(
        self, level: int, found: GetMessageResult, now_ms: int, budget: DeliveryBudget
    ) -> tuple[bool, int | None]:
        """Deliver messages up to the first that must wait; return its due time, if there is one."""
        delay_level = self._delay_levels[level]
        delay_level.record_arrival(found.max_offset, now_ms)  # unreported arrivals wait from now on
        for record in found.each_record():
            try:
                message = decode_record(record)
            except RecordError as error:
                self._delivery.report_dropped(
                    f"delayed message {self._offsets[level]} of level {level} is damaged: {error}"
                )
                self._advance(level, self._offsets[level] + 1)
                budget.spend(len(record))
                continue
            due_ms = delay_level.due_ms(message.queue_offset, message.store_timestamp)
            if due_ms > now_ms:
                return True, due_ms
            if not self._delivery.deliver(message, to_real_topic):
                return True, now_ms + min(RETRY_MS, delay_level.delay_ms)
            self._advance(level, message.queue_offset + 1)
            budget.spend(len(record))
        return False, None

    def _advance(self, level: int, queue_offset: int) -> None:
        self._offsets[level] = queue_offset
        self.is_dirty = True
