"""Directory lock: keeps other brokers out of a store, and detects crashes.

A running broker locks ``lock`` in a way that excludes RocketMQ brokers as well, and is excluded by
them. If somebody deletes that file, another rocketpoll broker is still kept out, and so is one
whose directory has links into this one. ``abort`` exists while a broker runs, and a clean stop
removes it; a start that finds it follows a crash. RocketMQ writes a word into ``lock`` when it
starts, and RocketMQ 4.9 leaves an existing ``abort`` unchanged: so the content of ``lock`` shows
that RocketMQ ran, and our next start wipes it.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ..errors import StoreInUse, has_lost_content
from ..files.disk import LocalDisk
from ..files.file_lock import FileLock
from ..log.checkpoint_file import CHECKPOINT

LOCK: Final = "lock"
ABORT: Final = "abort"
OUR_SIGN: Final = b"rocketpoll"
_NONCE_BYTES: Final = 16
_FOREIGN_DIRECTORY_ERRNOS: Final = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS)


def make_root(disk: LocalDisk, root: Path, names: Sequence[str]) -> Sequence[Path]:
    """Create a store's directory, if it is missing, in a way that survives a power loss.

    A start may be killed between creating a directory and flushing its name. So until a start has
    completed, the name of every parent is flushed, except in directories that this process cannot
    open, which others created. The subdirectories ``names`` are created as well, and returned to be
    locked; the caller flushes their names.
    """
    below = [root / name for name in names]
    for directory in (root, *below):
        disk.make_directory(directory)
    if CHECKPOINT not in disk.names(root):
        for directory in root.absolute().parents:
            _flush_if_ours(disk, directory)
    return below


def _flush_if_ours(disk: LocalDisk, directory: Path) -> None:
    try:
        disk.flush_directory(directory)
    except OSError as error:
        if error.errno not in _FOREIGN_DIRECTORY_ERRNOS:
            raise


def lock_directory(disk: LocalDisk, root: Path, subdirectories: Sequence[Path] = ()) -> FileLock:
    """Lock a directory and those of its ``subdirectories`` that exist, until they are released.

    Raises:
        StoreInUse: Another process, or this one, has locked it already.
        OSError: The lock file cannot be created or locked.
    """
    path = root / LOCK
    try:
        return disk.lock(path, subdirectories)
    except BlockingIOError as error:
        locked = error.filename or str(path)
        raise StoreInUse(
            f"{root} is in use by another process, which has locked {locked}: stop that broker, "
            f"or give this one a directory of its own (`fuser -v {shlex.quote(locked)}` shows the "
            "process)"
        ) from None
    except OSError as error:
        if error.errno != errno.EDEADLK:
            raise
        what = root if error.filename == str(path) else error.filename
        raise StoreInUse(
            f"{what} is in use by this process already: close the store that has it first"
        ) from None


class AbortFile:
    """The file that marks a running or crashed broker."""

    def __init__(
        self, disk: LocalDisk, root: Path, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        self._disk = disk
        self._root = root
        self.path = root / ABORT
        self.sign = OUR_SIGN + b" " + random_bytes(_NONCE_BYTES).hex().encode()
        """The bytes that `create` writes, unique to this start."""

    def exists(self) -> bool:
        """Return whether the last broker crashed; call this under the lock, before `create`."""
        return ABORT in self._disk.names(self._root)

    def is_foreign(self) -> bool:
        """Return whether another program ran last and crashed.

        RocketMQ's file is empty or has a number. If RocketMQ started after our crash, it left our
        file unchanged, and only the content of the lock file shows that it ran. A file that the
        disk does not return may be another program's: then no checkpoint is trusted.
        """
        if not self.exists():
            return False
        if self._disk.size_of(self._root / LOCK):
            return True
        try:
            return not self._disk.read(self.path).startswith(OUR_SIGN)
        except OSError as error:
            if not has_lost_content(error):
                raise
            return True

    def create(self) -> None:
        """Write the file durably, before anything else in the directory is changed.

        It is written to another name and renamed, because an empty file would look like another
        program's.
        """
        new_path = self.path.with_name(f"{ABORT}.tmp")
        self._disk.write_whole(new_path, self.sign)
        self._disk.rename(new_path, self.path)
        self._disk.flush_directory(self._root)
        if self._disk.size_of(self._root / LOCK):  # harmless if a power loss restores it
            self._disk.truncate(self._root / LOCK)

    def remove(self) -> None:
        """Remove the file durably, after everything else is flushed."""
        self._disk.delete(self.path)
        self._disk.flush_directory(self._root)
