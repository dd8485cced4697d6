"""BatchTable: the last committed batch of each sink, and the commit that is under way.

It is kept as config/stagedBatches.json and a journal beside it, which RocketMQ ignores. These files
decide whether a batch is committed; rows of the commit under way are not visible.

    before the copy     under way: the batch, and the log offset past which its rows will lie
    after the copy      the batch is its sink's last, and nothing is under way
    or, if it failed    nothing is under way; its rows have been marked as rolled back

Each of these states is an entry of the journal. Room for the second is reserved before the first is
written, so that a full disk cannot prevent the commit.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.staged_batches import CommittedBatch
from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.remoting.framing import Buffer

from ...common.local_time import format_local_time
from ...common.recent_losses import LossKind, RecentLosses
from ..errors import BatchRefused, DamagedTable
from ..files.disk import LocalDisk
from ..files.json_table import JsonTable
from ..files.local_file import LocalFile
from ..results import PhysicalOffset

# ---- BatchJournal: the changes of a small table, each with one write and one flush.

JOURNAL_BYTES: Final = 1 << 20
"""Room for some hundred small entries, after which the table is saved and the journal restarts."""

_PAGE: Final = 4_096
_MAGIC: Final = b"RPBJ"
_HEAD = struct.Struct(">4sqii")
_CRC = struct.Struct(">I")
_HEAD_BYTES: Final = _HEAD.size + _CRC.size


class BatchJournal:
    """The journal of one table. Only one thread at a time may call its methods."""

    def __init__(self, disk: LocalDisk, path: Path) -> None:
        self._disk = disk
        self.path = path
        """The journal file."""
        self._file: LocalFile | None = None
        self._generation = 0
        self._number = 0
        self._position = 0

    def load(self, generation: int) -> list[bytes]:
        """Return the entries for a generation of the table; a new table has generation 0.

        Raises:
            DamagedTable: The journal is missing, damaged, or of another table.
        """
        self.close()
        size = self._disk.size_of(self.path)
        if size != JOURNAL_BYTES:
            if not generation:  # a crash cut off a new journal before its first entry
                return []
            raise self.damaged_error("it is missing" if size is None else f"it has {size} bytes")
        self._file = file = self._disk.open(self.path)
        data = bytes(file.read(0, size))
        self._generation, self._number, self._position = generation, 0, 0
        found: list[bytes] = []
        while (content := self._entry(data, self._position)) is not None:
            found.append(content)
            self._advance(content)
        for position in range(self._position, size, _PAGE):
            if data.startswith(_MAGIC, position):
                self._check_no_later_entry(data, position)
        if found:
            # Make accepted entries durable: they may be only in the system's cache, which counts
            # them as written, if a flush failed. So write them once more.
            file.write(data[: self._position], 0)
            file.flush()
        if not generation:  # so that `create` writes it again: its room may not be durable
            self.close()
        return found

    def start_generation(self, generation: int) -> None:
        """Start the entries of a generation, after the table of that generation was saved."""
        self._generation, self._number, self._position = generation, 0, 0

    def create(self) -> None:
        """Create the journal file at its full size, unless it exists."""
        if self._file is not None:
            return
        if self._disk.size_of(self.path) is not None:
            self._disk.delete(self.path)
        file = self._disk.create(self.path, JOURNAL_BYTES)
        file.write(bytes(JOURNAL_BYTES), 0)
        file.flush()
        self._disk.flush_directory(self.path.parent)
        self._file = file

    def has_room(self, *sizes: int) -> bool:
        """Return whether entries with contents of these sizes fit into the journal."""
        needed = sum(_pages(size) for size in sizes)
        return self._file is not None and self._position + needed <= JOURNAL_BYTES

    def append(self, content: bytes) -> None:
        """Append a change and flush it.

        After an error other than a failed flush, the journal is as before.
        """
        if self._file is None:
            raise AssertionError("a journal is created before an append")
        head = _HEAD.pack(_MAGIC, self._generation, self._number, len(content))
        entry = head + _CRC.pack(crc32(content, crc32(head))) + content
        self._file.write(entry, self._position)
        self._file.flush()
        self._advance(content)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _advance(self, content: bytes) -> None:
        self._position += _pages(len(content))
        self._number += 1

    def _entry(self, data: bytes, position: int) -> bytes | None:
        found = _entry_at(data, position)
        if found is None or found[:2] != (self._generation, self._number):
            return None
        return found[2]

    def _check_no_later_entry(self, data: bytes, position: int) -> None:
        found = _entry_at(data, position)
        if found is None:
            return
        generation, number, _ = found
        if generation > self._generation:
            raise self.damaged_error(
                f"the table beside it has generation {self._generation} and is an older copy: the "
                f"entry at {position} has generation {generation}"
            )
        if generation == self._generation and number >= self._number:
            raise self.damaged_error(
                f"entry {self._number} at {self._position} is damaged: entry {number} follows it "
                f"at {position}"
            )

    def damaged_error(self, what: str) -> DamagedTable:
        """Compose the error for an invalid journal, with the remedy."""
        table = self.path.with_suffix(".json")
        return DamagedTable(
            f"{self.path} does not say which batches are committed: {what}. Nothing was changed. "
            f"Restore {table.name} and {self.path.name} from the same copy; or, to forget all "
            f"sinks, move both and {table.name}.bak away: batches can then be committed twice"
        )


def _entry_at(data: bytes, position: int) -> tuple[int, int, bytes] | None:
    """Return the generation, number and content of an entry, or None if it is not whole."""
    if position + _HEAD_BYTES > len(data):
        return None
    magic, generation, number, size = _HEAD.unpack_from(data, position)
    start = position + _HEAD_BYTES
    if magic != _MAGIC or not 0 <= size <= len(data) - start:
        return None
    head: Buffer = data[position : position + _HEAD.size]
    (crc,) = _CRC.unpack_from(data, position + _HEAD.size)
    content = data[start : start + size]
    return (generation, number, content) if crc32(content, crc32(head)) == crc else None


def _pages(size: int) -> int:
    return -(-(_HEAD_BYTES + size) // _PAGE) * _PAGE


BATCH_TABLE: Final = "stagedBatches.json"
BATCH_JOURNAL: Final = "stagedBatches.journal"
SINKS_MAX: Final = 4_096
"""The maximum number of sinks: the table has an entry for each, and is saved when the journal is
full."""
SINK_RETENTION_DAYS: Final = 7
"""Days after its last commit during which a sink is kept, even if another needs its place."""
_DAY_MS: Final = 24 * 3600 * 1000
_OWNER_CHARS_MAX: Final = 255
_ENTRY_BYTES: Final = 4_096
"""An upper limit of the size of an entry without its spans."""
_SPAN_BYTES: Final = 400
"""An upper limit of the size of a span, whose topic has up to 255 bytes."""
SPANS_MAX: Final = (JOURNAL_BYTES - 4 * _ENTRY_BYTES) // _SPAN_BYTES


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """A commit that is under way."""

    sink: str
    batch_id: int
    log_offset: PhysicalOffset
    """The end of the log when the commit began; its rows follow."""

    @property
    def mark(self) -> int:
        """The mark in its rows: the prepared-transaction offset, which is 0 in other messages."""
        return self.log_offset + 1


@dataclass(frozen=True, kw_only=True)
class StagedBatchesTable:
    """The content of the table's file, to be continued by the journal entries of its generation."""

    sinks: Mapping[str, CommittedBatch] = field(default_factory=dict)
    under_way: OpenBatch | None = None
    generation: int = 0
    newest_mark: int | None = None
    """The highest mark of a commit with rows; None if there never was one."""


@dataclass(frozen=True, kw_only=True)
class BatchTableChange:
    """A journal entry: the commit under way from here on, and the sinks that changed."""

    sinks: Mapping[str, CommittedBatch] = field(default_factory=dict)
    forgotten: tuple[str, ...] = ()
    under_way: OpenBatch | None = None

    def apply_to(self, table: StagedBatchesTable) -> StagedBatchesTable:
        """Return the table with this change applied."""
        sinks = table.sinks
        if self.sinks or self.forgotten:
            sinks = {**sinks, **self.sinks}
            for sink in self.forgotten:
                sinks.pop(sink, None)
        newest_mark = table.newest_mark
        if self.under_way is not None:
            newest_mark = max(newest_mark or 0, self.under_way.mark)
        return replace(table, sinks=sinks, under_way=self.under_way, newest_mark=newest_mark)


class BatchTable:
    """The table of one store. Changes are durable when they return."""

    def __init__(
        self,
        disk: LocalDisk,
        directory: Path,
        now_ms: Callable[[], int],
        losses: RecentLosses,
    ) -> None:
        self._table = JsonTable(disk, directory / BATCH_TABLE, StagedBatchesTable)
        self._journal = BatchJournal(disk, directory / BATCH_JOURNAL)
        self._now_ms = now_ms
        self._losses = losses
        self._current = StagedBatchesTable()
        self._must_save_table = True
        self.evicted_sinks = 0
        """Sinks that were forgotten to make room for others, since the start."""

    def load(self) -> None:
        """Read the table and its journal."""
        known = self._table.load(StagedBatchesTable())
        entries = self._journal.load(known.generation)
        try:
            for entry in entries:
                known = decode_body(BatchTableChange, entry).apply_to(known)
        except BodyError as error:  # the entry is intact, but of a newer release
            raise DamagedTable(f"{self._journal.path}: {error}") from error
        self._current = known
        self._must_save_table = not known.generation

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def lost_entry_error(self, first_row: PhysicalOffset) -> DamagedTable:
        """Return the error for a table without the end of a commit whose rows were visible."""
        return self._journal.damaged_error(
            "its last entry is damaged, or it is an older copy: it says that a batch is being "
            f"committed, but the rows of that batch, from {first_row} of the commit log on, are "
            "already in their consume queues"
        )

    def check_newest(self, mark: int, source: str) -> None:
        """Refuse a table without a record of the commit that has a mark found in ``source``."""
        known = self.newest_mark
        if known is not None and mark > known:
            raise self._journal.damaged_error(
                "it is an older copy: the newest commit of rows that it knows began at "
                f"{known - 1} of the commit log, but according to {source} one began at {mark - 1}"
            )

    @property
    def newest_mark(self) -> int | None:
        """The highest mark that rows of a commit may have; None if there never was one."""
        return self._current.newest_mark

    @property
    def under_way(self) -> OpenBatch | None:
        """The commit that is under way, or was when the broker ended."""
        return self._current.under_way

    @property
    def sinks(self) -> Mapping[str, CommittedBatch]:
        """The last batch of each sink, by the sink's name."""
        return self._current.sinks

    def last(self, sink: str) -> CommittedBatch | None:
        """Return the last batch that a sink has committed, or None."""
        return self._current.sinks.get(sink)

    def is_committed(self, sink: str, batch_id: int, owner: str) -> bool:
        """Return whether a batch is its sink's last one; False for a later batch.

        Raises:
            BatchRefused: Another query owns the sink, there are too many sinks, or the sink has
                committed a later batch already.
        """
        last = self.last(sink)
        if last is None:
            if len(owner) > _OWNER_CHARS_MAX:
                raise BatchRefused(
                    f"the owner of sink {sink} has {len(owner)} characters, over {_OWNER_CHARS_MAX}"
                )
            self._check_room(sink)
            return False
        if last.owner != owner:
            raise BatchRefused(
                f"sink {sink} belongs to {last.owner}, which has committed batch {last.batch_id}. "
                f"Give the sink of {owner} another name"
            )
        if batch_id < last.batch_id:
            raise BatchRefused(
                f"sink {sink} has already committed batch {last.batch_id}, which is later than "
                f"batch {batch_id}: the checkpoint is an older copy, or was started over, and its "
                "rows would be sent twice. Restore the latest checkpoint; or, to send them again "
                f"on purpose, run rocketpoll sink forget {sink} and start with a new one"
            )
        return batch_id == last.batch_id

    def begin(self, batch: OpenBatch, spans_max: int) -> None:
        """Save that a commit is under way, before any of its rows is in the log."""
        if spans_max > SPANS_MAX:
            raise BatchRefused(
                f"batch {batch.batch_id} of sink {batch.sink} has {spans_max} chunks, over "
                f"{SPANS_MAX}: stage more rows in each"
            )
        self._apply(
            BatchTableChange(under_way=batch),
            room_for=_ENTRY_BYTES + spans_max * _SPAN_BYTES,
        )

    def commit(self, sink: str, batch: CommittedBatch) -> CommittedBatch:
        """Commit the batch under way, or a batch without rows; return it with its commit time."""
        committed = replace(batch, committed_ms=self._now_ms())
        is_one_more = sink not in self._current.sinks and len(self._current.sinks) >= SINKS_MAX
        forgotten = (self._oldest(),) if is_one_more else ()
        evicted = {name: self._current.sinks[name] for name in forgotten}
        self._apply(BatchTableChange(sinks={sink: committed}, forgotten=forgotten))
        for name, last in evicted.items():
            self.evicted_sinks += 1
            self._losses.report(
                LossKind.SINK_EVICTED,
                f"sink {name} (last batch: {last.batch_id}, at "
                f"{format_local_time(last.committed_ms)}) is forgotten to make room: a repeat of "
                "that batch is not recognized",
                level=logging.WARNING,
            )
        return committed

    def rollback(self) -> None:
        """Save that no commit is under way, after all its rows were marked as rolled back."""
        self._apply(BatchTableChange())

    def forget(self, sink: str) -> None:
        """Forget the last committed batch of a sink."""
        self._apply(BatchTableChange(forgotten=(sink,), under_way=self.under_way))

    def _check_room(self, sink: str) -> None:
        sinks = self._current.sinks
        if len(sinks) < SINKS_MAX:
            return
        oldest = self._oldest()
        if sinks[oldest].committed_ms > self._now_ms() - SINK_RETENTION_DAYS * _DAY_MS:
            raise BatchRefused(
                f"there are {SINKS_MAX} sinks already, all of which have committed within "
                f"{SINK_RETENTION_DAYS} days, and {sink} would be one more. Forget sinks that no "
                "longer write: rocketpoll sink forget NAME"
            )

    def _oldest(self) -> str:
        sinks = self._current.sinks
        return min(sinks, key=lambda sink: sinks[sink].committed_ms)

    def _apply(self, change: BatchTableChange, room_for: int = 0) -> None:
        """Append a change, and keep room for one more entry of the size ``room_for`` after it."""
        content = encode_body(change)
        if self._must_save_table or not self._journal.has_room(len(content), room_for):
            self._save_table()
        self._journal.append(content)
        self._current = change.apply_to(self._current)

    def _save_table(self) -> None:
        """Save the current table as the next generation, for which the journal starts empty.

        The content is unchanged: either generation, with its entries, gives the same table.
        """
        table = replace(self._current, generation=self._current.generation + 1)
        self._journal.create()
        # After an error either generation may be in the file, so no entry may follow until a save
        # succeeds.
        self._must_save_table = True
        self._table.save(table)
        self._journal.start_generation(table.generation)
        self._current = table
        self._must_save_table = False
