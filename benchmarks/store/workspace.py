"""Directories that cases write to, and the stores open in them.

A case that writes starts on a `fresh` directory, and the files of the case before are deleted:
pages of them that the kernel has not written back yet would be written at this case's expense.
Files that many cases read are `kept`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from rocketpoll.broker.store.config import FlushDiskType, StoreConfig
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.message_store import MessageStore

_Made = TypeVar("_Made")
_COPY_BYTES = 1 << 20


class Closes(Protocol):
    """An object, such as a store, that has to be shut down before its directory is deleted."""

    def shutdown(self) -> object:
        """Shut the object down; called once."""


class Workspace:
    """A directory whose content changes from case to case."""

    def __init__(self, directory: Path) -> None:
        """Use an existing directory, whose content may be deleted."""
        self._directory = directory
        self._fresh: list[Closes] = []
        self._open: list[Closes] = []
        self._kept: dict[str, Any] = {}

    def fresh(self) -> Path:
        """Return a new, empty directory in place of the one before."""
        for each in self._fresh:
            each.shutdown()
        self._fresh.clear()
        path = self._directory / "fresh"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def closing(self, made: Closes) -> None:
        """Register an object to be shut down before the next `fresh`."""
        self._fresh.append(made)

    def kept(self, name: str, make: Callable[[Path], _Made]) -> _Made:
        """Return what ``make`` returned under this name, calling it for the first time only.

        ``make`` gets a directory of its own.
        """
        if name not in self._kept:
            path = self._directory / name
            path.mkdir()
            self._kept[name] = make(path)
        made: _Made = self._kept[name]
        return made

    def mark_unflushed(self, made: Closes) -> None:
        """Register an object to be shut down at the very end."""
        self._open.append(made)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in (*self._fresh, *self._open):
            each.shutdown()


def open_store(
    root: Path,
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
    *,
    with_index: bool = True,
    wake_reput: Callable[[], None] | None = None,
) -> MessageStore:
    """Open a store with RocketMQ's sizes."""
    config = StoreConfig(
        store_path_root_dir=root, flush_disk_type=flush_disk_type, message_index_enable=with_index
    )
    return MessageStore(config, LocalDisk(), now_ms, wake_reput=wake_reput)


def now_ms() -> int:
    """Return the time of the store's clock, in ms."""
    return time.time_ns() // 1_000_000


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a directory of sparse files, without their holes."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in source.iterdir():
        with path.open("rb") as old, (target / path.name).open("wb") as new:
            size = path.stat().st_size
            os.ftruncate(new.fileno(), size)
            at = 0
            while (start := _next_data(old.fileno(), at)) is not None:
                at = min(os.lseek(old.fileno(), start, os.SEEK_HOLE), start + _COPY_BYTES)
                os.pwrite(new.fileno(), os.pread(old.fileno(), at - start, start), start)


def _next_data(descriptor: int, position: int) -> int | None:
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError:  # nothing but a hole
        return None
