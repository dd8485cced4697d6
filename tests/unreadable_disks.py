"""Disks that do not give a page of a file: for good, as one with a bad sector, or for a while."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from file_versions import PAGE

from rocketpoll.broker.store.files.disk import LocalDisk

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
