"""AutoCommit: counts what `poll` has returned as dealt with, as soon as it is called again.

    poll returns ──▶ returned ──poll again──▶ dealt with ──every few seconds──▶ offset store

Without it nothing counts but what the user commits. What is stored at brokers, and when, is the
store's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from rmq_spark.client.consumer.assigned_queues import AssignedQueue
from rmq_spark.client.consumer.offset_table import OffsetStore
from rmq_spark.client.consumer.process_queue import Clock
from rmq_spark.client.threads.mutex import mutex


class AutoCommit:
    """The messages that one consumer has returned lately. Methods may be called from any thread."""

    def __init__(
        self,
        all_assigned: Callable[[], Iterable[AssignedQueue]],
        store: OffsetStore,
        interval_ms: int | None,
        clock: Clock,
    ) -> None:
        """Take the queues and where their offsets go; ``interval_ms`` None is for no commits."""
        self._all_assigned = all_assigned
        self._store = store
        self._interval_ms = interval_ms
        self._clock = clock
        self._mutex = mutex()
        self._returned: dict[AssignedQueue, None] = {}
        self._next_ms = clock() + (interval_ms or 0)

    def returned(self, assigned: AssignedQueue) -> None:
        """Note that `poll` returns messages of a queue, or that one was made a dead letter."""
        if self._interval_ms is not None:
            with self._mutex:
                self._returned[assigned] = None

    def more_is_wanted(self) -> None:
        """Count what was returned before as dealt with, as the caller of `poll` says."""
        if self._interval_ms is None:
            return
        with self._mutex:
            for assigned in list(self._returned):
                assigned.confirm_delivered()
                del self._returned[assigned]
            self._commit_if_due(self._interval_ms)

    def commit_if_due(self) -> None:
        """Hand the offsets to the store, if it is time again."""
        if self._interval_ms is not None:
            with self._mutex:
                self._commit_if_due(self._interval_ms)

    def _commit_if_due(self, interval_ms: int) -> None:
        now_ms = self._clock()
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + interval_ms
            update = partial(self._store.update_offset, increase_only=False)
            for assigned in self._all_assigned():
                assigned.publish_consumed(update)

    def leave(self, assigned: AssignedQueue) -> None:
        """Give a queue up, and have the offset that it has come to stored with the last ones."""
        consumed = assigned.drop()
        if self._interval_ms is not None and consumed is not None:
            self._store.update_offset(assigned.queue, consumed, increase_only=False)
