"""A disk that does not give a page of a file, as one with a bad sector."""

from __future__ import annotations

import errno

from file_versions import PAGE

from rocketpoll.broker.store.disk import LocalDisk


class UnreadableDisk(LocalDisk):
    """Refuses each read of a page that is `bad`: a directory's name, and a place in the space of
    its files."""

    def __init__(self):
        self.bad = set()
        self.refused = 0

    def open(self, path):
        return _File(self, path, super().open(path))

    def create(self, path, size):
        return _File(self, path, super().create(path, size))

    def check(self, path, position, size):
        if any(
            path.parent.name == directory
            and int(path.name) + position < at + PAGE
            and at < int(path.name) + position + size
            for directory, at in self.bad
        ):
            self.refused += 1
            raise OSError(errno.EIO, "Input/output error", str(path))


class _File:
    def __init__(self, disk, path, file):
        self._disk, self._path, self._file = disk, path, file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def read(self, position, size):
        self._disk.check(self._path, position, size)
        return self._file.read(position, size)
