"""HiddenEntries: new entries of many queues, all of which come to be seen at one moment.

    add     entries are written behind the ends of their queues, where nobody looks yet
    show    the ends of all these queues move behind them

What takes long is done bit by bit before, whatever the number of entries; to show them only moves
an end for each queue. Until then readers, checkpoints and the next start find their queues as they
were. If a queue takes no entries now, `add` may be called with the same ones again.

This module must not know the log, nor who is told of what comes to be seen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.message_queue import QueueKey

from ..queues.consume_queue import ConsumeQueue, blank_entries, last_physical_offset
from ..results import LOG_START, PhysicalOffset, QueueOffset

CODES_MAX: Final = 4_096
"""The most different tags codes that are remembered of a queue; with more, it may be any."""


class PublishedQueue(NamedTuple):
    """A queue with new entries, and their different tags codes; None if these are too many."""

    key: QueueKey
    queue: ConsumeQueue
    tags_codes: Collection[int] | None
    last_physical_offset: PhysicalOffset
    """The place of the record of the last entry."""


class _HiddenTail:
    """The entries behind the end of a queue: where they end, their tags codes, the last place."""

    __slots__ = ("codes", "end", "last_physical_offset", "queue")

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        self.end = queue.max_offset
        self.codes: set[int] | None = set()
        self.last_physical_offset = LOG_START


class HiddenEntries:
    """The entries that are written and not shown yet."""

    def __init__(self) -> None:
        """Begin without any."""
        self._tails: dict[QueueKey, _HiddenTail] = {}

    def has_any_of(self, key: QueueKey) -> bool:
        """Return whether there are entries of a queue."""
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
        """Write entries behind those of their queue that are there, shown or not.

        Those that are there already are left out; a gap is filled with entries that lead to a blank
        place, and say whose messages were taken back.

        Raises:
            OSError: The disk refuses. To do it again is safe.
        """
        behind = self._tails.get(key)
        if behind is None:
            queue.skip_to(queue_offset, blank_offset, rolled_back)
            behind = self._tails[key] = _HiddenTail(queue)
        if queue_offset > behind.end:
            blanks = blank_entries(range(behind.end, queue_offset), blank_offset, rolled_back)
            behind.end = queue.write_hidden(behind.end, behind.end, blanks)
        behind.end = queue.write_hidden(behind.end, queue_offset, entries)
        behind.last_physical_offset = last_physical_offset(entries)
        if behind.codes is not None:
            behind.codes.update(tags_codes)
            if len(behind.codes) > CODES_MAX:
                behind.codes = None

    def publish(self) -> list[PublishedQueue]:
        """Have all that was added be seen, and forget it; return the queues that it is in."""
        shown = [
            PublishedQueue(key, each.queue, each.codes, each.last_physical_offset)
            for key, each in self._tails.items()
        ]
        for each in self._tails.values():  # from here on, nothing can fail
            each.queue.max_offset = each.end
        self._tails = {}
        return shown

    def discard(self) -> None:
        """Forget all that was added: it is written over by what comes next."""
        self._tails = {}
