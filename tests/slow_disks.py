"""A disk that keeps flushes waiting until it is told to let them go: of the log,
or of consume queues."""

from __future__ import annotations

import threading

from disks import FaultyDisk

from rocketpoll.broker.store.files.disk import LocalDisk


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
