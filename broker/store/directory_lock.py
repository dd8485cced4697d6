"""Who may use a store's directory, and whether the last one to use it has left in order.

``lock`` is locked while a broker runs, the way Java's ``FileChannel.tryLock(0, 1, false)`` does it on
Linux: a POSIX record lock on the first byte, which `fcntl.lockf` sets and `fcntl.flock` would not see.
So a RocketMQ broker and this one keep each other out. The lock ends with the process, however it ends;
the file stays, and its content means nothing.

A record lock belongs to a process: it does not keep the same process out, and is lost as soon as the
process closes the file anywhere. Therefore this module remembers what it holds and does not touch the
file a second time.

``abort`` is there while a broker runs and is removed at a clean stop; a start that finds it follows a
crash. It knows no other file of the store.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

from broker.store.disk import Disk
from broker.store.errors import StoreInUse

LOCK: Final = "lock"
ABORT: Final = "abort"
OUR_SIGN: Final = b"rocketpoll"

_REFUSALS = frozenset({errno.EAGAIN, errno.EACCES})

_guard = threading.Lock()
_held: set[tuple[int, int, int]] = set()  # process, device and number of each directory that is locked


class DirectoryLock:
    """The right to use a directory, which must exist; held from its making until `release`.

    Raises:
        StoreInUse: Another process has it, or this one already.
        OSError: The lock file cannot be made or locked at all.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK
        self._descriptor = -1
        with _guard:
            stats = root.stat()
            self._key = (os.getpid(), stats.st_dev, stats.st_ino)
            if self._key in _held:
                raise StoreInUse(
                    f"{root} is in use by this process already: close the store that has it first"
                )
            self._descriptor = self._lock(root)
            _held.add(self._key)

    def release(self) -> None:
        """Let others have the directory. A second call does nothing."""
        with _guard:
            if self._descriptor >= 0:
                _held.discard(self._key)
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _lock(self, root: Path) -> int:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _REFUSALS:
                raise
            raise StoreInUse(
                f"{root} is in use by another process, which has locked {self._path}: stop that broker, or "
                f"give this one a directory of its own (`fuser -v {self._path}` tells which process it is)"
            ) from None
        return descriptor


class AbortFile:
    """The sign of a broker that runs, or of one that has crashed."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._path = root / ABORT

    def exists(self) -> bool:
        """Whether the last one has crashed; ask with the directory locked, and before `create`."""
        return ABORT in self._disk.names(self._root)

    def is_of_another(self) -> bool:
        """Whether another program has crashed; RocketMQ leaves nothing in the file, or a number."""
        return self.exists() and self._disk.read(self._path) != OUR_SIGN

    def create(self) -> None:
        """Leave the sign, durably; before anything else in the directory is changed."""
        self._disk.write_whole(self._path, OUR_SIGN)
        self._disk.flush_directory(self._root)

    def remove(self) -> None:
        """Take the sign away, durably; after all else is flushed."""
        self._disk.delete(self._path)
        self._disk.flush_directory(self._root)
