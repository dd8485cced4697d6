"""WorkedAhead: what queues and index will get of a batch, worked out while its commit holds it.

    chunk appender ── held ──> [chunk] [chunk]      rows that nobody may see yet, in memory
    reput, as it has time ──> [entries] [keys]      nothing of that is written
    let go ── entries ──> consume queues            rolled back ── drop
              keys ─────> index

Without it all rows of a batch would be read again when it is committed, checked and decoded, while
everybody waits for them. As with `Fresh`, it is a hint: what is not here is read in the log, which
says the same. This module must not know which commit that is, nor what becomes of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from rocketpoll.broker.store import lazy_numpy as np
from rocketpoll.broker.store.consume_queue import ENTRY, ENTRY_BYTES
from rocketpoll.broker.store.dispatch import Dispatcher, QueueEntries
from rocketpoll.broker.store.fresh_records import Fresh, FreshChunk
from rocketpoll.broker.store.index_service import Keys, hashed
from rocketpoll.broker.store.keyed_messages import KeyedChunk
from rocketpoll.broker.store.offsets import PhysicalOffset

BYTES_MAX: Final = 64 << 20
"""The most memory of entries and keys, of 20 bytes each: for some millions of rows. What comes
behind them is read in the log."""
_KEYS_MAX = 2_048
"""Keys that are hashed in a step, in a millisecond."""


class WorkedEntries(NamedTuple):
    """The entries of records that lie back to back in the log."""

    start_offset: PhysicalOffset
    end_offset: PhysicalOffset
    runs: Sequence[QueueEntries]

    @property
    def size(self) -> int:
        """The bytes that are kept of them."""
        return sum(len(run.entries) for run in self.runs)


class WorkedKeys(NamedTuple):
    """The keys of records that lie back to back in the log."""

    start_offset: PhysicalOffset
    end_offset: PhysicalOffset
    keys: Keys

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


class _Line(Generic[_Worked]):
    """Pieces of the log that wait for reput, in their order."""

    def __init__(self) -> None:
        self._pieces: deque[_Worked] = deque()
        self.size = 0

    def add(self, piece: _Worked) -> None:
        self._pieces.append(piece)
        self.size += piece.size

    def take(self, start: PhysicalOffset, limit: PhysicalOffset) -> _Worked | None:
        """Take the piece that starts there, if it ends before a limit; forget what lies before."""
        pieces = self._pieces
        while pieces and pieces[0].start_offset < start:
            self.size -= pieces.popleft().size
        if not pieces or pieces[0].start_offset > start or pieces[0].end_offset > limit:
            return None
        self.size -= pieces[0].size
        return pieces.popleft()

    def begins_at(self, start: PhysicalOffset, limit: PhysicalOffset) -> PhysicalOffset:
        """Return where the next piece begins behind a place in the log, or the limit."""
        begins = (each.start_offset for each in self._pieces if each.start_offset > start)
        return min(next(begins, limit), limit)

    def drop(self) -> None:
        self._pieces.clear()
        self.size = 0


class WorkedAhead:
    """The rows of a commit, as far as they are worked out."""

    def __init__(self, held: Fresh[FreshChunk], dispatcher: Dispatcher, *, has_index: bool) -> None:
        """Take where held rows come, and what says which queues get them."""
        self._held = held
        self._dispatcher = dispatcher
        self._has_index = has_index
        self._keyed: KeyedChunk | None = None
        self.entries = _Line[WorkedEntries]()
        self.keys = _Line[WorkedKeys]()

    def work(self) -> bool:
        """Take a step with rows that are in memory; return False if there are none."""
        if self._keyed is not None:
            self._hash(self._keyed)
            return True
        many = self._held.pop()
        if many is None:
            return False
        if self.entries.size + self.keys.size < BYTES_MAX:
            found = self._dispatcher.entries_of_chunk(many.chunk, many.start_offset)
            runs = [run._replace(tags_codes=()) for run in found]
            self.entries.add(WorkedEntries(many.start_offset, many.end_offset, runs))
            if self._has_index:
                self._keyed = KeyedChunk(many.chunk, many.start_offset)
        return True

    def _hash(self, keyed: KeyedChunk) -> None:
        start = keyed.start_offset
        keys = hashed(**keyed.take(_KEYS_MAX))
        self.keys.add(WorkedKeys(start, keyed.start_offset, keys))
        if keyed.start_offset >= keyed.end_offset:
            self._keyed = None

    def drop(self) -> None:
        """Forget everything: the rows are taken back."""
        while self._held.pop() is not None:
            pass
        self._keyed = None
        self.entries.drop()
        self.keys.drop()


def with_codes(run: QueueEntries) -> QueueEntries:
    """Return entries with their tags codes, which stand in each."""
    codes = np.ndarray((len(run.entries) // ENTRY_BYTES,), ENTRY, run.entries)["tags_code"]
    return run._replace(tags_codes=codes.tolist())
