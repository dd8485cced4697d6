"""CommitLog: every message of every topic, one behind the other, in the order of their arrival.

Records lie as `rmq_spark.wire.record_layout` draws them. One is never split over two files: where it has
no room, a blank record fills the file. Appending gives a record its place, queue offset, physical offset
and store timestamp, and seals it with the checksum that it ends with. Store timestamps never go back,
whatever the clock does.

A flush that fails is not tried again: the kernel may have dropped what it could not write, and the next
flush would report success. From then on nothing is appended; reading goes on. A lack of room, descriptors
or memory is no such failure: nothing was acknowledged, what was written of it is wiped, and the next append
may succeed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from broker.store import lazy_numpy as np
from broker.store.errors import StoreFailed
from broker.store.file_pool import FileGroup, FilePool
from broker.store.lacks import Hindrance, Lacking, is_lack, what_is_lacking
from broker.store.mapped_file_queue import MappedFileQueue
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.record import encode_blank

if TYPE_CHECKING:
    import numpy.typing as npt

BLANK_BYTES = 8
LATER_BYTES_MAX = 1 << 14
"""So much may wait to be written together: some fifty messages share one write, and what is kept of each
until then stays in the processor's cache. With sixteen times as much, sends cost a fifth more."""
_RECORD_BYTES_LIKELY = 1 << 12

Seal: TypeAlias = Callable[..., Sequence[Buffer]]
"""Gives a record in pieces, one behind the other."""


class Draft(Protocol):
    """Messages that are prepared but for what their place says."""

    @property
    def size(self) -> int:
        """Of their records."""

    def sealed(self, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
        """The records, with the place and the queue offset of the first, and with their time."""


class CommitLog:
    """The log. The caller sees to it that only one thread appends at a time."""

    def __init__(self, pool: FilePool, directory: Path, file_size: int, now_ms: Callable[[], int]) -> None:
        """Touches nothing on the disk before it is loaded or appended to."""
        self._files = MappedFileQueue(FileGroup(pool), directory, file_size)
        self._now_ms = now_ms
        self._last_timestamp = 0
        self._to_wipe: tuple[int, int] | None = None
        self._later: list[Buffer] = []
        self._later_start = self._later_end = self._later_limit = 0
        self.later_timestamp = 0
        self._flushing = threading.Lock()
        self.written_offset = 0
        self.flushed_offset = 0
        self.failure: Exception | None = None
        self.writing = Hindrance("the commit log is not written to")
        self.flushing = Hindrance("the commit log is not flushed")

    @property
    def files(self) -> MappedFileQueue:
        """The files, for recovery and retention."""
        return self._files

    @property
    def min_offset(self) -> int:
        """The first offset that is still kept."""
        return self._files.first_offset

    @property
    def last_timestamp(self) -> int:
        """When the last message was stored."""
        return self._last_timestamp

    def resume(self, end_offset: int, last_timestamp: int) -> None:
        """Go on behind what recovery has found. All before it is on the disk."""
        self.written_offset = self.flushed_offset = end_offset
        self._last_timestamp = last_timestamp

    def append(self, draft: Draft, queue_offset: int) -> tuple[int, int, int]:
        """Append what is prepared, giving it its place and its time: where it went, where it ends, when."""
        position = self._place(draft.size)
        timestamp = self._timestamp()
        return self._write(position, draft.sealed(queue_offset, position, timestamp), timestamp)

    def append_later(self, size: int, seal: Seal, *parts: object) -> int | None:
        """Where a record of this size goes, with others that are written together by `write_out`.

        ``seal`` makes it of its size, the parts, the place and the time, which is the same for all that are
        written together. Until then nobody sees it, and nothing else may be appended in another way. None if
        what waits must be written first.
        """
        position = self._later_end
        if not self._later or position + size > self._later_limit:
            if self._later:
                return None
            position = self._place(size)
            room = self._files.space_left(position) - BLANK_BYTES
            self._later_start = self._later_end = position
            self._later_limit = position + min(room, LATER_BYTES_MAX)
            self.later_timestamp = self._timestamp()
        self._later += seal(size, *parts, position, self.later_timestamp)
        self._later_end = position + size
        return position

    def write_out(self) -> None:
        """Write what waits, all of it or nothing."""
        if self._later:
            records, self._later = b"".join(self._later), []
            self._later_limit = 0
            self._check_failure()
            self._write(self._later_start, records, self._last_timestamp)

    @property
    def end_offset(self) -> int:
        """Where the log will end when all that waits is written."""
        return self._later_end if self._later else self.written_offset

    def append_many(
        self,
        records: npt.NDArray[np.uint8],
        sizes: npt.NDArray[np.int64],
        queue_offsets: npt.NDArray[np.int64],
        store_timestamps_at: npt.NDArray[np.int64],
        seal: Callable[[], None],
    ) -> tuple[int, int, int]:
        """The same for encoded records back to back, which must all go to one file.

        ``seal`` fills in their checksums, when all else of them is as it will be.
        """
        position = self._place(len(records))
        timestamp = self._timestamp()
        starts = np.cumsum(sizes) - sizes
        # Overlapping 8-byte cells, one at every byte: see `rmq_spark.wire.chunk.gather`.
        cells = np.ndarray((len(records) - 7,), "V8", records, strides=(1,))
        cells[starts + layout.QUEUE_OFFSET_AT] = queue_offsets.astype(">i8").view("V8")
        cells[starts + layout.PHYSICAL_OFFSET_AT] = (starts + position).astype(">i8").view("V8")
        cells[store_timestamps_at] = np.array(timestamp, ">i8").view("V8")
        seal()
        return self._write(position, records.data, timestamp)

    def room_in_file(self) -> int:
        """How many bytes of records fit into the current file."""
        return max(self._files.space_left(self.written_offset) - BLANK_BYTES, 0)

    def read(self, physical_offset: int, size: int) -> Buffer:
        """Read one record, or several that lie in one file; fewer bytes where these are gone.

        Raises:
            UnreadableFile: The disk does not give them.
        """
        return self._files.read(physical_offset, size)

    def record(self, physical_offset: int) -> Buffer:
        """Read what starts at a place, as long as it says that it is; nothing if that cannot be.

        Raises:
            UnreadableFile: The disk does not give it.
        """
        room = min(self.written_offset - physical_offset, self._files.space_left(physical_offset))
        head = self.read(physical_offset, min(room, _RECORD_BYTES_LIKELY))
        if len(head) < layout.RECORD_BYTES_MIN:
            return b""
        size = int.from_bytes(head[:4], "big")
        if size <= len(head):
            return head[:size]
        return self.read(physical_offset, size) if size <= room else b""

    def flush(self) -> int:
        """Make all that has been written durable; up to where that is.

        Raises:
            OSError: Something is lacking for that: it may be tried again.
            StoreFailed: The disk has failed.
        """
        with self._flushing:  # else a second one would find nothing to do, and return before the first
            self._check_failure()
            end_offset = self.written_offset
            try:
                self._files.flush()
            except Exception as error:  # of whatever kind: what was not flushed is not known any more
                if is_lack(error):
                    self.flushing.begin(error)
                    raise
                self.failure = error
                raise StoreFailed(f"flushing the commit log failed: {error}; restart the broker") from error
            self.flushing.end()
            self.flushed_offset = end_offset
            return end_offset

    def close(self) -> None:
        """Close the files, without a flush."""
        self._files.close()

    def _place(self, size: int) -> int:
        """Where records of this size go."""
        if self._later:
            raise RuntimeError("what waits must be written first")
        if self.failure is not None:
            self._check_failure()
        written = self.written_offset
        left = self._files.space_left(written)
        if size + BLANK_BYTES <= left:
            return written
        if size + BLANK_BYTES > self._files.file_size:
            raise ValueError(f"{size} bytes do not fit into a file of {self._files.file_size}")
        return written + left

    def _timestamp(self) -> int:
        self._last_timestamp = max(self._now_ms(), self._last_timestamp)
        return self._last_timestamp

    def _write(self, position: int, records: Buffer, timestamp: int) -> tuple[int, int, int]:
        """Write records to their place, once what keeps them from going there is out of the way."""
        self._later_limit = 0
        if self._to_wipe is not None:
            self._wipe(*self._to_wipe)
        if position != self.written_offset:
            self._attempt(self.written_offset, encode_blank(position - self.written_offset))
            self.written_offset = position
        self._attempt(position, records)
        self.writing.end()
        self.written_offset = position + len(records)
        return position, self.written_offset, timestamp

    def _attempt(self, position: int, data: Buffer) -> None:
        """Write, and if that fails remember what must not be found by a later recovery."""
        try:
            self._files.write(position, data)
        except (OSError, StoreFailed) as error:
            self._to_wipe = (position, position + len(data))
            if isinstance(error, OSError) and is_lack(error):
                self.writing.begin(error)
                raise Lacking(what_is_lacking(error)) from error
            self.failure = error
            raise StoreFailed(f"writing the commit log failed: {error}; restart the broker") from error

    def _wipe(self, start: int, end: int) -> None:
        """Put zeros where a write failed half-way: a whole record in it must not come back to life."""
        if start < self._files.end_offset:
            self._attempt(start, bytes(end - start))
        self._to_wipe = None

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise StoreFailed(
                f"the commit log takes no more: {self.failure}; restart the broker"
            ) from self.failure
