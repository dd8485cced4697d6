"""Commit: stores a member's offsets at once, for queues that are still the ones that were read.

If a topic was recreated, none of its new messages was read, and an offset of the old queue would
skip as many of them. `offset_manager` does the periodic persisting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from rmq_spark.client.concurrency.threads import parallel_map, raise_first
from rmq_spark.client.consumer.brokers.broker_client import group_by_broker
from rmq_spark.client.consumer.offsets.offset_store import OffsetStore
from rmq_spark.client.consumer.queues.assigned_queues import AssignedQueue, AssignedQueues
from rmq_spark.client.errors import CONNECTION_FAULTS
from rmq_spark.wire.message_queue import MessageQueue

# ---- AutoCommit: counts what `poll` has returned as consumed, as soon as it is called again.


class AutoCommit:
    """Tracks the messages that one consumer has returned. All methods are thread-safe."""

    def __init__(self, queues: AssignedQueues, store: OffsetStore, *, is_enabled: bool) -> None:
        self._queues = queues
        self._store = store
        self._is_enabled = is_enabled
        self._mutex = threading.Lock()
        self._pending: dict[AssignedQueue, None] = {}

    def record_returned(self, assigned: AssignedQueue) -> None:
        """Note that `poll` returns messages of a queue, or that a message became a dead letter."""
        if self._is_enabled:
            with self._mutex:
                self._pending[assigned] = None

    def confirm_returned(self) -> None:
        """Count the earlier returned messages as consumed, as the caller of `poll` confirms."""
        if not self._is_enabled:
            return
        with self._mutex:
            for assigned in list(self._pending):
                assigned.confirm_delivered()
                del self._pending[assigned]

    def publish(self) -> None:
        """Put the offset of each queue into the store, from which it is persisted next."""
        if self._is_enabled:
            update = partial(self._store.update_offset, increase_only=False)
            with self._mutex:
                for assigned in self._queues.all():
                    assigned.publish_consumed(update)

    def release(self, assigned: AssignedQueue) -> None:
        """Release a revoked queue, and store its final offset with the next ones."""
        consumed = assigned.drop()
        if self._is_enabled and consumed is not None:
            self._store.update_offset(assigned.queue, consumed, increase_only=False)


_log = logging.getLogger(__name__)

COMMIT_THREADS_MAX: Final = 16
"""Most brokers, and most queues of a broker, whose offsets are stored at a time."""

_QUEUES_PER_THREAD: Final = 4
"""So few are stored one after the other, sooner than another thread is started."""


class CommitRequest(NamedTuple):
    """Offsets that a user wants stored, and how often operators had moved each queue by then."""

    offsets: Mapping[MessageQueue, int]
    reset_counts: Mapping[MessageQueue, int]

    @classmethod
    def from_returned(cls, all_assigned: Iterable[AssignedQueue]) -> CommitRequest:
        """Return the offset of each queue past all returned messages, which count as consumed."""
        offsets: dict[MessageQueue, int] = {}
        moves = {assigned.queue: assigned.reset_count for assigned in all_assigned}
        for assigned in all_assigned:
            assigned.confirm_delivered()
            assigned.publish_consumed(offsets.__setitem__)
        return cls(offsets, moves)

    def current_offsets(self, all_assigned: Iterable[AssignedQueue]) -> dict[MessageQueue, int]:
        """Return the offsets, without those of queues that an operator has moved since."""
        moved = {
            each.queue
            for each in all_assigned
            if each.reset_count > self.reset_counts.get(each.queue, 0)
        }
        return {queue: offset for queue, offset in self.offsets.items() if queue not in moved}


def store_offsets(
    store: OffsetStore,
    commit: CommitRequest,
    offsets: Mapping[MessageQueue, int],
    reset_count_of: Callable[[MessageQueue], int],
    is_same_queue: Callable[[MessageQueue], bool],
) -> None:
    """Wait until all brokers have the offsets; a failing broker does not stop the others.

    The store holds them in memory already. If an operator moves a queue while its broker is storing
    the offset, the operator's offset is sent after it, because this commit may have overwritten it.
    Any other change does not matter: it is stored with the next offsets.

    Brokers get their requests in parallel, and several queues of a broker at a time, because each
    request may take milliseconds.

    Raises:
        RocketPollError: A broker has not answered. Its offsets are remembered, and stored later.
    """

    def persist(queue: MessageQueue) -> None:
        if not is_same_queue(queue):
            _log.warning("%s was recreated: its offset is not stored", queue)
            return
        offset, before = offsets[queue], commit.reset_counts.get(queue, 0)
        while True:
            moves = reset_count_of(queue)
            if moves > before:
                moved_to = store.known_offset(queue)
                offset = offset if moved_to is None else moved_to
            store.store_offset(queue, offset)
            if reset_count_of(queue) <= moves:
                return

    queues = group_by_broker(offsets)

    def persist_at(broker_name: str) -> None:
        own = queues[broker_name]
        most = max(1, min(len(own) // _QUEUES_PER_THREAD, COMMIT_THREADS_MAX))
        found = parallel_map(
            own, persist, threads_max=most, name="commits", stop_on=CONNECTION_FAULTS
        )
        raise_first(found.values())

    raise_first(
        parallel_map(queues, persist_at, threads_max=COMMIT_THREADS_MAX, name="commits").values()
    )
