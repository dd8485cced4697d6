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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmq_spark.wire.framing import Buffer

from ...store.errors import FlushFailed
from ...store.files.disk import DiskUsage, LocalDisk
from ...store.files.local_file import LocalFile
from .clock_offset import ClockOffset
from .power_loss import UnflushedBytes


class EmbeddedDisk(LocalDisk):
    """A `Disk` on a real file system, with the broker's clock and its owner's faults."""

    def __init__(self, clock_offset: ClockOffset) -> None:
        """Take how far the broker's time is ahead of the machine's."""
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
            self._unflushed.before_write(position, len(data), self._read_current)
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

    def _read_current(self, position: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, position)


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
