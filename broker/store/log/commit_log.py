"""CommitLog: every message of every topic, one after the other, in the order of arrival.

Records have the layout that `rmq_spark.wire.message.record_layout` draws. A record is never split
over two files: where it does not fit, a blank record fills the file. Appending gives a record its
physical offset, queue offset and store timestamp, and seals it with a checksum at its end. Store
timestamps do not go back, except for steps that correct a wrong clock (`store_timeline`).

A failed flush is not retried: the kernel may have dropped the dirty pages, and the next flush would
report success. From then on nothing is appended; reads continue. A failed write or a shortage is
less serious: nothing was acknowledged, the written part of the record is wiped at once, and the
next append may succeed. If the disk refuses the wipe, the next append retries it at the latest. If
that fails for another reason than a shortage, the log has failed.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from rmq_spark.errors import RecordError
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.record import decode_blank, encode_blank
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import lazy_numpy as np
from ..errors import (
    Degradation,
    StoreFailed,
    TransientFailure,
    UnreadableFile,
    describe_error,
    is_disk_full,
    is_retryable,
    is_transient,
)
from ..files.file_pool import FileGroup, FilePool
from ..files.mapped_file_queue import MappedFileQueue
from ..records.integrity import record_sizes
from ..records.store_timeline import STEP_MS, StoreTimeline
from ..results import LOG_START, PhysicalOffset, QueueOffset

if TYPE_CHECKING:
    import numpy.typing as npt

_log = logging.getLogger(__name__)
BLANK_BYTES = 8
_RECORD_BYTES_LIKELY = 1 << 12
_LEFTOVER_WARNING = (
    "%s holds remains of refused messages, %d to %d of the commit log, which the next "
    "start may find"
)
FILE_CHECK_INTERVAL_MS = 10
"""Milliseconds between checks that the current file is in place; each takes microseconds."""
_DISK_FULL_RETRY_MS = 10_000
"""Milliseconds after a refused write in which a smaller write does not end the degradation, because
a full disk often has room for a small one."""

_PAGE_BYTES = 1 << 12
"""The unit of a wipe; even a full disk overwrites a page that it has allocated."""

AppendedRange: TypeAlias = tuple[PhysicalOffset, PhysicalOffset, int]
"""The position of appended records, their end, and their store timestamp."""


class Draft(Protocol):
    """Messages that are complete except for the fields that depend on their position."""

    @property
    def size(self) -> int:
        """The size of their records, in bytes."""

    def encode(
        self, queue_offset: QueueOffset, physical_offset: PhysicalOffset, store_timestamp: int
    ) -> Buffer:
        """Return the records, given the first one's queue and physical offset, and their time."""


class EncodedRecords(NamedTuple):
    """Contiguous encoded records, complete except for their positions and checksums."""

    data: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.int64]
    queue_offsets: npt.NDArray[np.int64]
    store_timestamps_at: npt.NDArray[np.int64]
    seal: Callable[[], None]
    """Fills in the checksums, once all other fields are final."""

    def fill_positions(self, position: PhysicalOffset, timestamp: int) -> memoryview:
        """Fill in all positions, times and checksums; return the records."""
        starts = np.cumsum(self.sizes) - self.sizes
        # Overlapping 8-byte cells, one at every byte: see `rmq_spark.wire.chunk.buffer_slices`.
        cells = np.ndarray((len(self.data) - 7,), "V8", self.data, strides=(1,))
        cells[starts + layout.QUEUE_OFFSET_AT] = self.queue_offsets.astype(">i8").view("V8")
        cells[starts + layout.PHYSICAL_OFFSET_AT] = (starts + position).astype(">i8").view("V8")
        cells[self.store_timestamps_at] = np.array(timestamp, ">i8").view("V8")
        self.seal()
        return self.data.data


class CommitLog:
    """The log. The caller has to ensure that only one thread appends at a time."""

    def __init__(
        self,
        pool: FilePool,
        directory: Path,
        file_size: int,
        now_ms: Callable[[], int],
        file_check_interval_ms: int | None = None,
    ) -> None:
        """Store the parts; loading the log, or the first append, touches the disk.

        Set ``file_check_interval_ms`` if messages count before they are flushed. A write then first
        checks, at most once per interval, that the current file is where a start looks for it.
        """
        self.files = MappedFileQueue(FileGroup(pool), directory, file_size)
        """The files of the log, also for recovery and retention."""
        self._now_ms = now_ms
        self._file_check_interval_ms = file_check_interval_ms
        self._file_checked_ms = 0
        self.timeline = StoreTimeline()
        """The store timestamps of the log so far."""
        self._is_clock_behind = False
        self._unwiped_range: tuple[PhysicalOffset, PhysicalOffset] | None = None
        self._flush_lock = threading.Lock()
        self.written_offset = LOG_START
        self.flushed_offset = LOG_START
        self.sealed_from = LOG_START
        """The offset from which every record has a checksum; another program may have written
        before."""
        self.failure: Exception | None = None
        self.write_degradation = Degradation("the commit log is not written")
        self._refused_write = 0, 0
        """The size of the last write refused by a full disk, and its time."""
        self._is_past_first_file = False
        self.flush_degradation = Degradation("the commit log is not flushed")

    @property
    def min_offset(self) -> PhysicalOffset:
        """The first offset that is still kept."""
        return PhysicalOffset(self.files.first_offset)

    @property
    def clock_behind_ms(self) -> int:
        """Milliseconds by which the clock lags the last message; new ones get its timestamp."""
        return max(self.timeline.last_ms - self._now_ms(), 0)

    def restore(
        self, end_offset: PhysicalOffset, timeline: StoreTimeline, sealed_from: PhysicalOffset
    ) -> None:
        """Continue at the end that recovery has found. Everything before it is on the disk."""
        self.sealed_from = sealed_from
        self.written_offset = self.flushed_offset = end_offset
        self.timeline = timeline

    def append(self, draft: Draft, queue_offset: QueueOffset) -> AppendedRange:
        """Append a prepared draft; return its position, its end, and its store timestamp."""
        position = self._next_position(draft.size)
        timestamp = self._next_timestamp(position)
        records = draft.encode(queue_offset, position, timestamp)
        return self._write(position, len(records), (records,), timestamp)

    def append_many(self, parts: Sequence[EncodedRecords]) -> AppendedRange:
        """Append encoded records, all or none; they must all fit into one file.

        Each part is written right after its positions are filled in, while it is still in the
        processor's cache. This takes two thirds of the time of filling in all parts first.
        """
        size = sum(len(part.data) for part in parts)
        position = self._next_position(size)
        timestamp = self._next_timestamp(position)
        return self._write(position, size, _fill_positions(parts, position, timestamp), timestamp)

    def skip_first_file(self) -> None:
        """Append no more records to the log's first file, to which blank entries cannot refer.

        A blank record fills that file when the next record arrives, as at the end of any file.
        """
        self._is_past_first_file = True

    def room_in_file(self) -> int:
        """Return the number of bytes of records that fit into the current file."""
        if self._is_past_first_file and self.written_offset < self.files.file_size:
            return 0
        return max(self.files.space_left(self.written_offset) - BLANK_BYTES, 0)

    def read(self, physical_offset: PhysicalOffset, size: int) -> Buffer:
        """Read records within one file; return fewer bytes if some were deleted."""
        return self.files.read(physical_offset, size)

    def read_record(self, physical_offset: PhysicalOffset) -> Buffer:
        """Return the record at a position, by its own size field; empty if there can be none."""
        room = min(self.written_offset - physical_offset, self.files.space_left(physical_offset))
        try:
            head = self.read(physical_offset, min(room, _RECORD_BYTES_LIKELY))
        except UnreadableFile:  # only the bytes past the record may be unreadable
            head = self.read(physical_offset, min(room, layout.RECORD_BYTES_MIN))
        if len(head) < layout.RECORD_BYTES_MIN:
            return b""
        size = int.from_bytes(head[:4], "big")
        if size <= len(head):
            return head[:size]
        return self.read(physical_offset, size) if size <= room else b""

    def read_records(
        self,
        start: PhysicalOffset,
        stop: PhysicalOffset,
        bytes_max: int,
        count_max: int = sys.maxsize,
    ) -> tuple[Buffer, list[int]]:
        """Return the first records between two offsets of a file, and their sizes; none at a blank.

        Raises:
            RecordError: There is neither a record nor a blank.
        """
        data = self.files.read_available(start, min(stop - start, bytes_max))
        sizes = record_sizes(data, count_max)
        if sizes:
            return data, sizes
        if len(data) < stop - start and decode_blank(data) is None:  # the record is longer
            data = self.read_record(start)
            if 0 < len(data) <= stop - start:
                return data, [len(data)]
        if decode_blank(data) is None:
            raise RecordError(
                "log", at=start, needed="a record or a blank", found=bytes(data[:BLANK_BYTES])
            )
        return data, []

    def flush(self) -> PhysicalOffset:
        """Flush everything written so far, and return its end.

        Raises:
            OSError: A shortage; the flush may be retried.
            StoreFailed: The flush has failed.
        """
        # Without the lock, a second flush would find nothing to do and return before the first.
        with self._flush_lock:
            self._check_failure()
            end_offset = self.written_offset
            try:
                self.files.flush()
                # A file that a start would not find is not durable.
                self.files.check_in_place(self.flushed_offset, end_offset)
            except Exception as error:
                # After any other error, the state of unflushed data is unknown.
                if is_retryable(error):
                    self.flush_degradation.begin(error)
                    raise
                self.failure = error
                raise StoreFailed("flushing the commit log failed", error) from error
            self.flush_degradation.end()
            self.flushed_offset = end_offset
            return end_offset

    @property
    def unwritable_reason(self) -> str | None:
        """The reason why no message can be written; None if at least small ones can."""
        return None if self._refused_write[0] else self.write_degradation.text

    def probe_writable(self) -> None:
        """Check whether a disk that refused writes, such as a read-only one, accepts them now.

        Clients do not send to a broker that is not ready, so no append would notice. This writes
        one zero byte past the end of the log.
        """
        if self.unwritable_reason is not None:
            with suppress(OSError, StoreFailed, MemoryError):
                self.wipe()
                self.files.write(self.written_offset, bytes(1))
                self.write_degradation.end()

    def wipe(self) -> None:
        """Write zeros over the remains of a failed write.

        Otherwise a complete record in the remains could become valid later. Only pages with data
        are written, which needs no room. The last page is wiped first: if this is interrupted, the
        rest looks like an interrupted write.

        Raises:
            OSError, StoreFailed: The disk refuses. The next call wipes the rest.
        """
        if self._unwiped_range is None:
            return
        start, end = self._unwiped_range
        first = start - start % self.files.file_size % _PAGE_BYTES
        for page in reversed(range(first, end, _PAGE_BYTES)):
            position = PhysicalOffset(max(page, start))
            zeros = bytes(min(page + _PAGE_BYTES, end) - position)
            if self._has_nonzero(position, zeros):
                self.files.write(position, zeros)
        self._unwiped_range = None

    def close(self) -> None:
        """Close the files, without a flush."""
        if self._unwiped_range is not None:
            start, end = self._unwiped_range
            where = self.files.path_at(start)
            _log.warning(_LEFTOVER_WARNING, where, start, end)
        self.files.close()

    def _next_position(self, size: int) -> PhysicalOffset:
        if self.failure is not None:
            self._check_failure()
        written = self.written_offset
        if size <= self.room_in_file():
            return written
        if size + BLANK_BYTES > self.files.file_size:
            raise ValueError(f"{size} bytes do not fit into a file of {self.files.file_size}")
        return written + self.files.space_left(written)

    def _next_timestamp(self, position: PhysicalOffset) -> int:
        times, now_ms = self.timeline, self._now_ms()
        if now_ms == times.last_ms:
            return now_ms
        if now_ms < times.last_ms:
            times = times.since(self.min_offset)
        timestamp = times.next_ms(now_ms)
        self.timeline = times.with_record(timestamp, position)
        if timestamp < times.last_ms:
            _log.warning(
                "the clock went back by %d s: new messages, from %d of the commit log on, have its "
                "time; messages stored while it was ahead keep theirs",
                (times.last_ms - now_ms) // 1000,
                position,
            )
        self._log_clock_lag(timestamp - now_ms)
        return timestamp

    def _log_clock_lag(self, lag_ms: int) -> None:
        if lag_ms > STEP_MS and not self._is_clock_behind:
            self._is_clock_behind = True
            _log.warning(
                "the clock lags the last message by %d s: new messages get that message's time "
                "until the clock has caught up. Correct the clock",
                lag_ms // 1000,
            )
        elif lag_ms <= 0 and self._is_clock_behind:
            self._is_clock_behind = False
            _log.warning("the clock has caught up with the last message of the commit log")

    def _write(
        self, position: PhysicalOffset, size: int, pieces: Iterable[Buffer], timestamp: int
    ) -> AppendedRange:
        """Write records at their position, after wiping remains and checking the file."""
        placed = position, position + size, timestamp
        if self._unwiped_range is not None:
            try:
                self.wipe()
            except Exception as error:
                raise self._write_error(error, 0, is_final=not is_transient(error)) from error
        if self._file_check_interval_ms is not None:
            self._check_file_in_place(self._file_check_interval_ms)
        if position != self.written_offset:
            # If writing the records fails, this blank is overwritten or written again.
            blank = encode_blank(position - self.written_offset)
            self._attempt(self.written_offset, len(blank), (blank,))
        self._attempt(position, size, pieces)
        # From here on, nothing can fail, and the records count as written.
        self._unwiped_range = None
        if self.write_degradation.text is not None:
            refused, refused_ms = self._refused_write
            if size >= refused or timestamp >= refused_ms + _DISK_FULL_RETRY_MS:
                self.write_degradation.end()
        self.written_offset = placed[1]
        return placed

    def _check_file_in_place(self, interval_ms: int) -> None:
        """Check that the last written file is in its place, unless this was checked recently.

        If it is not, the log accepts nothing until a flush finds the file there.
        """
        now_ms = self._now_ms()
        if 0 <= now_ms - self._file_checked_ms < interval_ms:
            return
        end_offset = self.written_offset
        try:
            self.files.check_in_place(max(end_offset - 1, LOG_START), end_offset)
        except OSError as error:
            self.flush_degradation.begin(error)
            raise TransientFailure(self.flush_degradation.text) from error
        self._file_checked_ms = now_ms

    def _attempt(self, position: PhysicalOffset, size: int, pieces: Iterable[Buffer]) -> None:
        """Write data; keep its range until it counts as written, so that it can be wiped."""
        self._unwiped_range = position, position + size
        try:
            for data in pieces:
                try:
                    self.files.write(position, data)
                except Exception as error:
                    is_final = not is_retryable(error)
                    raise self._write_error(error, size, is_final=is_final) from error
                position += len(data)
        except Exception:
            with suppress(OSError, StoreFailed, MemoryError):  # the next append retries
                self.wipe()
            raise

    def _has_nonzero(self, position: PhysicalOffset, zeros: bytes) -> bool:
        try:
            return self.files.read(position, len(zeros)) not in (b"", zeros)
        except UnreadableFile:
            return True

    def _write_error(self, error: Exception, size: int, *, is_final: bool) -> Exception:
        if not is_final:
            self.write_degradation.begin(error)
            self._refused_write = size if is_disk_full(error) else 0, self.timeline.last_ms
            return TransientFailure(describe_error(error))
        self.failure = error
        return StoreFailed("writing the commit log failed", error)

    def _check_failure(self) -> None:
        if self.failure is not None:
            text = "the commit log accepts no more messages"
            raise StoreFailed(text, self.failure) from self.failure


def _fill_positions(
    parts: Iterable[EncodedRecords], position: PhysicalOffset, timestamp: int
) -> Iterator[memoryview]:
    for part in parts:
        yield part.fill_positions(position, timestamp)
        position += len(part.data)
