"""A model of a file system's possible states after a power loss.

The model gets operations one at a time, in order, and draws a state at any moment. It keeps durable
content once, and other content in each version. Randomness comes in as an argument. `file_versions`
defines what may remain of content; for names:

- Creating, renaming and deleting is durable once a flush of the directory has ended that began
  after it; of both directories, for a rename between two. Before that it may have happened or not,
  independently, but: each is atomic, the changes of one file happen in order, and a file never has
  two names. If a directory's own name is lost, all in it is lost, flushed or not.
- A failed flush of a directory has made nothing durable; another one does.

It does not model: bytes that nobody wrote (bit rot, other files' content), tears within a sector,
half a rename, a disk that lies about flushing, modification times.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeAlias, TypeVar

from support.disks.file_versions import Choices, FileVersions, FlushMark, Image

ROOT = 0
"""The inode of the directory in which all paths begin. Its own name is never lost."""

Tree: TypeAlias = dict[PurePath, "Image | None"]
"""Files by their paths below the root. Directories have None, and precede their content."""

Entry: TypeAlias = tuple[int, str]
"""A name in a directory: the directory's inode, and the name."""

_ODDS = (0.0, 0.1, 0.5, 0.9, 1.0)


class PowerLossModel:
    """A tree of files as programs see it, and the trees that a power loss may leave.

    Paths are relative to the root. A file is identified by the inode that `create` returns, even
    after a rename. Operations on a file that no power loss can bring back have no effect.
    """

    def __init__(self, tree: Tree | None = None) -> None:
        """Begin with a durable tree."""
        self._seen: dict[Entry, int] = {}
        self._durable: dict[Entry, int] = {}
        self._changes: list[_Change] = []
        self._files: dict[int, FileVersions] = {}
        self._flushes: dict[int, tuple[int, FlushMark | None]] = {}
        self._last_inode = ROOT
        self._last_number = 0  # numbers name changes and flushes in order
        for path, image in (tree or {}).items():
            self._last_inode += 1
            entry = self._entry(path)
            self._seen[entry] = self._durable[entry] = self._last_inode
            if image is not None:
                self._files[self._last_inode] = FileVersions(image)

    def find(self, path: PurePath) -> int | None:
        """Return the inode at a path, as programs see it; None if there is none."""
        inode: int | None = ROOT
        for name in path.parts:
            inode = None if inode is None else self._seen.get((inode, name))
        return inode

    # ---- names

    def create(self, path: PurePath) -> int:
        """Create an empty file; return its inode.

        Raises:
            FileNotFoundError: The directory does not exist.
            FileExistsError: The name is taken.
        """
        inode = self.make_directory(path)
        self._files[inode] = FileVersions(Image.of(b""))
        return inode

    def make_directory(self, path: PurePath) -> int:
        """Create a directory; return its inode. Raises what `create` raises."""
        entry = self._entry(path)
        if entry in self._seen:
            raise FileExistsError(f"the model has {path} already")
        self._last_inode += 1
        self._seen[entry] = self._last_inode
        self._apply(self._last_inode, None, entry)
        return self._last_inode

    def rename(self, path: PurePath, new_path: PurePath) -> None:
        """Rename a file or directory, replacing any file at the new name."""
        entry, new_entry = self._entry(path), self._entry(new_path)
        inode = self._seen[new_entry] = self._seen.pop(entry)
        self._apply(inode, entry, new_entry)

    def delete(self, path: PurePath) -> None:
        """Remove a file or an empty directory; do nothing if the name does not exist."""
        entry = self._entry(path)
        inode = self._seen.pop(entry, None)
        if inode is not None:
            self._apply(inode, entry, None)

    # ---- content

    def truncate(self, inode: int, size: int) -> None:
        """Truncate a file to nothing, or extend it with zeros."""
        if file := self._files.get(inode):
            file.truncate(size)

    def write(self, inode: int, data: bytes, position: int) -> None:
        """Write to a file, also past its end."""
        if file := self._files.get(inode):
            file.write(data, position)

    def begin_write_whole(self, path: PurePath, data: bytes) -> int:
        """Create or truncate a file, write it and begin its flush; return the flush number."""
        inode = self.find(path)
        if inode is None:
            inode = self.create(path)
        self.truncate(inode, 0)
        self.write(inode, data, 0)
        return self.begin_flush(inode)

    # ---- flushes

    def begin_flush(self, inode: int) -> int:
        """Begin a flush of a file or directory; return its number for `end_flush` or
        `fail_flush`."""
        self._last_number += 1
        file = self._files.get(inode)
        self._flushes[self._last_number] = (inode, file.begin_flush() if file else None)
        return self._last_number

    def end_flush(self, flush: int) -> None:
        """Make the operations before the flush durable."""
        inode, mark = self._flushes.pop(flush)
        if mark is None:
            self._settle_names(inode, flush)
        elif file := self._files.get(inode):
            file.end_flush(mark)

    def fail_flush(self, flush: int) -> None:
        """Give up the operations before the flush: they may be lost, those on files for ever."""
        inode, mark = self._flushes.pop(flush)
        if mark is not None and (file := self._files.get(inode)):
            file.fail_flush(mark)

    def seen(self) -> Tree:
        """Return the tree as programs see it, which is what a kill leaves."""
        nothing_lost = Choices(random.Random(0), 1.0)
        return self.draw(nothing_lost, nothing_lost)

    # ---- power loss

    def draw(self, of_names: Choices, of_content: Choices) -> Tree:
        """Draw a tree that a power loss at this moment may leave."""
        names: dict[int, dict[str, int]] = defaultdict(dict)
        for (directory, name), inode in self._entries_left(of_names).items():
            names[directory][name] = inode
        return dict(self._draw_directory(PurePath(), ROOT, names, of_content))

    def _draw_directory(
        self,
        path: PurePath,
        directory: int,
        names: dict[int, dict[str, int]],
        of_content: Choices,
    ) -> Iterator[tuple[PurePath, Image | None]]:
        for name, inode in sorted(names[directory].items()):
            if file := self._files.get(inode):
                yield path / name, file.draw(of_content)
            else:
                yield path / name, None
                yield from self._draw_directory(path / name, inode, names, of_content)

    def _entries_left(self, choices: Choices) -> dict[Entry, int]:
        of_one: dict[int, list[_Change]] = defaultdict(list)
        for change in self._changes:
            of_one[change.inode].append(change)
        happened: list[_Change] = []
        for changes in of_one.values():
            flushed = [at for at, change in enumerate(changes, 1) if not change.unflushed]
            certain = max(flushed, default=0)
            happened += changes[: choices.between(certain, len(changes))]
        entries = dict(self._durable)
        for change in sorted(happened, key=lambda each: each.number):
            change.apply(entries)
        return entries

    # ---- changes of names

    def _entry(self, path: PurePath) -> Entry:
        directory = self.find(path.parent)
        if directory is None:
            raise FileNotFoundError(f"the model has no directory {path.parent} for {path.name}")
        return directory, path.name

    def _apply(self, inode: int, entry: Entry | None, new_entry: Entry | None) -> None:
        self._last_number += 1
        change = _Change(self._last_number, inode, entry, new_entry, set())
        change.unflushed.update(directory for directory, _ in change.names)
        self._changes.append(change)

    def _settle_names(self, directory: int, before: int) -> None:
        """Make earlier operations on a directory durable, except on names that are
        still uncertain.
        """
        pending: list[_Change] = []
        uncertain: set[Entry] = set()
        gone: list[int] = []
        for change in self._changes:
            if change.number < before:
                change.unflushed.discard(directory)
            if change.unflushed or not uncertain.isdisjoint(change.names):
                uncertain.update(change.names)
                pending.append(change)
            else:
                gone += change.apply(self._durable)
        self._changes = pending
        for inode in gone:
            # a directory: its content was deleted before it
            if self._files.pop(inode, None) is None:
                self._settle_names(inode, self._last_number + 1)


@dataclass
class _Change:
    """A change of one file's name; ``unflushed`` are the directories whose flush it still needs."""

    number: int
    inode: int
    entry: Entry | None
    new_entry: Entry | None
    unflushed: set[int]

    @property
    def names(self) -> list[Entry]:
        """Return the changed names; changes of one file are ordered by them."""
        return [each for each in (self.entry, self.new_entry) if each]

    def apply(self, entries: dict[Entry, int]) -> list[int]:
        """Apply the change to entries; return the inodes that lose their name."""
        if self.entry:
            del entries[self.entry]
        if self.new_entry is None:
            return [self.inode]
        replaced = entries.get(self.new_entry)
        entries[self.new_entry] = self.inode
        return [] if replaced is None else [replaced]


def states(model: PowerLossModel, dice: random.Random, count: int) -> Iterator[Tree]:
    """Draw up to ``count`` different states.

    The first has lost as much as possible, the second nothing. Some of the others have lost many
    names and little content, or vice versa.
    """
    seen = set()
    for number in range(count):
        odds = [(0.0, 0.0), (1.0, 1.0)][number] if number < 2 else dice.choices(_ODDS, k=2)
        of_names, of_content = (Choices(dice, each) for each in odds)
        tree = model.draw(of_names, of_content)
        if (made := (*of_names.made, *of_content.made)) not in seen:
            seen.add(made)
            yield tree


Drawn = TypeVar("Drawn")


def every_state(draw: Callable[[Choices], Drawn]) -> Iterator[Drawn]:
    """Draw with every possible sequence of choices; no page is torn."""
    scripts: list[list[int]] = [[]]
    while scripts:
        choices = _ScriptedChoices(scripts.pop())
        yield draw(choices)
        scripts += choices.others


class _ScriptedChoices(Choices):
    """Choices that follow a script, then take the lowest; ``others`` are the scripts not taken."""

    def __init__(self, script: list[int]) -> None:
        self._script = script
        self.made = []
        self.others: list[list[int]] = []

    def between(self, low: int, high: int) -> int:
        if len(self.made) < len(self._script):
            low = self._script[len(self.made)]
        else:
            self.others += [[*self.made, other] for other in range(low + 1, high + 1)]
        self.made.append(low)
        return low

    def is_torn(self) -> bool:
        return False
