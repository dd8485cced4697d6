"""One file's content in all the versions that a power loss may leave.

Durable pages are kept once, others in each version since the last flush.

- A write is durable once a flush has ended that began after it. Before that, each page of 4 KiB
  independently holds what it held at the last flush or after any later write to it: writes may be
  lost and reordered between pages, not within one. One time in three the page is torn: each sector
  of 512 bytes is either as in that version or as in a later one.
- The size is that of the last flush, or any later one. A write past the end may be applied up to
  any of its sectors, with zeros in any page or sector of it. Zeros added at the end are applied as
  a whole.
- Emptying the file removes all of its content at once. Later writes are never mixed with earlier
  content.
- After a failed flush, what it should have flushed can be lost for ever, even if another flush
  succeeds, except pages that were written again, as on Linux.

Randomness comes in as an argument.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

PAGE, SECTOR = 4096, 512
_ZEROS = bytes(PAGE)
Value = TypeVar("Value")


class Image(NamedTuple):
    """A file's content: its size, and the pages that were ever written; the rest is zeros."""

    size: int
    pages: Mapping[int, bytes]

    @classmethod
    def of(cls, data: bytes) -> Image:
        count = -(-len(data) // PAGE)
        pages = (data[at * PAGE : (at + 1) * PAGE].ljust(PAGE, b"\0") for at in range(count))
        return cls(len(data), dict(enumerate(pages)))

    @property
    def content(self) -> bytes:
        """Return the whole content."""
        data = bytearray(self.size)
        for page, held in self.pages.items():
            part = held[: max(self.size - page * PAGE, 0)]
            data[page * PAGE : page * PAGE + len(part)] = part
        return bytes(data)


class Choices:
    """Draws how much a power loss takes: all that it can at odds of 0, nothing at odds of 1."""

    def __init__(self, dice: random.Random, odds: float) -> None:
        self._dice = dice
        self._odds = odds
        self.made: list[int] = []

    def between(self, low: int, high: int) -> int:
        """Draw a number: ``low`` if everything is lost, ``high`` if nothing is."""
        if low < high and self._dice.random() >= self._odds:
            high = low if self._odds == 0 else self._dice.randint(low, high - 1)
        self.made.append(high)
        return high

    def is_torn(self) -> bool:
        """Draw whether a page is torn: one in three, and none if everything or nothing is lost."""
        drawn = 0 < self._odds < 1 and self._dice.randrange(3) == 0
        self.made.append(drawn)
        return drawn


class FlushMark(NamedTuple):
    """The state of a file when a flush of it began."""

    content: _Content
    number: int


class FileVersions:
    """The content of a file in all versions that a power loss may leave."""

    def __init__(self, image: Image) -> None:
        """Begin with durable content."""
        self._contents = [_Content(dict(image.pages), _Versions(image.size))]

    def write(self, data: bytes, position: int) -> None:
        """Write at a position, which may be past the end."""
        self._contents[-1].write(data, position)

    def truncate(self, size: int) -> None:
        """Empty the file, or add zeros at its end."""
        old_size = self._contents[-1].size.last
        if size > old_size:
            self._contents[-1].extend(size)
        elif size == 0 < old_size:
            self._contents.append(_Content({}, _Versions(0)))
        elif size < old_size:
            raise ValueError(f"the model can cut a file of {old_size} bytes to 0, not to {size}")

    def begin_flush(self) -> FlushMark:
        """Return a mark of the writes that a flush starting now makes durable when it ends."""
        return FlushMark(self._contents[-1], self._contents[-1].number)

    def end_flush(self, mark: FlushMark) -> None:
        """Make the writes before the flush durable, unless an earlier failed flush lost them."""
        for at, content in enumerate(self._contents):
            if content is mark.content:
                del self._contents[:at]
                content.settle(mark.number)
                return

    def fail_flush(self, mark: FlushMark) -> None:
        """Give up the writes before the flush that no other flush has made durable."""
        mark.content.give_up(mark.number)

    def draw(self, choices: Choices) -> Image:
        """Draw the content that a power loss leaves."""
        return self._contents[choices.between(0, len(self._contents) - 1)].draw(choices)


@dataclass
class _Content:
    """The content of a file between two truncations."""

    durable: dict[int, bytes]
    size: _Versions[int]
    changed: dict[int, _Versions[bytes]] = field(default_factory=dict)
    number: int = 0

    def write(self, data: bytes, position: int) -> None:
        self.number += 1
        old_end, end = self.size.last, position + len(data)
        at = position
        while at < end:
            page, start = divmod(at, PAGE)
            part = data[at - position : at - position + PAGE - start]
            if page not in self.changed:
                self.changed[page] = _Versions(self.durable.get(page, _ZEROS))
            held = self.changed[page].last
            self.changed[page].add(self.number, held[:start] + part + held[start + len(part) :])
            at += len(part)
        if end > old_end:
            begin = max(old_end, position)
            for size in (*range(begin - begin % SECTOR + SECTOR, end, SECTOR), end):
                self.size.add(self.number, size)

    def extend(self, size: int) -> None:
        self.number += 1
        self.size.add(self.number, size)

    def settle(self, number: int) -> None:
        self.size.settle(number)
        for page in list(self.changed):
            self.changed[page].settle(number)
            if self.changed[page].is_certain:
                self.durable[page] = self.changed.pop(page).last

    def give_up(self, number: int) -> None:
        self.size.give_up(number)
        for versions in self.changed.values():
            versions.give_up(number)

    def draw(self, choices: Choices) -> Image:
        size = self.size.draw(choices)
        pages = dict(self.durable)
        for page, versions in self.changed.items():
            pages[page] = self._draw_page(versions, choices)
        return Image(size, {page: _cut(held, size - page * PAGE) for page, held in pages.items()})

    @staticmethod
    def _draw_page(versions: _Versions[bytes], choices: Choices) -> bytes:
        if not choices.is_torn():
            return versions.draw(choices)
        both = versions.draw_two(choices)
        sectors = (slice(at, at + SECTOR) for at in range(0, PAGE, SECTOR))
        return b"".join(both[choices.between(0, 1)][sector] for sector in sectors)


def _cut(page: bytes, size: int) -> bytes:
    """Zero a page past the end of the file, so that old bytes do not reappear when the
    file grows."""
    return page if size >= PAGE else page[: max(size, 0)].ljust(PAGE, b"\0")


class _Versions(Generic[Value]):
    """The versions of a value since the last flush, each with the number of its write."""

    def __init__(self, value: Value) -> None:
        self._all: list[tuple[int, Value]] = [(0, value)]
        self._given_up = 0

    @property
    def last(self) -> Value:
        return self._all[-1][1]

    @property
    def is_certain(self) -> bool:
        return len(self._all) == 1

    def add(self, number: int, value: Value) -> None:
        self._all.append((number, value))

    def settle(self, number: int) -> None:
        """Record the end of a flush that began after this write."""
        at = self._at(number)
        if self._all[at][0] > self._given_up:
            del self._all[:at]

    def give_up(self, number: int) -> None:
        """Record the failure of a flush that began after this write."""
        self._given_up = max(self._given_up, self._all[self._at(number)][0])

    def _at(self, number: int) -> int:
        """Return the index of the version after this write."""
        return max(at for at, (written, _) in enumerate(self._all) if at == 0 or written <= number)

    def draw(self, choices: Choices) -> Value:
        return self._all[choices.between(0, len(self._all) - 1)][1]

    def draw_two(self, choices: Choices) -> tuple[Value, Value]:
        """Draw a version, and a later one."""
        first = choices.between(0, len(self._all) - 2)
        return self._all[first][1], self._all[choices.between(first + 1, len(self._all) - 1)][1]
