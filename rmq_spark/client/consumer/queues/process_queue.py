"""ProcessQueue: the messages of one queue that a consumer has pulled and not yet acknowledged.

    pulled ──put──▶ waiting ──take──▶ taken ──acknowledge──▶ gone      orderly consumers take,
                       ▲                │                              concurrent ones acknowledge
                       └───put back─────┘                              what waits

The smallest cached offset may be committed, because everything before it is finished. Once the
queue is dropped (another member has it, or it restarts elsewhere), messages that are still being
consumed move no offset. A retired queue starts no more messages, but finishes those that listeners
have. All methods may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from rmq_spark.client.message import MessageExt

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.operators import ProcessQueueInfo

LOCK_EXPIRES_MS = 30_000
"""Milliseconds that a broker's lock counts here; the broker keeps it for twice as long."""

PULL_EXPIRES_MS = 120_000
"""Milliseconds without a pull after which a queue's pull request must have been lost."""

_MIB = 1 << 20

Clock = Callable[[], int]
"""Returns milliseconds of a clock that never goes back."""


def monotonic_ms() -> int:
    """Return milliseconds of a clock that never goes back, for due times and timeouts."""
    return time.monotonic_ns() // 1_000_000


class ProcessQueue:
    """The cached messages of one queue, by offset, for as long as it is assigned."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.RLock()
        self._waiting: dict[int, MessageExt] = {}
        self._waiting_offsets: list[int] = []  # in order
        self._in_progress: dict[int, MessageExt] = {}
        self._started_ms: dict[int, int] = {}
        self.body_bytes = 0
        """Number of bytes in the bodies of the messages that are not yet acknowledged."""
        self._end_offset: int | None = None  # offset past the last message ever pulled
        self.is_dropped = False
        """True if the queue was dropped, so that nothing moves its offset."""
        self.is_retired = False
        """True if the queue is being revoked: no more of its messages are started."""
        self._locked_at_ms: int | None = None
        self._lock_invalidated_at_ms: int | None = None
        self._pulled_at_ms = clock()
        self._consumed_at_ms = clock()
        self.consuming = threading.Lock()
        """Held by the thread that serves this cache to an orderly listener."""

    # ---- contents

    @property
    def message_count(self) -> int:
        """Number of messages that are pulled and not yet acknowledged."""
        return len(self._waiting) + len(self._in_progress)

    @property
    def span(self) -> int:
        """Distance between the offsets of the first and the last waiting message."""
        with self._mutex:
            waiting = self._waiting_offsets
            return waiting[-1] - waiting[0] if waiting else 0

    @property
    def has_waiting(self) -> bool:
        """True if a message waits to be taken."""
        return bool(self._waiting)

    def is_waiting(self, message: MessageExt) -> bool:
        """Return whether this message waits, and is not acknowledged yet."""
        return self._waiting.get(message.queue_offset) is message

    @property
    def commit_offset(self) -> int | None:
        """Offset before which all is acknowledged; None if nothing was ever pulled."""
        with self._mutex:
            uncommitted = [*self._waiting_offsets[:1], *self._in_progress]
            return min(uncommitted) if uncommitted else self._end_offset

    # ---- adding and removing messages

    def set_initial_offset(self, offset: int) -> None:
        """Set the offset that may be committed before any message was pulled."""
        with self._mutex:
            if self._end_offset is None:
                self._end_offset = offset

    def put_messages(
        self, messages: Sequence[MessageExt], unreadable: Sequence[MessageExt] = ()
    ) -> bool:
        """Add the messages of a pull; return False if the queue was dropped.

        Unreadable ones count as taken: no listener gets them. They are acknowledged once they are
        dead letters.
        """
        with self._mutex:
            if self.is_dropped:
                return False
            if not self._append(messages):
                for message in messages:
                    self._add(message)
            for message in unreadable:
                if message.queue_offset not in self._in_progress:
                    self._in_progress[message.queue_offset] = message
                    self.body_bytes += len(message.body)
            ends = [message.queue_offset + 1 for message in (*messages, *unreadable)]
            if self._end_offset is not None:
                ends.append(self._end_offset)
            self._end_offset = max(ends, default=None)
            return True

    def _append(self, messages: Sequence[MessageExt]) -> bool:
        """Append messages in one step if they follow all others in order, the usual case."""
        offsets, waiting = [message.queue_offset for message in messages], self._waiting_offsets
        if self._in_progress or (offsets and waiting and offsets[0] <= waiting[-1]):
            return False
        if offsets != sorted(set(offsets)):
            return False
        waiting += offsets
        self._waiting.update(zip(offsets, messages, strict=True))
        self.body_bytes += sum([len(message.body) for message in messages])
        return True

    def _add(self, message: MessageExt) -> None:
        at = message.queue_offset
        if at in self._in_progress:
            return
        known = self._waiting.get(at)
        if known is None:
            insort(self._waiting_offsets, at)
        else:
            self.body_bytes -= len(known.body)
        self._waiting[at] = message
        self.body_bytes += len(message.body)

    def acknowledge(self, messages: Sequence[MessageExt], publish: Callable[[int], object]) -> bool:
        """Remove messages that are finished; return False if the queue was dropped.

        ``publish`` is called with the offset to commit, unless the queue was dropped.
        """
        with self._mutex:
            if self.is_dropped:
                return False
            self._remove(messages)
            if (committed := self.commit_offset) is not None:
                publish(committed)
            return True

    def _remove(self, messages: Sequence[MessageExt]) -> None:
        # an empty result acknowledges nothing and does not mean that the listener works
        if messages:
            self._consumed_at_ms = self._clock()
        if self._remove_prefix(messages):
            return
        for message in messages:
            at = message.queue_offset
            self._started_ms.pop(at, None)
            if self._waiting.pop(at, None) is not None:
                del self._waiting_offsets[bisect_left(self._waiting_offsets, at)]
            elif self._in_progress.pop(at, None) is None:
                continue
            self.body_bytes -= len(message.body)

    def _remove_prefix(self, messages: Sequence[MessageExt]) -> bool:
        """Remove messages in one step if they are the first waiting ones, the usual case."""
        offsets = [message.queue_offset for message in messages]
        if offsets != self._waiting_offsets[: len(offsets)]:
            return False
        del self._waiting_offsets[: len(offsets)]
        for at in offsets:
            del self._waiting[at]
            self._started_ms.pop(at, None)
        self.body_bytes -= sum([len(message.body) for message in messages])
        return True

    def take_messages(self, count: int) -> list[MessageExt]:
        """Take the first waiting messages, in order; they stay cached until acknowledged."""
        with self._mutex:
            waiting = self._waiting_offsets
            offsets, self._waiting_offsets = waiting[:count], waiting[count:]
            messages = [self._waiting.pop(at) for at in offsets]
            self._in_progress.update(zip(offsets, messages, strict=True))
            if messages:
                self._consumed_at_ms = self._clock()
            return messages

    def put_back(self, messages: Collection[MessageExt]) -> None:
        """Return taken messages to the waiting ones, in their old places."""
        with self._mutex:
            for message in messages:
                if self._in_progress.pop(message.queue_offset, None) is not None:
                    insort(self._waiting_offsets, message.queue_offset)
                    self._waiting[message.queue_offset] = message

    def replace_messages(self, messages: Sequence[tuple[MessageExt, MessageExt]]) -> None:
        """Replace messages that listeners have finished; each pair is the old and the new one."""
        with self._mutex:
            for before, after in messages:
                at = before.queue_offset
                if self._waiting.get(at) is before:
                    self._waiting[at] = after
                    self._started_ms.pop(at, None)

    def clear(self) -> None:
        """Drop all messages, as if none was ever pulled."""
        with self._mutex:
            for each in (self._waiting, self._in_progress, self._started_ms, self._waiting_offsets):
                each.clear()
            self.body_bytes = 0
            self._end_offset = None

    # ---- listeners that take too long

    def start_consuming(self, messages: Collection[MessageExt]) -> None:
        """Note that a listener begins to consume these messages."""
        with self._mutex:
            self._started_ms.update((message.queue_offset, self._clock()) for message in messages)

    def pop_expired(self, timeout_ms: int) -> list[MessageExt]:
        """Return messages that a listener has had for too long; they hold the commit offset back.

        Each is returned once, unless it is started again.
        """
        with self._mutex:
            started, now = self._started_ms.items(), self._clock()
            expired = [at for at, since_ms in started if now - since_ms > timeout_ms]
            for at in expired:
                del self._started_ms[at]
            return [self._waiting[at] for at in sorted(expired) if at in self._waiting]

    # ---- ownership

    def retire(self) -> None:
        """Start no more messages; those already started finish and move the offset."""
        self.is_retired = True

    def drop(self) -> None:
        """Accept no messages from now on, and let nothing move the offset."""
        with self._mutex:
            self.is_dropped = True

    def after_fork(self) -> None:
        """Drop the queue: its messages are the parent process's."""
        self._mutex = threading.RLock()
        self.is_dropped = True

    @property
    def is_locked(self) -> bool:
        """True if a broker has granted the lock of this queue, and still keeps it.

        A lock that was granted too long ago, or before the connection was lost, does not count.
        """
        locked_at, lost_at = self._locked_at_ms, self._lock_invalidated_at_ms
        if locked_at is None or (lost_at is not None and locked_at <= lost_at):
            return False
        return self._clock() - locked_at <= LOCK_EXPIRES_MS

    def set_locked(self, requested_at_ms: int, *, locked: bool) -> None:
        """Note whether the broker granted the lock that was requested at that time."""
        self._locked_at_ms = requested_at_ms if locked else None

    def invalidate_lock(self) -> None:
        """Note that the broker may have forgotten all locks that were requested before now."""
        self._lock_invalidated_at_ms = self._clock()

    def touch_pull(self) -> None:
        """Note that the queue is being pulled, or that there is a reason not to."""
        self._pulled_at_ms = self._clock()

    @property
    def is_pull_expired(self) -> bool:
        """True if the queue was not pulled recently, or was dropped."""
        return self.is_dropped or self._clock() - self._pulled_at_ms > PULL_EXPIRES_MS

    def info(self, commit_offset: int | None, wall_ms: int) -> ProcessQueueInfo:
        """Return the report for operators; ``wall_ms`` is ms since the epoch."""
        from rmq_spark.wire.bodies.operators import ProcessQueueInfo  # noqa: PLC0415  # rarely needed

        def time_of_day(at_ms: int | None) -> int:
            return 0 if at_ms is None else wall_ms - (self._clock() - at_ms)

        with self._mutex:
            waiting, in_progress = self._waiting_offsets, sorted(self._in_progress)
            return ProcessQueueInfo(
                commit_offset=-1 if commit_offset is None else commit_offset,
                cached_msg_min_offset=waiting[0] if waiting else 0,
                cached_msg_max_offset=waiting[-1] if waiting else 0,
                cached_msg_count=len(waiting),
                cached_msg_size_in_mi_b=self.body_bytes // _MIB,
                transaction_msg_min_offset=in_progress[0] if in_progress else 0,
                transaction_msg_max_offset=in_progress[-1] if in_progress else 0,
                transaction_msg_count=len(in_progress),
                locked=self.is_locked,
                last_lock_timestamp=time_of_day(self._locked_at_ms),
                droped=self.is_dropped,
                last_pull_timestamp=time_of_day(self._pulled_at_ms),
                last_consume_timestamp=time_of_day(self._consumed_at_ms),
            )
