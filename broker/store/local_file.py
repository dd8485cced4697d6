"""LocalFile: a file of a fixed size on a real file system, created sparse.

Writes go through pwrite: storing into a map of a full disk would kill the process, a failed pwrite
is an OSError. So is a read that fails. Small parts are read, and so are parts that are not in
memory; large parts that are in memory are handed out as slices of a map. Every error names the
file.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_spark.wire.framing import Buffer
from rocketpoll.broker.store.lacks import FlushFailed
from rocketpoll.broker.store.same_file import leads_to

if TYPE_CHECKING:
    from rocketpoll.broker.store.file_map import FileMap

COPIED_BYTES_MAX = 1 << 16
"""Up to this size, bytes are read: copying takes as long as finding out if they are in memory."""


class LocalFile:
    """A `DiskFile` on a real file system."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        """Open a file, or create one if a size is given; it must not exist then."""
        self._path = path
        self._map: FileMap | None = None
        self._descriptor = -1
        self._is_read_only = False
        if size is not None:
            self._descriptor = os.open(
                path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600
            )
        else:
            self._open()
        try:
            if size is not None:
                os.ftruncate(self._descriptor, size)
            self._size = os.fstat(self._descriptor).st_size
        except OSError as error:
            self.close()
            error.filename = str(path)
            raise

    def __del__(self) -> None:
        """Close the file like Python's own files do, as after a start that failed."""
        self.close()

    @property
    def size(self) -> int:
        """The size when the file was opened, in bytes."""
        return self._size

    def read(self, position: int, size: int) -> Buffer:
        """Read this number of bytes from a position on, or raise OSError."""
        try:
            if size > COPIED_BYTES_MAX:
                view = self._in_memory(position, size)
                if view is not None:
                    return view
            data = os.pread(self._descriptor, size, position)
            return data if len(data) == size else self._whole(data, position, size)
        except OSError as error:
            error.filename = str(self._path)
            raise

    def write(self, data: Buffer, position: int) -> None:
        """Write all of the data there, or raise OSError with some of it written."""
        try:
            if self._is_read_only:
                self._allow_writes()
            written = os.pwrite(self._descriptor, data, position)
            while written < len(data):
                written += os.pwrite(
                    self._descriptor, memoryview(data)[written:], position + written
                )
        except OSError as error:
            error.filename = str(self._path)
            raise

    def flush(self) -> None:
        """Return when all that was written is on the disk, or raise OSError."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise FlushFailed(error.errno, error.strerror, str(self._path)) from error

    def next_data(self, position: int) -> int | None:
        """Return where the next byte ever written may lie, to the file system's block, or None."""
        try:
            return os.lseek(self._descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole
                return None
            error.filename = str(self._path)
            raise

    def check_in_place(self) -> None:
        """Make sure that the path leads here, or raise OSError."""
        try:
            is_in_place = leads_to(self._path, self._descriptor)
        except OSError as error:
            error.filename = str(self._path)
            raise
        if not is_in_place:
            raise OSError(errno.ESTALE, "the file was replaced while it was open", str(self._path))

    def close(self) -> None:
        """Close the file. What was read stays valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        """Open an existing file, for reading only if the disk is read-only."""
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._is_read_only = True

    def _allow_writes(self) -> None:
        """Open the file again, in the same place, if the disk is not read-only any more."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(descriptor, self._descriptor, inheritable=False)
        os.close(descriptor)
        self._is_read_only = False

    def _in_memory(self, position: int, size: int) -> memoryview | None:
        """Return a slice of a map, if all of it lies in memory, else None."""
        if os.fstat(self._descriptor).st_size < position + size:  # it was cut short meanwhile
            return None
        if self._map is None:
            try:
                from rocketpoll.broker.store.file_map import FileMap  # noqa: PLC0415  # a small broker needs no ctypes

                self._map = FileMap(self._descriptor, self._size)
            except (
                OSError,
                ImportError,
                MemoryError,
            ):  # too many maps, or files: without one, it is read
                return None
        return self._map.in_memory(position, size)

    def _whole(self, data: bytes, position: int, size: int) -> bytes:
        """Read on behind what one call gave: at most 2 GiB, and less where the file ends."""
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), position + len(data))
            if not more:
                end = position + len(data)
                raise OSError(
                    errno.EIO, f"the file ends at {end} instead of {self._size} bytes or later"
                )
            data += more
        return data
