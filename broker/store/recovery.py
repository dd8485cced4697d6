"""What the log holds after a stop or a crash: where it ends, and where it has holes.

Records are followed and checked: size, magic, place, body CRC, the checksum of the whole. Where one does
not hold, what is behind it decides what that means:

- nothing: the end. What is left there of a record that was never acknowledged is to be wiped
  (`wipe_behind`), so that no later, shorter append brings a stale record back to life behind it;
- a whole record, or the place up to which all was once on the disk: a hole, made by a bad disk. What is
  behind it stays; the hole is kept as it is, and reported.

Looking changes nothing; wiping writes zeros, behind the end only; nothing is ever deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broker.store import chunks
from broker.store import lazy_numpy as np
from broker.store.checkpoint import CHECKPOINT, Checkpoint, load_checkpoint
from broker.store.commit_log import BLANK_BYTES
from broker.store.directory_lock import AbortFile
from broker.store.disk import Disk
from broker.store.dispatch import record_sizes
from broker.store.mapped_file_queue import MappedFileQueue
from broker.store.queue_table import topic_fault
from rmq_spark.errors import RecordError
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.record import StoredMessage, body_crc_of, decode_blank, decode_record, record_size
from rmq_spark.wire.record_checksum import is_intact

if TYPE_CHECKING:
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.gather import Positions

CHECK_BYTES = 8 << 20
CHECKED_ONE_BY_ONE = 4096
"""A log of so many records is checked before pyarrow would be loaded."""

_SEARCH_BYTES = 1 << 18
_WIPE_BYTES = 1 << 18
_MAGIC_AT = 4
_MAGICS = tuple((magic % (1 << 32)).to_bytes(4, "big") for magic in (layout.MAGIC_V1, layout.MAGIC_V2))


class RecoveredLog(NamedTuple):
    """What was found."""

    end_offset: int
    last_timestamp: int
    holes: tuple[tuple[int, int], ...]


def reliable_checkpoint(disk: Disk, root: Path, files: MappedFileQueue) -> Checkpoint | None:
    """The checkpoint of a store, if it says something about this log, and nobody wrote to that after us."""
    checkpoint = load_checkpoint(disk, root / CHECKPOINT)
    # Another program that stops in order writes its own; one that was killed may have left ours.
    if checkpoint is None or AbortFile(disk, root).is_of_another():
        return None
    return checkpoint if files.first_offset <= checkpoint.safe_offset <= files.end_offset else None


class LogRecovery:
    """One look at a log that nobody writes to.

    Before ``safe_offset``, all was on the disk once; from ``sealed_from`` on, all records have checksums.
    """

    def __init__(self, files: MappedFileQueue, checkpoint: Checkpoint | None) -> None:
        """Without a checkpoint nothing is known, and any record may be another program's."""
        self._files = files
        self._checked_one_by_one = 0
        self.safe_offset = checkpoint.safe_offset if checkpoint else files.first_offset
        self.sealed_from = checkpoint.sealed_from if checkpoint else files.end_offset

    def follow_from(self, start: int) -> RecoveredLog:
        """Follow the log from where a record starts."""
        files = self._files
        position = max(start, files.first_offset)
        last_timestamp = 0
        holes: list[tuple[int, int]] = []
        while position < files.end_offset:
            good_end, timestamp = self._good_until(position)
            last_timestamp = max(last_timestamp, timestamp)
            filled = good_end > position and good_end % files.file_size == 0
            position = good_end
            blank = decode_blank(files.view(position))
            if blank == files.space_left(position):
                position += blank
            elif not filled:
                found = self._next_record(position + 1)
                if found is None and position < self.safe_offset:
                    found = self.safe_offset
                if found is None:
                    break
                holes.append((position, found))
                position = found
        return RecoveredLog(position, last_timestamp, tuple(holes))

    def _good_until(self, start: int) -> tuple[int, int]:
        """Good records from a place on, within its file: where they end, and the last's store time."""
        position, timestamp = start, 0
        file_end = start + self._files.space_left(start)
        while position < file_end:
            view = self._files.view(position)
            sizes = record_sizes(view[:CHECK_BYTES]) or record_sizes(view)[:1]
            good, last = self._good_records(view, sizes, position)
            position += sum(sizes[:good])
            timestamp = max(timestamp, last)
            if not sizes or good < len(sizes):
                break
        return position, timestamp

    def _good_records(self, data: memoryview, sizes: list[int], physical_offset: int) -> tuple[int, int]:
        """How many of the records are whole and in their place, and the latest store time among them."""
        if self._checked_one_by_one + len(sizes) <= CHECKED_ONE_BY_ONE:
            self._checked_one_by_one += len(sizes)
            return self._good_one_by_one(data, sizes, physical_offset)
        try:
            chunk = chunks.RecordChunk(data[: sum(sizes)], sizes)
        except RecordError:
            return self._good_one_by_one(data, sizes, physical_offset)
        bad = np.flatnonzero(~self._are_good(data, chunk, chunk.starts + physical_offset))
        good = int(bad[0]) if len(bad) else len(sizes)
        times = chunks.COLUMNS["storeTimestamp"].build(chunk).view("int64").to_numpy()[:good]
        return good, int(times.max(initial=0))

    def _are_good(self, data: memoryview, chunk: RecordChunk, places: Positions) -> npt.NDArray[np.bool_]:
        """Which of these records are good."""
        is_good = chunks.intact_records(chunk)
        # Before that place others may have written: their records have a checksum of the body alone.
        rows = np.flatnonzero(~is_good & (places < self.sealed_from))
        starts = chunk.body_at[rows]
        bounds = zip(starts.tolist(), (starts + chunk.body_length[rows]).tolist(), strict=True)
        found_crcs = np.fromiter((body_crc_of(data[start:end]) for start, end in bounds), np.int64, len(rows))
        is_good[rows] = found_crcs == chunk.head["body_crc"][rows]
        topics = chunks.COLUMNS["topic"].build(chunk).dictionary_encode()
        is_topic = np.array([topic_fault(topic) is None for topic in topics.dictionary.to_pylist()])
        found: npt.NDArray[np.bool_] = (
            is_good & (chunk.head["physical_offset"] == places) & is_topic[topics.indices.to_numpy()]
        )
        return found

    def _good_one_by_one(self, data: memoryview, sizes: list[int], physical_offset: int) -> tuple[int, int]:
        position = last_timestamp = 0
        for number, size in enumerate(sizes):
            message = self._record_at(data[position : position + size], physical_offset + position)
            if message is None:
                return number, last_timestamp
            last_timestamp = max(last_timestamp, message.store_timestamp)
            position += size
        return len(sizes), last_timestamp

    def _record_at(self, data: memoryview, physical_offset: int) -> StoredMessage | None:
        """The message whose whole record starts the data and says that it belongs there, if one does."""
        try:
            message = decode_record(data)
        except RecordError:
            return None
        is_good = (
            message.physical_offset == physical_offset
            and (physical_offset < self.sealed_from or is_intact(data[: record_size(data, 0)]))
            and topic_fault(message.topic) is None
        )
        return message if is_good else None

    def _next_record(self, start: int) -> int | None:
        """The first place from there on where a record lies that belongs there."""
        files = self._files
        position: int | None = start
        while position is not None:
            position = files.next_data(position)
            if position is None:
                return None
            window = bytes(files.view(position)[:_SEARCH_BYTES])
            for at in _magic_places(window):
                place = position + at - _MAGIC_AT
                if place >= start and self._record_at(files.view(place), place):
                    return place
            # A magic may lie across the edge of the window.
            position += max(len(window) - BLANK_BYTES, 1) if len(window) == _SEARCH_BYTES else len(window)
        return None


def _magic_places(window: bytes) -> list[int]:
    places = []
    for magic in _MAGICS:
        at = window.find(magic)
        while at >= 0:
            places.append(at)
            at = window.find(magic, at + 1)
    return sorted(places)


def pieces_behind(files: MappedFileQueue, end_offset: int) -> Iterator[tuple[int, memoryview]]:
    """Behind the end of a log, the pieces that are not all zeros, and where they lie."""
    position = files.next_data(end_offset)
    while position is not None:
        position = max(position, end_offset)
        piece = files.view(position)[:_WIPE_BYTES]
        if np.frombuffer(piece, np.uint8).any():
            yield position, piece
        position = files.next_data(position + len(piece))


def wipe_behind(files: MappedFileQueue, end_offset: int) -> None:
    """Zeros from the end of the log to the last byte that was ever written."""
    wiped = False
    for position, piece in pieces_behind(files, end_offset):
        files.write(position, bytes(len(piece)))
        wiped = True
    if wiped:
        files.flush()
