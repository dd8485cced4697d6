"""EmbeddedDisk: the real file system with injected faults, for an embedded broker.

    time     the age of files follows the broker's clock, which may have been moved
    full     the reported usage is 100 %, and operations that need room fail with ENOSPC
    power    after a power loss all operations fail; unflushed writes are undone before the next
             broker starts. Names of files stay, because a file system may save them at any time

All other operations go to the real disk.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_spark.wire.remoting.framing import Buffer

from ...store.errors import FlushFailed
from ...store.files.disk import DiskUsage, LocalDisk
from ...store.files.local_file import LocalFile
from .clock import ClockOffset

# ---- What a power loss would undo in one file.

PAGE_BYTES: Final = 4_096


@dataclass(eq=False)
class _PendingFlush:
    end: int
    pages: dict[int, bytes]


class UnflushedBytes:
    """The bytes of one file that are not on the disk yet; callers must hold a lock.

        pages      the old content of pages that were overwritten since the last flush
        fresh      the end of the file, written for the first time: `restore` zeroes it

    A flush covers what was written before it began; later writes need the next flush.
    """

    def __init__(self, written_end: int) -> None:
        """Create a record of a file that may hold data up to ``written_end``, then zeros."""
        self._written_end = self._flushed_end = written_end
        self._pages: dict[int, bytes] = {}
        self._flushing: list[_PendingFlush] = []

    def before_write(self, position: int, size: int, read: Callable[[int, int], bytes]) -> None:
        """Save the bytes that a write will replace."""
        first = position - position % PAGE_BYTES
        for at in range(first, min(position + size, self._written_end), PAGE_BYTES):
            if at not in self._pages:
                self._pages[at] = read(at, PAGE_BYTES)
        self._written_end = max(self._written_end, position + size)

    def start_flush(self) -> _PendingFlush:
        """Return a flush that begins now and covers everything written by now."""
        flush = _PendingFlush(self._written_end, self._pages)
        self._flushing.append(flush)
        self._pages = {}
        return flush

    def finish_flush(self, flush: _PendingFlush, *, is_durable: bool) -> None:
        """Record the end of a flush; what it covered is on the disk unless it failed."""
        if flush not in self._flushing:  # a later flush ended first, and covered the same
            return
        if is_durable:
            self._flushed_end = max(self._flushed_end, flush.end)
            del self._flushing[: self._flushing.index(flush) + 1]
        else:
            self._flushing.remove(flush)
            self._pages.update(flush.pages)

    def restore(
        self, write: Callable[[int, bytes], object], zero_from: Callable[[int], object]
    ) -> None:
        """Restore the file to its last flush; ``zero_from`` replaces its end by zeros."""
        for pages in (self._pages, *(flush.pages for flush in reversed(self._flushing))):
            for position, data in pages.items():
                write(position, data)
        if self._written_end > self._flushed_end:
            zero_from(self._flushed_end)


class EmbeddedDisk(LocalDisk):
    """A `LocalDisk` with the broker's clock and injected faults."""

    def __init__(self, clock_offset: ClockOffset) -> None:
        self._clock_offset = clock_offset
        self.is_full = False
        self.has_power = True
        self.write_lock = threading.Lock()
        self._unflushed: dict[Path, UnflushedBytes] = {}

    def discard_unflushed(self) -> None:
        """Reset all files to the state of their last flush; none may be open."""
        for path, unflushed in self._unflushed.items():
            if path.exists():
                _restore_file(path, unflushed)
        self._unflushed.clear()

    # ---- called by the store

    def create(self, path: Path, size: int) -> LocalFile:
        """Create a file filled with zeros."""
        self.check(path, needs_room=True)
        self._unflushed[path] = unflushed = UnflushedBytes(0)
        return _EmbeddedFile(self, unflushed, path, size)

    def open(self, path: Path) -> LocalFile:
        """Open an existing file."""
        self.check(path)
        size = self.size_of(path)
        unflushed = self._unflushed.setdefault(path, UnflushedBytes(size or 0))
        return _EmbeddedFile(self, unflushed, path)

    def write_whole(self, path: Path, data: bytes) -> None:
        """Write and flush a small file."""
        self.check(path, needs_room=True)
        super().write_whole(path, data)

    def rename(self, path: Path, new_path: Path) -> None:
        """Rename a file."""
        self.check(path)
        super().rename(path, new_path)
        self._unflushed.pop(new_path, None)
        if path in self._unflushed:
            self._unflushed[new_path] = self._unflushed.pop(path)

    def delete(self, path: Path) -> None:
        """Delete a file or an empty directory."""
        self.check(path)
        super().delete(path)
        self._unflushed.pop(path, None)

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents."""
        self.check(path)
        super().make_directory(path)

    def flush_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self.check_flush(path)
        super().flush_directory(path)

    def modified_at(self, path: Path) -> float:
        """Return when a file was last written, by the broker's clock."""
        return self._clock_offset.from_machine(super().modified_at(path))

    def set_modified_at(self, path: Path, seconds: float) -> None:
        """Set the time when a file was last written, by the broker's clock."""
        super().set_modified_at(path, self._clock_offset.to_machine(seconds))

    def usage(self, path: Path) -> DiskUsage:
        """Return the usage of a directory's file system; 100 % while `is_full`."""
        usage = super().usage(path)
        return DiskUsage(usage.total, usage.total, 0) if self.is_full else usage

    def check(self, path: Path, *, needs_room: bool = False) -> None:
        """Raise an error if the disk has no power, or has no room for the operation.

        Raises:
            OSError: EIO without power, ENOSPC on a full disk.
        """
        if not self.has_power:
            raise OSError(errno.EIO, "the broker has lost its power", str(path))
        if needs_room and self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def check_flush(self, path: Path) -> None:
        """Raise FlushFailed if the disk has no power."""
        try:
            self.check(path)
        except OSError as error:
            raise FlushFailed(error.errno, error.strerror, str(path)) from error


class _EmbeddedFile(LocalFile):
    def __init__(
        self, disk: EmbeddedDisk, unflushed: UnflushedBytes, path: Path, size: int | None = None
    ) -> None:
        self._disk = disk
        self._unflushed = unflushed
        super().__init__(path, size)

    def write(self, data: Buffer, position: int) -> None:
        self._disk.check(self._path, needs_room=True)
        with self._disk.write_lock:
            self._unflushed.before_write(
                position, len(data), lambda at, count: os.pread(self._descriptor, count, at)
            )
            super().write(data, position)

    def flush(self) -> None:
        self._disk.check_flush(self._path)
        with self._disk.write_lock:
            flush = self._unflushed.start_flush()
        is_done = False
        try:
            super().flush()
            is_done = self._disk.has_power
        finally:
            with self._disk.write_lock:
                self._unflushed.finish_flush(flush, is_durable=is_done)


def _restore_file(path: Path, unflushed: UnflushedBytes) -> None:
    with path.open("r+b") as file:
        number = file.fileno()
        unflushed.restore(
            lambda position, data: os.pwrite(number, data, position),
            lambda position: _zero_from(number, position),
        )


def _zero_from(descriptor: int, position: int) -> None:
    """Replace the end of a file by zeros without changing its size."""
    size = os.fstat(descriptor).st_size
    os.ftruncate(descriptor, min(position, size))
    os.ftruncate(descriptor, size)
