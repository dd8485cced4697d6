"""HiddenEntries: new entries of many queues that become visible all at once.

    add      write entries past the ends of their queues, where nobody reads yet
    publish  move the ends of all these queues past them

The slow part is done earlier, in pieces of a few entries; publishing only moves the
end of each queue. Until then readers, checkpoints and the next start see the queues unchanged. If a
queue cannot be written, `add` may be called with the same entries again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.message_queue import QueueKey

from ..queues.consume_queue import ConsumeQueue, blank_entries, last_physical_offset
from ..results import LOG_START, PhysicalOffset, QueueOffset

CODES_MAX: Final = 4_096
"""The maximum number of different tags codes kept for a queue; with more, any code may be new."""


class HiddenTail:
    """The entries past the end of a queue."""

    __slots__ = ("end", "key", "last_physical_offset", "queue", "tags_codes")

    def __init__(self, key: QueueKey, queue: ConsumeQueue) -> None:
        self.key = key
        self.queue = queue
        self.end = queue.max_offset
        self.tags_codes: set[int] | None = set()
        """Their different tags codes; None if there are too many."""
        self.last_physical_offset = LOG_START
        """The position of the last entry's record."""


class HiddenEntries:
    """Entries that are written and not yet published."""

    def __init__(self) -> None:
        self._tails: dict[QueueKey, HiddenTail] = {}

    def has_any_of(self, key: QueueKey) -> bool:
        """Return whether a queue has hidden entries."""
        return key in self._tails

    def add(
        self,
        key: QueueKey,
        queue: ConsumeQueue,
        queue_offset: QueueOffset,
        entries: Buffer,
        tags_codes: Collection[int],
        blank_offset: PhysicalOffset,
        rolled_back: Sequence[range] = (),
    ) -> None:
        """Write entries that follow the published or hidden entries of their queue.

        Existing entries are skipped. Blank entries fill a gap, and mark rolled-back messages.

        Raises:
            OSError: The disk refuses. A retry is safe.
        """
        tail = self._tails.get(key)
        if tail is None:
            queue.skip_to(queue_offset, blank_offset, rolled_back)
            tail = self._tails[key] = HiddenTail(key, queue)
        if queue_offset > tail.end:
            blanks = blank_entries(range(tail.end, queue_offset), blank_offset, rolled_back)
            tail.end = queue.write_hidden(tail.end, tail.end, blanks)
        tail.end = queue.write_hidden(tail.end, queue_offset, entries)
        tail.last_physical_offset = last_physical_offset(entries)
        if tail.tags_codes is not None:
            tail.tags_codes.update(tags_codes)
            if len(tail.tags_codes) > CODES_MAX:
                tail.tags_codes = None

    def publish(self) -> list[HiddenTail]:
        """Make all hidden entries visible, and return them by queue."""
        shown = list(self._tails.values())
        for each in shown:  # from here on, nothing can fail
            each.queue.max_offset = each.end
        self._tails = {}
        return shown

    def discard(self) -> None:
        """Forget all hidden entries: the next ones overwrite them."""
        self._tails = {}
