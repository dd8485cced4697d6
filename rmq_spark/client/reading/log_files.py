"""LogFiles: records read from the files of a broker's log, where this machine has them.

    broker says            it is so                        and is found so
    where a file is  ──>   that holds what it says    ──>  once for each of its starts
    places, sizes    ──>   files there, as long       ──>  size, offset and place in each record

Nothing is assumed: two machines, or two containers, may have other files at one path. What is not
found to be as the broker said is not used, and its reader pulls it instead: retention may have
deleted a file meanwhile, or a crash taken its end. Files are read, not mapped: one that is cut
short ends a read, and would end a process that has it mapped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.chunk.gather import Bytes, Positions, take_structures
from rmq_spark.wire.extensions import LogPlace

NAME_DIGITS: Final = 20
"""Digits of a file's name, which is the place of its first byte in the log."""

_PROOF_BYTES_MAX: Final = 256
_HEAD: Final = np.dtype(
    {
        "names": ["total_size", "queue_offset", "physical_offset"],
        "formats": [">i4", ">i8", ">i8"],
        "offsets": [0, layout.QUEUE_OFFSET_AT, layout.PHYSICAL_OFFSET_AT],
        "itemsize": layout.PHYSICAL_OFFSET_AT + 8,
    }
)


class Part(NamedTuple):
    """A part of a file, and the memory that gets its bytes."""

    position: int
    into: memoryview


class Files(Protocol):
    """The files of this machine; the same ones are equal."""

    def __hash__(self) -> int:
        """Return a number for look-ups by these files."""

    def start_of(self, path: str, size: int) -> bytes:
        """Return the first bytes of a file, at most ``size``; raise OSError if it has none."""

    def read(self, path: str, parts: Sequence[Part]) -> None:
        """Fill the parts from a file, or raise OSError if it is gone, or too short."""


class SystemFiles:
    """The files that the system has."""

    def start_of(self, path: str, size: int) -> bytes:
        """Return the first bytes of a regular file; raise OSError if there is none."""
        descriptor = _opened(path)
        try:
            return os.pread(descriptor, size, 0)
        finally:
            os.close(descriptor)

    def read(self, path: str, parts: Sequence[Part]) -> None:
        """Fill the parts from a regular file, or raise OSError."""
        descriptor = _opened(path)
        try:
            for part in parts:
                position, into = part
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
        starts = np.cumsum(lengths) - lengths
        data = np.empty(int(lengths.sum()), np.uint8)
        try:
            for path, parts in self._parts(places, lengths, starts, data.data).items():
                self._files.read(path, parts)
        except OSError:
            return None
        return data.data if _are(data, places, lengths, starts, queue_offsets) else None

    def _parts(
        self, places: Positions, sizes: Positions, starts: Positions, data: memoryview
    ) -> dict[str, list[Part]]:
        """Return what is to be read of each file: all that lies together there in one piece."""
        file_bytes = self._place.file_bytes
        files = places // file_bytes
        is_cut = (places[1:] != (places + sizes)[:-1]) | (files[1:] != files[:-1])
        firsts = [0, *(np.flatnonzero(is_cut) + 1).tolist()]
        ends = [*starts[firsts[1:]].tolist(), len(data)]
        found: dict[str, list[Part]] = {}
        for first, end in zip(firsts, ends, strict=True):
            place, start = int(places[first]), int(starts[first])
            name = f"{place - place % file_bytes:0{NAME_DIGITS}d}"
            path = str(PurePath(self._place.directory, name))
            found.setdefault(path, []).append(Part(place % file_bytes, data[start:end]))
        return found


def _are(
    data: Bytes, places: Positions, sizes: Positions, starts: Positions, queue_offsets: range
) -> bool:
    """Return whether these are the records that the broker has spoken of."""
    if int(sizes.min(initial=layout.RECORD_BYTES_MIN)) < layout.RECORD_BYTES_MIN:
        return False
    heads = take_structures(data, starts, _HEAD)
    offsets = heads["queue_offset"].astype(np.int64)
    return bool(
        (heads["total_size"] == sizes).all()
        and (heads["physical_offset"] == places).all()
        and (offsets[1:] > offsets[:-1]).all()
        and offsets[0] >= queue_offsets.start
        and offsets[-1] < queue_offsets.stop
    )


def on_this_machine(place: LogPlace, files: Files = SYSTEM_FILES) -> LogFiles | None:
    """Return the files of a broker's log if this machine has them, else None."""
    return LogFiles(place, files) if _has(place, files) else None


@lru_cache(maxsize=64)
def _has(place: LogPlace, files: Files) -> bool:
    """Return whether this machine has a broker's files: for good, as each start proves anew."""
    try:
        found = files.start_of(place.proof_path, _PROOF_BYTES_MAX)
    except (OSError, ValueError):
        return False
    return found == place.proof.encode()
