"""How far a group has come in each queue, in memory; and what all offset stores can do.

A table moves forward unless it is told in so many words to go back. It knows no broker and no file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Protocol

from rmq_spark.wire.message_queue import MessageQueue


class ReadOffsetType(Enum):
    """Where to look for an offset."""

    READ_FROM_MEMORY = 0
    READ_FROM_STORE = 1
    MEMORY_FIRST_THEN_STORE = 2


class OffsetStore(Protocol):
    """Keeps a group's offsets. What goes wrong is raised: an error is never an offset."""

    def load(self) -> None:
        """Read what was kept, if it is kept here."""

    def update_offset(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Remember an offset; with ``increase_only`` an older one is passed over."""

    def read_offset(self, queue: MessageQueue, kind: ReadOffsetType) -> int | None:
        """The offset, or None: this group has none in that queue."""

    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Keep the offsets of these queues for good; one that fails does not keep the others from it."""

    def persist(self, queue: MessageQueue) -> None:
        """Keep one, and come back when it is kept."""

    def remove_offset(self, queue: MessageQueue) -> None:
        """Forget it in memory: the queue is somebody else's."""

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """What is known in memory of a topic."""


class OffsetTable:
    """Offsets by queue. Safe in any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._offsets: dict[MessageQueue, int] = {}

    def get(self, queue: MessageQueue) -> int | None:
        """The offset, if there is one."""
        return self._offsets.get(queue)

    def read(
        self, queue: MessageQueue, kind: ReadOffsetType, stored: Callable[[MessageQueue], int | None]
    ) -> int | None:
        """The offset from here or from where it is kept, as ``kind`` wants it.

        Who looks here first finds it here the next time. What was asked of the store alone, others may move.
        """
        if kind is not ReadOffsetType.READ_FROM_STORE:
            known = self.get(queue)
            if known is not None or kind is ReadOffsetType.READ_FROM_MEMORY:
                return known
        kept = stored(queue)
        if kept is None or kept < 0:
            return None
        if kind is ReadOffsetType.MEMORY_FIRST_THEN_STORE:
            self.add_missing({queue: kept})
        return kept

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Set it, or only if it is further."""
        if offset < 0:
            raise ValueError(f"offset of {queue}: needed 0 or more, found {offset}")
        with self._mutex:
            known = self._offsets.get(queue)
            if known is None or not increase_only or offset > known:
                self._offsets[queue] = offset

    def add_missing(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Take over those of queues that are not known here."""
        with self._mutex:
            self._offsets = {**offsets, **self._offsets}

    def remove(self, queue: MessageQueue) -> None:
        """Forget one."""
        with self._mutex:
            self._offsets.pop(queue, None)

    def of(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Those of some queues, where known."""
        with self._mutex:
            return {queue: self._offsets[queue] for queue in queues if queue in self._offsets}

    def all(self) -> dict[MessageQueue, int]:
        """All of them."""
        with self._mutex:
            return dict(self._offsets)

    def of_topic(self, topic: str) -> dict[MessageQueue, int]:
        """Those of one topic."""
        return {queue: offset for queue, offset in self.all().items() if queue.topic == topic}
