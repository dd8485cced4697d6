"""PopOffsets: where the next pop of a queue begins, and where the group's stored offset is.

    next pop    moves when a check point is appended
    stored      moves when the check point is stored, so that a crash cannot skip its messages

Between the two, usually a flush, the queue is in `_ahead`. If something else moves the stored
offset meanwhile, such as a reset, that offset is used.
"""

from __future__ import annotations

from ...pop.pop_counters import PopQueue
from ...state.tables.consumer_offset import ConsumerOffsetManager


class PopOffsets:
    """The offsets of all queues that groups pop from."""

    def __init__(self, offsets: ConsumerOffsetManager) -> None:
        self._offsets = offsets
        self._ahead: dict[PopQueue, tuple[int, int]] = {}
        """Stored and next offset of queues whose last check point is not stored yet."""

    def query(self, queue: PopQueue) -> int | None:
        """Return the offset at which the next pop begins; None if the group has no offset yet."""
        topic, group, queue_id = queue
        stored = self._offsets.query(group, topic, queue_id)
        ahead = self._ahead.get(queue)
        if ahead is None:
            return stored
        if stored != ahead[0]:  # moved by somebody else
            del self._ahead[queue]
            return stored
        return ahead[1]

    def store(self, queue: PopQueue, queue_offset: int) -> None:
        """Set both offsets."""
        topic, group, queue_id = queue
        self._offsets.commit(group, topic, queue_id, queue_offset)
        self._ahead.pop(queue, None)

    def advance(self, queue: PopQueue, next_offset: int) -> None:
        """Let the next pop begin at an offset; `confirm` stores it."""
        topic, group, queue_id = queue
        stored = self._offsets.query(group, topic, queue_id)
        self._ahead[queue] = (-1 if stored is None else stored, next_offset)

    def confirm(self, queue: PopQueue, next_offset: int) -> None:
        """Store an offset that `advance` has set, unless the stored one was moved meanwhile."""
        ahead = self._ahead.get(queue)
        if ahead is None:
            return
        topic, group, queue_id = queue
        if self._offsets.query(group, topic, queue_id) != ahead[0]:
            del self._ahead[queue]
            return
        self._offsets.commit(group, topic, queue_id, next_offset)
        if next_offset >= ahead[1]:
            del self._ahead[queue]
        else:
            self._ahead[queue] = (next_offset, ahead[1])
