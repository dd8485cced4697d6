"""PrecomputedDispatch: queue and index entries of a batch, computed while its commit is hidden.

    chunk appender ── uncommitted ──> [chunk] [chunk]   hidden rows, in memory
    reput, as it has time ──> [entries] [keys]          nothing of that is written
    commit ── entries ──> consume queues                rollback ── discard
              keys ─────> index

Otherwise all rows of a batch would be read, checked and decoded again when it commits, while
consumers wait. Like `RecentWriteQueue`, this is a hint: what is missing here is read from the log,
with the same result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ..bulk import lazy_numpy as np
from ..index.index_keys import HashedKeys, KeyedChunk
from ..queues.consume_queue import ENTRY, ENTRY_BYTES
from ..records.recent_writes import RecentChunk, RecentWriteQueue
from ..results import PhysicalOffset
from .dispatcher import Dispatcher, QueueEntries

BYTES_MAX: Final = 64 << 20
"""The most memory of entries and keys, of 20 bytes each: for some millions of rows. What comes
behind them is read in the log."""
_KEYS_MAX = 2_048
"""Keys that are hashed in a step, in a millisecond."""


class PrecomputedEntries(NamedTuple):
    """The entries of contiguous records of the log."""

    start_offset: PhysicalOffset
    end_offset: PhysicalOffset
    runs: Sequence[QueueEntries]

    @property
    def size(self) -> int:
        """The bytes that are kept of them."""
        return sum(len(run.entries) for run in self.runs)


class PrecomputedKeys(NamedTuple):
    """The keys of contiguous records of the log."""

    start_offset: PhysicalOffset
    end_offset: PhysicalOffset
    keys: HashedKeys

    @property
    def size(self) -> int:
        """The bytes that are kept of them."""
        return sum(column.nbytes for column in self.keys)


class _Piece(Protocol):
    @property
    def start_offset(self) -> PhysicalOffset: ...
    @property
    def end_offset(self) -> PhysicalOffset: ...
    @property
    def size(self) -> int: ...


_Worked = TypeVar("_Worked", bound=_Piece)


class _PrecomputedQueue(Generic[_Worked]):
    """Pieces of the log that are ready for reput, in their order."""

    def __init__(self) -> None:
        self._pieces: deque[_Worked] = deque()
        self.size = 0

    def add(self, piece: _Worked) -> None:
        self._pieces.append(piece)
        self.size += piece.size

    def pop_at(self, start: PhysicalOffset, limit: PhysicalOffset) -> _Worked | None:
        """Pop the piece that starts there, if it ends before a limit; forget earlier ones."""
        pieces = self._pieces
        while pieces and pieces[0].start_offset < start:
            self.size -= pieces.popleft().size
        if not pieces or pieces[0].start_offset > start or pieces[0].end_offset > limit:
            return None
        self.size -= pieces[0].size
        return pieces.popleft()

    def next_start(self, start: PhysicalOffset, limit: PhysicalOffset) -> PhysicalOffset:
        """Return where the next piece past a physical offset begins, or the limit."""
        begins = (each.start_offset for each in self._pieces if each.start_offset > start)
        return min(next(begins, limit), limit)

    def discard(self) -> None:
        self._pieces.clear()
        self.size = 0


class PrecomputedDispatch:
    """The rows of a commit, as far as they are precomputed."""

    def __init__(
        self, uncommitted: RecentWriteQueue[RecentChunk], dispatcher: Dispatcher, *, has_index: bool
    ) -> None:
        """Take where held rows come, and what says which queues get them."""
        self._uncommitted = uncommitted
        self._dispatcher = dispatcher
        self._has_index = has_index
        self._keyed: KeyedChunk | None = None
        self.entries = _PrecomputedQueue[PrecomputedEntries]()
        self.keys = _PrecomputedQueue[PrecomputedKeys]()

    def step(self) -> bool:
        """Process some rows that are in memory; return False if there are none."""
        if self._keyed is not None:
            self._hash(self._keyed)
            return True
        many = self._uncommitted.pop()
        if many is None:
            return False
        if self.entries.size + self.keys.size < BYTES_MAX:
            found = self._dispatcher.entries_of_chunk(many.chunk, many.start_offset)
            runs = [run._replace(tags_codes=()) for run in found]
            self.entries.add(PrecomputedEntries(many.start_offset, many.end_offset, runs))
            if self._has_index:
                self._keyed = KeyedChunk(many.chunk, many.start_offset)
        return True

    def _hash(self, keyed: KeyedChunk) -> None:
        start = keyed.start_offset
        keys = keyed.next_keys(_KEYS_MAX)
        self.keys.add(PrecomputedKeys(start, keyed.start_offset, keys))
        if keyed.start_offset >= keyed.end_offset:
            self._keyed = None

    def discard(self) -> None:
        """Forget everything: the rows are rolled back."""
        while self._uncommitted.pop() is not None:
            pass
        self._keyed = None
        self.entries.discard()
        self.keys.discard()


def with_tags_codes(run: QueueEntries) -> QueueEntries:
    """Return entries with their tags codes, which each entry contains."""
    codes = np.ndarray((len(run.entries) // ENTRY_BYTES,), ENTRY, run.entries)["tags_code"]
    return run._replace(tags_codes=codes.tolist())
