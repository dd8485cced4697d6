"""FirstOffset: the offset to begin a queue at: the group's own, or else where it was told to begin.

An error is raised, never taken for "nothing stored": a group that has come far would begin again at
the start, or skip all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from rmq_spark.client.concurrency.locks import mutex
from rmq_spark.client.concurrency.parallel import for_each
from rmq_spark.client.consumer.offsets.offset_store import OffsetStore, ReadOffsetType
from rmq_spark.client.consumer.queues.process_queue import Clock
from rmq_spark.client.consumer.queues.queue_identity import Place
from rmq_spark.client.errors import CONNECTION_FAULTS
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX

# ---- AskedAhead: first offsets of queues that begin together, asked for some at a time.

AT_ONCE_MAX: Final = 16
"""Most first offsets that are asked for at a time."""

KEPT_MS: Final = 1_000
"""Milliseconds for which an answer counts: another member may move the group's offset meanwhile."""


class AskedAhead:
    """First offsets of one member's queues. Methods may be called from any thread."""

    def __init__(self, ask: Callable[[MessageQueue], Place], clock: Clock) -> None:
        """Take the function that asks a queue's broker, for one queue, and waits for it."""
        self._ask = ask
        self._clock = clock
        self._mutex = mutex()
        self._expected: dict[MessageQueue, None] = {}
        self._asked: dict[MessageQueue, object] = {}  # by whom
        self._kept: dict[MessageQueue, tuple[Place | Exception, int]] = {}  # and since when, in ms

    def expect(self, queues: Iterable[MessageQueue]) -> None:
        """Note that these queues begin soon, so that they may be asked for with others."""
        with self._mutex:
            for queue in queues:
                self._forget(queue)
                self._expected[queue] = None

    def forget(self, queue: MessageQueue) -> None:
        """Note that a queue was given up."""
        with self._mutex:
            self._forget(queue)

    def _forget(self, queue: MessageQueue) -> None:
        for each in (self._expected, self._asked, self._kept):
            each.pop(queue, None)

    def of(self, queue: MessageQueue) -> Place:
        """Return the place where a queue begins; raise an error if it cannot be found out."""
        me = object()
        with self._mutex:
            outcome, queues = self._fresh(queue), [queue]
            if outcome is None:
                expected = self._expected_at(queue.broker_name)
                queues += [each for each in expected if each != queue][: AT_ONCE_MAX - 1]
                for each in queues:
                    self._forget(each)
                    self._asked[each] = me
        if outcome is None:
            outcome = self._outcome_of(queues, me)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _fresh(self, queue: MessageQueue) -> Place | Exception | None:
        """Take what is kept for a queue, if it is not too old."""
        outcome, since_ms = self._kept.pop(queue, (None, 0))
        if outcome is None or self._clock() - since_ms > KEPT_MS:
            return None
        if isinstance(outcome, Exception):
            self._expected[queue] = None
        return outcome

    def _expected_at(self, broker_name: str) -> list[MessageQueue]:
        return [each for each in self._expected if each.broker_name == broker_name]

    def _outcome_of(self, queues: list[MessageQueue], me: object) -> Place | Exception:
        """Ask for queues of one broker at once; return what came of the first, keep the others'.

        Nothing is kept for one that was given up meanwhile.
        """

        def ask(queue: MessageQueue) -> tuple[Place, int]:
            return self._ask(queue), self._clock()

        outcomes = for_each(
            queues, ask, most=AT_ONCE_MAX, name="asks for first offsets", last=CONNECTION_FAULTS
        )
        first, now_ms = outcomes[queues[0]], self._clock()
        with self._mutex:
            if isinstance(first, CONNECTION_FAULTS):
                for each in self._expected_at(queues[0].broker_name):
                    del self._expected[each]
                    self._kept[each] = first, now_ms
            for queue, outcome in outcomes.items():
                if self._asked.get(queue) is not me:
                    continue
                del self._asked[queue]
                if queue != queues[0]:
                    kept = (outcome, now_ms) if isinstance(outcome, Exception) else outcome
                    self._kept[queue] = kept
                elif isinstance(outcome, Exception):
                    self._expected[queue] = None
        return first if isinstance(first, Exception) else first[0]


_TO_THE_FIRST = frozenset(
    [ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET]
)


class QueueEnds(Protocol):
    """Answers questions about the offsets of a queue."""

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that is still kept."""

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at a time (ms since the epoch) or later."""


class FirstOffset(NamedTuple):
    """The rule of a group for queues in which it has no offset."""

    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int

    def of(self, queue: MessageQueue, store: OffsetStore, ends: QueueEnds) -> int:
        """Return the offset at which to begin a queue."""
        stored = store.read_offset(queue, ReadOffsetType.MEMORY_FIRST_THEN_STORE)
        return stored if stored is not None else self._without_any(queue, ends)

    def _without_any(self, queue: MessageQueue, ends: QueueEnds) -> int:
        if queue.topic.startswith(RETRY_PREFIX):
            # These are the group's own, and none of them may be passed over.
            return ends.min_offset(queue)
        if self.consume_from_where in _TO_THE_FIRST:
            return ends.min_offset(queue)
        if self.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            return ends.search_offset(queue, self.consume_timestamp_ms)
        return ends.max_offset(queue)
