"""OffsetStore: the interface of all offset stores; OffsetTable: offsets by queue, in memory.

An offset in a table moves forward only, unless the caller asks explicitly for a move back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Protocol

from rmq_spark.client.consumer.queues.queue_identity import LastMessage
from rmq_spark.wire.message_queue import MessageQueue


class ReadOffsetType(Enum):
    """Place to read an offset from."""

    READ_FROM_MEMORY = 0
    READ_FROM_STORE = 1
    MEMORY_FIRST_THEN_STORE = 2


class OffsetStore(Protocol):
    """Keeps a group's offsets. Errors are raised: an error is never an offset."""

    def load(self) -> None:
        """Load the persisted offsets, if this store keeps them itself."""

    def update_offset(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Remember an offset; with ``increase_only``, ignore one that is not greater."""

    def set_initial_offset(self, queue: MessageQueue, offset: int) -> None:
        """Set where a queue begins, unless its offset is known."""

    def read_offset(self, queue: MessageQueue, kind: ReadOffsetType) -> int | None:
        """Return the group's offset in a queue, or None if it has none."""

    def stored_offset(self, queue: MessageQueue) -> int | None:
        """Return the persisted offset, or None; the offsets in memory do not change."""

    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Persist the offsets of these queues; a failure of one does not stop the others.

        Raises:
            ClientShutDown: The client has stopped, so that no offset can be persisted.
        """

    def persist(self, queue: MessageQueue, offset: int) -> None:
        """Set an offset, persist it, and wait until it is stored."""

    def store_offset(self, queue: MessageQueue, offset: int) -> None:
        """Persist an offset that is in memory, and wait until it is stored."""

    def set_last_message(self, queue: MessageQueue, message: LastMessage | None) -> None:
        """Set the last message pulled from a queue, if this store keeps offsets itself."""

    def last_message(self, queue: MessageQueue) -> LastMessage | None:
        """Return the last message pulled from a queue whose offset this store keeps, if known."""

    def stop_overwriting(self) -> None:
        """Stop storing offsets where somebody else has stored another one meanwhile."""

    def remove_offset(self, queue: MessageQueue) -> None:
        """Drop a queue's offset from memory: another member has the queue."""

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets of a topic that are in memory."""


class OffsetTable:
    """Offsets by queue. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._offsets: dict[MessageQueue, int] = {}

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue, or None."""
        return self._offsets.get(queue)

    def read(
        self,
        queue: MessageQueue,
        kind: ReadOffsetType,
        read_stored: Callable[[MessageQueue], int | None],
    ) -> int | None:
        """Return the offset in memory or, by ``read_stored``, the stored one, as ``kind`` says.

        A stored offset is not kept in memory, because it would be stored again, though the topic
        may be recreated by then.
        """
        if kind is not ReadOffsetType.READ_FROM_STORE:
            known = self.get(queue)
            if known is not None or kind is ReadOffsetType.READ_FROM_MEMORY:
                return known
        kept = read_stored(queue)
        return None if kept is None or kept < 0 else kept

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Set an offset; with ``increase_only``, ignore one that is not greater."""
        _check(queue, offset)
        with self._mutex:
            known = self._offsets.get(queue)
            if known is None or not increase_only or offset > known:
                self._offsets[queue] = offset

    def set_initial_offset(self, queue: MessageQueue, offset: int) -> None:
        """Set an offset, unless the queue's is known."""
        _check(queue, offset)
        with self._mutex:
            self._offsets.setdefault(queue, offset)

    def add_missing(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Add the offsets of queues that are not known here."""
        with self._mutex:
            self._offsets = {**offsets, **self._offsets}

    def remove(self, queue: MessageQueue) -> None:
        """Drop the offset of a queue."""
        with self._mutex:
            self._offsets.pop(queue, None)

    def get_many(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offsets of some queues, where known."""
        with self._mutex:
            return {queue: self._offsets[queue] for queue in queues if queue in self._offsets}

    def copy(self) -> dict[MessageQueue, int]:
        """Return a copy of all offsets."""
        with self._mutex:
            return dict(self._offsets)

    def get_topic(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets of one topic."""
        return {queue: offset for queue, offset in self.copy().items() if queue.topic == topic}


def _check(queue: MessageQueue, offset: int) -> None:
    if offset < 0:
        raise ValueError(f"offset of {queue}: needed 0 or more, found {offset}")
