"""Disks with one kind of fault each, which a test switches on and off.

LackingDisk       no room, descriptors or memory for a while, or read-only
RefusingDisk      no room for small files with certain names
SlowDisk          flushes of the log or of consume queues wait
UnreadableDisk    pages that cannot be read: bad sectors
HesitantDisk      pages that cannot be read for a while
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass

from support.disks.faulty_disk import FaultyDisk
from support.disks.file_versions import PAGE

from rocketpoll.broker.store.files.disk import LocalDisk

ERRNOS = [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM]
OF_WRITES = {"create", "write", "write_whole"}
OF_CHANGES = OF_WRITES | {"rename", "delete"}
OF_OPENS = {"create", "open", "write_whole", "flush_directory", "read", "names"}

KINDS = dict.fromkeys(ERRNOS, OF_OPENS)
KINDS |= {errno.ENOSPC: OF_WRITES, errno.EDQUOT: OF_WRITES, errno.EROFS: OF_CHANGES}


class LackingDisk(FaultyDisk):
    """From one operation on, each that needs what is lacking fails, until there is enough again.

    Flushes of files that are open never do.
    """

    def __init__(self):
        super().__init__(LocalDisk())
        self.error = None
        self.spared = 0

    def lack(self, error, spared=0):
        """From now on, but for so many operations that would fail."""
        self.error, self.spared = error, spared

    @property
    def is_lacking(self):
        return self.error is not None and self.spared < 0

    def _check(self, kind, path):
        if kind not in KINDS.get(self.error, ()):
            return
        self.spared -= 1
        if self.spared < 0:
            raise OSError(self.error, os.strerror(self.error), str(path))

    def _run(self, call):
        self._check(call.kind, call.path)
        return super()._run(call)

    def open(self, path):
        self._check("open", path)
        return super().open(path)

    def read(self, path):
        self._check("read", path)
        return self._disk.read(path)

    def names(self, path):
        self._check("names", path)
        return self._disk.names(path)


class RefusingDisk(FaultyDisk):
    """Refuses nothing until it is told to. Every wait has an end, so that no test hangs."""

    def __init__(self):
        super().__init__(LocalDisk())
        self.is_waiting = threading.Event()
        """Set when a write has had to wait since it was told so."""
        self._names = ()
        self._spared = 0
        self._goes = threading.Event()
        self._goes.set()

    def refuse(self, *names, spared=0):
        """Have no room from now on for files whose names begin so,
        but for so many of their writes."""
        self._names, self._spared = names, spared

    def keep_waiting(self):
        self.is_waiting.clear()
        self._goes.clear()

    def let_go(self):
        self._goes.set()

    def _run(self, call):
        if self._is_refused(call):
            if self._spared:
                self._spared -= 1
            else:
                self._refuse(call)
        return super()._run(call)

    def _is_refused(self, call):
        return call.kind == "write_whole" and call.path.name.startswith(self._names)

    def _refuse(self, call):
        if not self._goes.is_set():
            self.is_waiting.set()
            self._goes.wait(20)
        if self._is_refused(call):  # there may be room by now
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(call.path))


class SlowDisk(FaultyDisk):
    """Fails by its plan, too. Every wait has an end, so that no test hangs."""

    def __init__(self, plan=(), directory="commitlog"):
        super().__init__(LocalDisk(), plan)
        self.flushes = 0
        self.is_waiting = threading.Event()
        """Set when a flush has had to wait since it was told so."""
        self._directory = directory
        self._goes = threading.Event()
        self._goes.set()

    def keep_waiting(self):
        self.is_waiting.clear()
        self._goes.clear()

    def let_go(self):
        self._goes.set()

    def wait(self):
        """Until it is let go."""
        self._goes.wait(20)

    def _run(self, call):
        if call.kind == "flush" and self._directory in call.path.parts:
            self.flushes += 1
            if not self._goes.is_set():
                self.is_waiting.set()
            self.wait()
        return super()._run(call)


FOR_GOOD = 1 << 30


class UnreadableDisk(LocalDisk):
    """Refuses each read of a page that is `bad`: a directory's name, and a place in the space of
    its files."""

    errno = errno.EIO
    """The reason that it gives."""

    def __init__(self):
        self.bad = set()
        self.refused = 0

    def open(self, path):
        return _File(self, path, super().open(path))

    def create(self, path, size):
        return _File(self, path, super().create(path, size))

    def check(self, path, position, size):
        if any(
            path.parent.name == directory and _is_in(at, path, position, size)
            for directory, at in self.bad
        ):
            self.refuse(path)

    def refuse(self, path):
        self.refused += 1
        raise OSError(self.errno, os.strerror(self.errno), str(path))


@dataclass
class Refusal:
    """A page in the space of a directory, or a file, of which so many reads are refused,
    behind some that are spared."""

    of: str
    at: int = 0
    times: int = FOR_GOOD
    spared: int = 0

    def hits(self):
        """Count a read, and return whether it is refused."""
        if self.spared:
            self.spared -= 1
        elif self.times:
            self.times -= 1
            return True
        return False


class HesitantDisk(UnreadableDisk):
    """Refuses reads by a list of `Refusal`, which can be changed at any time.

    A file that is deleted, and made again under its name, lies elsewhere on the disk."""

    def __init__(self, *refusals):
        super().__init__()
        self.refusals = list(refusals)

    def read(self, path):
        self._refuse_if([each for each in self.refusals if each.of == path.name], path)
        return super().read(path)

    def delete(self, path):
        super().delete(path)
        self.refusals = [each for each in self.refusals if each.of != path.name]

    def check(self, path, position, size):
        of_file = [each for each in self.refusals if each.of in (path.name, path.parent.name)]
        self._refuse_if([each for each in of_file if _is_in(each.at, path, position, size)], path)

    def _refuse_if(self, refusals, path):
        hits = [each.hits() for each in refusals]
        if any(hits):
            self.refuse(path)


def _is_in(page_at, path, position, size):
    from_offset = 0 if path.parent.name == "index" else int(path.name)
    return page_at < from_offset + position + size and from_offset + position < page_at + PAGE


class _File:
    def __init__(self, disk, path, file):
        self._disk, self._path, self._file = disk, path, file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def read(self, position, size):
        self._disk.check(self._path, position, size)
        return self._file.read(position, size)
