"""PopOffsets: where the next pop of a queue begins, and the group's stored offset.

    next pop    moves when a check point is appended
    stored      moves when the check point is stored, so that a crash cannot skip its messages

Between the two, usually a flush, the queue is in `_unstored`. If something else moves the stored
offset meanwhile, such as a reset, that offset is used.
"""

from __future__ import annotations

from ...pop.pop_counters import PopQueue
from ...state.tables.consumer_offset import ConsumerOffsetManager


class PopOffsets:
    """The offsets of all queues that groups pop from."""

    def __init__(self, offsets: ConsumerOffsetManager) -> None:
        self._offsets = offsets
        self._unstored: dict[PopQueue, tuple[int, int]] = {}
        """Stored and next offset of queues whose last check point is not stored yet."""

    def query(self, queue: PopQueue) -> int | None:
        """Return the offset at which the next pop begins; None if the group has no offset yet."""
        topic, group, queue_id = queue
        stored = self._offsets.query(group, topic, queue_id)
        unstored = self._unstored.get(queue)
        if unstored is None:
            return stored
        if stored != unstored[0]:  # a reset or a commit has moved it
            del self._unstored[queue]
            return stored
        return unstored[1]

    def store(self, queue: PopQueue, queue_offset: int) -> None:
        """Set both offsets."""
        topic, group, queue_id = queue
        self._offsets.commit(group, topic, queue_id, queue_offset)
        self._unstored.pop(queue, None)

    def advance(self, queue: PopQueue, next_offset: int) -> None:
        """Begin the next pop at an offset, which `confirm` stores."""
        topic, group, queue_id = queue
        stored = self._offsets.query(group, topic, queue_id)
        self._unstored[queue] = (-1 if stored is None else stored, next_offset)

    def confirm(self, queue: PopQueue, next_offset: int) -> None:
        """Store an offset that `advance` has set, unless the stored one has moved since."""
        unstored = self._unstored.get(queue)
        if unstored is None:
            return
        topic, group, queue_id = queue
        if self._offsets.query(group, topic, queue_id) != unstored[0]:
            del self._unstored[queue]
            return
        self._offsets.commit(group, topic, queue_id, next_offset)
        if next_offset >= unstored[1]:
            del self._unstored[queue]
        else:
            self._unstored[queue] = (next_offset, unstored[1])
