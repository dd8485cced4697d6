"""StoreTimes: offsets with store times and marks of the messages before them, and messages' sizes.

All come from looking at single messages: what is known already is not asked for again.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from rmq_spark.spark.queues import Place, Queues, Stored
from rmq_spark.spark.source_offset import QueuePosition, SourceOffset
from rmq_spark.wire.message_queue import MessageQueue


class StoreTimes:
    """The store times and sizes of the messages before offsets; for use by one thread."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._sizes: dict[MessageQueue, float] = {}

    @property
    def sizes(self) -> Mapping[MessageQueue, float]:
        """The mean size of a message in bytes, by queue, for queues with messages seen."""
        return self._sizes

    def of(
        self,
        offsets: Mapping[MessageQueue, int],
        *known: SourceOffset | None,
        but: Container[MessageQueue] = (),
    ) -> SourceOffset:
        """Return positions at these offsets.

        Args:
            offsets: The next offset of each queue.
            known: Offsets with times; later ones win.
            but: Queues for which everything known is ignored.
        """
        positions = {queue: QueuePosition(offset) for queue, offset in offsets.items()}
        for each in known:
            if each is not None:
                positions.update(
                    (queue, position)
                    for queue, position in each.positions.items()
                    if offsets.get(queue) == position.next_offset and queue not in but
                )
        unknown = {
            queue: position.next_offset - 1
            for queue, position in positions.items()
            if position.next_offset and position.stored_ms is None
        }
        for queue, (stored_ms, _, mark) in self.measure(unknown).items():
            positions[queue] = QueuePosition(positions[queue].next_offset, stored_ms, mark)
        return SourceOffset(positions)

    def measure(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Stored]:
        """Return what is known of these messages; their sizes count in the mean of each queue."""
        found = {}
        for (queue, _), message in self._queues.stored(
            Place(*each) for each in offsets.items()
        ).items():
            found[queue] = message
            mean = self._sizes.get(queue)
            self._sizes[queue] = message.size if mean is None else (mean * 3 + message.size) / 4
        return found
