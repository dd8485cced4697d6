"""Disks that fail, fill up or forget, around a real one; and a clock that stands still.

`FaultyDisk` numbers the operations that change something, from 0, and lets chosen ones fail.
`RecordingDisk` logs them; `power_loss_states` makes the directories that a power loss may leave of a log.

What may be found after the power is gone, when operations 0 to k-1 had returned and k was under way:

- Content. A write is there for sure once a flush of its file has returned that began after it. Before
  that, each page of 4 KiB independently holds what it held at the last flush or after any later write to
  it: writes may be lost and reordered between pages, not within one. One time in three the page is torn:
  each sector of 512 bytes is either as in that state or as in a later one.
- Size. A new file has no byte until its first flush, or all of its size, with zeros where nothing was
  written. A `write_whole` under way, or failed, leaves the file as it was, or cut short at any sector, with
  zeros in any page or sector of what is left; one that has returned is there whole.
- Names. Creating, renaming and deleting is there for sure once a flush of the directory has returned that
  began after it; of both directories, for a rename between two. Before that it may have happened or not,
  independently, but: each is atomic, what happens to one file happens in its order, and a file never has
  two names. In a directory whose own name is lost all is lost, flushed or not.
- A flush that failed: what it should have flushed can be lost for ever, even if a later flush returns, but
  for pages that were written again in between, as Linux does it.

It does not make: bytes that nobody wrote (bit rot, other files' content), tears within a sector, half a
rename, a disk that lies about flushing, times of modification. A create, rename, delete or directory that
fails is taken as not done. What lies in the root when a recording begins is durable.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
import threading
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

PAGE, SECTOR = 4096, 512


@dataclass
class ManualClock:
    now_ms: int = 1_700_000_000_000

    def __call__(self):
        return self.now_ms


@dataclass(frozen=True)
class Call:
    """One operation; ``file`` is the handle below, ``inode`` stands for the file whatever its name is."""

    kind: str
    path: Path
    data: bytes = b""
    position: int = 0
    size: int = 0
    new_path: Path | None = None
    file: object = None
    inode: int = -1

    def run(self, disk):
        if self.kind == "write":
            return self.file.write(self.data, self.position)
        if self.kind == "flush":
            return self.file.flush()
        details = {"create": [self.size], "write_whole": [self.data], "rename": [self.new_path]}
        return getattr(disk, self.kind)(self.path, *details.get(self.kind, []))


class _WatchedDisk:
    """Hands what changes something to `_run`; the rest goes straight through."""

    def __init__(self, disk):
        self._disk = disk
        self._lock = threading.RLock()

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def create(self, path, size):
        return _WatchedFile(self, path, self._run(Call("create", path, size=size)))

    def open(self, path):
        return _WatchedFile(self, path, self._disk.open(path))

    def write_whole(self, path, data):
        self._run(Call("write_whole", path, bytes(data)))

    def rename(self, path, new_path):
        self._run(Call("rename", path, new_path=new_path))

    def delete(self, path):
        self._run(Call("delete", path))

    def make_directory(self, path):
        self._run(Call("make_directory", path))

    def flush_directory(self, path):
        self._run(Call("flush_directory", path))


class _WatchedFile:
    def __init__(self, disk, path, file):
        self._disk, self._path, self._file = disk, path, file
        self._inode = disk.inode_of(path) if isinstance(disk, RecordingDisk) else -1

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data, position):
        self._disk._run(Call("write", self._path, bytes(data), position, file=self._file, inode=self._inode))

    def flush(self):
        self._disk._run(Call("flush", self._path, file=self._file, inode=self._inode))


@dataclass(frozen=True)
class Fault:
    """Operation ``number`` fails, or with ``persistent`` all from there on, if they are of these kinds.

    Of a write or write_whole ``prefix`` bytes get through. With a prefix above 0 a create leaves an empty
    file, and other operations are carried out and fail nevertheless.
    """

    number: int = 0
    persistent: bool = False
    kinds: frozenset[str] | None = None
    error: int = errno.EIO
    prefix: int = 0

    def hits(self, operation):
        at = operation.number >= self.number if self.persistent else operation.number == self.number
        return at and (self.kinds is None or operation.kind in self.kinds)


class Operation(NamedTuple):
    number: int
    kind: str
    path: Path


class FaultyDisk(_WatchedDisk):
    """Fails by its plan, a sequence of `Fault`, and when more than ``capacity`` bytes are in use.

    Both can be set at any time. In use are the pages written through this disk, and not deleted since;
    names cost nothing. A write that does not fit fails with ENOSPC and the pages before are written.
    """

    def __init__(self, disk, plan=(), capacity=None):
        super().__init__(disk)
        self.plan = plan
        self.capacity = capacity
        self.operations = []
        self._pages = defaultdict(set)

    @property
    def used(self):
        return PAGE * sum(map(len, self._pages.values()))

    def used_ratio(self, path):
        return self._disk.used_ratio(path) if self.capacity is None else self.used / max(self.capacity, 1)

    def _run(self, call):
        with self._lock:
            operation = Operation(len(self.operations), call.kind, call.path)
            self.operations.append(operation)
            fault = next((fault for fault in self.plan if fault.hits(operation)), None)
        if fault is None:
            return self._carry_out(call)
        if fault.prefix:
            self._carry_out(replace(call, data=call.data[: fault.prefix], size=0))
        raise OSError(fault.error, os.strerror(fault.error), str(call.path))

    def _carry_out(self, call):
        with self._lock:
            room = self._room(call)
        if room < len(call.data):
            replace(call, data=call.data[:room]).run(self._disk)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(call.path))
        result = call.run(self._disk)
        with self._lock:
            if call.kind in {"delete", "rename"}:
                for path in [path for path in self._pages if path.is_relative_to(call.path)]:
                    moved = self._pages.pop(path)
                    if call.kind == "rename":
                        self._pages[call.new_path / path.relative_to(call.path)] = moved
        return result

    def _room(self, call):
        """How many bytes of the data there is room for; takes the pages."""
        if call.kind == "write_whole":
            self._pages.pop(call.path, None)
        pages = self._pages[call.path]
        for page in range(call.position // PAGE, -(-(call.position + len(call.data)) // PAGE)):
            if page not in pages and self.capacity is not None and self.used + PAGE > self.capacity:
                return max(page * PAGE - call.position, 0)
            pages.add(page)
        return len(call.data)


@dataclass(frozen=True)
class Recorded:
    """An operation in a log. Entries are a directory's inode and a name in it."""

    call: Call
    inode: int
    entry: tuple[int, str] | None = None
    new_entry: tuple[int, str] | None = None
    failed: bool = False


@dataclass(frozen=True)
class Log:
    """What was there, and what was done to it; the last operation may be under way."""

    entries: dict[tuple[int, str], int]
    files: dict[int, bytes]
    operations: tuple[Recorded, ...]
    is_under_way: bool = False


class RecordingDisk(_WatchedDisk):
    """Logs what is done below its root; one operation at a time, so that the log's order is the true one."""

    def __init__(self, disk, root):
        super().__init__(disk)
        self.root = root
        self.operations = []
        self._entries = {}
        files = {}
        for path in sorted(root.rglob("*")):
            inode = self._entries[self._entry(path)] = len(self._entries) + 1
            if path.is_file():
                files[inode] = path.read_bytes()
        self._inodes = itertools.count(len(self._entries) + 1)
        self._base = dict(self._entries), files

    def log(self, point=None):
        """All that was done; or the log at the moment when operation number ``point`` was under way."""
        done = self.operations if point is None else self.operations[: point + 1]
        entries, files = self._base
        under_way = point is not None and point < len(self.operations)
        return Log(entries, files, tuple(done), under_way)

    def inode_of(self, path):
        if self.root not in path.parents:
            return 0 if path == self.root else -1  # outside, nothing is logged
        return self._entries[self._entry(path)]

    def _entry(self, path):
        return self.inode_of(path.parent), path.name

    def make_directory(self, path):
        if not path.is_dir():
            self.make_directory(path.parent)
            self._run(Call("make_directory", path))

    def _run(self, call):
        if self.inode_of(call.path.parent) < 0 and call.path != self.root:
            return call.run(self._disk)
        with self._lock:
            try:
                result = call.run(self._disk)
            except OSError:
                self._note_failure(call)
                raise
            self._note(call)
            return result

    def _note_failure(self, call):
        if call.kind == "write":
            landed = call.file.view[call.position : call.position + len(call.data)]
            self.operations.append(Recorded(replace(call, data=bytes(landed)), call.inode))
        elif call.kind == "flush":
            self.operations.append(Recorded(call, call.inode, failed=True))
        elif call.kind == "write_whole" and self._disk.size_of(call.path) is not None:
            self._note(call, failed=True)

    def _note(self, call, *, failed=False):
        if call.kind in {"write", "flush"}:
            self.operations.append(Recorded(call, call.inode))
        elif call.kind == "flush_directory":
            self.operations.append(Recorded(call, self.inode_of(call.path)))
        else:
            self._note_name(call, failed)

    def _note_name(self, call, failed):
        entry, new_entry = self._entry(call.path), None
        if call.kind in {"delete", "rename"}:
            inode = self._entries.pop(entry, None)
            if inode is None:
                return  # there was nothing to delete
            if call.kind == "rename":
                new_entry = self._entry(call.new_path)
                self._entries[new_entry] = inode
        else:
            known = self._entries.get(entry)
            inode = next(self._inodes) if known is None else known
            entry, new_entry = None, (entry if known is None else None)
            if new_entry:
                self._entries[new_entry] = inode
        self.operations.append(Recorded(call, inode, entry, new_entry, failed))


def power_loss_states(log, dice, count, into):
    """Up to ``count`` different directories that a power loss may leave, one at a time.

    The first has lost all that it could, the second nothing, the others are drawn. Each is a new directory
    in ``into`` and is removed when the next is asked for, so that what made a test fail is still there.
    """
    disk, seen = _AfterPowerLoss(log), set()
    for number in range(count):
        choices = _Choices(dice, [0.0, 1.0][number] if number < 2 else dice.choice([0.1, 0.5, 0.9]))
        entries, files = disk.draw(choices)
        if (made := tuple(choices.made)) in seen:
            continue
        seen.add(made)
        root = Path(tempfile.mkdtemp(prefix=f"{len(log.operations):05}-{number:05}-", dir=into))
        _materialise(root, 0, entries, files)
        yield root
        shutil.rmtree(root)


class _Choices:
    def __init__(self, dice, odds):
        self._dice, self._odds = dice, odds
        self.made = []

    def between(self, low, high):
        """Low if all is lost, high if nothing is."""
        if low < high and self._dice.random() >= self._odds:
            high = low if self._odds == 0 else self._dice.randint(low, high - 1)
        self.made.append(high)
        return high

    def one_in(self, number):
        drawn = 0 < self._odds < 1 and self._dice.randrange(number) == 0
        self.made.append(drawn)
        return drawn


class _Content:
    """One file's sizes and pages: each from what is durable to what was written last."""

    def __init__(self, data=b""):
        self.sizes = [len(data)]
        self.pages = {}
        self._given_up = set()  # pages, and "size", that a failed flush may have lost
        for at in range(0, len(data), PAGE):
            self.pages[at // PAGE] = [data[at : at + PAGE].ljust(PAGE, b"\0")]

    @classmethod
    def under_way(cls, data):
        content = cls(data)
        content.sizes = [*range(0, len(data), SECTOR), len(data)]
        content.pages = {page: [bytes(PAGE), *states] for page, states in content.pages.items()}
        return content

    def write(self, data, position):
        while data:
            page, start = divmod(position, PAGE)
            states = self.pages.setdefault(page, [bytes(PAGE)])
            part = data[: PAGE - start]
            states.append(states[-1][:start] + part + states[-1][start + len(part) :])
            self._given_up.discard(page)
            data, position = data[len(part) :], position + len(part)

    def flush(self, *, failed):
        if failed:
            self._given_up |= {page for page, states in self.pages.items() if len(states) > 1}
            self._given_up |= {"size"} if len(self.sizes) > 1 else set()
            return
        if "size" not in self._given_up:
            self.sizes = self.sizes[-1:]
        for page in self.pages.keys() - self._given_up:
            self.pages[page] = self.pages[page][-1:]

    def draw(self, choices):
        size = self.sizes[choices.between(0, len(self.sizes) - 1)]
        return size, {page: self._page(states, choices) for page, states in self.pages.items()}

    @staticmethod
    def _page(states, choices):
        last = len(states) - 1
        if last == 0 or not choices.one_in(3):
            return states[choices.between(0, last)]
        first = choices.between(0, last - 1)
        both = states[first], states[choices.between(first + 1, last)]
        sectors = (slice(at, at + SECTOR) for at in range(0, PAGE, SECTOR))
        return b"".join(both[choices.between(0, 1)][sector] for sector in sectors)


class _AfterPowerLoss:
    """A log played until the power goes: what is certain, and what is not."""

    def __init__(self, log):
        self._entries = dict(log.entries)
        self._files = {inode: [_Content(data)] for inode, data in log.files.items()}
        self._names = []  # changes of names, each with the directories that are still to be flushed
        *done, last = log.operations or [None]
        for each in done:
            self._play(each, returned=not each.failed)
        if last is not None:
            self._play(last, returned=not (last.failed or log.is_under_way))

    def _play(self, each, *, returned):
        kind, data = each.call.kind, each.call.data
        if kind == "write":
            self._files[each.inode][-1].write(data, each.call.position)
        elif kind == "flush":
            if returned or each.failed:
                self._files[each.inode][-1].flush(failed=each.failed)
        elif kind == "flush_directory":
            if returned:
                self._make_names_durable(each.inode)
        else:
            self._play_name(each, returned)

    def _play_name(self, each, returned):
        if each.call.kind == "create":
            content = _Content()
            content.sizes = [0, each.call.size]
            self._files[each.inode] = [content]
        elif each.call.kind == "write_whole":
            if returned:
                self._files[each.inode] = [_Content(each.call.data)]
            else:
                self._files.setdefault(each.inode, []).append(_Content.under_way(each.call.data))
        unflushed = {entry[0] for entry in (each.entry, each.new_entry) if entry}
        if unflushed:
            self._names.append((each, unflushed))

    def _make_names_durable(self, directory):
        for _, unflushed in self._names:
            unflushed.discard(directory)
        while self._names and not self._names[0][1]:
            _apply(self._names.pop(0)[0], self._entries)

    def draw(self, choices):
        """The entries and the files' content after one power loss."""
        changes = defaultdict(list)
        for number, (each, unflushed) in enumerate(self._names):
            changes[each.inode].append((number, each, unflushed))
        happened = []
        for of_one in changes.values():
            certain = max((at for at, change in enumerate(of_one, 1) if not change[2]), default=0)
            happened += of_one[: choices.between(certain, len(of_one))]
        entries = dict(self._entries)
        for _, each, _ in sorted(happened, key=lambda change: change[0]):
            _apply(each, entries)
        files = {}
        for inode in sorted(entries.values()):
            if contents := self._files.get(inode):
                files[inode] = contents[choices.between(0, len(contents) - 1)].draw(choices)
        return entries, files


def _apply(each, entries):
    if each.entry and entries.get(each.entry) == each.inode:
        del entries[each.entry]
    if each.new_entry:
        entries[each.new_entry] = each.inode


def _materialise(path, directory, entries, files):
    path.mkdir(exist_ok=True)
    for (parent, name), inode in entries.items():
        if parent != directory:
            continue
        if inode not in files:
            _materialise(path / name, inode, entries, files)
            continue
        size, pages = files[inode]
        with (path / name).open("wb") as file:
            file.truncate(size)
            for page, data in pages.items():
                if (part := data[: max(size - page * PAGE, 0)]).strip(b"\0"):
                    file.seek(page * PAGE)
                    file.write(part)
