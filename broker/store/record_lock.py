"""RecordLock: the lock of a file as Java's ``FileChannel.tryLock(0, 1, false)`` sets it on Linux.

That is a POSIX record lock on the first byte, which `fcntl.lockf` sets and `fcntl.flock` would not
see. It ends with the process, however that ends; the file stays, and its content means nothing.

A record lock belongs to a process: it does not keep the same process out, and is lost as soon as
the process closes the file anywhere. Therefore this module remembers what it holds and does not
touch the file a second time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

_REFUSALS = frozenset({errno.EAGAIN, errno.EACCES})

_guard = threading.Lock()
_held: set[tuple[int, int, int, str]] = set()  # process; the directory's device and number; name


class RecordLock:
    """A lock that is held from its making until `release`."""

    def __init__(self, path: Path) -> None:
        """Lock a file, which is made if it is missing, in a directory that exists.

        Raises:
            BlockingIOError: Another process has locked it.
            OSError: EDEADLK, this process has; else, it cannot be made or locked at all.
        """
        self._descriptor = -1
        with _guard:
            stats = path.parent.stat()
            self._key = (os.getpid(), stats.st_dev, stats.st_ino, path.name)
            if self._key in _held:
                raise OSError(errno.EDEADLK, os.strerror(errno.EDEADLK), str(path))
            self._descriptor = _locked(path)
            _held.add(self._key)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        with _guard:
            if self._descriptor >= 0:
                _held.discard(self._key)
                os.close(self._descriptor)
                self._descriptor = -1


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
        raise OSError(number, error.strerror, str(path)) from None
    return descriptor
