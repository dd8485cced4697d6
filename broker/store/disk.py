"""The disk, as the store sees it: the seam at which tests make it fail, forget and fill up.

Everything that the store does to files goes through a `Disk`. Files of messages are created at their
full size, sparse, written with pwrite and read through a map that nothing writes to: storing into a map
of a full disk would kill the process, a failed pwrite is an OSError. A file that was deleted stays
readable for whoever still holds a view of it.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Protocol

from rmq_spark.wire.framing import Buffer


class DiskFile(Protocol):
    """One file of a fixed size."""

    @property
    def size(self) -> int:
        """Its size, from the first day."""

    @property
    def view(self) -> memoryview:
        """All of it, read-only; shows what is written at once."""

    def write(self, data: Buffer, position: int) -> None:
        """Write all of the data there, or raise OSError with some of it written."""

    def flush(self) -> None:
        """Return when all that was written is on the disk, or raise OSError."""

    def next_data(self, position: int) -> int | None:
        """Where, from there on, the next byte may lie that was ever written; None if there is none."""

    def close(self) -> None:
        """No more writes. Views stay valid."""


class Disk(Protocol):
    """A file system, as far as the store needs one."""

    def create(self, path: Path, size: int) -> DiskFile:
        """A new file of zeros, in a directory that exists. Its name is not yet durable."""

    def open(self, path: Path) -> DiskFile:
        """A file that exists."""

    def read(self, path: Path) -> bytes:
        """All of a small file."""

    def write_whole(self, path: Path, data: bytes) -> None:
        """A small file with this content, flushed. Its name is not yet durable."""

    def rename(self, path: Path, new_path: Path) -> None:
        """Give a file another name, in place of what had it before."""

    def delete(self, path: Path) -> None:
        """Remove a file, or a directory that is empty."""

    def make_directory(self, path: Path) -> None:
        """A directory, with those above it, where they are missing."""

    def flush_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""

    def names(self, path: Path) -> list[str]:
        """What is in a directory, sorted; nothing if it does not exist."""

    def size_of(self, path: Path) -> int | None:
        """A file's size; None if it does not exist or is a directory."""

    def modified_at(self, path: Path) -> float:
        """When a file was last written, in seconds since 1970."""

    def used_ratio(self, path: Path) -> float:
        """How much of the disk under a directory is in use, from 0 to 1."""


class LocalFile:
    """A `DiskFile` on a real file system."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        """Creates the file if a size is given; it must not exist then."""
        self._descriptor = -1
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if size is not None else 0)
        self._descriptor = os.open(path, flags, 0o600)
        try:
            if size is not None:
                os.ftruncate(self._descriptor, size)
            self._size = os.fstat(self._descriptor).st_size
            # The map holds a descriptor of its own, and goes with its last view.
            self._view = memoryview(
                mmap.mmap(self._descriptor, self._size, prot=mmap.PROT_READ) if self._size else b""
            )
        except OSError:
            self.close()
            raise

    def __del__(self) -> None:
        """Like Python's own files: what a start that failed has opened does not stay open."""
        self.close()

    @property
    def size(self) -> int:
        """Its size, from the first day."""
        return self._size

    @property
    def view(self) -> memoryview:
        """All of it, read-only."""
        return self._view

    def write(self, data: Buffer, position: int) -> None:
        """Write all of the data there."""
        written = os.pwrite(self._descriptor, data, position)
        while written < len(data):
            written += os.pwrite(self._descriptor, memoryview(data)[written:], position + written)

    def flush(self) -> None:
        """Return when all that was written is on the disk."""
        os.fdatasync(self._descriptor)

    def next_data(self, position: int) -> int | None:
        """Where the next byte may lie that was ever written, to the file system's block."""
        try:
            return os.lseek(self._descriptor, position, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole
            return None

    def close(self) -> None:
        """No more writes."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalDisk:
    """A `Disk` that is a real file system."""

    def create(self, path: Path, size: int) -> LocalFile:
        """A new file of zeros."""
        return LocalFile(path, size)

    def open(self, path: Path) -> LocalFile:
        """A file that exists."""
        return LocalFile(path)

    def read(self, path: Path) -> bytes:
        """All of a small file."""
        return path.read_bytes()

    def write_whole(self, path: Path, data: bytes) -> None:
        """A small file with this content, flushed."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, path: Path, new_path: Path) -> None:
        """Give a file another name."""
        path.rename(new_path)

    def delete(self, path: Path) -> None:
        """Remove a file, or a directory that is empty."""
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        """A directory, with those above it."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def flush_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def names(self, path: Path) -> list[str]:
        """What is in a directory, sorted."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size_of(self, path: Path) -> int | None:
        """A file's size."""
        return path.stat().st_size if path.is_file() else None

    def modified_at(self, path: Path) -> float:
        """When a file was last written."""
        return path.stat().st_mtime

    def used_ratio(self, path: Path) -> float:
        """How much of the disk is in use, as `df` counts it."""
        stats = os.statvfs(path)
        used = stats.f_blocks - stats.f_bfree
        return used / max(used + stats.f_bavail, 1)
