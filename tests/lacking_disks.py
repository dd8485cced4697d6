"""A disk that lacks room, descriptors or memory for a while, or may only be read."""

from __future__ import annotations

import errno
import os

from disks import FaultyDisk

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
