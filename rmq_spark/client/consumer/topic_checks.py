"""TopicChecks: listeners that are told when the queues of a topic have changed.

An operator changes them seldom, so the name servers are asked every now and then; nothing else
depends on these listeners. While a topic cannot be read its queues count as they were: that is a
warning once, and once more when it is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from rmq_spark.client.errors import ClientError
from rmq_spark.client.threads.scheduled_tasks import Repeated, Workers
from rmq_spark.wire.message_queue import MessageQueue

TopicMessageQueueChangeListener: TypeAlias = Callable[[str, frozenset[MessageQueue]], object]
"""Called with the topic and its queues, after an operator has changed them."""

_log = logging.getLogger(__name__)


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
        self._is_started = False

    def add(self, topic: str, listener: TopicMessageQueueChangeListener) -> None:
        """Call a listener whenever a topic has other queues than it had before."""
        known = self._queues_of(topic)
        is_away = False

        def check() -> None:
            nonlocal known, is_away
            try:
                self._refresh(topic)
                found = self._queues_of(topic)
            except ClientError as error:
                level = logging.DEBUG if is_away else logging.WARNING
                _log.log(level, "changes of %s cannot be looked for: %s", topic, error)
                is_away = True
                return
            if is_away:
                _log.warning("it is over that changes of %s cannot be looked for", topic)
                is_away = False
            if found != known:
                known = found
                try:
                    listener(topic, found)
                except BaseException:  # noqa: BLE001  # a listener's error must not stop others
                    _log.exception("the listener for changes of %s failed", topic)

        repeated = Repeated(self._workers, check, self._interval_ms)
        self._checks.append(repeated)
        if self._is_started:
            repeated.start(self._interval_ms)

    def start(self) -> None:
        """Look for changes from now on: no thread begins before its consumer is started."""
        self._is_started = True
        for check in self._checks:
            check.start(self._interval_ms)

    def stop(self) -> None:
        """Look for no changes any more."""
        for check in self._checks:
            check.stop()
