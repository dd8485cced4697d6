"""EmbeddedDisk: the real file system as an embedded broker sees it, with its owner's faults.

    time     the age of files follows the broker's clock, which may have been moved
    full     the usage says so, and what needs room fails with ENOSPC
    power    after a power loss the broker cannot do anything any more; what it wrote and did not
             flush is undone before the next one starts. Names of files stay: a file system may
             have saved them at any time

Everything else goes to the real disk.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_spark.wire.framing import Buffer

from ...store.errors import FlushFailed
from ...store.files.disk import DiskUsage, LocalDisk
from ...store.files.local_file import LocalFile
from .clock import ClockOffset

# ---- What a power loss would undo in one file.

PAGE_BYTES: Final = 4_096


@dataclass(eq=False)
class _FlushUnderWay:
    """A flush under way: up to where the file was written, and what it makes durable."""

    end: int
    pages: dict[int, bytes]


class UnflushedBytes:
    """The bytes of one file that are not on the disk yet; its user has to hold a lock.

        pages      bytes that were overwritten since the last flush, as they were before
        fresh      the end of the file, which had never been written before: zeros again

    A flush covers what was written when it began; what is written meanwhile is for the next one.
    The caller passes in how to read and write the file.
    """

    def __init__(self, written_end: int) -> None:
        """Note up to where the file may have been written before; past that it is zeros."""
        self._written_end = self._flushed_end = written_end
        self._pages: dict[int, bytes] = {}
        self._flushing: list[_FlushUnderWay] = []

    def before_write(self, position: int, size: int, read: Callable[[int, int], bytes]) -> None:
        """Keep what a write is about to replace."""
        first = position - position % PAGE_BYTES
        for at in range(first, min(position + size, self._written_end), PAGE_BYTES):
            if at not in self._pages:
                self._pages[at] = read(at, PAGE_BYTES)
        self._written_end = max(self._written_end, position + size)

    def start_flush(self) -> _FlushUnderWay:
        """Note that a flush begins, of what is written by now, and return it."""
        flush = _FlushUnderWay(self._written_end, self._pages)
        self._flushing.append(flush)
        self._pages = {}
        return flush

    def finish_flush(self, flush: _FlushUnderWay, *, is_durable: bool) -> None:
        """Note that a flush has ended: what it covered is on the disk, unless it has failed."""
        if flush not in self._flushing:  # a later one was faster, and took the same
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
        """Put the file into the state of the last flush: ``zero_from`` makes zeros of its end."""
        for pages in (self._pages, *(flush.pages for flush in reversed(self._flushing))):
            for position, data in pages.items():
                write(position, data)
        if self._written_end > self._flushed_end:
            zero_from(self._flushed_end)


class EmbeddedDisk(LocalDisk):
    """A `Disk` on a real file system, with the broker's clock and its owner's faults."""

    def __init__(self, clock_offset: ClockOffset) -> None:
        self._clock_offset = clock_offset
        self.is_full = False
        """True while there is no room for anything."""
        self.has_power = True
        self.write_lock = threading.Lock()
        self._unflushed: dict[Path, UnflushedBytes] = {}

    def discard_unflushed(self) -> None:
        """Reset all files to the state of their last flush; nobody may have them open."""
        for path, unflushed in self._unflushed.items():
            if path.exists():
                _restore_file(path, unflushed)
        self._unflushed.clear()

    # ---- what the store does

    def create(self, path: Path, size: int) -> LocalFile:
        """Create a file of zeros."""
        self.check(path, needs_room=True)
        self._unflushed[path] = unflushed = UnflushedBytes(0)
        return _EmbeddedFile(self, unflushed, path, size)

    def open(self, path: Path) -> LocalFile:
        """Open a file that exists."""
        self.check(path)
        size = self.size_of(path)
        unflushed = self._unflushed.setdefault(path, UnflushedBytes(size or 0))
        return _EmbeddedFile(self, unflushed, path)

    def write_whole(self, path: Path, data: bytes) -> None:
        """Write a small file with this content, and flush it."""
        self.check(path, needs_room=True)
        super().write_whole(path, data)

    def rename(self, path: Path, new_path: Path) -> None:
        """Give a file another name."""
        self.check(path)
        super().rename(path, new_path)
        self._unflushed.pop(new_path, None)
        if path in self._unflushed:
            self._unflushed[new_path] = self._unflushed.pop(path)

    def delete(self, path: Path) -> None:
        """Remove a file, or a directory that is empty."""
        self.check(path)
        super().delete(path)
        self._unflushed.pop(path, None)

    def make_directory(self, path: Path) -> None:
        """Make a directory, with those above it."""
        self.check(path)
        super().make_directory(path)

    def flush_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self.check_flush(path)
        super().flush_directory(path)

    def modified_at(self, path: Path) -> float:
        """Return when a file was last written, by the broker's time."""
        return self._clock_offset.from_machine(super().modified_at(path))

    def set_modified_at(self, path: Path, seconds: float) -> None:
        """Have a file count as last written then, by the broker's time."""
        super().set_modified_at(path, self._clock_offset.to_machine(seconds))

    def usage(self, path: Path) -> DiskUsage:
        """Return the usage of the file system that holds a directory, which may be all of it."""
        usage = super().usage(path)
        return DiskUsage(usage.total, usage.total, 0) if self.is_full else usage

    def check(self, path: Path, *, needs_room: bool = False) -> None:
        """Raise an error if the disk does nothing now, or nothing that needs room.

        Raises:
            OSError: EIO without power, ENOSPC on a full disk.
        """
        if not self.has_power:
            raise OSError(errno.EIO, "the broker has lost its power", str(path))
        if needs_room and self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def check_flush(self, path: Path) -> None:
        """Raise an error if what was written cannot become durable any more.

        Raises:
            FlushFailed: The disk has no power.
        """
        try:
            self.check(path)
        except OSError as error:
            raise FlushFailed(error.errno, error.strerror, str(path)) from error


class _EmbeddedFile(LocalFile):
    """A file that tracks what is not flushed."""

    def __init__(
        self, disk: EmbeddedDisk, unflushed: UnflushedBytes, path: Path, size: int | None = None
    ) -> None:
        self._disk = disk
        self._unflushed = unflushed
        super().__init__(path, size)

    def write(self, data: Buffer, position: int) -> None:
        """Write all of the data there, and keep what was there before."""
        self._disk.check(self._path, needs_room=True)
        with self._disk.write_lock:
            self._unflushed.before_write(
                position, len(data), lambda at, count: os.pread(self._descriptor, count, at)
            )
            super().write(data, position)

    def flush(self) -> None:
        """Return when all that was written is on the disk."""
        self._disk.check_flush(self._path)
        with self._tracked_flush():
            super().flush()

    @contextmanager
    def _tracked_flush(self) -> Iterator[None]:
        with self._disk.write_lock:
            flush = self._unflushed.start_flush()
        is_done = False
        try:
            yield
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
    """Make zeros of the end of a file, whose size stays."""
    size = os.fstat(descriptor).st_size
    os.ftruncate(descriptor, min(position, size))
    os.ftruncate(descriptor, size)
