"""FileLock: the lock of a file as Java's ``FileChannel.tryLock(0, 1, false)`` sets it on Linux.

That is a POSIX record lock on the first byte, which `fcntl.lockf` sets and `fcntl.flock` would not
see. The lock ends with the process, even after a kill; the file stays, and its content does not
matter here.

A record lock belongs to a process: it does not exclude the same process, and is lost as soon as the
process closes the file anywhere. So this module records its locks and does not open the file a
second time.

An operator may delete the file as a stale one; another process can then create and lock a new file
of that name. So this module also locks the directory, with `flock`, which RocketMQ does not use and
which outlasts the file. The subdirectories are locked in the same way: stores in several
directories, each with its own lock, may have links to one directory, to which all would write. A
forked child drops these locks. If a file system cannot lock a directory, only the file is locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .local_file import is_same_file

_LOCKED_ERRNOS = frozenset({errno.EAGAIN, errno.EACCES})
_NO_LOCKS_ERRNOS = frozenset({errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL})

_DirectoryIdentity = tuple[int, int, int]
"""A directory that a process has locked: the process, and the directory's device and inode."""

_guard = threading.Lock()
_locked_files: set[tuple[int, int, int, str]] = set()
"""Locked files: process, device and inode of the directory, and name of the file."""
_locked_directories: dict[_DirectoryIdentity, tuple[int, int]] = {}
"""The descriptor of each locked directory, and the number of its locks."""


class FileLock:
    """A lock that is held from its construction until `release`."""

    def __init__(self, path: Path, subdirectories: Sequence[Path] = ()) -> None:
        """Lock a file, which is created if missing, in a directory that exists.

        This also locks those of ``subdirectories`` that exist.

        Raises:
            BlockingIOError: Another process has locked it.
            OSError: The file cannot be opened or locked; EDEADLK if this process has locked it.
        """
        self.descriptor = -1
        """The descriptor of the file; -1 once it is released."""
        self.directory = path.parent
        with _guard:
            self._identity = _identity_of(path.parent)
            self._key = (*self._identity, path.name)
            self._locked_identities: list[_DirectoryIdentity] = []
            if self._key in _locked_files:
                raise OSError(errno.EDEADLK, os.strerror(errno.EDEADLK), str(path))
            descriptor = _open_and_lock(path)
            try:
                _lock_directory(path.parent, self._identity)
                self._locked_identities.append(self._identity)
                self._lock_subdirectories(subdirectories)
            except BaseException:
                os.close(descriptor)
                self._unlock_directories()
                raise
            self.descriptor = descriptor
            _locked_files.add(self._key)

    @property
    def is_held(self) -> bool:
        """True until the lock is released."""
        return self.descriptor >= 0

    def check_directory(self) -> None:
        """Check that the directory of the file is still the one that was locked."""
        with suppress(FileNotFoundError, NotADirectoryError):
            opened, _ = _locked_directories.get(self._identity, (-1, 0))  # a forked child has none
            if opened >= 0 and is_same_file(self.directory, opened):
                return
        raise OSError(
            errno.ESTALE,
            "the directory was moved away, deleted or replaced while it was in use",
            str(self.directory),
        )

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        with _guard:
            if self.descriptor >= 0:
                _locked_files.discard(self._key)
                os.close(self.descriptor)
                self.descriptor = -1
                self._unlock_directories()

    def _lock_subdirectories(self, directories: Sequence[Path]) -> None:
        for directory in directories:
            with suppress(FileNotFoundError, NotADirectoryError):
                identity = _identity_of(directory)
                # Two stores of one process must not share a subdirectory either.
                if identity in _locked_directories:
                    raise OSError(errno.EDEADLK, os.strerror(errno.EDEADLK), str(directory))
                _lock_directory(directory, identity)
                self._locked_identities.append(identity)

    def _unlock_directories(self) -> None:
        for identity in self._locked_identities:
            _unlock_directory(identity)
        self._locked_identities.clear()


def _identity_of(directory: Path) -> _DirectoryIdentity:
    stats = directory.stat()
    return os.getpid(), stats.st_dev, stats.st_ino


def _open_and_lock(path: Path) -> int:
    kind = fcntl.LOCK_EX
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # the disk is read-only
        kind = fcntl.LOCK_SH
    try:
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB, 1)
    except OSError as error:
        os.close(descriptor)
        number = errno.EAGAIN if error.errno in _LOCKED_ERRNOS else error.errno
        why = error.strerror
        if number in _NO_LOCKS_ERRNOS:
            why = (
                f"the file system does not support the lock that keeps a second broker out ({why})"
            )
        raise OSError(number, why, str(path)) from None
    return descriptor


def _lock_directory(path: Path, key: _DirectoryIdentity) -> None:
    """Lock a directory, or add a lock to one that this process has locked."""
    descriptor, count = _locked_directories.get(key, (-1, 0))
    if not count:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED_ERRNOS:
                os.close(descriptor)
                raise OSError(errno.EAGAIN, error.strerror, str(path)) from None
    _locked_directories[key] = descriptor, count + 1


def _unlock_directory(key: _DirectoryIdentity) -> None:
    descriptor, count = _locked_directories.pop(key, (-1, 0))
    if count > 1:
        _locked_directories[key] = descriptor, count - 1
    elif count:
        os.close(descriptor)


def _release_in_child() -> None:
    """Release directory locks in a forked child; otherwise they would outlast the parent."""
    for descriptor, _ in _locked_directories.values():
        os.close(descriptor)
    _locked_directories.clear()


os.register_at_fork(after_in_child=_release_in_child)
