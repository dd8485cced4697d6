"""RecordLock: the lock of a file as Java's ``FileChannel.tryLock(0, 1, false)`` sets it on Linux.

That is a POSIX record lock on the first byte, which `fcntl.lockf` sets and `fcntl.flock` would not
see. It ends with the process, however that ends; the file stays, and its content is of
no interest here.

A record lock belongs to a process: it does not keep the same process out, and is lost as soon as
the process closes the file anywhere. Therefore this module remembers what it holds and does not
touch the file a second time.

Whoever takes the file for a stale one may delete it, and then anybody locks the next one of that
name. So the directory is locked as well, by `flock`, which no RocketMQ does, and which the deletion
of a file does not end. Links can lead from several directories, each with a lock of its own, to one
that all would write to: so those below it are locked in the same way. A child that is forked lets
go of them; and where a file system cannot do that to a directory, it is left at the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .local_file import leads_to

_REFUSALS = frozenset({errno.EAGAIN, errno.EACCES})
_KEEPS_NONE = frozenset({errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL})

_Directory = tuple[int, int, int]
"""A directory that a process has locked: the process, and the directory's device and number."""

_guard = threading.Lock()
_held: set[tuple[int, int, int, str]] = set()  # process; the directory's device and number; name


_directories: dict[_Directory, tuple[int, int]] = {}
"""The descriptors of locked directories, and the number of locks in each."""


class RecordLock:
    """A lock that is held from its making until `release`."""

    def __init__(self, path: Path, below: Sequence[Path] = ()) -> None:
        """Lock a file, which is made if it is missing, in a directory that exists.

        With it, directories ``below`` are locked, as far as they exist.

        Raises:
            BlockingIOError: Another process has locked it.
            OSError: EDEADLK, this process has; else, it cannot be made or locked at all.
        """
        self.descriptor = -1
        """The open file; -1 once it is released."""
        self.directory = path.parent
        with _guard:
            self._identity = _identity_of(path.parent)
            self._key = (*self._identity, path.name)
            self._locked: list[_Directory] = []
            if self._key in _held:
                raise OSError(errno.EDEADLK, os.strerror(errno.EDEADLK), str(path))
            descriptor = _locked(path)
            try:
                _lock_directory(path.parent, self._identity)
                self._locked.append(self._identity)
                self._lock_below(below)
            except BaseException:
                os.close(descriptor)
                self._let_go()
                raise
            self.descriptor = descriptor
            _held.add(self._key)

    @property
    def is_held(self) -> bool:
        """True until it is released."""
        return self.descriptor >= 0

    def check_directory(self) -> None:
        """Make sure that the directory of the file is the one that was locked.

        Raises:
            OSError: It was moved away or deleted, or another one is in its place.
        """
        with suppress(FileNotFoundError, NotADirectoryError):
            opened, _ = _directories.get(self._identity, (-1, 0))  # a child has let go of it
            if opened >= 0 and leads_to(self.directory, opened):
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
                _held.discard(self._key)
                os.close(self.descriptor)
                self.descriptor = -1
                self._let_go()

    def _lock_below(self, directories: Sequence[Path]) -> None:
        for directory in directories:
            with suppress(FileNotFoundError, NotADirectoryError):
                identity = _identity_of(directory)
                if identity in _directories:  # no two stores of one process may share it either
                    raise OSError(errno.EDEADLK, os.strerror(errno.EDEADLK), str(directory))
                _lock_directory(directory, identity)
                self._locked.append(identity)

    def _let_go(self) -> None:
        for identity in self._locked:
            _let_go(identity)
        self._locked.clear()


def _identity_of(directory: Path) -> _Directory:
    stats = directory.stat()
    return os.getpid(), stats.st_dev, stats.st_ino


def _locked(path: Path) -> int:
    kind = fcntl.LOCK_EX
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # nobody writes to that disk
        kind = fcntl.LOCK_SH
    try:
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB, 1)
    except OSError as error:
        os.close(descriptor)
        number = errno.EAGAIN if error.errno in _REFUSALS else error.errno
        why = error.strerror
        if number in _KEEPS_NONE:
            why = f"the file system keeps no locks, to keep a second broker out ({why})"
        raise OSError(number, why, str(path)) from None
    return descriptor


def _lock_directory(path: Path, key: _Directory) -> None:
    """Lock a directory, or count one more lock in it.

    Raises:
        BlockingIOError: Another process has locked it.
        OSError: There is no descriptor for it.
    """
    descriptor, count = _directories.get(key, (-1, 0))
    if not count:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _REFUSALS:
                os.close(descriptor)
                raise OSError(errno.EAGAIN, error.strerror, str(path)) from None
    _directories[key] = descriptor, count + 1


def _let_go(key: _Directory) -> None:
    descriptor, count = _directories.pop(key, (-1, 0))
    if count > 1:
        _directories[key] = descriptor, count - 1
    elif count:
        os.close(descriptor)


def _after_fork() -> None:
    """Let go of directories in a child, which would keep them locked beyond its parent's end."""
    for descriptor, _ in _directories.values():
        os.close(descriptor)
    _directories.clear()


os.register_at_fork(after_in_child=_after_fork)
