"""LocalDisk: all file access of the store, replaced in tests to fail, lose data or fill up.

Every error is an OSError that names the file. Message files are created at their full size and keep
it. A deleted file stays readable to callers that have it open.

The lock on a file covers its directory. If the directory is moved away, deleted or replaced while
the lock is held, nothing below its path is created, opened, changed or flushed by name, because the
files there may belong to others.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from stat import S_IRGRP, S_IROTH, S_ISDIR, S_ISREG, S_IXGRP, S_IXOTH
from typing import NamedTuple

from ...common.threads import run_in_parallel
from ..errors import FlushFailed
from .file_lock import FileLock
from .local_file import LocalFile

_log = logging.getLogger(__name__)
_unflushed_devices: set[int] = set()
"""Devices that cannot flush directories, for which a warning was logged."""
_DIRECTORIES_PER_TASK = 128
_LISTING_THREADS_MAX = 16

_SEQUENTIAL_JOBS_MAX = 16
"""Up to this number, one thread finishes the jobs before more threads would have started."""

_JOB_THREADS_MAX = 16
"""Threads for jobs; concurrent flushes share the writes of the file system."""


def is_ignored_name(name: str) -> bool:
    """Return whether systems may create this name in any directory.

    Examples are `lost+found` of a file system, `.nfs...` of an open file that was deleted, and
    other hidden names.
    """
    return name.startswith(".") or name == "lost+found"


class DiskUsage(NamedTuple):
    """Bytes of a file system, as ``df`` counts them; free bytes are those that any user may use."""

    total: int
    used: int
    free: int

    @property
    def ratio(self) -> float:
        """The used share of the usable bytes, from 0 to 1."""
        return self.used / max(self.used + self.free, 1)

    def with_freed(self, freed_bytes: int) -> DiskUsage:
        """Return the usage once this many used bytes are free."""
        freed_bytes = min(freed_bytes, self.used)
        return DiskUsage(self.total, self.used - freed_bytes, self.free + freed_bytes)


class LocalDisk:
    """The file operations that the store needs."""

    _locks: tuple[FileLock, ...] = ()

    def create(self, path: Path, size: int) -> LocalFile:
        """Create a file of zeros, in a directory that exists. Its name is not yet durable."""
        self._check_directory(path)
        return LocalFile(path, size)

    def open(self, path: Path) -> LocalFile:
        """Open a file that exists."""
        self._check_directory(path)
        return LocalFile(path)

    def read(self, path: Path) -> bytes:
        """Return the content of a small file.

        Raises:
            FileNotFoundError: The file does not exist.
            OSError: The path is not a file, or is a link that leads nowhere; or the disk refuses.
        """
        with os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as file:
            try:
                return file.read()
            except OSError as error:
                error.filename = str(path)
                raise

    def write_whole(self, path: Path, data: bytes) -> None:
        """Write a small file with this content, and flush it. Its name is not yet durable."""
        self._check_directory(path)
        descriptor = _open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            _flush(descriptor, path)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(descriptor)

    def rename(self, path: Path, new_path: Path) -> None:
        """Rename a file, and replace any file of the new name."""
        self._check_directory(path)
        path.rename(new_path)

    def delete(self, path: Path) -> None:
        """Remove a file, or a directory that is empty."""
        self._check_directory(path)
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)

    def truncate(self, path: Path) -> None:
        """Truncate a file without opening it: closing it would end this process's lock on it."""
        self._check_directory(path)
        os.truncate(path, 0)

    def make_directory(self, path: Path) -> None:
        """Create a directory, with missing parents."""
        self._check_directory(path)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(
                errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)
            ) from error

    def flush_directory(self, path: Path) -> None:
        """Make the names in a directory durable.

        Raises:
            FlushFailed: The names may be lost.
            OSError: The directory cannot be opened.
        """
        self._check_directory(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _flush_names(descriptor, path)
        finally:
            os.close(descriptor)

    def names(self, path: Path) -> list[str]:
        """Return the sorted names in a directory; empty if it does not exist."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def list_directories(self, paths: Sequence[Path]) -> list[dict[str, int | None]]:
        """Return the contents of directories: sorted names with file sizes, None for directories.

        A directory that does not exist counts as empty.

        Raises:
            OSError: The disk refuses, or an entry is neither a file nor a directory.
        """
        parts = [
            paths[at : at + _DIRECTORIES_PER_TASK]
            for at in range(0, len(paths), _DIRECTORIES_PER_TASK)
        ]
        found: list[list[dict[str, int | None]]] = [[] for _ in parts]

        def list_part(number: int) -> None:
            found[number] = list(map(_list_directory, parts[number]))

        run_in_parallel(
            [partial(list_part, each) for each in range(len(parts))],
            _LISTING_THREADS_MAX,
            "LookInto",
        )
        return [each for part in found for each in part]

    def run_all(self, jobs: Sequence[Callable[[], object]]) -> None:
        """Run all jobs, usually flushes, in any order; many jobs run in several threads.

        Raises:
            BaseException: The first exception of a job. Other jobs may have run or not.
        """
        run_in_parallel(jobs, _JOB_THREADS_MAX if len(jobs) > _SEQUENTIAL_JOBS_MAX else 1, "Flush")

    def size_of(self, path: Path) -> int | None:
        """Return a file's size, or None if it does not exist or is a directory."""
        return path.stat().st_size if path.is_file() else None

    def modified_at(self, path: Path) -> float:
        """Return when a file was last written, in seconds since 1970."""
        return path.stat().st_mtime

    def is_readable_by_others(self, path: Path) -> bool:
        """Return whether the modes of a file and its directory let other users read the file.

        False if there is no such file.
        """
        try:
            mode, of_directory = path.stat().st_mode, path.parent.stat().st_mode
        except OSError:  # reading the file reports it
            return False
        group = mode & S_IRGRP and of_directory & S_IXGRP
        return bool(group or (mode & S_IROTH and of_directory & S_IXOTH))

    def set_modified_at(self, path: Path, seconds: float) -> None:
        """Set when a file was last written, in seconds since 1970."""
        os.utime(path, (seconds, seconds))

    def usage(self, path: Path) -> DiskUsage:
        """Return the usage of the file system that holds a directory."""
        lock = next((each for each in self._locks if each.is_held and each.directory == path), None)
        stats = os.statvfs(path if lock is None else lock.descriptor)  # finds a moved directory
        used = stats.f_blocks - stats.f_bfree
        return DiskUsage(
            *(blocks * stats.f_frsize for blocks in (stats.f_blocks, used, stats.f_bavail))
        )

    def lock(self, path: Path, subdirectories: Sequence[Path] = ()) -> FileLock:
        """Lock a file as Java does, its directory and the ``subdirectories``: see `FileLock`."""
        lock = FileLock(path, subdirectories)
        self._locks = (*(each for each in self._locks if each.is_held), lock)
        return lock

    def _check_directory(self, path: Path) -> None:
        for lock in self._locks:
            if lock.is_held and path.is_relative_to(lock.directory):
                lock.check_directory()


def _open_regular(path: Path, flags: int) -> int:
    """Open a regular file as a descriptor, without waiting for the other end of a pipe."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        if path.is_symlink():
            raise OSError(errno.ENOLINK, "a dangling link", str(path)) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_a_file_error(path)


def _not_a_file_error(path: Path) -> OSError:
    return OSError(errno.EINVAL, "a pipe, socket or device instead of a file", str(path))


def _flush(descriptor: int, path: Path) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise FlushFailed(error.errno, error.strerror, str(path)) from error


def _flush_names(descriptor: int, path: Path) -> None:
    try:
        _flush(descriptor, path)
    except FlushFailed as error:
        if error.errno != errno.EINVAL:
            raise
        device = os.fstat(descriptor).st_dev
        if device not in _unflushed_devices:
            _unflushed_devices.add(device)
            _log.warning(
                "the file system of %s cannot flush directories: new files may be lost in a power "
                "failure",
                path,
            )


def _list_directory(directory: Path) -> dict[str, int | None]:
    try:
        entries = os.scandir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    with entries:  # a dangling link raises: the directory must not count as missing then
        found = {entry.name: entry.stat() for entry in entries}
    for name, stats in found.items():
        if not S_ISREG(stats.st_mode) and not S_ISDIR(stats.st_mode):
            raise _not_a_file_error(directory / name)
    return {
        name: None if S_ISDIR(stats.st_mode) else stats.st_size
        for name, stats in sorted(found.items())
    }
