"""StagingArea: the files of rows that are staged and not committed yet, apart from the log.

    staging/<sink>/<batch>-<number>-<attempt>     one chunk each, as received, after a head:

        4s   magic
        i32  version of this format
        u32  CRC-32 of the rest
        i32  rows
             the chunk, its sizes in front

Nothing here is flushed: a commit compares each chunk with what was received, by its CRC, and
flushes the rows where it copies them. After a power failure chunks may be missing; then the commit
is refused and the sink stages its batch again. A killed process loses nothing. A file is deleted
when its batch or a later one of its sink is committed, when the batch is aborted, when its sink is
forgotten, or when it is a day old.
"""

from __future__ import annotations

import logging
import re
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from rmq_spark.errors import format_count
from rmq_spark.wire.bodies.staged_batches import StagedAttempt
from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.remoting.framing import Buffer

from ...common.recent_losses import LossKind, RecentLosses
from ..errors import BatchRefused, Degradation, TransientFailure
from ..files.disk import LocalDisk, is_ignored_name

STAGING: Final = "staging"
RETENTION_SECONDS: Final = 24 * 3600
_CLEANUP_INTERVAL_SECONDS = 600
_EXCERPT_CHARS_MAX = 80
_HEAD = struct.Struct(">4siIi")

_SINKS_SHOWN: Final = 5
_MAGIC: Final = b"RPST"
_VERSION: Final = 1
_SINK = re.compile(r"[%|a-zA-Z0-9_-][%|a-zA-Z0-9_.-]{0,199}")
_ATTEMPT = re.compile(r"[a-zA-Z0-9_.]{1,64}")
_NAME = re.compile(r"([0-9]+)-([0-9]+)-([a-zA-Z0-9_.]+)")


class StagingFull(TransientFailure):
    """The staged rows have reached their limit."""


class StagedName(NamedTuple):
    """The name of one staged chunk."""

    sink: str
    batch_id: int
    attempt: str
    number: int

    @property
    def file_name(self) -> str:
        """The chunk's file name in the directory of its sink."""
        return f"{self.batch_id}-{self.number}-{self.attempt}"

    def check(self) -> None:
        """Refuse names that are not valid file names."""
        check_batch_name(self.sink, self.batch_id)
        if not _ATTEMPT.fullmatch(self.attempt) or self.number < 0:
            raise BatchRefused(
                "chunks start at 0, and an attempt has up to 64 letters, digits, _ and .; found "
                f"{self.number} and {_excerpt(self.attempt)}"
            )


def check_batch_name(sink: str, batch_id: int) -> None:
    """Refuse a sink name or batch number that cannot be staged."""
    if not _SINK.fullmatch(sink):
        raise BatchRefused(
            f"a sink cannot be called {_excerpt(sink)}: use up to 200 letters, digits and any of "
            "% | _ - ."
        )
    if batch_id < 0:
        raise BatchRefused(f"batch ids start at 0, found {batch_id}")


def _excerpt(name: str) -> str:
    return repr(name) if len(name) <= _EXCERPT_CHARS_MAX else f"{name[:_EXCERPT_CHARS_MAX]!r}..."


class _Head(NamedTuple):
    """The CRC-32 and number of rows of a chunk."""

    crc: int
    rows: int


class _StagedFile(NamedTuple):
    """The size of a staged file, and its head; None if that was not read since a restart."""

    size: int
    head: _Head | None = None


class StagingArea:
    """The staged chunks of one store. Its methods may be called from any thread."""

    def __init__(
        self,
        disk: LocalDisk,
        root: Path,
        bytes_max: int,
        now_seconds: Callable[[], float],
        losses: RecentLosses,
    ) -> None:
        """Limit the total size of the staged files to ``bytes_max``."""
        self._disk = disk
        self._root = root
        self._bytes_max = bytes_max
        self._now_seconds = now_seconds
        self._losses = losses
        self._lock = threading.RLock()
        self._staged: dict[StagedName, _StagedFile] = {}
        self._directories: set[str] = set()
        self._next_cleanup_seconds = 0.0
        self._full_degradation = Degradation("rows are not staged")
        self._needed_bytes = 0
        self.size = 0
        """The total size of the staged files, in bytes."""
        self.expired_bytes = 0
        """The bytes of chunks that were deleted because nobody committed them within a day."""

    def load(self) -> None:
        """Find the files that an earlier run has staged."""
        (entries,) = self._disk.list_directories([self._root])
        sinks = [
            name for name, size in entries.items() if size is None and not is_ignored_name(name)
        ]
        found = self._disk.list_directories([self._root / sink for sink in sinks])
        with self._lock:
            for sink, files in zip(sinks, found, strict=True):
                self._directories.add(sink)
                for name, size in files.items():
                    parts = _NAME.fullmatch(name)
                    if parts is not None and size is not None:
                        known = StagedName(sink, int(parts[1]), parts[3], int(parts[2]))
                        self._set_staged(known, _StagedFile(size))

    def put(self, name: StagedName, rows: int, sized_records: Buffer) -> None:
        """Stage a chunk, and replace any chunk of the same name.

        Raises:
            StagingFull: The staged rows have reached their limit.
            OSError: The write failed. The previous chunk of that name is gone. If the remains
                cannot be deleted either, they take up room until the batch is deleted.
        """
        head = _Head(crc32(sized_records), rows)
        size = _HEAD.size + len(sized_records)
        path = self._root / name.sink / name.file_name
        with self._lock:
            known = self._staged.get(name)
            others = self.size - (known.size if known else 0)
            if others + size > self._bytes_max:
                raise self._full_error(size)
            if known is not None:
                self._delete([name])
            if name.sink not in self._directories:
                self._disk.make_directory(path.parent)
                self._directories.add(name.sink)
            self._set_staged(name, _StagedFile(size))
            try:
                with closing(self._disk.create(path, size)) as file:
                    file.write(sized_records, _HEAD.size)
                    file.write(_HEAD.pack(_MAGIC, _VERSION, *head), 0)
            except Exception as error:
                if isinstance(error, FileNotFoundError):
                    self._directories.discard(name.sink)  # the directory was removed
                with suppress(OSError):
                    self._delete([name])
                raise
            self._set_staged(name, _StagedFile(size, head))
            self._recover_if_room()

    def read(self, name: StagedName) -> memoryview:
        """Return a staged chunk; raise `BatchRefused` if it is missing or damaged."""
        path = self._root / name.sink / name.file_name
        try:
            data = self._disk.read(path)
        except FileNotFoundError:
            raise _missing_error(name) from None
        crc, _ = _head_in(data, path)
        sized_records = memoryview(data)[_HEAD.size :]
        if crc32(sized_records) != crc:
            raise BatchRefused(f"{path} is damaged: its CRC is not that of what was staged")
        return sized_records

    def check_attempts(
        self, sink: str, batch_id: int, attempts: Sequence[StagedAttempt]
    ) -> list[StagedName]:
        """Return the names of all chunks of a batch, if the attempts match what was staged.

        This compares numbers of rows and CRCs; `read` checks whether each chunk is intact.

        Raises:
            BatchRefused: A chunk is missing or truncated, or an attempt does not match or is named
                twice.
        """
        if len({each.attempt for each in attempts}) < len(attempts):
            raise BatchRefused(f"batch {batch_id} of sink {sink} names an attempt twice")
        from rmq_spark.wire.chunk.crc import combine_crcs  # noqa: PLC0415  # needs the tools for many records

        names: list[StagedName] = []
        for each in attempts:
            rows = crc = 0
            for number in range(each.chunks):
                name = StagedName(sink, batch_id, each.attempt, number)
                name.check()
                head, size = self._head_of(name)
                rows += head.rows
                crc = combine_crcs(crc, head.crc, size)
                names.append(name)
            if (rows, crc) != (each.rows, each.crc):
                raise BatchRefused(
                    f"attempt {each.attempt} of batch {batch_id} has staged {rows} rows with CRC "
                    f"{crc}, and the commit names {each.rows} rows with CRC {each.crc}"
                )
        return names

    def has_any(self, sink: str) -> bool:
        """Return whether the sink has any staged chunks."""
        with self._lock:
            return any(name.sink == sink for name in self._staged)

    def forget(
        self,
        sink: str,
        *,
        first: int = 0,
        last: int | None = None,
        attempts: frozenset[str] = frozenset(),
    ) -> None:
        """Delete the staged chunks of a sink's batches from ``first`` to ``last``, or to the end.

        With ``attempts``, delete only the chunks of these attempts.

        Raises:
            OSError: The disk refuses; some chunks may be deleted.
        """
        with self._lock:
            self._delete(
                [
                    name
                    for name in self._staged
                    if name.sink == sink
                    and first <= name.batch_id
                    and (last is None or name.batch_id <= last)
                    and (not attempts or name.attempt in attempts)
                ]
            )
            self._recover_if_room()

    def discard_expired(self) -> None:
        """Delete chunks that were staged at least a day ago, and empty directories."""
        with self._lock:
            now = self._now_seconds()
            if now < self._next_cleanup_seconds:
                return
            self._next_cleanup_seconds = now + _CLEANUP_INTERVAL_SECONDS
            old = []
            for name in self._staged:
                with suppress(OSError):
                    if self._modified_at(name) <= now - RETENTION_SECONDS:
                        old.append(name)
            size = self.size
            self._delete(old)
            self._record_expired(old, size - self.size)
            self._recover_if_room()
            for sink in self._directories - {name.sink for name in self._staged}:
                with suppress(OSError):  # the directory has other files
                    self._disk.delete(self._root / sink)
                self._directories.discard(sink)

    def _record_expired(self, names: Sequence[StagedName], size: int) -> None:
        self.expired_bytes += size
        if names:
            sinks = sorted({name.sink for name in names})
            more = "" if len(sinks) <= _SINKS_SHOWN else f" and {len(sinks) - _SINKS_SHOWN} more"
            self._losses.report(
                LossKind.STAGED_ROWS_EXPIRED,
                f"deleted {format_count(len(names), 'chunk')} ({size} bytes) that "
                f"{', '.join(sinks[:_SINKS_SHOWN])}{more} staged more than a day ago and never "
                "committed",
                count=len(names),
                level=logging.INFO,
            )

    def _modified_at(self, name: StagedName) -> float:
        """Return when a chunk was staged; a chunk whose file was removed counts as the oldest."""
        try:
            return self._disk.modified_at(self._root / name.sink / name.file_name)
        except FileNotFoundError:
            return 0

    def _head_of(self, name: StagedName) -> tuple[_Head, int]:
        """Return a chunk's head and size, without reading the rows."""
        path = self._root / name.sink / name.file_name
        with self._lock:
            known = self._staged.get(name)
            size = None if known is None else self._disk.size_of(path)
            if known is None or size is None:
                raise _missing_error(name)
            if size != known.size:
                raise BatchRefused(f"{path} is damaged: it has {size} bytes, and had {known.size}")
            head = known.head
            if head is None:
                with closing(self._disk.open(path)) as file:
                    head = _head_in(bytes(file.read(0, min(known.size, _HEAD.size))), path)
                self._set_staged(name, known._replace(head=head))
        return head, known.size - _HEAD.size

    def _set_staged(self, name: StagedName, staged: _StagedFile | None) -> None:
        before = self._staged.pop(name, None)
        self.size -= before.size if before else 0
        if staged is not None:
            self._staged[name] = staged
            self.size += staged.size

    def _recover_if_room(self) -> None:
        """End the degradation if the refused chunks would fit now."""
        if self.size + self._needed_bytes <= self._bytes_max:
            self._full_degradation.end()
            self._needed_bytes = 0

    def _full_error(self, size: int) -> StagingFull:
        """Return the error for a chunk that does not fit, and begin a degradation.

        The degradation ends when the largest refused chunk would fit. A chunk that exceeds the
        limit by itself never fits, so it starts no degradation.
        """
        full = StagingFull(
            f"{self.size} bytes are staged, and {size} more would be over {self._bytes_max} "
            "(maxStagedBytes)"
        )
        if size <= self._bytes_max:
            self._needed_bytes = max(self._needed_bytes, size)
            self._full_degradation.begin(full)
        return full

    def _delete(self, names: Sequence[StagedName]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._disk.delete(self._root / name.sink / name.file_name)
            self._set_staged(name, None)


def _missing_error(name: StagedName) -> BatchRefused:
    # without a path: any client can ask for a chunk that it has not staged
    return BatchRefused(f"chunk {name.number} of attempt {name.attempt} is not staged")


def _head_in(data: bytes, path: Path) -> _Head:
    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        raise BatchRefused(f"{path} is damaged: it does not start like a staged chunk")
    _, version, crc, rows = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise BatchRefused(
            f"{path} was staged by a newer release: its format is {version}, this release knows "
            f"{_VERSION}"
        )
    return _Head(crc, rows)
