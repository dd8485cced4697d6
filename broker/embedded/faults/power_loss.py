"""UnflushedBytes: what a power loss would undo in one file.

    pages      bytes that were overwritten since the last flush, as they were before
    fresh      the end of the file, which had never been written before: zeros again

A flush covers what was written when it began; what is written meanwhile is for the next one. The
caller passes in how to read and write the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PAGE_BYTES: Final = 4_096


@dataclass(eq=False)
class _FlushUnderWay:
    """A flush under way: up to where the file was written, and what it makes durable."""

    end: int
    pages: dict[int, bytes]


class UnflushedBytes:
    """The bytes of one file that are not on the disk yet; its user has to hold a lock."""

    def __init__(self, written_end: int) -> None:
        """Note up to where the file may have been written before; past that it is zeros."""
        self._written_end = self._flushed_end = written_end
        self._pages: dict[int, bytes] = {}
        self._flushing: list[_FlushUnderWay] = []

    def before_write(self, position: int, size: int, read: Callable[[int, int], bytes]) -> None:
        """Keep what a write is about to replace."""
        first = position - position % PAGE_BYTES
        for at in range(first, min(position + size, self._written_end), PAGE_BYTES):
            if at not in self._pages:
                self._pages[at] = read(at, PAGE_BYTES)
        self._written_end = max(self._written_end, position + size)

    def start_flush(self) -> _FlushUnderWay:
        """Note that a flush begins, of what is written by now, and return it."""
        flush = _FlushUnderWay(self._written_end, self._pages)
        self._flushing.append(flush)
        self._pages = {}
        return flush

    def finish_flush(self, flush: _FlushUnderWay, *, is_durable: bool) -> None:
        """Note that a flush has ended: what it covered is on the disk, unless it has failed."""
        if flush not in self._flushing:  # a later one was faster, and took the same
            return
        if is_durable:
            self._flushed_end = max(self._flushed_end, flush.end)
            del self._flushing[: self._flushing.index(flush) + 1]
        else:
            self._flushing.remove(flush)
            self._pages.update(flush.pages)

    def restore(
        self, write: Callable[[int, bytes], object], zero_from: Callable[[int], object]
    ) -> None:
        """Put the file into the state of the last flush: ``zero_from`` makes zeros of its end."""
        for pages in (self._pages, *(flush.pages for flush in reversed(self._flushing))):
            for position, data in pages.items():
                write(position, data)
        if self._written_end > self._flushed_end:
            zero_from(self._flushed_end)
