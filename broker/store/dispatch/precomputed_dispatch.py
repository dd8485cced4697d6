"""PrecomputedDispatch: queue and index entries of a batch, computed while its commit is hidden.

    chunk appender ── uncommitted ──> [chunk] [chunk]   hidden rows, in memory
        reput, when idle ── step ──> [entries] [keys]       not written to files yet
    commit ── entries ──> consume queues                rollback ── discard
              keys ─────> index

Otherwise all rows of a batch would be read, checked and decoded again when it commits, while
consumers wait. Like `RecentWriteQueue`, this is a hint: missing rows are read from the log, with
the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..bulk import lazy_numpy as np
from ..index.index_keys import HashedKeys, KeyedChunk
from ..queues.consume_queue import ENTRY, ENTRY_BYTES
from ..records.recent_writes import RecentChunk, RecentWriteQueue
from ..results import PhysicalOffset
from .dispatcher import Dispatcher, QueueEntries

BYTES_MAX: Final = 64 << 20
"""The memory limit for entries and keys, of 20 bytes each: enough for some millions of rows.
Further rows are read from the log."""
_KEYS_MAX = 2_048
"""Keys hashed in one step, in a millisecond."""


class PrecomputedEntries(NamedTuple):
    """The entries of contiguous records of the log."""

    start_offset: PhysicalOffset
    end_offset: PhysicalOffset
    runs: Sequence[QueueEntries]


class PrecomputedKeys(NamedTuple):
    """The keys of contiguous records of the log."""

    start_offset: PhysicalOffset
    end_offset: PhysicalOffset
    keys: HashedKeys


class PrecomputedDispatch:
    """The precomputed rows of a commit."""

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
        """The bytes of all entries and keys added since this was last empty."""

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
            found = self._dispatcher.entries_of_chunk(many.chunk, many.start_offset)
            runs = [run._replace(tags_codes=()) for run in found]
            self._bytes += sum(len(run.entries) for run in runs)
            self.entries.add(PrecomputedEntries(many.start_offset, many.end_offset, runs))
            if self._has_index:
                self._keyed = KeyedChunk(many.chunk, many.start_offset)
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
