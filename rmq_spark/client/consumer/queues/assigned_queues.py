"""Assigned queues: the queues of a lite pull consumer and its progress in each.

    pull offset        where the next pull begins
    delivered offset   past what `poll` has acquired in order to return it
    returned offset    past what it has returned; less, if a signal's exception interrupted it
    consume offset     past what was returned before the last `poll`: the caller has finished that

A pull and its result belong to one assignment and one epoch of it. When a queue is revoked,
reassigned or sought in, the epoch changes: results of an earlier one are ignored and move no
offset.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from rmq_spark.client.concurrency.threads import SIGNAL_CHECK_SECONDS
from rmq_spark.client.consumer.queues.process_queue import Clock, ProcessQueue
from rmq_spark.client.consumer.queues.queue_identity import QueueFingerprint, StartPosition
from rmq_spark.client.message import MessageExt
from rmq_spark.wire.message_queue import MessageQueue


class PollOutcome(Enum):
    """Outcome of acquiring a request's messages for `poll`."""

    ACQUIRED = 0
    STALE = 1
    PAUSED = 2


class AssignedQueue:
    """One queue, for as long as it is assigned. Methods may be called from any thread."""

    def __init__(self, queue: MessageQueue, clock: Clock) -> None:
        self.queue = queue
        self._process_queue: ProcessQueue = ProcessQueue(clock)
        self.cursor: MessageCursor | None = None
        """The messages that are handed out one by one, if there are any."""
        self.is_paused = False
        self.fingerprint = QueueFingerprint()
        """The queue's fingerprint since its start or the last seek."""
        self._mutex = threading.RLock()
        self._epoch = 0
        self.reset_count = 0
        """Number of times that operators have moved the group in this queue."""
        self._pull_offset: int | None = None
        self._delivered_offset: int | None = None
        self._consume_offset: int | None = None
        self.returned_offset: int | None = None
        """Offset past the messages that the caller has; `poll` sets it as its last step."""

    @property
    def process_queue(self) -> ProcessQueue:
        """The messages that were pulled and not acquired yet."""
        if self.cursor is not None:
            with self._mutex:
                self._acknowledge_returned()
        return self._process_queue

    @property
    def is_dropped(self) -> bool:
        """True if the queue is not assigned any more."""
        return self._process_queue.is_dropped

    @property
    def consume_offset(self) -> int | None:
        """Offset before which everything was consumed; None before any is known."""
        with self._mutex:
            self._acknowledge_returned()
            return self._consume_offset

    @property
    def delivered_offset(self) -> int | None:
        """Offset past the messages that `poll` has acquired."""
        with self._mutex:
            self._acknowledge_returned()
            return self._delivered_offset

    def is_stale(self, epoch: int) -> bool:
        """Return whether results of that epoch must be dropped."""
        return epoch != self._epoch or self.is_dropped

    def pull_position(self) -> tuple[int, int | None]:
        """Return the epoch for a pull, and the offset to begin at, if it is known."""
        with self._mutex:
            return self._epoch, self._pull_offset

    def set_first_offset(self, epoch: int, start: StartPosition) -> None:
        """Begin at a start position, unless the queue was sought in, or has begun, meanwhile."""
        with self._mutex:
            if epoch == self._epoch and self._pull_offset is None:
                self.fingerprint = start.fingerprint
                self._set_offsets(start.offset)

    def seek(self, offset: int) -> None:
        """Resume at an offset, and drop the messages pulled from elsewhere."""
        with self._mutex:
            self.fingerprint = QueueFingerprint()
            self._restart_at(offset)

    def reset(self, offset: int) -> None:
        """Resume where an operator moves the group; earlier commits no longer count."""
        with self._mutex:
            self.reset_count += 1
            self.seek(offset)

    def _restart_at(self, offset: int) -> None:
        self._close_cursor()
        self._epoch += 1
        self._process_queue.clear()
        self._set_offsets(offset)

    def _set_offsets(self, offset: int) -> None:
        self._pull_offset = self._delivered_offset = self._consume_offset = offset
        self.returned_offset = offset

    def rewind_to_returned(self) -> None:
        """Resume past what `poll` has returned: later messages have not reached its caller."""
        with self._mutex:
            self._acknowledge_returned()
            if self.returned_offset is not None:
                self.restart_at(self._epoch, self.returned_offset)

    def rewind_to_delivered(self) -> None:
        """Resume past what `poll` has acquired: the rest was selected by another subscription."""
        with self._mutex:
            self._acknowledge_returned()
            if self._delivered_offset is not None:
                returned = self.returned_offset  # a `poll` in another thread may be about to return
                self.restart_at(self._epoch, self._delivered_offset)
                self.returned_offset = returned

    def restart_at(self, epoch: int, offset: int) -> int:
        """Resume at an offset of a recreated queue; return the epoch that has begun.

        Nothing more counts as consumed. If the queue was sought in meanwhile, nothing changes, and
        ``epoch`` is returned.
        """
        with self._mutex:
            if epoch == self._epoch:
                self._acknowledge_returned()
                consumed = self._consume_offset
                self._restart_at(offset)
                if consumed is not None:
                    self._consume_offset = min(consumed, offset)
                return self._epoch
            return epoch

    def add_pulled(
        self,
        epoch: int,
        messages: Collection[MessageExt],
        next_offset: int,
        unreadable: Collection[MessageExt] = (),
    ) -> bool:
        """Add the messages of a pull of that epoch; return False if it is stale."""
        with self._mutex:
            if epoch != self._epoch:
                return False
            self._acknowledge_returned()
            if not self._process_queue.put_messages(tuple(messages), tuple(unreadable)):
                return False
            self._pull_offset = next_offset
            if not self._process_queue.message_count:
                # The filter has skipped all messages before it.
                if self._consume_offset == self._delivered_offset:
                    self._consume_offset = next_offset
                if self.returned_offset == self._delivered_offset:
                    self.returned_offset = next_offset
                self._delivered_offset = next_offset
            return True

    def acquire(self, request: ConsumeRequest, *, one_by_one: bool = False) -> PollOutcome:
        """Acquire the messages that `poll` is about to return.

        With ``one_by_one``, each is acquired when the `cursor` returns it.
        """
        with self._mutex:
            if self.is_stale(request.epoch):
                return PollOutcome.STALE
            if self.is_paused:
                return PollOutcome.PAUSED
            if one_by_one:
                self._close_cursor()
                self.cursor = MessageCursor(self, request.messages, len(request.messages))
            else:
                self._acknowledge(request.messages)
            return PollOutcome.ACQUIRED

    def close_cursor(self) -> ConsumeRequest | None:
        """Close the cursor, and return the messages that are left, if any."""
        with self._mutex:
            cursor = self.cursor
            self._close_cursor()
            left = () if cursor is None else cursor.messages[cursor.next_index :]
            return ConsumeRequest(self, self._epoch, left) if left else None

    def _close_cursor(self) -> None:
        self._acknowledge_returned()
        if self.cursor is not None:
            self.cursor.is_over = True
            self.cursor = None

    def _acknowledge_returned(self) -> None:
        """Acknowledge the messages that were handed out since the last call."""
        cursor = self.cursor
        if cursor is None or (next_index := cursor.next_index) == cursor.acknowledged:
            return
        before = cursor.messages[cursor.acknowledged : next_index - 1]
        last = cursor.messages[next_index - 1]
        cursor.acknowledged = next_index
        if before:
            self._acknowledge(before)
        if cursor.confirms_on_next:
            self._consume_offset = self._delivered_offset
        self._acknowledge((last,))
        self.returned_offset = self._delivered_offset

    def acknowledge_unreadable(self, epoch: int, message: MessageExt) -> None:
        """Acknowledge an unreadable message that is a dead letter now."""
        with self._mutex:
            if not self.is_stale(epoch):
                self._acknowledge_returned()
                self._acknowledge((message,))

    def _acknowledge(self, messages: Sequence[MessageExt]) -> None:
        self._process_queue.acknowledge(messages, self._set_delivered_offset)
        if not self._process_queue.message_count:
            self._delivered_offset = self._pull_offset  # the filter has skipped all before it

    def _set_delivered_offset(self, offset: int) -> None:
        self._delivered_offset = offset

    def confirm_delivered(self) -> None:
        """Count all that `poll` has returned as consumed, as its caller confirms."""
        with self._mutex:
            self._acknowledge_returned()
            if not self.is_dropped:
                self._consume_offset = self._delivered_offset

    def publish_consumed(self, publish: Callable[[MessageQueue, int], object]) -> None:
        """Call a function with the queue and its consume offset, if known and still assigned.

        A concurrent seek publishes its offset after this call.
        """
        with self._mutex:
            self._acknowledge_returned()
            if self._consume_offset is not None and not self.is_dropped:
                publish(self.queue, self._consume_offset)

    def drop(self) -> int | None:
        """Revoke the queue and return its consume offset, which nothing moves from now on."""
        with self._mutex:
            self._close_cursor()
            self._process_queue.drop()
            return self._consume_offset


@dataclass(frozen=True, slots=True, eq=False)
class ConsumeRequest:
    """The messages of one pull, waiting for `poll`."""

    assigned: AssignedQueue
    epoch: int
    messages: tuple[MessageExt, ...]

    @property
    def is_stale(self) -> bool:
        """True if the messages must be dropped."""
        return self.assigned.is_stale(self.epoch)


@dataclass(slots=True, eq=False)
class MessageCursor:
    """The messages of a request that are handed out one by one, all in one thread.

    A cursor takes no lock and moves no offset: the queue reads its progress when needed. A message
    that is handed out during that read is part of the next read. With ``confirms_on_next``,
    requesting a message confirms that the earlier ones were consumed.
    """

    assigned: AssignedQueue
    messages: tuple[MessageExt, ...]
    count: int
    confirms_on_next: bool = False
    next_index: int = 0
    acknowledged: int = 0
    is_over: bool = False

    def next(self) -> MessageExt | None:
        """Return the next message; None after the last, and while the queue is paused.

        Also return None if the queue was revoked, or sought in.
        """
        at = self.next_index
        if at == self.count or self.is_over or self.assigned.is_paused:
            return None
        message = self.messages[at]
        self.next_index = at + 1  # last step: no signal's exception can follow
        return message


class ConsumeRequestCache:
    """Pulled messages for `poll`, in the order of their arrival. Methods are thread-safe.

    Requests from before a seek, or of queues that are no longer assigned, are skipped; those of
    paused queues stay.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._state = threading.Condition(self._mutex)
        self._requests: deque[ConsumeRequest] = deque()
        self._is_closed = False
        self.on_change: Callable[[], object] = lambda: None
        """Called whenever `poll` may have another outcome; it must not block."""

    def put(self, request: ConsumeRequest) -> None:
        """Add the messages of a pull."""
        with self._mutex:
            self._requests.append(request)
            self._state.notify()
        self.on_change()

    def put_first(self, request: ConsumeRequest) -> None:
        """Put back messages that were not returned after all, before all others."""
        with self._mutex:
            self._requests.appendleft(request)

    def poll(
        self, timeout_ms: int, messages_max: int | None = None, *, one_by_one: bool = False
    ) -> ConsumeRequest | None:
        """Return the next request; None if none comes within the timeout, or once closed.

        With ``messages_max``, a larger request is split: the rest stays for the next call. With
        ``one_by_one``, its messages are not acquired yet, but handed out by its queue's `cursor`.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        with self._mutex:
            while not self._is_closed:
                request = self._next_request(messages_max, one_by_one=one_by_one)
                if request is not None:
                    return request
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._state.wait(min(remaining, SIGNAL_CHECK_SECONDS))
        return None

    def _next_request(self, messages_max: int | None, *, one_by_one: bool) -> ConsumeRequest | None:
        paused: list[ConsumeRequest] = []
        found = None
        while found is None and self._requests:
            request = self._requests.popleft()
            is_paused = request.assigned.is_paused  # messages of a paused queue are not divided
            if messages_max is not None and len(request.messages) > messages_max and not is_paused:
                messages, of = request.messages, (request.assigned, request.epoch)
                self._requests.appendleft(ConsumeRequest(*of, messages[messages_max:]))
                request = ConsumeRequest(*of, messages[:messages_max])
            outcome = request.assigned.acquire(request, one_by_one=one_by_one)
            if outcome is PollOutcome.PAUSED:
                paused.append(request)
                continue
            if outcome is PollOutcome.ACQUIRED:
                found = request
        self._requests.extendleft(reversed(paused))
        return found

    def discard_stale(self) -> None:
        """Drop requests of revoked queues, and those from before a seek.

        Requests of the present epoch stay: a queue's next pull may already have added one.
        """
        with self._mutex:
            self._requests = deque(request for request in self._requests if not request.is_stale)

    def wake(self) -> None:
        """Check again, because a queue was resumed."""
        with self._mutex:
            self._state.notify_all()
        self.on_change()

    def close(self) -> None:
        """Make every `poll` return None, including waiting ones."""
        with self._mutex:
            self._is_closed = True
            self._state.notify_all()
        self.on_change()


class AssignedQueues:
    """All queues that a consumer is assigned. Methods may be called from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._queues: dict[MessageQueue, AssignedQueue] = {}
        self._by_topic: dict[str, set[MessageQueue]] = {}  # a round handles each topic separately

    def copy_after_fork(self) -> AssignedQueues:
        """Return the same queues for a forked process, of a consumer that was not started yet."""
        own = AssignedQueues(self._clock)
        own.replace(list(self._queues))
        return own

    def get(self, queue: MessageQueue) -> AssignedQueue | None:
        """Return the state of a queue, or None if it is not assigned."""
        return self._queues.get(queue)

    def all(self) -> list[AssignedQueue]:
        """Return the states of all assigned queues."""
        with self._mutex:
            return list(self._queues.values())

    @property
    def message_count(self) -> int:
        """Number of messages that wait in queues that are not paused."""
        return sum(each.process_queue.message_count for each in self.all() if not each.is_paused)

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that are assigned."""
        with self._mutex:
            return frozenset(self._queues)

    def replace(
        self, queues: Iterable[MessageQueue], topic: str | None = None
    ) -> tuple[list[AssignedQueue], list[AssignedQueue]]:
        """Assign these queues, of one topic or of all; return the added and the revoked ones.

        The caller must `drop` the revoked ones: it may want to keep their offsets.
        """
        wanted = frozenset(queues)
        with self._mutex:
            held = frozenset(self._queues if topic is None else self._by_topic.get(topic, ()))
            removed = [self._remove(queue) for queue in sorted(held - wanted)]
            new = [
                AssignedQueue(queue, self._clock) for queue in sorted(wanted - self._queues.keys())
            ]
            for assigned in new:
                self._queues[assigned.queue] = assigned
                self._by_topic.setdefault(assigned.queue.topic, set()).add(assigned.queue)
            return new, removed

    def _remove(self, queue: MessageQueue) -> AssignedQueue:
        of_topic = self._by_topic[queue.topic]
        of_topic.remove(queue)
        if not of_topic:
            del self._by_topic[queue.topic]
        return self._queues.pop(queue)
