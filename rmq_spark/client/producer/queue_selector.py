"""QueueSelector: chooses the queue of the next message in turn, and skips failed or slow brokers.

    latency of a send, ms     50   100    550   1,000    2,000    3,000   15,000
    not chosen for, ms         0     0  30,000  60,000  120,000  180,000  600,000

Slow brokers are skipped only if the producer enables that. A broker that has just failed, or cannot
be reached, is always skipped while there is another.
"""

from __future__ import annotations

import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.tags import java_string_hash

LATENCIES_MS: Final = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
NOT_AVAILABLE_MS: Final = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
FAILURE_LATENCY_MS: Final = 30_000


def not_available_ms(latency_ms: float) -> int:
    """Return the milliseconds for which a broker is avoided after a send of that latency."""
    return NOT_AVAILABLE_MS[max(bisect_right(LATENCIES_MS, latency_ms) - 1, 0)]


class QueueSelector:
    """Chooses queues for one producer. Methods may be called from any thread."""

    def __init__(
        self,
        clock: Callable[[], float],
        is_silent: Callable[[str], bool],
        *,
        send_latency_fault_enable: bool = False,
    ) -> None:
        """Make a selector; ``clock`` is in seconds and monotonic.

        ``is_silent`` returns whether a broker, by name, cannot be reached.
        """
        self._clock = clock
        self._is_silent = is_silent
        self._is_latency_fault_enabled = send_latency_fault_enable
        self._turns = threading.local()
        self._available_at: dict[str, float] = {}

    def select(
        self,
        queues: Sequence[MessageQueue],
        failed_broker: str | None = None,
        turn: int | None = None,
    ) -> MessageQueue:
        """Return the next of a topic's queues, on another than the failed broker if possible.

        ``turn`` is one that `next_turn` has returned, perhaps in another thread; by default, the
        next.
        """
        turn = self.next_turn() if turn is None else turn
        first: MessageQueue | None = None

        def available_at(queue: MessageQueue) -> float:
            return self._available_at.get(queue.broker_name, 0.0)

        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if queue.broker_name == failed_broker:
                continue
            if self.is_available(queue.broker_name):
                return queue
            if first is None or available_at(queue) < available_at(first):
                first = queue
        return first or queues[turn % len(queues)]

    def record_latency(self, broker_name: str, latency_ms: float) -> None:
        """Record the milliseconds that a broker took to answer."""
        if self._is_latency_fault_enabled:
            self._available_at[broker_name] = self._clock() + not_available_ms(latency_ms) / 1000

    def record_failure(self, broker_name: str) -> None:
        """Record that a broker could not be reached, or has not answered."""
        self.record_latency(broker_name, FAILURE_LATENCY_MS)

    def is_available(self, broker_name: str) -> bool:
        """Return whether a broker can be reached, and is not avoided as slow."""
        if self._is_silent(broker_name):
            return False
        return not self._is_latency_fault_enabled or self._clock() >= self._available_at.get(
            broker_name, 0.0
        )

    def next_turn(self) -> int:
        """Return the number of this thread's next turn."""
        turn: int = getattr(self._turns, "turn", None) or random.randrange(1 << 16)  # noqa: S311  # any will do
        self._turns.turn = turn + 1
        return turn


def queue_for_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """Return the queue of all messages with a key, as chosen by Java's SelectMessageQueueByHash."""
    return queues[abs(java_string_hash(key)) % len(queues)]
