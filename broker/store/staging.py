"""Staging: the files of rows that were staged and are not committed yet, apart from the log.

    staging/<sink>/<batch>-<number>-<attempt>     one chunk each, as it came, behind a head:

        4s   magic
        i32  version of this format
        u32  CRC-32 of the rest
        i32  rows
             the chunk, its sizes in front

A file is whole and on the disk before its chunk is acknowledged. It goes when its batch, or a later
one of its sink, is committed, when the batch is aborted, or when it is a day old.

This module must not know the log, nor what becomes of a batch.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from rmq_spark.wire.bodies.staged_batches import StagedAttempt
from rocketpoll.broker.store.disk import Disk
from rocketpoll.broker.store.errors import BatchRefused
from rocketpoll.broker.store.lacks import Lacking

STAGING: Final = "staging"
KEPT_SECONDS: Final = 24 * 3600
_LOOK_SECONDS = 600
_HEAD = struct.Struct(">4siIi")
_MAGIC: Final = b"RPST"
_VERSION: Final = 1
_SINK = re.compile(r"[%|a-zA-Z0-9_-][%|a-zA-Z0-9_.-]{0,199}")
_ATTEMPT = re.compile(r"[a-zA-Z0-9_.]{1,64}")
_NAME = re.compile(r"([0-9]+)-([0-9]+)-([a-zA-Z0-9_.]+)")


class StagedName(NamedTuple):
    """The name of one staged chunk."""

    sink: str
    batch_id: int
    attempt: str
    number: int

    @property
    def file_name(self) -> str:
        """The name of its file in the directory of its sink."""
        return f"{self.batch_id}-{self.number}-{self.attempt}"

    def check(self) -> None:
        """Refuse names that no file can have.

        Raises:
            BatchRefused: With what is wrong.
        """
        if not _SINK.fullmatch(self.sink):
            raise BatchRefused(
                f"a sink cannot be called {self.sink!r}: needed are up to 200 letters, digits and "
                "any of % | _ - ."
            )
        if not _ATTEMPT.fullmatch(self.attempt) or self.batch_id < 0 or self.number < 0:
            raise BatchRefused(
                f"needed are a batch and a chunk from 0 on, and an attempt of letters, digits, _ "
                f"and .; found {self.batch_id}, {self.number} and {self.attempt!r}"
            )


class Staging:
    """The staged chunks of one store. Its methods may be called from any thread."""

    def __init__(
        self, disk: Disk, root: Path, bytes_max: int, now_seconds: Callable[[], float]
    ) -> None:
        """Prepare without touching the disk; all that is staged may have ``bytes_max`` bytes."""
        self._disk = disk
        self._root = root
        self._bytes_max = bytes_max
        self._now_seconds = now_seconds
        self._lock = threading.RLock()
        self._sizes: dict[StagedName, int] = {}
        self._look_again_seconds = 0.0

    @property
    def size(self) -> int:
        """The number of bytes that are staged now."""
        return sum(self._sizes.values())

    def load(self) -> None:
        """Find what was staged before."""
        sinks = self._disk.names(self._root)
        found = self._disk.look_into([self._root / sink for sink in sinks])
        for sink, files in zip(sinks, found, strict=True):
            for name, size in files.items():
                parts = _NAME.fullmatch(name)
                if parts is not None and size is not None:
                    self._sizes[StagedName(sink, int(parts[1]), parts[3], int(parts[2]))] = size

    def put(self, name: StagedName, rows: int, sized_records: bytes) -> None:
        """Stage a chunk, in place of one of the same name; it is on the disk when this returns.

        Raises:
            Lacking: All that may be staged is staged.
            OSError: The disk refuses. What there was of that name is gone, or damaged.
        """
        with self._lock:
            self._forget_old()
            size = _HEAD.size + len(sized_records)
            if self.size - self._sizes.get(name, 0) + size > self._bytes_max:
                raise Lacking(
                    f"{self.size} bytes are staged, and {size} more would be over "
                    f"{self._bytes_max} (maxStagedBytes)"
                )
            directory = self._root / name.sink
            if not any(known.sink == name.sink for known in self._sizes):
                self._disk.make_directory(directory)
                self._disk.flush_directory(self._root.parent)
                self._disk.flush_directory(self._root)
            self._sizes[name] = size  # before the write: what a failed one leaves takes room, too
            head = _HEAD.pack(_MAGIC, _VERSION, crc32(sized_records), rows)
            self._disk.write_whole(directory / name.file_name, head + sized_records)
            self._disk.flush_directory(directory)

    def read(self, name: StagedName) -> tuple[int, bytes]:
        """Return the rows of a staged chunk, and the chunk.

        Raises:
            BatchRefused: It is missing, damaged, or of a newer release.
        """
        path = self._root / name.sink / name.file_name
        try:
            data = self._disk.read(path)
        except FileNotFoundError:
            raise BatchRefused(
                f"chunk {name.number} of attempt {name.attempt} is not staged: {path} is missing"
            ) from None
        if len(data) < _HEAD.size or data[:4] != _MAGIC:
            raise BatchRefused(f"{path} is damaged: it does not begin as a staged chunk does")
        _, version, crc, rows = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise BatchRefused(
                f"{path} was staged by a newer release: its format is {version}, "
                f"known is {_VERSION}"
            )
        sized_records = data[_HEAD.size :]
        if crc32(sized_records) != crc:
            raise BatchRefused(f"{path} is damaged: its CRC is not that of what was staged")
        return rows, sized_records

    def checked(
        self, sink: str, batch_id: int, attempts: Sequence[StagedAttempt]
    ) -> list[StagedName]:
        """Return the names of all chunks of a batch, each read and found to be what is named.

        Raises:
            BatchRefused: One is missing or damaged, or an attempt is not what was staged.
        """
        names: list[StagedName] = []
        for each in attempts:
            rows = crc = 0
            for number in range(each.chunks):
                name = StagedName(sink, batch_id, each.attempt, number)
                name.check()
                more, sized_records = self.read(name)
                rows, crc = rows + more, crc32(sized_records, crc)
                names.append(name)
            if (rows, crc) != (each.rows, each.crc):
                raise BatchRefused(
                    f"attempt {each.attempt} of batch {batch_id} has staged {rows} rows with CRC "
                    f"{crc}, and the commit names {each.rows} rows with CRC {each.crc}"
                )
        return names

    def forget(
        self, sink: str, *, first: int = 0, last: int, attempts: frozenset[str] = frozenset()
    ) -> None:
        """Delete what was staged of batches of a sink, from the first to the last.

        With ``attempts``, only what these have staged.
        """
        self._delete(
            [
                name
                for name in self._sizes
                if name.sink == sink
                and first <= name.batch_id <= last
                and (not attempts or name.attempt in attempts)
            ]
        )

    def _forget_old(self) -> None:
        """Delete what was staged a day ago, or earlier."""
        now = self._now_seconds()
        if now < self._look_again_seconds:
            return
        self._look_again_seconds = now + _LOOK_SECONDS
        latest = now - KEPT_SECONDS
        old = []
        for name in self._sizes:
            with suppress(OSError):
                modified = self._disk.modified_at(self._root / name.sink / name.file_name)
                if modified <= latest:
                    old.append(name)
        self._delete(old)

    def _delete(self, names: Sequence[StagedName]) -> None:
        with self._lock:
            for name in names:
                with suppress(FileNotFoundError):
                    self._disk.delete(self._root / name.sink / name.file_name)
                self._sizes.pop(name, None)
