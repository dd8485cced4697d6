"""A disk that has no room for some of the small files, by their names;
it may keep them waiting before."""

from __future__ import annotations

import errno
import os
import threading

from disks import FaultyDisk

from rocketpoll.broker.store.files.disk import LocalDisk


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
