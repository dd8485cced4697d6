"""IndexService: maps the texts of keys to log offsets, over a sequence of index files.

Files are named by their creation time (yyyyMMddHHmmssSSS, local time), and names only grow. When a
file is full, the next one follows. The index is derived from the log: lost parts are dispatched
again, and existing keys are not added twice. After `load` and `discard_from`, records from
`last_indexed_physical_offset` on, including that one, must be dispatched again.

One thread at a time dispatches or discards, any may query; `flush`, `close` and `delete_before` may
run in others meanwhile.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...common.local_time import local_time
from ..bulk import lazy_numpy as np
from ..bulk.index_hash import INDEX_KEY_SEPARATOR, IndexHashes, index_hash
from ..errors import ForeignFile, StoreClosed, UnreadableFile, has_lost_content
from ..files.disk import is_ignored_name
from ..files.file_pool import FileGroup, FilePool, PooledFile
from ..records.store_timeline import STEP_MS
from ..results import PhysicalOffset
from .index_file import INDEX_HOPS_MAX, IndexFile, IndexSizes, Positions

_log = logging.getLogger(__name__)
NOTHING_INDEXED = PhysicalOffset(-1)

_NAME_DIGITS = 17
_INDEX_NAME = re.compile(f"[0-9]{{{_NAME_DIGITS}}}")


def _is_appendable(file: IndexFile) -> bool:
    """Return whether dispatch can continue after a file, because it is whole and readable."""
    try:
        file.count_last(file.header.end_physical_offset)  # `add` counts its last keys, too
        return file.is_full or (not file.is_empty and file.prepare_append())
    except UnreadableFile as error:
        _warn_of_lost_content(error)
        return False


def _warn_of_lost_content(error: UnreadableFile) -> None:
    """Warn that the disk has lost a file; raise other errors, such as of permissions, again."""
    if not has_lost_content(error):
        raise error
    _log.warning("%s: this index file is rebuilt from the commit log", error)


class IndexLookup(NamedTuple):
    """The result of a query of the index."""

    physical_offsets: list[PhysicalOffset]
    entries: int
    """The number of entries that were examined."""
    is_cut_off: bool
    """True if older entries were not examined, because of the limit of entries."""


class IndexService:
    """All index files of a store."""

    def __init__(
        self,
        pool: FilePool,
        directory: Path,
        now_ms: Callable[[], int],
        *,
        hash_slot_num: int = IndexSizes.hash_slot_num,
        index_num: int = IndexSizes.index_num,
        hops_max: int = INDEX_HOPS_MAX,
    ) -> None:
        """Set the sizes; files of other sizes are refused, and the default ones are RocketMQ's.

        A query examines at most ``hops_max`` entries: an attacker might give all keys one hash.
        """
        self._disk = pool.disk
        self._group = FileGroup(pool)
        self._directory = directory
        self._now_ms = now_ms
        self._sizes = IndexSizes(hash_slot_num, index_num)
        self._hops_max = hops_max
        self._files: tuple[IndexFile, ...] = ()  # replaced, never changed: queries need no lock
        self._files_lock = threading.Lock()
        self._maintenance = threading.Lock()
        self._is_closed = False

    def load(self) -> None:
        """Open existing files; delete torn ones at the end, which dispatch creates again.

        A file that the disk does not return is deleted as well, wherever it is; the start then
        finds it missing, and rebuilds the whole index.

        Raises:
            ForeignFile: An entry of the directory is not an index file of these sizes. Nothing was
                changed.
        """
        self._disk.make_directory(self._directory)
        (found,) = self._disk.list_directories([self._directory])
        sizes = {
            self._directory / name: self._check(self._directory / name, size)
            for name, size in found.items()
            if not is_ignored_name(name) and (size is not None or name.isdecimal())
        }
        for path, size in sizes.items():
            if size == 0:  # a crash came between the name and the size
                self._disk.delete(path)
        opened = [self._open(path) for path, size in sizes.items() if size]
        files = [file for file in opened if file is not None]
        while files and not _is_appendable(files[-1]):
            self._delete(files.pop())
        self._files = tuple(files)

    def _open(self, path: Path) -> IndexFile | None:
        """Open a file; if the disk does not return its header, delete it and return None."""
        file = PooledFile(self._group, path.parent, path.name)
        try:
            return IndexFile(file, self._sizes)
        except UnreadableFile as error:
            _warn_of_lost_content(error)
            self._group.close_file(file)
            self._disk.delete(path)
            return None

    def _check(self, path: Path, size: int | None) -> int:
        """Return the size of an index file, or raise ForeignFile."""
        needed = self._sizes.file_bytes
        if size is None or not _INDEX_NAME.fullmatch(path.name):
            raise ForeignFile(
                f"{path}: expected an index file, named by {_NAME_DIGITS} digits. Move it away"
            )
        if size not in {0, needed}:
            raise ForeignFile(
                f"{path}: needed {needed} bytes for {self._sizes.hash_slot_num} slots and "
                f"{self._sizes.index_num} entries, found {size}: start with the maxHashSlotNum "
                "and maxIndexNum that it was written with; or, to rebuild the index, delete "
                f"{path.parent}"
            )
        return size

    @property
    def last_indexed_physical_offset(self) -> PhysicalOffset:
        """The physical offset of the last message that has a key here, or -1."""
        file = next((each for each in reversed(self._files) if not each.is_empty), None)
        return file.header.end_physical_offset if file else NOTHING_INDEXED

    @property
    def file_names(self) -> tuple[str, ...]:
        """The names of the files, in order."""
        return tuple(file.path.name for file in self._files)

    def names_from(self, physical_offset: PhysicalOffset) -> tuple[str, ...]:
        """Return the names of the files that `delete_before` keeps, in order."""
        expired = self._ended_before(physical_offset)
        # The next start deletes an empty file, and must not take it for a lost one.
        return tuple(
            file.path.name for file in self._files if file not in expired and not file.is_empty
        )

    def matches(
        self, hashes: IndexHashes, positions: Positions, times: Positions, between: range
    ) -> bool:
        """Return whether the index has exactly these keys for messages between two offsets."""
        done = 0
        for file in self._files:
            entries = file.entries()
            own = entries["physical_offset"].astype(np.int64)
            own_entries = entries[(own >= between.start) & (own < between.stop)]
            rows = slice(done, done + len(own_entries))
            done = rows.stop
            if len(hashes[rows]) < len(own_entries) or not file.is_consistent(entries):
                return False
            are_same = (
                (own_entries["key_hash"] == hashes[rows])
                & (own_entries["physical_offset"] == positions[rows])
                & (own_entries["time_diff"] == file.time_diffs(times[rows]))
            )
            ends_there = (
                len(own) and len(own_entries) and own[-1] == own_entries["physical_offset"][-1]
            )
            header = file.header.end_timestamp, file.header.end_physical_offset
            if not are_same.all() or (ends_there and header != (times[rows][-1], own[-1])):
                return False
        return done == len(hashes)

    def add(
        self, hashes: IndexHashes, physical_offsets: Positions, store_timestamps: Positions
    ) -> int:
        """Add keys in log order, except those that exist already; return their number."""
        if self._is_closed:
            raise StoreClosed(f"{self._directory}: the index was shut down")
        if not len(hashes):
            return 0
        last = self.last_indexed_physical_offset
        start, after_last = map(int, np.searchsorted(physical_offsets, [last, last + 1]))
        if after_last > start:
            # A file may have ended, or an append failed, between two keys of the last message.
            start += min(after_last - start, self._count_last(last))
        self._append(hashes[start:], physical_offsets[start:], store_timestamps[start:])
        return len(hashes) - start

    def _count_last(self, physical_offset: PhysicalOffset) -> int:
        total = 0
        for file in reversed(self._files):
            count = file.count_last(physical_offset)
            total += count
            if count < file.header.index_count - 1:
                break
        return total

    def _append(
        self, hashes: IndexHashes, physical_offsets: Positions, store_timestamps: Positions
    ) -> None:
        done = 0
        # Times must not go back within a file: entries have the time since its first one.
        steps = np.flatnonzero(np.diff(store_timestamps) < -STEP_MS) + 1
        for end in (*steps.tolist(), len(hashes)):
            while done < end:
                file = self._appendable_file(int(store_timestamps[done]))
                rows = slice(done, end)
                done += file.append(hashes[rows], physical_offsets[rows], store_timestamps[rows])

    def _appendable_file(self, store_timestamp: int) -> IndexFile:
        newest = self._files[-1] if self._files else None
        if (
            newest
            and not newest.is_full
            and store_timestamp >= newest.header.end_timestamp - STEP_MS
            and newest.prepare_append()
        ):
            return newest
        if newest:
            newest.seal()
        path = self._directory / self._next_name(newest)
        try:
            file = IndexFile.create(self._group, path, self._sizes)
        except (OSError, UnreadableFile):
            with suppress(OSError):
                self._disk.delete(path)
            raise
        self._group.mark_names_changed(self._directory)
        with self._files_lock:
            self._files = (*self._files, file)
        return file

    def _next_name(self, newest: IndexFile | None) -> str:
        """Name a file by the clock, but always past the name of the newest file."""
        now_ms = self._now_ms()
        by_clock = int(f"{local_time(now_ms):%Y%m%d%H%M%S}{now_ms % 1000:03d}")
        return f"{max(by_clock, int(newest.path.name) + 1 if newest else 0):0{_NAME_DIGITS}d}"

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int) -> IndexLookup:
        """Return the log offsets of messages that may have this key, newest first.

        ``key`` is one word of KEYS or a UNIQ_KEY. Other keys can share its hash, and entries have
        whole seconds, so the caller must still compare the key and time of the messages.
        ``max_num`` limits the messages whose second lies completely in the span.
        """
        key_hash = index_hash(topic + INDEX_KEY_SEPARATOR + key)
        found: list[PhysicalOffset] = []
        left, hops_left = max_num, self._hops_max
        for file in reversed(self._files):
            header = file.header
            if begin_ms <= header.end_timestamp and end_ms >= header.begin_timestamp:
                more, certain, hops = file.walk(key_hash, begin_ms, end_ms, left, hops_left)
                found += more
                left -= certain
                hops_left -= hops
            if left <= 0 or not hops_left:
                break
        return IndexLookup(found, self._hops_max - hops_left, is_cut_off=not hops_left)

    def discard_from(self, physical_offset: PhysicalOffset) -> int:
        """Delete the files that reach up to a log offset or past it; return their number."""
        return self._remove(
            [f for f in self._files if f.header.end_physical_offset >= physical_offset]
        )

    def delete_before(self, physical_offset: PhysicalOffset) -> int:
        """Delete the files that end before a log offset, except the newest; return their number."""
        return self._remove(self._ended_before(physical_offset))

    def _ended_before(self, physical_offset: PhysicalOffset) -> list[IndexFile]:
        expired = []
        for file in self._files[:-1]:
            if file.header.end_physical_offset >= physical_offset:
                break
            expired.append(file)
        return expired

    def delete_all(self) -> int:
        """Delete all files, so that the index starts empty; return their number."""
        return self._remove(list(self._files))

    def _remove(self, removed: list[IndexFile]) -> int:
        with self._maintenance:
            with self._files_lock:
                self._files = tuple(file for file in self._files if file not in removed)
            for file in reversed(removed):
                self._delete(file)
            if removed:
                self._disk.flush_directory(self._directory)
        return len(removed)

    def _delete(self, file: IndexFile) -> None:
        file.close()
        self._disk.delete(file.path)

    def flush(self) -> None:
        """Flush all added keys, so that RocketMQ can open the files."""
        with self._maintenance:
            # Names first, then the oldest file first: a power loss may only remove the newest.
            self._group.flush_names(self._directory)
            for file in self._files:
                file.flush()

    def close(self) -> None:
        """Flush, and accept no more keys. Queries still work."""
        self._is_closed = True
        try:
            self.flush()
        finally:
            for file in self._files:
                file.close()
