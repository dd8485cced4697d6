"""AutoCommit: counts what `poll` has returned as consumed, as soon as it is called again.

    poll returns ──▶ returned ──poll again──▶ consumed ──each interval──▶ offset store ──▶ brokers

Without it nothing counts but what the user commits. The member's one timer calls `publish`, and
stores the offsets at brokers in the same run: no offset waits for a second timer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from rmq_spark.client.consumer.assigned_queues import AssignedQueue
from rmq_spark.client.consumer.offset_table import OffsetStore
from rmq_spark.client.threads.mutex import mutex


class AutoCommit:
    """The messages that one consumer has returned lately. Methods may be called from any thread."""

    def __init__(
        self,
        all_assigned: Callable[[], Iterable[AssignedQueue]],
        store: OffsetStore,
        *,
        is_enabled: bool,
    ) -> None:
        """Take the queues and where their offsets go."""
        self._all_assigned = all_assigned
        self._store = store
        self._is_enabled = is_enabled
        self._mutex = mutex()
        self._returned: dict[AssignedQueue, None] = {}

    def returned(self, assigned: AssignedQueue) -> None:
        """Note that `poll` returns messages of a queue, or that one was made a dead letter."""
        if self._is_enabled:
            with self._mutex:
                self._returned[assigned] = None

    def more_is_wanted(self) -> None:
        """Count what was returned before as consumed, as the caller of `poll` says."""
        if not self._is_enabled:
            return
        with self._mutex:
            for assigned in list(self._returned):
                assigned.confirm_delivered()
                del self._returned[assigned]

    def publish(self) -> None:
        """Put the offset of each queue into the store, from which it is persisted next."""
        if self._is_enabled:
            update = partial(self._store.update_offset, increase_only=False)
            with self._mutex:
                for assigned in self._all_assigned():
                    assigned.publish_consumed(update)

    def leave(self, assigned: AssignedQueue) -> None:
        """Give a queue up, and have the offset that it has come to stored with the last ones."""
        consumed = assigned.drop()
        if self._is_enabled and consumed is not None:
            self._store.update_offset(assigned.queue, consumed, increase_only=False)
