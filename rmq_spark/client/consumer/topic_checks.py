"""TopicChecks: listeners that are told when the queues of a topic have changed.

An operator changes them seldom, so the name servers are asked every now and then; nothing else
depends on these listeners.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from rmq_spark.client.threads.scheduled_tasks import Repeated, Workers
from rmq_spark.wire.message_queue import MessageQueue

TopicMessageQueueChangeListener: TypeAlias = Callable[[str, frozenset[MessageQueue]], object]
"""Called with the topic and its queues, after an operator has changed them."""


class TopicChecks:
    """The topics that listeners of one consumer wait for."""

    def __init__(
        self,
        workers: Workers,
        queues_of: Callable[[str], frozenset[MessageQueue]],
        refresh: Callable[[str], object],
        interval_ms: int,
    ) -> None:
        """Take functions that return a topic's queues, and ask a name server for them again."""
        self._workers = workers
        self._queues_of = queues_of
        self._refresh = refresh
        self._interval_ms = interval_ms
        self._checks: list[Repeated] = []

    def add(self, topic: str, listener: TopicMessageQueueChangeListener) -> None:
        """Call a listener whenever a topic has other queues than it had before."""
        known = self._queues_of(topic)

        def check() -> None:
            nonlocal known
            self._refresh(topic)
            found = self._queues_of(topic)
            if found != known:
                known = found
                listener(topic, found)

        repeated = Repeated(self._workers, check, self._interval_ms)
        self._checks.append(repeated)
        repeated.start(self._interval_ms)

    def stop(self) -> None:
        """Look for no changes any more."""
        for check in self._checks:
            check.stop()
