"""A disk in memory for a simulated world: slow, full, failing or without power, as fate decides.

    Platter      the content, which outlives processes; `lose_power` leaves what
                 `power_loss` says may be left
    Disk, File   the same as one process sees it: a `rocketpoll.broker.store.files.disk.LocalDisk`

Every operation of a process asks fate first, which may let time pass, so that others have their
turns; raise an `OSError`; let a part of it through; or end the process in the middle. A flush makes
durable what was written before it began, and counts when it has ended.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import PurePath
from typing import NamedTuple

from support.disks.file_versions import PAGE, Choices, Image
from support.disks.power_loss import ROOT, PowerLossModel
from world.kernel import Killed

from rocketpoll.broker.store.errors import FlushFailed
from rocketpoll.broker.store.files.disk import DiskUsage

ROOMY = 0.1
"""The usage ratio of a disk that is not filling up."""

_DISK_BYTES = 1 << 40

_BEFORE_A_FLUSH = frozenset({errno.EMFILE, errno.ENFILE})
"""Errnos of opening a directory for a flush: the flush has not begun."""

_ODDS = (0.0, 0.0, 0.1, 0.5, 0.9, 1.0)


class Operation(NamedTuple):
    """An operation of a process on the disk; ``size`` is that of its data.

    Its first ``in_place`` bytes lie in existing pages, so a full disk accepts them.
    """

    kind: str
    path: str
    size: int = 0
    in_place: int = 0


class Verdict(NamedTuple):
    """The result of an operation."""

    seconds_before: float = 0.0
    seconds_after: float = 0.0
    error: int | None = None
    let_through: int = 0  # number of bytes that a failing write writes
    death: str | None = None  # "kill" or "power": the process ends here
    is_done: bool = False  # whether the operation was carried out before the end


class Platter:
    """The content of a disk: a tree as programs see it, and what a power loss may leave of it."""

    def __init__(self, now, directory):
        """``now`` returns the time of day in seconds, for modification times; the
        directory exists."""
        self._now = now
        self._grow(
            {
                _below_root(path): None
                for path in (*reversed(directory.parents), directory)
                if path.name
            }
        )
        self.used_ratio = ROOMY

    def lose_power(self, dice):
        """Apply a random power loss."""
        odds = dice.choice(_ODDS), dice.choice(_ODDS)
        self._grow(self.model.draw(*(Choices(dice, each) for each in odds)))

    def copy(self):
        """Return a copy of all content."""
        return dict(self._tree(PurePath(), self._root))

    def put_back(self, copy):
        """Replace all content by a copy."""
        self._grow(copy)

    def spoil(self, content, dice):
        """Flip a bit of some bytes wherever they are; return whether they were found."""
        for node in self._files(self._root):
            at = node.data.find(content)
            if at >= 0:
                node.data[at + dice.randrange(len(content))] ^= 1 << dice.randrange(8)
                return True
        return False

    def _files(self, node):
        for _, child in sorted(node.children.items()):
            if child.children is None:
                yield child
            else:
                yield from self._files(child)

    def destroy(self, *paths):
        """Remove files and directories with all their content, as an operator might."""
        for path in paths:
            parent = self.find(path.parent)
            if parent is not None:
                parent.children.pop(path.name, None)
        self._grow(dict(self._tree(PurePath(), self._root)))

    def _tree(self, path, node):
        for name, child in sorted(node.children.items()):
            if child.children is None:
                yield path / name, Image.of(bytes(child.data))
            else:
                yield path / name, None
                yield from self._tree(path / name, child)

    @property
    def files(self):
        """Return the number of files."""
        return sum(image is not None for _, image in self._tree(PurePath(), self._root))

    def find(self, path):
        """Return the node at a path; None if there is none."""
        node = self._root
        for name in path.parts[1:]:
            if node.children is None or name not in node.children:
                return None
            node = node.children[name]
        return node

    def need(self, path):
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node

    def add(self, path, *, is_directory=False):
        parent = self.need(path.parent)
        make = self.model.make_directory if is_directory else self.model.create
        node = parent.children[path.name] = _Node(
            make(_below_root(path)), is_directory=is_directory
        )
        node.modified = self._now()
        return node

    def move(self, path, new_path):
        node, parent, new_parent = (
            self.need(path),
            self.need(path.parent),
            self.need(new_path.parent),
        )
        there = new_parent.children.get(new_path.name)
        if there is not None and there.children:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        del parent.children[path.name]
        new_parent.children[new_path.name] = node
        self.model.rename(_below_root(path), _below_root(new_path))

    def remove(self, path):
        node = self.find(path)
        if node is None:
            return
        if node.children:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        del self.find(path.parent).children[path.name]
        self.model.delete(_below_root(path))

    def resize(self, node, size):
        if size != len(node.data):
            node.resize(size)
            node.modified = self._now()
            self.model.truncate(node.inode, size)

    def write(self, node, data, position):
        data = bytes(data)
        node.write(data, position)
        node.modified = self._now()
        self.model.write(node.inode, data, position)

    def _grow(self, tree):
        """Start with a durable tree."""
        self.model = PowerLossModel(tree)
        self._root = _Node(ROOT, is_directory=True)
        for path, image in tree.items():
            parent = self.find(PurePath("/") / path.parent)
            node = _Node(self.model.find(path), is_directory=image is None)
            if image is not None:
                node.fill(image)
            node.modified = self._now()
            parent.children[path.name] = node


def _below_root(path):
    return PurePath(*path.parts[1:])


class _Node:
    """A file, or a directory if it has children."""

    __slots__ = ("children", "data", "inode", "modified", "written")

    def __init__(self, inode, *, is_directory):
        self.inode = inode
        self.children = {} if is_directory else None
        self.data = bytearray()
        self.written = set()  # page numbers
        self.modified = 0.0

    def resize(self, size):
        # A new array: views of the old one stay unchanged, as maps do.
        self.data = self.data[:size].ljust(size, b"\0")
        self.written = {page for page in self.written if page * PAGE < size}

    def write(self, data, position):
        end = position + len(data)
        if end > len(self.data):
            self.resize(end)
        self.data[position:end] = data
        self.written.update(range(position // PAGE, -(-end // PAGE)))

    def in_place(self, position, size):
        """Return how many bytes of a write need no new pages."""
        pages = range(position // PAGE, -(-(position + size) // PAGE))
        missing = next((page for page in pages if page not in self.written), pages.stop)
        return min(max(missing * PAGE - position, 0), size)

    def fill(self, image):
        self.data = bytearray(image.content)
        self.written = set(image.pages)


class Disk:
    """A platter as one process sees it."""

    def __init__(self, kernel, platter, process, fate):
        """``fate(operation)`` returns the verdict on each operation."""
        self._kernel = kernel
        self._platter = platter
        self._process = process
        self._fate = fate
        self.open_files = 0
        self.operations = 0

    @property
    def files(self):
        """Return the number of files on the platter."""
        return self._platter.files

    def create(self, path, size):
        def new():
            if self._platter.find(path) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            return self._platter.add(path)

        node = self.carry_out("create", path, new)
        self.carry_out("resize", path, partial(self._platter.resize, node, size))
        return File(self, path, node)

    def open(self, path):
        return File(self, path, self.carry_out("open", path, partial(self._platter.need, path)))

    def read(self, path):
        node = self.carry_out("open", path, partial(self._platter.need, path))
        return self.carry_out("read", path, partial(bytes, node.data))

    def write_whole(self, path, data):
        platter = self._platter
        node = self.carry_out("create", path, lambda: platter.find(path) or platter.add(path))
        self.carry_out("resize", path, partial(platter.resize, node, 0))
        self.write_to(path, node, data, 0)
        self.flush_file(path, node)

    def rename(self, path, new_path):
        self.carry_out("rename", path, partial(self._platter.move, path, new_path))

    def delete(self, path):
        self.carry_out("delete", path, partial(self._platter.remove, path))

    def make_directory(self, path):
        if self._platter.find(path) is None:
            self.make_directory(path.parent)
            self.carry_out(
                "make_directory", path, partial(self._platter.add, path, is_directory=True)
            )

    def flush_directory(self, path):
        self._flush("flush_directory", path, self._platter.need(path))

    def names(self, path):
        node = self.carry_out("names", path, partial(self._platter.find, path))
        return sorted(node.children) if node is not None and node.children is not None else []

    def size_of(self, path):
        node = self._platter.find(path)
        return None if node is None or node.children is not None else len(node.data)

    def modified_at(self, path):
        return self._platter.need(path).modified

    def is_readable_by_others(self, path):
        return False

    def set_modified_at(self, path, seconds):
        self._platter.need(path).modified = seconds

    def list_directories(self, paths):
        return [{name: self.size_of(path / name) for name in self.names(path)} for path in paths]

    def run_all(self, jobs):
        for job in jobs:
            job()

    def usage(self, path):
        used = round(self._platter.used_ratio * _DISK_BYTES)
        return DiskUsage(_DISK_BYTES, used, _DISK_BYTES - used)

    def lock(self, path, below=()):
        self.carry_out("lock", path, lambda: self._platter.find(path) or self._platter.add(path))
        return Lock()

    # ---- implementation for files

    def read_from(self, path, node, position, size):
        data = self.carry_out("read", path, lambda: bytes(node.data[position : position + size]))
        if len(data) < size:
            raise OSError(errno.EIO, f"the file ends at {len(node.data)}", str(path))
        return data

    def write_to(self, path, node, data, position):
        platter = self._platter

        def write(through=None):
            platter.write(node, memoryview(data)[:through], position)

        self.carry_out("write", path, write, len(data), node.in_place(position, len(data)))

    def flush_file(self, path, node):
        self._flush("flush", path, node)

    def _flush(self, kind, path, node):
        """Make earlier operations durable when the flush ends."""
        self._check_alive()
        verdict = self._ask(Operation(kind, str(path)))
        self._meet(verdict, verdict.seconds_before, is_done=False)
        if verdict.error in _BEFORE_A_FLUSH:
            raise OSError(verdict.error, os.strerror(verdict.error), str(path))
        model = self._platter.model
        flush = model.begin_flush(node.inode)
        self._kernel.sleep(verdict.seconds_after)
        if verdict.error is not None:
            model.fail_flush(flush)
            raise FlushFailed(verdict.error, os.strerror(verdict.error), str(path))
        model.end_flush(flush)
        self._meet(verdict, 0, is_done=True)

    def carry_out(self, kind, path, act, size=0, in_place=0):
        """Carry out an operation if fate permits; return its result."""
        self._check_alive()
        verdict = self._ask(Operation(kind, str(path), size, in_place))
        self._meet(verdict, verdict.seconds_before, is_done=False)
        if verdict.error is not None:
            through = min(verdict.let_through, size - 1)
            if through > 0 and kind == "write":
                act(through)
            raise OSError(verdict.error, os.strerror(verdict.error), str(path))
        result = act()
        self._meet(verdict, verdict.seconds_after, is_done=True)
        return result

    def _ask(self, operation):
        self.operations += 1
        return self._fate(operation)

    def _meet(self, verdict, seconds, *, is_done):
        if seconds:
            self._kernel.sleep(seconds)
        if verdict.death is not None and verdict.is_done is is_done:
            self._process.kill(power_lost=verdict.death == "power")

    def _check_alive(self):
        if not self._process.is_alive:
            raise Killed


class Lock:
    """A lock that ends with its process and excludes all others."""

    def release(self):
        pass


class File:
    """An open file of a process: a `rocketpoll.broker.store.files.local_file.LocalFile`."""

    def __init__(self, disk, path, node):
        self._disk = disk
        self._path = path
        self._node = node
        self._is_open = True
        disk.open_files += 1

    @property
    def size(self):
        return len(self._node.data)

    def read(self, position, size):
        return self._disk.read_from(self._path, self._node, position, size)

    def write(self, data, position):
        self._disk.write_to(self._path, self._node, data, position)

    def flush(self):
        self._disk.flush_file(self._path, self._node)

    def next_data(self, position):
        page = min(
            (page for page in self._node.written if (page + 1) * PAGE > position), default=None
        )
        return None if page is None else max(page * PAGE, position)

    def check_in_place(self):
        pass  # the platter has no other user

    def close(self):
        if self._is_open:
            self._is_open = False
            self._disk.open_files -= 1

    def __del__(self):
        self.close()
