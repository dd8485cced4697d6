"""TakenBack: offsets of rolled-back rows that reput has passed, and their queues have not.

A batch that is rolled back gives its offsets to the messages that come next; where others came
behind its rows before that, their queue has a gap. Reput learns of the rows before it comes to the
gap, and has the blank entries there say that nobody has lost these messages.

It reads and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_spark.wire.message_queue import QueueKey
from rocketpoll.broker.store.offsets import QueueOffset


class TakenBack:
    """Ranges of offsets, by queue."""

    def __init__(self) -> None:
        """Know of none."""
        self._ranges: dict[QueueKey, list[range]] = {}

    def note(self, key: QueueKey, start: QueueOffset, count: int = 1) -> None:
        """Remember that messages with successive offsets were rolled back; to repeat it is safe."""
        ranges = self._ranges.setdefault(key, [])
        stop = start + count
        if ranges and ranges[-1].start <= start <= ranges[-1].stop:
            ranges[-1] = range(ranges[-1].start, max(stop, ranges[-1].stop))
        else:
            ranges.append(range(start, stop))

    def of(self, key: QueueKey) -> Sequence[range]:
        """Return the ranges of a queue, in order."""
        return sorted(self._ranges.get(key, ()), key=lambda each: each.start)

    def forget(self, key: QueueKey, end: QueueOffset) -> None:
        """Forget what lies before the end of a queue."""
        if self._ranges:
            kept = [each for each in self._ranges.pop(key, ()) if each.stop > end]
            if kept:
                self._ranges[key] = kept
