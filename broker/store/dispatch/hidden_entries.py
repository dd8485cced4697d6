"""HiddenEntries: new entries of many queues that become visible all at once.

    add      write entries past the ends of their queues, where no reader looks yet
    publish  move the ends of all these queues past the new entries

Adding is the slow part, and takes a few entries at a time; publishing only moves the end of each
queue. Until then readers, checkpoints and the next start see the queues unchanged. If a queue
cannot be written, `add` may be called with the same entries again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import lazy_numpy as np
from ..index.index_keys import HashedKeys, KeyedChunk
from ..queues.consume_queue import (
    ENTRY,
    ENTRY_BYTES,
    ConsumeQueue,
    blank_entries,
    last_physical_offset,
)
from ..records.recent_writes import RecentChunk, RecentWriteQueue
from ..results import LOG_START, PhysicalOffset, QueueOffset
from .dispatcher import Dispatcher, QueueEntries

CODES_MAX: Final = 4_096
"""The maximum number of different tags codes kept for a queue; with more, none are listed."""


class HiddenTail:
    """The hidden entries of one queue."""

    __slots__ = ("end", "key", "last_physical_offset", "queue", "tags_codes")

    def __init__(self, key: QueueKey, queue: ConsumeQueue) -> None:
        self.key = key
        self.queue = queue
        self.end = queue.max_offset
        self.tags_codes: set[int] | None = set()
        """The different tags codes of the entries; None if there are more than `CODES_MAX`."""
        self.last_physical_offset = LOG_START
        """The position of the record of the last entry."""


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
        """Discard all hidden entries; the next ones overwrite them."""
        self._tails = {}


# ---- PrecomputedDispatch: queue and index entries of a batch, computed while its commit is hidden.

BYTES_MAX: Final = 64 << 20
"""The memory limit for entries and keys, of 20 bytes each: enough for some millions of rows.
Further rows are read from the log."""
_KEYS_MAX = 2_048
"""Keys hashed in one step, within a millisecond."""


class PrecomputedEntries(NamedTuple):
    """The entries of contiguous records of the log."""

    start_offset: PhysicalOffset
    end_offset: PhysicalOffset
    run: QueueEntries


class PrecomputedKeys(NamedTuple):
    """The keys of contiguous records of the log."""

    start_offset: PhysicalOffset
    end_offset: PhysicalOffset
    keys: HashedKeys


class PrecomputedDispatch:
    """The precomputed rows of a commit.

        chunk appender ── uncommitted ──> [chunk] [chunk]   hidden rows, in memory
            reput, when idle ── step ──> [entries] [keys]       not written to files yet
        commit ── entries ──> consume queues                rollback ── discard
                  keys ─────> index

    Otherwise all rows of a batch would be read, checked and decoded again when it commits, while
    consumers wait. Like `RecentWriteQueue`, this is a hint: missing rows are read from the log,
    with the same result.
    """

    def __init__(
        self, uncommitted: RecentWriteQueue[RecentChunk], dispatcher: Dispatcher, *, has_index: bool
    ) -> None:
        self._uncommitted = uncommitted
        self._dispatcher = dispatcher
        self._has_index = has_index
        self._keyed: KeyedChunk | None = None
        self.entries = RecentWriteQueue[PrecomputedEntries]()
        self.keys = RecentWriteQueue[PrecomputedKeys]()
        self._bytes = 0
        """The bytes of all entries and keys; back to 0 when none are left."""

    def step(self) -> bool:
        """Process some rows from memory; return False if there are none."""
        if self._keyed is not None:
            keyed, start = self._keyed, self._keyed.start_offset
            keys = keyed.next_keys(_KEYS_MAX)
            self._bytes += sum(column.nbytes for column in keys)
            self.keys.add(PrecomputedKeys(start, keyed.start_offset, keys))
            if keyed.start_offset >= keyed.end_offset:
                self._keyed = None
            return True
        many = self._uncommitted.pop()
        if many is None:
            return False
        if not self.entries and not self.keys:
            self._bytes = 0
        if self._bytes < BYTES_MAX:
            run = self._dispatcher.entries_of_recent_chunk(many)._replace(tags_codes=())
            self._bytes += len(run.entries)
            self.entries.add(PrecomputedEntries(many.start_offset, many.end_offset, run))
            if self._has_index:
                self._keyed = KeyedChunk(many.chunk, many.start_offset, many.queue[0])
        return True

    def discard(self) -> None:
        """Discard all entries and keys, because the rows are rolled back."""
        self._uncommitted.discard()
        self._keyed = None
        self.entries.discard()
        self.keys.discard()


def with_tags_codes(run: QueueEntries) -> QueueEntries:
    """Return entries with their tags codes filled in from the entries themselves."""
    codes = np.ndarray((len(run.entries) // ENTRY_BYTES,), ENTRY, run.entries)["tags_code"]
    return run._replace(tags_codes=codes.tolist())
