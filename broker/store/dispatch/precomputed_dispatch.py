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
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from rmq_spark.wire.properties import KEYS, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, UNIQ_KEY
from rmq_spark.wire.tags import java_string_hash

from ..bulk import lazy_numpy as np
from ..bulk.index_hash import INDEX_KEY_SEPARATOR, IndexHashes, index_hashes
from ..index.index_keys import KeyedChunk
from ..index.index_service import HashedKeys, hash_columns
from ..queues.consume_queue import ENTRY, ENTRY_BYTES
from ..records.recent_writes import FixedSizeRun, RecentChunk, RecentWriteQueue
from ..results import PhysicalOffset
from .dispatcher import Dispatcher, QueueEntries

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..index.index_service import HashedKeys


# ---- Index keys of fixed-size batches that were just written, computed by columns in memory.

_SEPARATOR = PROPERTY_SEPARATOR.encode()
_UNIQ_KEY = f"{UNIQ_KEY}{NAME_VALUE_SEPARATOR}".encode()
_KEYS = f"{KEYS}{NAME_VALUE_SEPARATOR}".encode()
_SEPARATORS_END = 3
_NOT_ASCII = 0x80
_MODULUS = 1 << 32


def keys_of_runs(runs: Sequence[FixedSizeRun]) -> HashedKeys | None:
    """Return the keys of batches, at least one, in the order of the log.

    None if any has keys that must be searched for.
    """
    found: list[HashedKeys] = []
    for (topic, _), some in groupby(runs, _shape_of):
        alike = list(some)
        if any(each.ending.count(_UNIQ_KEY) or each.ending.count(_KEYS) for each in alike):
            return None
        rows = [each.rows for each in alike]
        hashes = hash_fixed_size(
            topic, b"".join(each.message_properties for each in alike), sum(rows)
        )
        if hashes is None:
            return None
        places = [
            np.arange(each.start_offset, each.end_offset, each.record_bytes) for each in alike
        ]
        times = np.repeat([each.store_timestamp for each in alike], rows)
        keyed = slice(len(hashes))  # all or none
        found.append((hashes, np.concatenate(places)[keyed], times[keyed]))
    all_hashes, all_places, all_times = map(np.concatenate, zip(*found, strict=True))
    return all_hashes, all_places, all_times


def _shape_of(batch: FixedSizeRun) -> tuple[str, int]:
    """Return what batches that are processed together have in common."""
    return batch.queue[0], len(batch.message_properties) // batch.rows


def hash_fixed_size(topic: str, text: bytes, count: int) -> IndexHashes | None:
    """Return the hash of the key of each message of a topic, or no hashes if none has a key.

    ``text`` has their properties, back to back and all of one width. None if their keys are not the
    first property, are not unique keys only, or are not ASCII.
    """
    named = text.count(_UNIQ_KEY)
    if text.count(_KEYS):
        return None
    if not named:
        return np.zeros(0, np.int32)
    width = len(text) // count
    name_at = text.find(_UNIQ_KEY)
    begin, start = max(name_at - len(_SEPARATOR), 0), name_at + len(_UNIQ_KEY)
    end = text.find(_SEPARATOR, start, width)
    if end < 0:
        end = width
    if named != count or not start < end or (name_at and not text.startswith(_SEPARATOR, begin)):
        return None
    rows = np.frombuffer(text, np.uint8).reshape(count, width)
    keys, around = rows[:, start:end], (rows[:, begin:start], rows[:, end : end + 1])
    if (
        any((columns != columns[0]).any() for columns in around)
        or keys.min() < _SEPARATORS_END
        or keys.max() >= _NOT_ASCII
    ):
        return None
    powers, scale = _powers(end - start)
    prefix = java_string_hash(topic + INDEX_KEY_SEPARATOR) * scale % _MODULUS
    return index_hashes(keys.astype(np.uint32) @ powers + np.uint32(prefix))


@lru_cache(maxsize=16)
def _powers(width: int) -> tuple[npt.NDArray[np.uint32], int]:
    """Return what each of so many characters counts for, and what stands before them."""
    before, *powers = (pow(31, exponent, _MODULUS) for exponent in range(width, -1, -1))
    return np.array(powers, np.uint32), before


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
        keys = hash_columns(**keyed.next_columns(_KEYS_MAX))
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
