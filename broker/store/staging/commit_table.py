"""BatchTable: the last committed batch of each sink, and the commit that is under way.

It is kept as config/stagedBatches.json and a journal beside it, which RocketMQ ignores. These files
decide: a batch is committed when they say so, and rows of the one under way are not visible.

    before the copy     under way: the batch, and the log offset past which its rows will lie
    after the copy      the batch is its sink's last, and nothing is under way
    or, if it failed    nothing is under way; its rows have been marked as rolled back

Each of these is an entry of the journal. The room for the second is reserved before the first is
written, so that a full disk cannot prevent it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from zlib import crc32

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.staged_batches import CommittedBatch
from rmq_spark.wire.framing import Buffer

from ..errors import BatchRefused, DamagedTable
from ..files.disk import Disk, DiskFile
from ..files.json_table import JsonTable
from ..results import PhysicalOffset

# ---- BatchJournal: the changes of a small table, each with one write and one flush.

JOURNAL_BYTES: Final = 1 << 20
"""Some hundred small entries: so many commits need no table of their own."""
_PAGE: Final = 4_096
_MAGIC: Final = b"RPBJ"
_HEAD = struct.Struct(">4sqii")
_CRC = struct.Struct(">I")
_HEAD_BYTES: Final = _HEAD.size + _CRC.size


class BatchJournal:
    """The journal of one table. Only one thread at a time may call its methods."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        """The file."""
        self._file: DiskFile | None = None
        self._generation = 0
        self._number = 0
        self._position = 0

    def load(self, generation: int) -> list[bytes]:
        """Return the entries for a generation of the table; 0 is that of a new one.

        Raises:
            DamagedTable: The journal is missing, damaged, or not of this table.
        """
        self.close()
        size = self._disk.size_of(self.path)
        if size != JOURNAL_BYTES:
            if not generation:  # a new one was cut off before anything was noted
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
            # What is believed now is there after a power loss, too. It is written once more, as it
            # may be in the system's cache alone, and count as written there, if a flush has failed.
            file.write(data[: self._position], 0)
            file.flush()
        if not generation:  # nothing says that its room was flushed: it is made anew
            self.close()
        return found

    def start_generation(self, generation: int) -> None:
        """Have entries of a generation begin; the table of that generation is saved by now."""
        self._generation, self._number, self._position = generation, 0, 0

    def create(self) -> None:
        """Make the file, with all of its room, unless it is there."""
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
        """Return whether entries with contents of such sizes go in before the file is full."""
        needed = sum(_pages(size) for size in sizes)
        return self._file is not None and self._position + needed <= JOURNAL_BYTES

    def append(self, content: bytes) -> None:
        """Append a change; it is on the disk when this returns.

        After an error that is no failed flush, nothing was noted, and the next entry takes its
        place.
        """
        if self._file is None:
            raise AssertionError("a journal is made before it is written to")
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
        """Return the next entry's content, or None if it is not there."""
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
        """Compose the error of a journal that is not to be believed, with the remedy."""
        table = self.path.with_suffix(".json")
        return DamagedTable(
            f"{self.path} does not say which batches are committed: {what}. Nothing was changed. "
            f"Put {table.name} and {self.path.name} of one copy there; or, to forget all sinks, "
            f"whose batches can then be committed twice, move both and {table.name}.bak away"
        )


def _entry_at(data: bytes, position: int) -> tuple[int, int, bytes] | None:
    """Return the generation, the number and the content of an entry, or None if it is not whole."""
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
    """Return the bytes that an entry takes, in whole pages."""
    return -(-(_HEAD_BYTES + size) // _PAGE) * _PAGE


BATCH_TABLE: Final = "stagedBatches.json"
BATCH_JOURNAL: Final = "stagedBatches.journal"
SINKS_MAX: Final = 4_096
"""Each sink has one entry, and all are saved whenever the journal is full."""
SINK_RETENTION_DAYS: Final = 7
"""Days after its last commit from which on a sink makes room for another, if there are too many."""
_DAY_MS: Final = 24 * 3600 * 1000
_OWNER_CHARS_MAX: Final = 255
_ENTRY_BYTES: Final = 4_096
"""More than an entry has, but for its spans."""
_SPAN_BYTES: Final = 400
"""More than a span takes: its topic has up to 255 bytes."""
SPANS_MAX: Final = (JOURNAL_BYTES - 4 * _ENTRY_BYTES) // _SPAN_BYTES


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """A commit that is under way."""

    sink: str
    batch_id: int
    log_offset: PhysicalOffset
    """The end of the log when it began: its rows lie behind that."""

    @property
    def mark(self) -> int:
        """The offset of a prepared transaction in its rows, which other messages leave at 0."""
        return self.log_offset + 1


@dataclass(frozen=True, kw_only=True)
class StagedBatchesTable:
    """The content of the file, which the journal entries of its generation continue."""

    sinks: Mapping[str, CommittedBatch] = field(default_factory=dict)
    under_way: OpenBatch | None = None
    generation: int = 0
    newest_mark: int | None = None
    """The highest mark of a commit with rows; None if no release that notes it has begun one."""


@dataclass(frozen=True, kw_only=True)
class BatchTableChange:
    """An entry of the journal: what is under way from here on, and which sinks have changed."""

    sinks: Mapping[str, CommittedBatch] = field(default_factory=dict)
    forgotten: tuple[str, ...] = ()
    under_way: OpenBatch | None = None

    def apply_to(self, table: StagedBatchesTable) -> StagedBatchesTable:
        """Return a table with this change."""
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
    """The table of one store. Changes wait for the disk."""

    def __init__(self, disk: Disk, directory: Path, now_ms: Callable[[], int]) -> None:
        self._table = JsonTable(disk, directory / BATCH_TABLE, StagedBatchesTable)
        self._journal = BatchJournal(disk, directory / BATCH_JOURNAL)
        self._now_ms = now_ms
        self._current = StagedBatchesTable()
        self._must_save_table = True

    def load(self) -> None:
        """Read the table and its journal.

        Raises:
            DamagedTable: Which batches are committed cannot be read, or is of an older copy.
        """
        known = self._table.load(StagedBatchesTable())
        entries = self._journal.load(known.generation)
        try:
            for entry in entries:
                known = decode_body(BatchTableChange, entry).apply_to(known)
        except BodyError as error:  # what it says is whole, and of a newer release
            raise DamagedTable(f"{self._journal.path}: {error}") from error
        self._current = known
        self._must_save_table = not known.generation

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def lost_entry_error(self, first_row: PhysicalOffset) -> DamagedTable:
        """Return the error of a table that lacks the end of a commit whose rows were visible."""
        return self._journal.damaged_error(
            "its last entry is damaged, or it is an older copy: it says that a batch is being "
            f"committed, but the rows of that batch, from {first_row} of the commit log on, are "
            "already in their consume queues"
        )

    def check_newest(self, mark: int, source: str) -> None:
        """Refuse a table that does not know of a commit, whose mark was found elsewhere.

        Raises:
            DamagedTable: It is of an older copy.
        """
        known = self.newest_mark
        if known is not None and mark > known:
            raise self._journal.damaged_error(
                "it is an older copy: the newest commit of rows that it knows began at "
                f"{known - 1} of the commit log, but according to {source} one began at {mark - 1}"
            )

    @property
    def newest_mark(self) -> int | None:
        """The highest mark that rows of a commit may have; None if none was ever noted."""
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
        """Return whether a batch is its sink's last; a later one is still to be committed.

        Raises:
            BatchRefused: The sink is another query's, is one more than there may be, or has
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
        """Note, before any row of it is in the log, that a commit is under way.

        Raises:
            BatchRefused: It may have more spans than there is room for.
        """
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
        """Commit a batch, whether it was under way or has no rows; return it with its time."""
        committed = replace(batch, committed_ms=self._now_ms())
        is_one_more = sink not in self._current.sinks and len(self._current.sinks) >= SINKS_MAX
        forgotten = (self._oldest(),) if is_one_more else ()
        self._apply(BatchTableChange(sinks={sink: committed}, forgotten=forgotten))
        return committed

    def rollback(self) -> None:
        """Note that nothing is under way, as all rows of it are marked as rolled back."""
        self._apply(BatchTableChange())

    def forget(self, sink: str) -> None:
        """Forget which batch a sink has committed last."""
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
        """Note a change, and keep room for one more entry of a size after it."""
        content = encode_body(change)
        if self._must_save_table or not self._journal.has_room(len(content), room_for):
            self._save_table()
        self._journal.append(content)
        self._current = change.apply_to(self._current)

    def _save_table(self) -> None:
        """Save the table as it is, as the next generation, for whose changes there is room again.

        It says nothing new: whichever of the two is read, with its entries, is the same.
        """
        table = replace(self._current, generation=self._current.generation + 1)
        self._journal.create()
        # After an error, either may be there: further entries of the one before might mean nothing.
        self._must_save_table = True
        self._table.save(table)
        self._journal.start_generation(table.generation)
        self._current = table
        self._must_save_table = False
