"""LocalFile: a file of a fixed size on a real file system, created sparse.

Writes go through pwrite, which raises OSError on a full disk, where a store into a memory map would
kill the process. Small parts, and parts that are not in memory, are read; large parts in memory are
returned as slices of a map. Every error names the file.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import sys
import weakref
from pathlib import Path

from rmq_spark.wire.remoting.framing import Buffer

from ..errors import FlushFailed

# ---- FileMap: a file mapped into memory, for callers that want many of its bytes without a copy.

_PAGE = mmap.PAGESIZE
_MAP_FAILED = ctypes.c_void_p(-1).value

# These calls never wait for a disk, so they keep the interpreter lock.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class FileMap:
    """A read-only map of a whole file, released with its last slice."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map a file that is not empty; its descriptor may be closed afterwards."""
        self._address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if self._address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        content = (ctypes.c_ubyte * size).from_address(self._address)
        weakref.finalize(content, _libc.munmap, self._address, size).atexit = False
        self._content = memoryview(content).cast("B").toreadonly()

    def resident_view(self, position: int, size: int) -> memoryview | None:
        """Return a part of the file if all of it is in memory, else None."""
        first = position - position % _PAGE
        pages = -(-(position + size - first) // _PAGE)
        found = ctypes.create_string_buffer(pages)
        if _libc.mincore(self._address + first, pages * _PAGE, found) or found.raw.count(1) < pages:
            return None
        return self._content[position : position + size]


# ---- is_same_file: compares a path with an open file, by device and inode number.

_log = logging.getLogger(__name__)
_warned_devices: set[int] = set()
"""Devices with unreliable inode numbers, for which a warning was logged."""


def is_same_file(path: Path, descriptor: int) -> bool:
    """Return whether a path leads to the open file or directory of a descriptor."""
    found = path.stat()
    if os.path.samestat(found, os.fstat(descriptor)):
        return True
    if os.path.samestat(found, path.stat()):
        return False
    if found.st_dev not in _warned_devices:
        _warned_devices.add(found.st_dev)
        _log.warning(
            "the file system of %s changes the inode numbers of files: moved or replaced files go"
            " unnoticed",
            path,
        )
    return True


COPIED_BYTES_MAX = 1 << 16
"""Up to this size, a copy takes as long as checking whether the bytes are in memory."""


class LocalFile:
    """One open file, whose size is fixed when it is created."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        """Open a file; with a size, create it, in which case it must not exist."""
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
            self.size = os.fstat(self._descriptor).st_size
            """The size when the file was opened, in bytes."""
        except OSError as error:
            self.close()
            error.filename = str(path)
            raise

    def __del__(self) -> None:
        """Close the file as Python's own files do, for example after a failed start."""
        self.close()

    def read(self, position: int, size: int) -> Buffer:
        """Read exactly this number of bytes; later writes may or may not change the result."""
        try:
            if size > COPIED_BYTES_MAX:
                view = self._resident_view(position, size)
                if view is not None:
                    return view
            data = os.pread(self._descriptor, size, position)
            return data if len(data) == size else self._read_rest(data, position, size)
        except OSError as error:
            error.filename = str(self._path)
            raise

    def write(self, data: Buffer, position: int) -> None:
        """Write all of the data at a position. After an OSError, some of it may be written."""
        try:
            if self._is_read_only:
                self._reopen_writable()
            written = os.pwrite(self._descriptor, data, position)
            while written < len(data):
                written += os.pwrite(
                    self._descriptor, memoryview(data)[written:], position + written
                )
        except OSError as error:
            error.filename = str(self._path)
            raise

    def flush(self) -> None:
        """Flush everything written so far to the disk.

        Raises:
            FlushFailed: Written data may be lost.
        """
        try:
            if sys.platform == "darwin":  # whose fsync leaves data in the disk's own cache
                fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)
            else:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise FlushFailed(error.errno, error.strerror, str(self._path)) from error

    def next_data(self, position: int) -> int | None:
        """Return the first position at or past ``position`` that may have data, or None.

        The file system knows only whole blocks, so the data may begin later in its block.
        """
        try:
            return os.lseek(self._descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return None
            error.filename = str(self._path)
            raise

    def check_in_place(self) -> None:
        """Check that the path still leads to this file."""
        try:
            is_in_place = is_same_file(self._path, self._descriptor)
        except OSError as error:
            error.filename = str(self._path)
            raise
        if not is_in_place:
            raise OSError(errno.ESTALE, "the file was replaced while it was open", str(self._path))

    def close(self) -> None:
        """Close the file. Data that was read stays valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._is_read_only = True

    def _reopen_writable(self) -> None:
        """Open the same file again for writing, if the disk is no longer read-only."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(descriptor, self._descriptor, inheritable=False)
        os.close(descriptor)
        self._is_read_only = False

    def _resident_view(self, position: int, size: int) -> memoryview | None:
        if os.fstat(self._descriptor).st_size < position + size:  # the file was truncated meanwhile
            return None
        if self._map is None:
            try:
                self._map = FileMap(self._descriptor, self.size)
            # Too many maps or open files: read without a map.
            except (OSError, ImportError, MemoryError):
                return None
        return self._map.resident_view(position, size)

    def _read_rest(self, data: bytes, position: int, size: int) -> bytes:
        """Complete a short read: one call returns at most 2 GiB, or less at the file's end."""
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), position + len(data))
            if not more:
                end = position + len(data)
                raise OSError(
                    errno.EIO, f"the file ends at {end} instead of {self.size} bytes or later"
                )
            data += more
        return data
