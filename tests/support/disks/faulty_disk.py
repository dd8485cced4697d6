"""Disks that fail, fill up or lose writes, on top of a real one; and a clock that stands still.

`FaultyDisk` makes chosen operations fail or wait. `RecordingDisk` records operations in a model of
power losses; `power_loss_states` creates the directories that a power loss may leave at any moment
of the recording. `power_loss` and `file_versions` define these states.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from support.disks.file_versions import PAGE, Image
from support.disks.power_loss import PowerLossModel, Tree, states

from rocketpoll.broker.store.errors import FlushFailed
from rocketpoll.broker.store.files.disk import DiskUsage, LocalDisk


@dataclass
class ManualClock:
    now_ms: int = 1_700_000_000_000

    def __call__(self):
        return self.now_ms


@dataclass(frozen=True)
class Call:
    """A disk operation; ``file`` is the handle, ``inode`` identifies the file in a model."""

    kind: str
    path: Path
    data: bytes = b""
    position: int = 0
    size: int = 0
    new_path: Path | None = None
    file: object = None
    inode: int | None = None

    def run(self, disk):
        if self.kind == "write":
            return self.file.write(self.data, self.position)
        if self.kind == "flush":
            return self.file.flush()
        details = {"create": [self.size], "write_whole": [self.data], "rename": [self.new_path]}
        return getattr(disk, self.kind)(self.path, *details.get(self.kind, []))


class _WatchedDisk:
    """A disk that passes modifying operations to `_run`, and all others to the real disk."""

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

    def check_read(self, path, position, size):
        """Check a read of a file before it happens; may raise."""


class _WatchedFile:
    inode = None

    def __init__(self, disk, path, file):
        self._disk, self._path, self._file = disk, path, file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def read(self, position, size):
        self._disk.check_read(self._path, position, size)
        return self._file.read(position, size)

    def write(self, data, position):
        file, inode = self._file, self.inode
        self._disk._run(Call("write", self._path, bytes(data), position, file=file, inode=inode))

    def flush(self):
        self._disk._run(Call("flush", self._path, file=self._file, inode=self.inode))


@dataclass(frozen=True)
class Fault:
    """A failure of operation ``number``, or with ``persistent`` of all from it on, if they are of
    these kinds.

    A failing write or write_whole writes ``prefix`` bytes. With a prefix above 0, a failing create
    leaves an empty file, and other operations are carried out before they fail.
    """

    number: int = 0
    persistent: bool = False
    kinds: frozenset[str] | None = None
    error: int = errno.EIO
    prefix: int = 0

    def hits(self, operation):
        at = operation.number >= self.number if self.persistent else operation.number == self.number
        return at and (self.kinds is None or operation.kind in self.kinds)


@dataclass(frozen=True)
class FaultIn(Fault):
    """A fault of the files in one directory."""

    directory: str = ""

    def hits(self, operation):
        return super().hits(operation) and self.directory in operation.path.parts


class Operation(NamedTuple):
    number: int
    kind: str
    path: Path


def usage_of_large_disk(ratio):
    """Return the disk usage of a disk so large that deleting a few files does not
    change its ratio."""
    total = 1 << 60
    used = round(total * ratio)
    return DiskUsage(total, used, total - used)


ERRNOS = [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM]
"""The errnos of transient shortages."""

OF_WRITES = {"create", "write", "write_whole"}
OF_CHANGES = OF_WRITES | {"rename", "delete"}
OF_OPENS = {"create", "open", "write_whole", "flush_directory", "read", "names"}
KINDS = dict.fromkeys(ERRNOS, OF_OPENS)
KINDS |= {errno.ENOSPC: OF_WRITES, errno.EDQUOT: OF_WRITES, errno.EROFS: OF_CHANGES}
"""The operations that fail, by errno. Flushes of open files do not fail."""

FOR_GOOD = 1 << 30


@dataclass
class Refusal:
    """Refuses a number of reads of a page of a file, or in a directory, after some that succeed."""

    of: str
    at: int = 0
    times: int = FOR_GOOD
    spared: int = 0

    def hits(self):
        """Count a read; return whether to refuse it."""
        if self.spared:
            self.spared -= 1
        elif self.times:
            self.times -= 1
            return True
        return False

    def covers(self, path, position, size):
        if self.of not in (path.name, path.parent.name):
            return False
        start = position + (0 if path.parent.name == "index" else int(path.name))
        return self.at < start + size and start < self.at + PAGE


class FaultyDisk(_WatchedDisk):
    """A disk whose faults are arguments; all of them can be changed at any time.

    plan          a sequence of `Fault`: operations that change something are numbered from 0
    capacity      bytes; a write that does not fit fails with ENOSPC and the pages before are
                  written. In use are the pages written through this disk, and not deleted since;
                  names cost nothing
    slow          a directory whose flushes wait from `keep_waiting` to `let_go`
    unreadable    a list of `Refusal`: reads that fail with `read_error`. A file that is deleted
                  and created again has other pages
    lack()        no room, descriptors or memory from now on, or read-only
    refuse()      no room from now on for small files with certain names; their writes wait, too,
                  from `keep_waiting` to `let_go`

    Every wait is bounded, so that no test hangs.
    """

    def __init__(self, disk=None, plan=(), capacity=None, *, slow=None, unreadable=()):
        super().__init__(disk or LocalDisk())
        self.plan = plan
        self.capacity = capacity
        self.operations = []
        self._pages = defaultdict(set)
        self._shortage, self._shortage_spared = None, 0
        self._refused_names, self._refusals_spared = (), 0
        self._slow = slow
        self.flushes = 0
        """Number of flushes in the slow directory."""
        self.is_waiting = threading.Event()
        """Set once an operation has waited since `keep_waiting`."""
        self._goes = threading.Event()
        self._goes.set()
        self.unreadable = list(unreadable)
        self.read_error = errno.EIO
        self.refused = 0
        """Number of refused reads."""

    @property
    def used(self):
        return PAGE * sum(map(len, self._pages.values()))

    def usage(self, path):
        if self.capacity is None:
            return self._disk.usage(path)
        return DiskUsage(self.capacity, self.used, self.capacity - self.used)

    def lack(self, error, spared=0):
        """Make all operations that need the resource fail, except the first ones; None ends the
        shortage."""
        self._shortage, self._shortage_spared = error, spared

    @property
    def is_lacking(self):
        return self._shortage is not None and self._shortage_spared < 0

    def refuse(self, *names, spared=0):
        """Refuse space for files whose names begin with this, except for some of their writes."""
        self._refused_names, self._refusals_spared = names, spared

    def keep_waiting(self):
        self.is_waiting.clear()
        self._goes.clear()

    def let_go(self):
        self._goes.set()

    def wait(self):
        """Block until `let_go`."""
        if not self._goes.is_set():
            self.is_waiting.set()
        self._goes.wait(20)

    def open(self, path):
        self._check_shortage("open", path)
        return super().open(path)

    def read(self, path):
        self._check_shortage("read", path)
        self._refuse_read(path, [each for each in self.unreadable if each.of == path.name])
        return self._disk.read(path)

    def names(self, path):
        self._check_shortage("names", path)
        return self._disk.names(path)

    def delete(self, path):
        super().delete(path)
        self.unreadable = [each for each in self.unreadable if each.of != path.name]

    def check_read(self, path, position, size):
        pages = [each for each in self.unreadable if each.covers(path, position, size)]
        self._refuse_read(path, pages)

    def _refuse_read(self, path, refusals):
        hits = [each.hits() for each in refusals]
        if any(hits):
            self.refused += 1
            raise OSError(self.read_error, os.strerror(self.read_error), str(path))

    def _check_shortage(self, kind, path):
        if kind not in KINDS.get(self._shortage, ()):
            return
        self._shortage_spared -= 1
        if self._shortage_spared < 0:
            raise OSError(self._shortage, os.strerror(self._shortage), str(path))

    def _is_refused(self, call):
        return call.kind == "write_whole" and call.path.name.startswith(self._refused_names)

    def _refuse(self, call):
        if self._refusals_spared:
            self._refusals_spared -= 1
            return
        self.wait()
        if self._is_refused(call):  # checked again after the wait: there may be space now
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(call.path))

    def _run(self, call):
        self._check_shortage(call.kind, call.path)
        if self._is_refused(call):
            self._refuse(call)
        if call.kind == "flush" and self._slow in call.path.parts:
            self.flushes += 1
            self.wait()
        return self._run_by_plan(call)

    def _run_by_plan(self, call):
        with self._lock:
            operation = Operation(len(self.operations), call.kind, call.path)
            self.operations.append(operation)
            fault = next((fault for fault in self.plan if fault.hits(operation)), None)
        if fault is None:
            return self._carry_out(call)
        if fault.prefix:
            self._carry_out(replace(call, data=call.data[: fault.prefix], size=0))
        is_flush = call.kind in {"flush", "flush_directory"}
        raise (FlushFailed if is_flush else OSError)(
            fault.error, os.strerror(fault.error), str(call.path)
        )

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
        """Allocate pages for the data; return the number of bytes that fit."""
        if call.kind == "write_whole":
            self._pages.pop(call.path, None)
        pages = self._pages[call.path]
        for page in range(call.position // PAGE, -(-(call.position + len(call.data)) // PAGE)):
            if page not in pages and self.capacity is not None and self.used + PAGE > self.capacity:
                return max(page * PAGE - call.position, 0)
            pages.add(page)
        return len(call.data)


class FillingDisk(FaultyDisk):
    """A large disk whose usage ratio a test sets."""

    ratio = 0.5

    def usage(self, path):  # noqa: ARG002  # the signature of the protocol
        return usage_of_large_disk(self.ratio)


class Told(NamedTuple):
    """A recorded call of a `PowerLossModel` method."""

    kind: str
    arguments: tuple

    def tell(self, model):
        return getattr(model, self.kind)(*self.arguments)


class Log(NamedTuple):
    """The initial content, and the operations after it."""

    tree: Tree
    operations: tuple[Told, ...]

    def model(self):
        model = PowerLossModel(self.tree)
        for operation in self.operations:
            operation.tell(model)
        return model


class RecordingDisk(_WatchedDisk):
    """A disk that records the operations below its root, in order.

    Flushes run concurrently with other operations: their begin and their end are recorded
    separately, with others between them. All other operations run one at a time. The content of the
    root when the recording begins counts as durable, or as the result of an earlier recording.
    """

    def __init__(self, disk, root, before=None):
        super().__init__(disk)
        self.root = root
        log = before or Log(tree_in(root), ())
        self._tree = log.tree
        self._model = log.model()
        self.operations = list(log.operations)

    def log(self, count=None):
        """Return the first ``count`` operations, or all."""
        return Log(self._tree, tuple(self.operations[:count]))

    def create(self, path, size):
        return self._with_inode(super().create(path, size), path)

    def open(self, path):
        return self._with_inode(super().open(path), path)

    def _with_inode(self, file, path):
        if self._is_recorded(path):
            file.inode = self._model.find(path.relative_to(self.root))
            if file.inode is None:
                raise FileNotFoundError(f"{path} was made without the recording disk")
        return file

    def make_directory(self, path):
        if not path.is_dir():
            self.make_directory(path.parent)
            self._run(Call("make_directory", path))

    def _is_recorded(self, path):
        return path.is_relative_to(self.root)

    def _run(self, call):
        if not self._is_recorded(call.path):
            return call.run(self._disk)
        if call.kind in {"flush", "flush_directory", "write_whole"}:
            return self._run_flush(call)
        with self._lock:
            try:
                return call.run(self._disk)
            finally:
                self._decode(call)

    def _run_flush(self, call):
        with self._lock:
            path = call.path.relative_to(self.root)
            if call.kind == "write_whole":
                flush = self._tell("begin_write_whole", path, call.data)
            else:
                inode = call.inode if call.kind == "flush" else self._model.find(path)
                flush = self._tell("begin_flush", inode)
        try:
            call.run(self._disk)
        except OSError:
            with self._lock:
                self._tell("fail_flush", flush)
                if self._has_changed(call.path):  # a failed operation may have had no effect
                    self._tell("delete", path)
            raise
        with self._lock:
            self._tell("end_flush", flush)

    def _decode(self, call):
        """Record the effect of an operation, failed or not."""
        path = call.path.relative_to(self.root)
        if call.kind == "write":
            landed = call.file.read(call.position, len(call.data))
            self._tell("write", call.inode, bytes(landed), call.position)
        elif not self._has_changed(call.path):
            return
        elif call.kind == "create":
            self._tell("truncate", self._tell("create", path), self._disk.size_of(call.path))
        elif call.kind == "rename":
            self._tell("rename", path, call.new_path.relative_to(self.root))
        else:
            self._tell(call.kind, path)

    def _has_changed(self, path):
        """Return whether model and disk disagree about the existence of a path."""
        is_there = path == self.root or path.name in self._disk.names(path.parent)
        return is_there != (self._model.find(path.relative_to(self.root)) is not None)

    def _tell(self, kind, *arguments):
        operation = Told(kind, arguments)
        self.operations.append(operation)
        return operation.tell(self._model)


def power_loss_states(log, dice, count, into):
    """Yield up to ``count`` different directories that a power loss may leave, one at a time.

    The first has lost as much as possible, the second nothing, the others are random. Each is a new
    directory in ``into`` that is removed when the next is requested, so that the directory of a
    failed test remains.
    """
    for number, tree in enumerate(states(log.model(), dice, count)):
        root = Path(tempfile.mkdtemp(prefix=f"{len(log.operations):05}-{number:05}-", dir=into))
        materialise(tree, root)
        yield root
        shutil.rmtree(root)


def tree_in(root):
    """Return the files and directories in a directory."""
    return {
        path.relative_to(root): Image.of(path.read_bytes()) if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def materialise(tree, root):
    """Create the files and directories of a tree in an empty directory."""
    for path, image in tree.items():
        if image is None:
            (root / path).mkdir()
            continue
        with (root / path).open("wb") as file:
            file.truncate(image.size)
            for page, data in image.pages.items():
                if (part := data[: max(image.size - page * PAGE, 0)]).strip(b"\0"):
                    file.seek(page * PAGE)
                    file.write(part)
