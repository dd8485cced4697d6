"""A disk that keeps flushes of the log waiting until it is told to let them go."""

from __future__ import annotations

import threading

from disks import FaultyDisk

from broker.store.disk import LocalDisk


class SlowDisk(FaultyDisk):
    """Fails by its plan, too. Every wait has an end, so that no test hangs."""

    def __init__(self, plan=()):
        super().__init__(LocalDisk(), plan)
        self.flushes = 0
        self._goes = threading.Event()
        self._goes.set()

    def keep_waiting(self):
        self._goes.clear()

    def let_go(self):
        self._goes.set()

    def wait(self):
        """Until it is let go."""
        self._goes.wait(20)

    def _run(self, call):
        if call.kind == "flush" and "commitlog" in call.path.parts:
            self.flushes += 1
            self.wait()
        return super()._run(call)
