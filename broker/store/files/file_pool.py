"""FilePool: the open files of a store: opened on use, and limited in number.

    PooledFile   a file of messages, entries or keys: opened when it is used, with one descriptor
    FileGroup    files that are flushed together: those of the log, of all consume queues, of the
                 index
    FilePool     all groups of a store: when too many files are open, it closes those that have
                 not been used for longest

A written file stays open until it is flushed: a descriptor opened later may not report that the
system failed to write earlier data. If too many such files are open, the oldest is flushed early,
which is slow but correct. A failed flush is not retried, because the retry might report success for
lost data: from then on its group accepts no writes, and every flush of it fails.

A caller that reads, writes or flushes has its own reference to the open file, so the pool can drop
a file at any time, and reads need no lock: the file closes with its last reference.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from rmq_spark.wire.remoting.framing import Buffer

from ..errors import StoreFailed, UnreadableFile, is_out_of_descriptors
from .disk import LocalDisk
from .local_file import LocalFile

OPEN_FILES_MAX: Final = 4_096


def never_stop() -> bool:
    """Return False, so that a flush is not ended early."""
    return False


class PooledFile:
    """One file of a fixed size. One writer; any number of readers, in any thread."""

    __slots__ = ("directory", "group", "name", "open_file", "was_used")

    def __init__(
        self, group: FileGroup, directory: Path, name: str, open_file: LocalFile | None = None
    ) -> None:
        self.group = group
        self.directory = directory
        self.name = name
        self.open_file = open_file
        """The open file, or None; only its group changes this."""
        self.was_used = False
        """True if the file was used since the pool last looked for files to close."""

    @property
    def path(self) -> Path:
        """The path, built on demand: 80,000 files may exist that are never opened."""
        return self.directory / self.name

    def read(self, position: int, size: int) -> Buffer:
        """Read this number of bytes from a position on."""
        try:
            file = self.open_file
            if file is None:
                file = self.group.ensure_open(self)
            else:
                self.was_used = True
            return file.read(position, size)
        except OSError as error:
            raise UnreadableFile(
                f"{size} bytes at {position} of {self.path} cannot be read: {error.strerror}"
            ) from error

    def write(self, data: Buffer, position: int) -> None:
        """Write all of the data at a position. After an OSError, some of it may be written."""
        group = self.group
        # Mark the file before the write, because a failed write may leave a part; and again after
        # it, because a flush in between may have cleared the mark without flushing this data.
        if self not in group.unflushed:
            group.mark_unflushed(self)
        (self.open_file or group.ensure_open(self)).write(data, position)
        # If the mark is still set, the flush that clears it begins later and covers this data.
        if self not in group.unflushed:
            group.mark_unflushed(self)

    def next_data(self, position: int) -> int | None:
        """Return the first position at or past ``position`` that may have data, or None."""
        try:
            return (self.open_file or self.group.ensure_open(self)).next_data(position)
        except OSError as error:
            raise UnreadableFile(
                f"the data past {position} of {self.path} cannot be located: {error.strerror}"
            ) from error

    def check_in_place(self) -> None:
        """Check that the path of this file still leads to this file."""
        (self.open_file or self.group.ensure_open(self)).check_in_place()


class FileGroup:
    """Files that are flushed together, with the directories that contain them."""

    def __init__(self, pool: FilePool, root: Path | None = None) -> None:
        """Join a pool; the files lie below ``root``, or all in one directory without one."""
        self.root = root
        self.disk = pool.disk
        self.lock = pool.lock
        self.unflushed: dict[PooledFile, None] = {}
        """Open files written to since their last flush, the oldest first."""
        self._pool = pool
        self._flush_lock = threading.Lock()
        self._directories: dict[Path, int] = {}
        """Directories with names that are not durable yet, and the number of the last change of
        each."""
        self._change_numbers = count(1)
        self._failure: str | None = None
        pool.groups.append(self)

    def create(self, path: Path, size: int) -> PooledFile:
        """Create a file of zeros; its name is flushed with its first written data."""
        with self.lock:
            self._check_failure()
            open_file = self._pool.open_with_room(lambda: self.disk.create(path, size))
            file = PooledFile(self, path.parent, path.name, open_file)
            self.unflushed[file] = None
            return file

    def ensure_open(self, file: PooledFile) -> LocalFile:
        """Open a file unless it is open."""
        with self.lock:
            if file.open_file is None:
                open_file = self._pool.open_with_room(lambda: self.disk.open(file.path))
                self._pool.idle[file] = None
                file.open_file = open_file
            return file.open_file

    def mark_unflushed(self, file: PooledFile) -> None:
        """Open a file, and keep it open until it is flushed."""
        with self.lock:
            self._check_failure()
            self.ensure_open(file)
            self.unflushed[file] = None
            self._pool.idle.pop(file, None)

    def close_file(self, file: PooledFile) -> None:
        """Close a file that is about to be deleted, without a flush."""
        with self.lock:
            self.unflushed.pop(file, None)
            self._pool.idle.pop(file, None)
            file.open_file = None

    def mark_names_changed(self, directory: Path) -> None:
        """Let the next flush of the group flush the names in a directory."""
        with self.lock:
            self._directories[directory] = next(self._change_numbers)

    def discard_names(self, directory: Path) -> None:
        """Stop flushing the names in a directory that was moved or deleted."""
        with self.lock:
            self._directories.pop(directory, None)

    def flush(self, should_stop: Callable[[], bool] = never_stop) -> bool:
        """Flush all names, and everything written before the call.

        Returns:
            False if ``should_stop`` has ended this early: any file or name may be unflushed.
        """

        def flush_unless_stopped(flush: Callable[[], None]) -> None:
            if not should_stop():
                flush()

        # Without the lock, a second flush would find nothing to do and return before the first.
        with self._flush_lock:
            with self.lock:
                self._check_failure()
                directories, files = tuple(self._directories), tuple(self.unflushed)
            for flushes in (
                [partial(self.flush_names, directory) for directory in directories],
                [partial(self.flush_file, file) for file in files],
            ):
                self.disk.run_all([partial(flush_unless_stopped, flush) for flush in flushes])
            return not should_stop()

    def flush_names(self, directory: Path) -> None:
        """Flush the names in a directory, if they have changed."""
        with self.lock:
            number = self._directories.get(directory)
        if number is None:
            return
        try:
            self.disk.flush_directory(directory)
        except FileNotFoundError:
            with self.lock:
                if self._directories.get(directory) == number:
                    raise
            return  # it was moved away or deleted meanwhile
        with self.lock:  # keep a change made meanwhile
            if self._directories.get(directory) == number:
                del self._directories[directory]

    def flush_file(self, file: PooledFile) -> None:
        """Flush all earlier writes to a file, which may then be closed."""
        with self.lock:
            self._check_failure()
            open_file = file.open_file
            if file not in self.unflushed or open_file is None:
                return
            self._pool.idle[file] = None
            del self.unflushed[file]
        try:
            open_file.flush()
        except BaseException as error:
            with self.lock:
                self._failure = f"flushing {file.path} failed: {error}"
                self._pool.idle.update(self.unflushed)
                self.unflushed.clear()  # so that the next write to any of them is refused
            if isinstance(error, OSError):
                raise StoreFailed(self._failure) from error
            raise

    def close(self) -> None:
        """Close all files, without a flush."""
        with self.lock:
            for file in [
                *self.unflushed,
                *(file for file in self._pool.idle if file.group is self),
            ]:
                self.close_file(file)
            self._directories.clear()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise StoreFailed(self._failure)


class FilePool:
    """All files of a store."""

    def __init__(self, disk: LocalDisk, open_files_max: int = OPEN_FILES_MAX) -> None:
        """Limit the number of open files; a closed file stays open while a thread uses it."""
        self.disk = disk
        self.lock = threading.RLock()
        self.groups: list[FileGroup] = []
        self.idle: OrderedDict[PooledFile, None] = OrderedDict()
        """Open files without unflushed data, in the order in which they are closed."""
        self._open_files_max = open_files_max

    @property
    def open_count(self) -> int:
        """The number of open files."""
        return len(self.idle) + sum(len(group.unflushed) for group in self.groups)

    @property
    def has_many_unflushed(self) -> bool:
        """True if open files that wait for a flush leave little room for other files."""
        return sum(len(group.unflushed) for group in self.groups) > self._open_files_max // 2

    def open_with_room(self, open_one: Callable[[], LocalFile]) -> LocalFile:
        """Open or create a file, closing others if needed; call this under the lock."""
        while self.open_count >= self._open_files_max and self._close_one():
            pass
        while True:
            try:
                return open_one()
            except OSError as error:  # noqa: PERF203  # each makes room for the next attempt
                # Other code of this process or machine has unexpectedly many files open.
                if not is_out_of_descriptors(error) or not self._close_one():
                    raise

    def _close_one(self) -> bool:
        """Close the approximately least recently used file; return False if none can be closed."""
        while self.idle:
            file, _ = self.idle.popitem(last=False)
            if not file.was_used:
                file.open_file = None
                return True
            file.was_used = False
            self.idle[file] = None
        for group in self.groups:
            for file in group.unflushed:
                with suppress(Exception):  # the next write or flush reports the error
                    group.flush_file(file)
                if file in group.unflushed:  # a shortage prevented the flush
                    return False
                group.close_file(file)
                return True
        return False
