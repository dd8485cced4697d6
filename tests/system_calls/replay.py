"""Replays the recorded calls of a process into a model of power losses."""

import os
from pathlib import PurePath


class Unseen(AssertionError):
    """A file was changed in a way that the recorder does not record."""


class Replay:
    """Replays one process. The model outlives it, as a disk does."""

    def __init__(self, model):
        self._model = model
        self._inodes = {}
        self._flushes = {}
        self.calls = 0

    def take(self, kind, *arguments):
        """Apply one more call."""
        self.calls += 1
        getattr(self, f"_{kind}")(*arguments)

    def _open(self, handle, path, flags):
        inode = self._model.find(PurePath(path))
        if inode is None:
            inode = self._model.create(PurePath(path))
        elif flags & os.O_TRUNC:
            self._model.truncate(inode, 0)
        self._inodes[handle] = inode

    def _write(self, handle, position, data):
        self._model.write(self._inodes[handle], data, position)

    def _truncate(self, handle, size):
        self._model.truncate(self._inodes[handle], size)

    def _begin_flush(self, flush, handle):
        self._flushes[flush] = self._model.begin_flush(self._inodes[handle])

    def _end_flush(self, flush):
        self._model.end_flush(self._flushes.pop(flush))

    def _fail_flush(self, flush):
        self._model.fail_flush(self._flushes.pop(flush))

    def _rename(self, path, new_path):
        self._model.rename(PurePath(path), PurePath(new_path))

    def _delete(self, path):
        self._model.delete(PurePath(path))

    def _make_directory(self, path):
        self._model.make_directory(PurePath(path))

    def _unseen(self, *call):
        raise Unseen(f"past the recorder: {call}")
