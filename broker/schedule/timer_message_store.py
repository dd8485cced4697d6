"""TimerMessageStore: delivers timer messages of RocketMQ 5 to their real topics when they are due.

    rmq_sys_wheel_timer ─ index ─> timer log, wheel ─ open a slot ─> by millisecond ─> real topic
                  <──────────────── roll: due in more than two days, or half of fileReservedTime

Its state is two numbers: all messages of the timer topic before a queue offset are indexed, and all
slots before a time are delivered. Delivery is at least once: progress is saved when the messages
are on the disk.

Time is the broker's time: the time of day at the start, plus the time since then by a monotonic
clock. So a timer is neither early nor late when the time of day is set while the broker runs; see
ADR 41. If it was set, the next start sorts all timers again, by the time of day.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import chain
from typing import Final

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.properties import (
    REAL_TOPIC,
    TIMER_RECALLED_KEY,
    UNIQ_KEY,
    java_string_hash,
)
from rmq_spark.wire.message.record import StoredMessage, decode_record
from rmq_spark.wire.names import TIMER_TOPIC

from ..common.histogram import Histogram
from ..state.tables.table import SavedTable
from ..store.errors import Degradations, EndUnknown, StoreError, UnreadableFile
from ..store.message_store import MessageStore
from ..store.results import LOG_START, GetMessageStatus, PhysicalOffset, QueueOffset
from .real_topic_delivery import RETRY_MS, DeliveryBudget, RealTopicDelivery
from .schedule_message_service import StartTime
from .timer_files import TimerCheckpoint, TimerFiles, TimerSnapshot
from .timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TimerEntry
from .timer_message import (
    TIMER_QUEUE_ID,
    TimerRules,
    delay_of,
    due_of_waiting,
    to_next_roll,
    to_real_topic,
)
from .timer_wheel import NO_POSITION, TimerSlot

INDEXED_PER_CALL: Final = 64
ENTRIES_PER_CALL: Final = 512
OPEN_ENTRIES_MAX: Final = 200_000
"""No further slot is opened above this number of entries in memory, of 8 bytes each."""

_BYTES_PER_READ: Final = 1 << 18
_SORTED_PER_CALL: Final = 64
_ROUNDED_MS: Final = 1
"""Clocks show whole milliseconds: the actual time may be nearly one millisecond earlier."""
_CLOCK_STEP_MS: Final = 1
"""The maximum difference between the clocks that rounding explains."""
_CLOCK_READS_MAX: Final = 10
_SMALL_STEP_MS: Final = 1_000
"""A smaller change of the clock does not move slots, so that recalls still find their messages."""
_RECALL_AHEAD_MS: Final = 60_000
_TIMING_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 10.0, 60.0, 3_600.0)


def _recall_key(topic: str, unique_key: str) -> str:
    """Return the key of a message for recalls; a recall counts for one topic only.

    A recall of RocketMQ names the unique id, with the topic before it if so configured.
    """
    prefix = f"{topic}+"
    return prefix + unique_key.removeprefix(prefix)


class _OpenSlot:
    """The entries of one slot in memory: positions in the timer log, by due time."""

    def __init__(self, last: int) -> None:
        """Begin at the newest entry of a chain; the rest is read later."""
        self.next_position = last
        self.size = 0
        self.has_delivered = False
        """True if entries of the chain were delivered, so that it must be written again."""
        self.recalled: set[str] = set()
        self._chain: dict[int, array[int]] = {}
        self._due: list[int] = []
        self._later: list[tuple[int, int, int]] = []
        """Entries that came after the slot was opened, and those that are retried."""

    @property
    def is_whole(self) -> bool:
        return self.next_position == NO_POSITION

    def add_older(self, position: int, due_ms: int) -> None:
        """Add an entry of the chain, which is older than those added before."""
        positions = self._chain.get(due_ms)
        if positions is None:
            positions = self._chain[due_ms] = array("q")
            heappush(self._due, due_ms)
        positions.append(position)
        self.size += 1

    def add(self, position: int, due_ms: int) -> None:
        """Add an entry that is newer than the chain, or that is retried at ``due_ms``."""
        heappush(self._later, (due_ms, self.size, position))
        self.size += 1

    def next_due(self) -> int | None:
        due = self._due[0] if self._due else None
        if self._later and (due is None or self._later[0][0] < due):
            return self._later[0][0]
        return due

    def positions(self) -> list[int]:
        later = [position for _, _, position in self._later]
        return sorted(chain(later, *self._chain.values()))

    def pop(self) -> int:
        self.size -= 1
        due_ms = self._due[0] if self._due else None
        if due_ms is None or (self._later and self._later[0][0] < due_ms):
            return heappop(self._later)[2]
        positions = self._chain[due_ms]
        position = positions.pop()
        if not positions:
            del self._chain[due_ms]
            heappop(self._due)
        return position


class TimerMessageStore(SavedTable[TimerSnapshot]):
    """Delivers timer messages. Arguments ``now_ms`` and ``due_ms`` are monotonic times."""

    def __init__(
        self,
        store: MessageStore,
        files: TimerFiles,
        rules: TimerRules,
        delivery: RealTopicDelivery,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        roll_window_ms: Callable[[], int],
    ) -> None:
        """Load the state. Only here, ``now_ms`` returns the time of day.

        A message that is due in more than ``roll_window_ms`` is stored again after that time,
        before its file of the log expires.
        """
        start = StartTime(now_ms(), monotonic_ms())
        self._store = store
        self._files = files
        self._wheel, self._timer_log = files.wheel, files.log
        self.rules = rules
        self._delivery = delivery
        self._now_ms, self._monotonic_ms = now_ms, monotonic_ms
        self._roll_window_ms = roll_window_ms
        super().__init__(files, self._snapshot)
        log_end = store.state().written_offset
        loaded = files.open(
            lambda entry: entry.physical_offset + entry.size <= log_end, start.wall_ms
        )
        checkpoint = loaded.checkpoint
        self._base_ms = start.wall_ms - start.monotonic_ms
        self._clock_offset_ms = 0
        """The time of day minus the broker's time."""
        self._open_ahead_ms = rules.precision_ms + _SMALL_STEP_MS
        self._counts = dict(loaded.counts)
        self._queue_offset = checkpoint.queue_offset if loaded.has_index else 0
        self._recovered_end = loaded.indexed_end
        """Messages before this end are indexed, even those past the saved queue offset."""
        self._indexed_end = LOG_START
        self._delivered_before_ms = checkpoint.read_ms
        self._delivered_until = 0 if loaded.has_index else checkpoint.queue_offset
        """While timers are indexed again, messages before this queue offset are delivered if their
        slots are before `_delivered_before_ms`."""
        time_ms = self._wheel.slot_time(start.monotonic_ms + self._base_ms)
        self._read_ms = min(checkpoint.read_ms, time_ms) if checkpoint.read_ms else time_ms
        self._has_rewound = loaded.has_index and self._read_ms < checkpoint.read_ms
        """True if reading begins at an earlier slot than in the last run, and that is not saved."""
        self._last_entry = self._timer_log.last()
        self._note_progress()
        self._opened_until_ms = self._read_ms
        self._open: dict[int, _OpenSlot] = {}
        self._recalled: dict[int, set[str]] = {}
        self._retry_ms: int | None = None
        self._end_at_start: int | None = None
        """The end of the timer topic at the first call. Nothing is delivered before all messages
        up to it are indexed, because one may recall a message that is overdue."""
        self._has_arrivals = True
        self._sorting: Iterator[None] | None = None
        """Steps that sort all timers again, before any is delivered."""
        has_set_back = start.wall_ms < checkpoint.saved_ms - rules.precision_ms
        if loaded.has_index and (checkpoint.clock_was_set or has_set_back):
            self._sorting = self._sort_again(start.wall_ms)
        self._is_last_entry_last = True
        """True if the last entry of the timer log is that of the last indexed message."""
        self._degradations = Degradations[str]()
        self.delivered_total = 0
        self.recalled_total = 0
        self.delays = Histogram(_TIMING_SECONDS)
        """How late deliveries were, in seconds."""

    # ---- queries

    @property
    def dropped_total(self) -> int:
        """Timer messages that can never be delivered, such as those of deleted topics."""
        return self._delivery.dropped_total

    @property
    def pending(self) -> int:
        """The number of messages that wait for their timers and are indexed."""
        return max(sum(self._counts.values()), 0)

    @property
    def unindexed(self) -> int:
        """The number of messages that wait to be indexed."""
        return max(self.end_offset() - self._queue_offset, 0)

    @property
    def next_due_ms(self) -> int | None:
        """The time of day at which the next indexed message is due, to a slot; None without one."""
        times = [due for each in self._open.values() if (due := each.next_due()) is not None]
        next_ms = self._next_slot()
        if next_ms is not None:
            times.append(next_ms)
        return min(times) + self._clock_offset_ms if times else None

    def counts(self) -> dict[str, int]:
        """Return the number of waiting messages by topic."""
        return {topic: count for topic, count in self._counts.items() if count > 0}

    def end_offset(self) -> int:
        """Return the offset of the next message of the timer topic."""
        return self._store.queue_offsets(TIMER_TOPIC, TIMER_QUEUE_ID, allow_incomplete=True).next

    def record_arrival(self) -> None:
        """Record that the timer topic has new messages."""
        self._has_arrivals = True

    def recall(self, topic: str, unique_key: str, deliver_ms: int, now_ms: int) -> None:
        """Recall a message that may be due before its stored recall is indexed.

        After a restart, the stored recall counts.
        """
        slot_ms = self.rules.slot_ms(deliver_ms - self._slot_offset_ms())
        now = now_ms + self._base_ms
        if slot_ms <= now + _RECALL_AHEAD_MS:
            self._recalled.setdefault(slot_ms, set()).add(_recall_key(topic, unique_key))

    def has_delivered(self, due_ms: int, queue_offset: int) -> bool:
        """Return whether messages that were due by a time are delivered.

        Messages of the timer topic from ``queue_offset`` on do not count, nor do messages that are
        retried later.
        """
        due = due_ms + self._base_ms
        if self._sorting is not None or self._queue_offset < queue_offset:
            return False
        for slot_ms, slot in self._open.items():
            next_ms = slot.next_due() if slot.is_whole else slot_ms
            if next_ms is not None and next_ms <= due:
                return False
        next_slot_ms = self._next_slot()
        return next_slot_ms is None or next_slot_ms > due

    # ---- one call

    def deliver_due(self, now_ms: int) -> int | None:
        """Deliver some or all due messages; return when to call again, None for an arrival."""
        now = now_ms + self._base_ms
        self._retry_ms = None
        if self._sorting is not None:
            is_done = self._attempt("timers are not sorted again", self._sort, now)
        else:
            is_done = self._attempt("timers are not set", self._index, now)
            end = self._end_at_start
            may_deliver = end is not None and (is_done or self._queue_offset >= end)
            is_done &= self._attempt("timers are not read", self._open_slots, now)
            if may_deliver:
                is_done &= self._attempt("timer messages are not delivered", self._deliver, now)
        self._close_slots(now)
        self._delivery.confirm()
        self._note_progress()
        if not is_done:
            return now_ms
        due_ms = self._next_due()
        at = [each for each in (due_ms, self._retry_ms) if each is not None]
        return max(min(at) - self._base_ms, now_ms) if at else None

    def _attempt(self, failure: str, step: Callable[[int], bool], now: int) -> bool:
        """Do some work; return whether all is done, or must wait because of an error."""
        try:
            is_done = step(now)
        except (StoreError, OSError) as error:
            if not isinstance(error, EndUnknown):  # for which the store logs the cause
                self._degradations.begin(failure, failure, error)
            self._retry_ms = now + RETRY_MS
            return True
        self._degradations.end(failure)
        return is_done

    def _next_due(self) -> int | None:
        times = []
        for slot_ms, slot in self._open.items():
            due_ms = slot.next_due()
            if due_ms is not None:
                times.append(due_ms + _ROUNDED_MS)
            elif slot.is_whole:  # close it at its end: a kill before that repeats its deliveries
                times.append(slot_ms + self._wheel.precision_ms)
        next_ms = self._next_slot()
        if next_ms is not None:
            times.append(next_ms - self._open_ahead_ms)
        return min(times, default=None)

    def _next_slot(self) -> int | None:
        """Return the time of the next slot that is not open, or None.

        None also if the next place in the wheel holds a slot of another time, which is open.
        """
        time_ms = self._wheel.next_time(self._opened_until_ms)
        if time_ms is None or self._wheel.get(time_ms) is None:
            return None
        return time_ms

    # ---- from the timer topic to the wheel

    def _index(self, now: int) -> bool:
        """Index some messages of the timer topic; return whether all are indexed."""
        self._check_clock()
        if self._end_at_start is None:
            self._end_at_start = self._store.queue_offsets(TIMER_TOPIC, TIMER_QUEUE_ID).next
        if not self._has_arrivals:
            return True
        if self._has_rewound:
            self._files.save_read_ms(self._read_ms)
            self._has_rewound = False
        found = self._store.get_message(
            TIMER_TOPIC,
            TIMER_QUEUE_ID,
            QueueOffset(self._queue_offset),
            count_max=INDEXED_PER_CALL,
            bytes_max=_BYTES_PER_READ,
        )
        if found.status is not GetMessageStatus.FOUND:
            if found.next_begin_offset == self._queue_offset:
                self._has_arrivals = False
                return True
            if found.status is GetMessageStatus.OFFSET_TOO_SMALL and self._queue_offset:
                lost = found.next_begin_offset - self._queue_offset
                self._delivery.report_dropped(
                    f"{lost} timer messages were deleted before their timers were set", count=lost
                )
            self._queue_offset = found.next_begin_offset
            self.is_dirty = True
            return False
        for record in found.each_record():
            try:
                message = decode_record(record)
            except RecordError as error:
                self._delivery.report_dropped(
                    f"timer message {self._queue_offset} is damaged: {error}"
                )
                message = None
            if message is not None and not self._add(message, len(record), now):
                return True  # its slot is occupied until overdue messages are delivered
            self._queue_offset += 1
            self.is_dirty = True
        return False

    def _check_clock(self) -> None:
        """Measure the time of day minus the broker's time, which changes if the clock is set.

        A pause between two readings would look like a clock that was set. So they are repeated, and
        the broker's time is read last: what a pause adds to it makes messages late, never early.
        """
        for _ in range(_CLOCK_READS_MAX):
            started_ms, wall_ms, ended_ms = (
                self._monotonic_ms(),
                self._now_ms(),
                self._monotonic_ms(),
            )
            if ended_ms - started_ms <= _CLOCK_STEP_MS:
                break
        measured_ms = wall_ms - (ended_ms + self._base_ms)
        if abs(measured_ms - self._clock_offset_ms) > _CLOCK_STEP_MS:
            self._files.save_clock_was_set()
            self._clock_offset_ms = measured_ms

    def _slot_offset_ms(self) -> int:
        """Return the clock offset by which slots are chosen."""
        return self._clock_offset_ms if abs(self._clock_offset_ms) > _SMALL_STEP_MS else 0

    def _add(self, message: StoredMessage, size: int, now: int) -> bool:
        """Add a message to the wheel; return False if its slot cannot be used yet."""
        properties = message.properties
        try:
            deliver_ms = due_of_waiting(properties, self.rules.precision_ms)
        except ValueError:
            self._delivery.drop(message, "it has no time")
            return True
        slot_ms = self.rules.slot_ms(deliver_ms - self._slot_offset_ms())
        is_delivered = (
            self._queue_offset < self._delivered_until and slot_ms < self._delivered_before_ms
        )
        if is_delivered:
            return True
        if message.physical_offset < self._recovered_end:
            self._count(properties)
            return True
        topic = properties.get(REAL_TOPIC, "")
        recalled_key = properties.get(TIMER_RECALLED_KEY)
        entry = TimerEntry(
            NO_POSITION,
            MAGIC_DEFAULT if recalled_key is None else MAGIC_DEFAULT | MAGIC_DELETE,
            slot_ms,
            message.physical_offset,
            size,
            java_string_hash(topic),
            deliver_ms - self._clock_offset_ms,
            self._wheel.slot_time(now),
        )
        entry = self._with_read_slot(entry, now)
        slot_ms = entry.slot_ms
        if slot_ms - self._read_ms >= self._wheel.span_ms:
            return False
        self._indexed_end = PhysicalOffset(message.physical_offset + size)
        position = self._append(entry)
        self._last_entry, self._is_last_entry_last = entry, True
        self._count(properties)
        if slot_ms < self._opened_until_ms:
            opened = self._open.get(slot_ms)
            if opened is None:
                opened = self._open[slot_ms] = _OpenSlot(NO_POSITION)
            if entry.is_recall and recalled_key is not None:
                opened.recalled.add(_recall_key(topic, recalled_key))
                self._change_count(topic, 1)
            else:
                opened.add(position, self._at_of(entry))
        return True

    def _with_read_slot(self, entry: TimerEntry, now: int) -> TimerEntry:
        """Return an entry moved from the slot of its due time to the slot in which it is read."""
        window_ms = self._roll_window_ms()
        magic, slot_ms = entry.magic & ~MAGIC_ROLL, entry.slot_ms
        if entry.due_ms - now > window_ms:
            magic |= MAGIC_ROLL
            slot_ms = self._wheel.slot_time(now + window_ms)
        return entry._replace(magic=magic, slot_ms=max(slot_ms, self._read_ms))

    def _append(self, entry: TimerEntry) -> int:
        """Add an entry to its slot; return its position in the timer log."""
        slot = self._wheel.get(entry.slot_ms)
        last = NO_POSITION if slot is None else slot.last
        position = self._timer_log.append(entry._replace(previous=last))
        first, timers = (position, 0) if slot is None else (slot.first, slot.timers)
        timers += -1 if entry.is_recall else 1
        self._wheel.put(TimerSlot(entry.slot_ms, first, position, timers))
        return position

    def _at_of(self, entry: TimerEntry) -> int:
        """Return when an entry has to be delivered or rolled."""
        return entry.slot_ms if entry.is_roll else entry.due_ms

    # ---- sorting all slots by the time of day, after the clock was set in the last run

    def _sort(self, _: int) -> bool:
        """Sort some timers; return False, because more sorting or the delivery follows."""
        if self._sorting is not None and next(self._sorting, self) is self:
            self._sorting = None
            self._files.clear_clock_was_set()
            self.is_dirty = True
        return False

    def _sort_again(self, now: int) -> Iterator[None]:
        """Move the entries of all slots to the slots of their due times of day.

        A message that was given a delay waits for at most this delay from the start on.
        """
        next_ms = self._wheel.next_time(self._read_ms)
        end_ms = self._read_ms + self._wheel.span_ms
        while next_ms is not None and next_ms < end_ms:
            slot_ms = next_ms
            # if the clock was set back by more than the wheel's span, slots are that far ahead
            slot = self._wheel.get_at_index(slot_ms)
            position = NO_POSITION if slot is None else slot.last
            kept: list[TimerEntry] = []
            moved: list[TimerEntry] = []
            while position != NO_POSITION:
                entry = self._timer_log.read(position)
                if entry is None:
                    self._log_broken_chain(slot_ms, position)
                    break
                sorted_entry = self._sorted(entry, now)
                (kept if sorted_entry == entry else moved).append(sorted_entry)
                position = entry.previous
                if (len(kept) + len(moved)) % _SORTED_PER_CALL == 0:
                    yield
            if moved:
                self._wheel.clear(slot_ms)
                for entry in (*kept[::-1], *moved[::-1]):
                    self._append(entry)
                self._is_last_entry_last = False
                self.is_dirty = True
            yield
            next_ms = self._wheel.next_time(slot_ms + self._wheel.precision_ms)

    def _sorted(self, entry: TimerEntry, now: int) -> TimerEntry:
        message = self._message_of(entry)
        if message is None:
            return entry
        properties = message.properties
        try:
            deliver_ms = due_of_waiting(properties, self.rules.precision_ms)
        except ValueError:
            return entry
        delay_ms = delay_of(properties)
        if delay_ms is not None:
            deliver_ms = min(deliver_ms, now + delay_ms)
        if deliver_ms == (entry.due_ms or deliver_ms):
            return entry
        sorted_entry = entry._replace(due_ms=deliver_ms)
        rescheduled = self._with_read_slot(
            sorted_entry._replace(slot_ms=self.rules.slot_ms(deliver_ms)), now
        )
        if rescheduled.slot_ms < self._read_ms + self._wheel.span_ms:
            return rescheduled
        # another slot still occupies the place: roll the message at its old time, which has passed
        return sorted_entry._replace(magic=entry.magic | MAGIC_ROLL)

    # ---- from the wheel to memory

    def _open_slots(self, now: int) -> bool:
        """Read slots that are due soon; return whether all of them are read."""
        entries = ENTRIES_PER_CALL
        for slot_ms, slot in self._open.items():
            while not slot.is_whole:
                if entries <= 0:
                    return False
                self._read_entry(slot_ms, slot)
                entries -= 1
        next_ms = self._next_slot()
        if next_ms is None or next_ms - self._open_ahead_ms > now:
            return True
        if sum(each.size for each in self._open.values()) > OPEN_ENTRIES_MAX:
            return True
        found = self._wheel.get(next_ms)
        if found is not None:
            slot = self._open[next_ms] = _OpenSlot(found.last)
            self._opened_until_ms = next_ms + self._wheel.precision_ms
        return False

    def _read_entry(self, slot_ms: int, slot: _OpenSlot) -> None:
        position = slot.next_position
        entry = self._timer_log.read(position)
        if entry is None:
            self._log_broken_chain(slot_ms, position)
            slot.next_position = NO_POSITION
            return
        if entry.is_recall:
            message = self._message_of(entry)
            properties = {} if message is None else message.properties
            key = properties.get(TIMER_RECALLED_KEY)
            if key is not None:
                topic = properties.get(REAL_TOPIC, "")
                slot.recalled.add(_recall_key(topic, key))
                self._change_count(topic, 1)
        elif entry.is_roll or entry.due_ms:
            slot.add_older(position, self._at_of(entry))
        else:  # RocketMQ indexed it
            slot.add_older(position, self._due_of(entry))
        slot.next_position = entry.previous

    def _log_broken_chain(self, slot_ms: int, position: int) -> None:
        self._delivery.report_dropped(
            f"timers of the slot at {slot_ms} ms are lost, and their messages stay in the log: the "
            f"timer log has no entry at {position}"
        )

    def _due_of(self, entry: TimerEntry) -> int:
        message = self._message_of(entry)
        if message is not None:
            try:
                deliver_ms = due_of_waiting(message.properties, self.rules.precision_ms)
            except ValueError:
                return entry.slot_ms
            if entry.slot_ms == self.rules.slot_ms(deliver_ms):
                return deliver_ms
        return entry.slot_ms + self.rules.precision_ms

    def _message_of(self, entry: TimerEntry) -> StoredMessage | None:
        record = self._store.record_at(PhysicalOffset(entry.physical_offset))
        if record is None:
            return None
        try:
            message = decode_record(record)
        except RecordError:
            return None
        return message if message.topic == TIMER_TOPIC else None

    # ---- from memory to the real topic

    def _deliver(self, now: int) -> bool:
        budget = DeliveryBudget()
        for slot_ms, slot in self._open.items():
            while slot.is_whole:
                due_ms = slot.next_due()
                if due_ms is None or due_ms + _ROUNDED_MS > now:
                    break
                if not budget:
                    return False
                position = slot.pop()
                try:
                    size = self._deliver_entry(position, slot_ms, slot, now)
                except UnreadableFile as error:
                    self._degradations.begin("read", "a timer message is not delivered", error)
                    size = None
                except BaseException:
                    slot.add(position, due_ms)
                    raise
                if size is None:
                    slot.add(position, now + RETRY_MS)
                else:
                    slot.has_delivered = True
                    budget.spend(size)
                    self.is_dirty = True
        return True

    def _deliver_entry(self, position: int, slot_ms: int, slot: _OpenSlot, now: int) -> int | None:
        """Deliver the message of an entry; return its size, or None if it has to wait."""
        entry = self._timer_log.read(position)
        message = None if entry is None else self._message_of(entry)
        if entry is None or message is None:
            self._log_loss(entry)
            return 0
        topic = message.properties.get(REAL_TOPIC, "")
        if not entry.is_roll and self._is_recalled(message, topic, slot_ms, slot):
            self.recalled_total += 1
            self._change_count(topic, -1)
            return 0
        enqueue_ms, wall_ms = entry.base_ms + self._clock_offset_ms, self._now_ms()
        if entry.is_roll:
            if self._store.was_deleted(topic, PhysicalOffset(message.physical_offset)):
                self._delivery.drop(message, f"its topic {topic} was deleted while it waited")
                self._change_count(topic, -1)
                return entry.size
            deliver_ms = self._deliver_ms(entry, message)
            convert = lambda each: to_next_roll(  # noqa: E731  # a lambda in both branches
                each, deliver_ms, enqueue_ms, wall_ms, self.rules
            )
        else:
            convert = lambda each: to_real_topic(each, enqueue_ms, wall_ms)  # noqa: E731  # as above
        dropped = self.dropped_total
        if not self._delivery.deliver(message, convert):
            return None
        self._change_count(topic, -1)
        if not entry.is_roll and self.dropped_total == dropped:
            self.delivered_total += 1
            self.delays.add(max(now - (entry.due_ms or entry.slot_ms), 0) / 1_000)
        return entry.size

    def _deliver_ms(self, entry: TimerEntry, message: StoredMessage) -> int:
        """Return when a message that is stored again is due, by the time of day."""
        if entry.due_ms:
            return entry.due_ms + self._clock_offset_ms
        return due_of_waiting(message.properties, self.rules.precision_ms)

    def _is_recalled(
        self, message: StoredMessage, topic: str, slot_ms: int, slot: _OpenSlot
    ) -> bool:
        keys = slot.recalled | self._recalled.get(slot_ms, set())
        if not keys:
            return False
        return _recall_key(topic, message.properties.get(UNIQ_KEY, "")) in keys

    def _log_loss(self, entry: TimerEntry | None) -> None:
        if entry is None:
            self._delivery.report_dropped(
                "a timer message is not delivered: its entry in the timer log is damaged"
            )
        elif entry.physical_offset < self._store.state().min_offset:
            self._delivery.report_dropped(
                f"a timer message at {entry.physical_offset} was deleted with old files of the log "
                "before it was due, or before its delivery was recorded:",
                "fileReservedTime was shortened, the disk was full, or the time of day has jumped "
                "ahead",
            )
        else:
            self._delivery.report_dropped(
                "a timer message is not delivered: the log has no such message at "
                f"{entry.physical_offset}"
            )

    def _count(self, properties: Mapping[str, str]) -> None:
        """Count a waiting message.

        A recall subtracts its message when it is indexed, and adds it again when it is read,
        because the delivery then subtracts the message.
        """
        is_recall = TIMER_RECALLED_KEY in properties
        self._change_count(properties.get(REAL_TOPIC, ""), -1 if is_recall else 1)

    def _change_count(self, topic: str, by: int) -> None:
        count = self._counts.get(topic, 0) + by
        if count:
            self._counts[topic] = count
        else:
            self._counts.pop(topic, None)

    def _close_slots(self, now: int) -> None:
        """Clear past slots whose entries are all delivered, and move on to the first other slot."""
        time_ms = self._wheel.slot_time(now)
        for slot_ms in [
            each
            for each, slot in self._open.items()
            if each < time_ms and slot.is_whole and not slot.size
        ]:
            del self._open[slot_ms]
            self._wheel.clear(slot_ms)
            self.is_dirty = True
        for slot_ms in [each for each in self._recalled if each < time_ms]:
            if slot_ms not in self._open:
                del self._recalled[slot_ms]
        next_ms = self._next_slot()
        waiting = (*self._open, time_ms) if next_ms is None else (*self._open, next_ms, time_ms)
        self._read_ms = max(min(waiting), self._read_ms)
        self._opened_until_ms = max(self._opened_until_ms, self._read_ms)

    # ---- saved state

    def _note_progress(self) -> None:
        self._progress = TimerCheckpoint(
            self._read_ms,
            self._timer_log.end,
            self._queue_offset,
            saved_ms=self._now_ms(),
            precision_ms=self._wheel.precision_ms,
        )

    def _snapshot(self) -> TimerSnapshot:
        """Return the state to save. Any thread may call this."""
        # In this order: slots may be newer than the checkpoint, because the timer log has their
        # entries. The log is flushed later, and so are the messages of its entries.
        progress, counts = self._progress, dict(self._counts)
        changes = self._wheel.changes()
        return TimerSnapshot(progress, self._indexed_end, counts=counts, changes=changes)

    def save_final(self, now_ms: int) -> None:
        """Save at a stop, so that the next start, even of RocketMQ, delivers nothing again."""
        now = now_ms + self._base_ms
        self._check_clock()
        self._close_slots(now)
        if any(slot.has_delivered for slot in self._open.values()):
            self._write_open_slots_again(self._wheel.slot_time(now))
            self.is_dirty = True
        if not self._is_last_entry_last and self._last_entry is not None:
            # RocketMQ continues at the message of the timer log's last entry: so append that entry
            # again, in a slot that has passed
            over_ms = self._wheel.slot_time(self._read_ms - self._wheel.span_ms // 2)
            self._timer_log.append(
                self._last_entry._replace(previous=NO_POSITION, slot_ms=over_ms, base_ms=over_ms)
            )
            self._is_last_entry_last = True
            self.is_dirty = True
        self._note_progress()
        self.save()

    def _write_open_slots_again(self, time_ms: int) -> None:
        """Give slots that are partly delivered a chain of their undelivered entries."""
        for slot_ms, slot in self._open.items():
            if not slot.has_delivered or not slot.is_whole:
                continue
            first = last = NO_POSITION
            timers = 0
            for position in slot.positions():
                entry = self._timer_log.read(position)
                if entry is not None and not self._discard_recalled(entry, slot_ms, slot):
                    last = self._timer_log.append(entry._replace(previous=last, slot_ms=slot_ms))
                    first = last if first == NO_POSITION else first
                    timers += 1
                    self._is_last_entry_last = False
            if last == NO_POSITION:
                self._wheel.clear(slot_ms)
            else:
                self._wheel.put(TimerSlot(slot_ms, first, last, timers))
        current = self._open.get(time_ms)
        if current is not None and current.has_delivered and not current.size:
            # RocketMQ finds delivered entries of this slot in the timer log
            left = [
                slot_ms for slot_ms, slot in self._open.items() if slot.size or not slot.is_whole
            ]
            self._read_ms = max(
                self._read_ms, min(left, default=time_ms + self._wheel.precision_ms)
            )

    def _discard_recalled(self, entry: TimerEntry, slot_ms: int, slot: _OpenSlot) -> bool:
        """Return whether an entry's message was recalled, and count it; the new chain omits it."""
        message = None if entry.is_roll else self._message_of(entry)
        if message is None:
            return False
        topic = message.properties.get(REAL_TOPIC, "")
        if not self._is_recalled(message, topic, slot_ms, slot):
            return False
        self.recalled_total += 1
        self._change_count(topic, -1)
        return True

    def close(self) -> None:
        """Close all files."""
        self._files.close()
