"""LogFiles: records read from the files of a broker's log, where this machine has them.

    broker says            it is so                        and is found so
    where a file is  ──>   that holds what it says    ──>  before the first, and behind each read
    places, sizes    ──>   files there, as long       ──>  size, offset and place in each record

Nothing is assumed: two machines, or two containers, may have other files at one path. What is not
found to be as the broker said is not used, and its reader pulls it instead: retention may have
deleted a file meanwhile, or a crash taken its end; and somebody may have put another store there,
whose records can have the very same sizes, offsets and places. Files are read, not mapped: one that
is cut short ends a read, and would end a process that has it mapped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.chunk.gather import BUFFER_BYTES_MAX, Bytes, Positions, take_structures
from rmq_spark.wire.extensions import LogPlace

_PROOF_BYTES_MAX: Final = 256
_HEAD: Final = np.dtype(
    {
        "names": ["total_size", "queue_offset", "physical_offset"],
        "formats": [">i4", ">i8", ">i8"],
        "offsets": [0, layout.QUEUE_OFFSET_AT, layout.PHYSICAL_OFFSET_AT],
        "itemsize": layout.PHYSICAL_OFFSET_AT + 8,
    }
)


_PART_BYTES: Final = 1 << 20
"""Bytes that are read and looked at before the next ones, while they are in the cache."""


class Files(Protocol):
    """The files of this machine; the same ones are equal."""

    def __hash__(self) -> int:
        """Return a number for look-ups by these files."""

    def start_of(self, path: str, size: int) -> bytes:
        """Return the first bytes of a file, at most ``size``; raise OSError if it has none."""

    def read(self, path: str, position: int, into: memoryview) -> None:
        """Fill memory from a place in a file; raise OSError if it is gone, or too short."""


class SystemFiles:
    """The files that the system has."""

    def start_of(self, path: str, size: int) -> bytes:
        """Return the first bytes of a regular file; raise OSError if there is none."""
        descriptor = _opened(path)
        try:
            return os.pread(descriptor, size, 0)
        finally:
            os.close(descriptor)

    def read(self, path: str, position: int, into: memoryview) -> None:
        """Fill memory from a place in a regular file, or raise OSError."""
        descriptor = _opened(path)
        try:
            while into:
                count = os.preadv(descriptor, [into], position)
                position, into = position + _some(count, path), into[count:]
        finally:
            os.close(descriptor)


def _opened(path: str) -> int:
    """Open a regular file, and neither wait for the other end of a pipe nor follow a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path} is no file")


def _some(count: int, path: str) -> int:
    """Return a count of bytes that were read; raise OSError if it is none."""
    if not count:
        raise OSError(f"{path} is shorter than its broker says")
    return count


SYSTEM_FILES: Final = SystemFiles()


class LogFiles:
    """The files of one log, which this machine has."""

    def __init__(self, place: LogPlace, files: Files) -> None:
        self._place = place
        self._files = files

    def records(
        self, places: Positions, sizes: npt.NDArray[np.integer[Any]], queue_offsets: range
    ) -> memoryview | None:
        """Return the records at these places, of these sizes, back to back.

        None if any of them is not there: nothing that was read may be used then.

        Args:
            places: The place of each record in the log.
            sizes: The size of each record in bytes.
            queue_offsets: Those among which all records' must be, each once and in order.
        """
        lengths = sizes.astype(np.int64)
        ends = np.cumsum(lengths)
        if int(lengths.min()) < layout.RECORD_BYTES_MIN or int(ends[-1]) > BUFFER_BYTES_MAX:
            return None
        data = np.empty(int(ends[-1]), np.uint8)
        for rows in _together(places, lengths, ends, self._place.file_bytes):
            start, end = int(ends[rows.start] - lengths[rows.start]), int(ends[rows.stop - 1])
            try:
                self._read(int(places[rows.start]), data.data[start:end])
            except OSError:
                return None
            last = _last_offset(data[start:end], places[rows], lengths[rows], queue_offsets)
            if last is None:
                return None
            queue_offsets = range(last + 1, queue_offsets.stop)
        return data.data if _is_proven(self._place, self._files) else None

    def _read(self, place: int, into: memoryview) -> None:
        position = place % self._place.file_bytes
        name = f"{place - position:0{layout.FILE_NAME_DIGITS}d}"
        self._files.read(str(PurePath(self._place.directory, name)), position, into)


def _together(
    places: Positions, lengths: Positions, ends: Positions, file_bytes: int
) -> Iterator[slice]:
    """Yield the rows of records that lie back to back in one file, a megabyte at a time."""
    files, parts = places // file_bytes, ends // _PART_BYTES
    is_cut = places[1:] != (places + lengths)[:-1]
    is_cut |= (files[1:] != files[:-1]) | (parts[1:] != parts[:-1])
    cuts = (np.flatnonzero(is_cut) + 1).tolist()
    yield from map(slice, [0, *cuts], [*cuts, len(places)])


def _last_offset(
    data: Bytes, places: Positions, lengths: Positions, queue_offsets: range
) -> int | None:
    """Return the last queue offset of the records that the broker has spoken of.

    None if they are others, or their offsets do not ascend among these.
    """
    heads = take_structures(data, np.cumsum(lengths) - lengths, _HEAD)
    offsets = heads["queue_offset"].astype(np.int64)
    are_these = (
        (heads["total_size"] == lengths).all()
        and (heads["physical_offset"] == places).all()
        and (offsets[1:] > offsets[:-1]).all()
        and int(offsets[0]) >= queue_offsets.start
        and int(offsets[-1]) < queue_offsets.stop
    )
    return int(offsets[-1]) if are_these else None


def on_this_machine(place: LogPlace, files: Files = SYSTEM_FILES) -> LogFiles | None:
    """Return the files of a broker's log if this machine has them, else None."""
    return LogFiles(place, files) if _has(place, files) else None


@lru_cache(maxsize=64)
def _has(place: LogPlace, files: Files) -> bool:
    """Return whether it is worth asking for places; each read proves it again."""
    return _is_proven(place, files)


def _is_proven(place: LogPlace, files: Files) -> bool:
    """Return whether this machine has a broker's files now."""
    try:
        found = files.start_of(place.proof_path, _PROOF_BYTES_MAX)
    except (OSError, ValueError):
        return False
    return found == place.proof.encode()
