"""InitialOffsetRule: chooses where to begin a queue: at the group's offset, or at a configured one.

An error is raised and never counts as "nothing stored": a group that has consumed much would start
over, or skip everything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from rmq_spark.client.concurrency.threads import parallel_map
from rmq_spark.client.consumer.offsets.offset_store import OffsetStore, ReadOffsetType
from rmq_spark.client.consumer.queues.process_queue import Clock
from rmq_spark.client.consumer.queues.queue_identity import StartPosition
from rmq_spark.client.errors import CONNECTION_FAULTS
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX

# ---- OffsetPrefetcher: first offsets of queues that begin together, asked for some at a time.

OFFSET_THREADS_MAX: Final = 16
"""Most first offsets that are asked for at a time."""

PREFETCH_MS_MAX: Final = 1_000
"""Milliseconds for which an answer counts: another member may move the group's offset meanwhile."""


class OffsetPrefetcher:
    """Looks up where a member's queues begin, several at once. All methods are thread-safe."""

    def __init__(self, fetch: Callable[[MessageQueue], StartPosition], clock: Clock) -> None:
        """Take the function that asks a queue's broker, for one queue, and waits for it."""
        self._fetch = fetch
        self._clock = clock
        self._mutex = threading.Lock()
        self._scheduled: dict[MessageQueue, None] = {}
        self._in_progress: dict[MessageQueue, object] = {}  # by whom
        self._prefetched: dict[
            MessageQueue, tuple[StartPosition | Exception, int]
        ] = {}  # and since when, in ms

    def schedule(self, queues: Iterable[MessageQueue]) -> None:
        """Note that these queues begin soon, so that they can be looked up together."""
        with self._mutex:
            for queue in queues:
                self._discard(queue)
                self._scheduled[queue] = None

    def discard(self, queue: MessageQueue) -> None:
        """Note that a queue was revoked."""
        with self._mutex:
            self._discard(queue)

    def _discard(self, queue: MessageQueue) -> None:
        for each in (self._scheduled, self._in_progress, self._prefetched):
            each.pop(queue, None)

    def get(self, queue: MessageQueue) -> StartPosition:
        """Return the position where a queue begins; raise an error if the lookup fails."""
        me = object()
        with self._mutex:
            outcome, queues = self._pop_prefetched(queue), [queue]
            if outcome is None:
                expected = self._scheduled_at(queue.broker_name)
                queues += [each for each in expected if each != queue][: OFFSET_THREADS_MAX - 1]
                for each in queues:
                    self._discard(each)
                    self._in_progress[each] = me
        if outcome is None:
            outcome = self._fetch_together(queues, me)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _pop_prefetched(self, queue: MessageQueue) -> StartPosition | Exception | None:
        """Take what is kept for a queue, if it is not too old."""
        outcome, since_ms = self._prefetched.pop(queue, (None, 0))
        if outcome is None or self._clock() - since_ms > PREFETCH_MS_MAX:
            return None
        if isinstance(outcome, Exception):
            self._scheduled[queue] = None
        return outcome

    def _scheduled_at(self, broker_name: str) -> list[MessageQueue]:
        return [each for each in self._scheduled if each.broker_name == broker_name]

    def _fetch_together(
        self, queues: list[MessageQueue], token: object
    ) -> StartPosition | Exception:
        """Ask for queues of one broker at once; return what came of the first, keep the others'.

        Nothing is kept for one that was given up meanwhile.
        """

        def ask(queue: MessageQueue) -> tuple[StartPosition, int]:
            return self._fetch(queue), self._clock()

        outcomes = parallel_map(
            queues,
            ask,
            threads_max=OFFSET_THREADS_MAX,
            name="asks for first offsets",
            stop_on=CONNECTION_FAULTS,
        )
        first, now_ms = outcomes[queues[0]], self._clock()
        with self._mutex:
            if isinstance(first, CONNECTION_FAULTS):
                for each in self._scheduled_at(queues[0].broker_name):
                    del self._scheduled[each]
                    self._prefetched[each] = first, now_ms
            for queue, outcome in outcomes.items():
                if self._in_progress.get(queue) is not token:
                    continue
                del self._in_progress[queue]
                if queue != queues[0]:
                    kept = (outcome, now_ms) if isinstance(outcome, Exception) else outcome
                    self._prefetched[queue] = kept
                elif isinstance(outcome, Exception):
                    self._scheduled[queue] = None
        return first if isinstance(first, Exception) else first[0]


_FROM_FIRST_OFFSET = frozenset(
    [ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET]
)


class QueueBoundsSource(Protocol):
    """Answers questions about the offsets of a queue."""

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that is still kept."""

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at a time (ms since the epoch) or later."""


class InitialOffsetRule(NamedTuple):
    """The rule of a group for queues in which it has no offset."""

    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int

    def resolve(self, queue: MessageQueue, store: OffsetStore, bounds: QueueBoundsSource) -> int:
        """Return the offset at which to begin a queue."""
        stored = store.read_offset(queue, ReadOffsetType.MEMORY_FIRST_THEN_STORE)
        return stored if stored is not None else self._default_offset(queue, bounds)

    def _default_offset(self, queue: MessageQueue, bounds: QueueBoundsSource) -> int:
        if queue.topic.startswith(RETRY_PREFIX):
            # These are the group's own, and none of them may be passed over.
            return bounds.min_offset(queue)
        if self.consume_from_where in _FROM_FIRST_OFFSET:
            return bounds.min_offset(queue)
        if self.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            return bounds.search_offset(queue, self.consume_timestamp_ms)
        return bounds.max_offset(queue)
