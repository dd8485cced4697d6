"""PendingSends: limits the sends that wait for their answers, and the bytes of their bodies.

A caller beyond the limit waits for room. A body that is larger than all the room there is goes
alone. This module knows no connection.
"""

from __future__ import annotations

import threading
import time

from rmq_spark.client.threads.mutex import mutex


class PendingSends:
    """The room for sends that wait. All methods may be called from any thread."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.count = 0
        self.bytes = 0
        self._mutex = mutex()
        self._has_room = threading.Condition(self._mutex)
        self._waiting = 0

    def enter(self, size: int, seconds: float) -> bool:
        """Take room for a body of so many bytes; return False if there was none within the time."""
        with self._mutex:
            if not self._fits(size) and not self._wait(size, seconds):
                return False
            self.count += 1
            self.bytes += size
            return True

    def _fits(self, size: int) -> bool:
        if not self.count:
            return True
        return self.count < self.count_max and self.bytes + size <= self.bytes_max

    def _wait(self, size: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        self._waiting += 1
        try:
            while not self._fits(size):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._has_room.wait(remaining)
            return True
        finally:
            self._waiting -= 1

    def leave(self, size: int) -> None:
        """Give the room for a body of so many bytes back."""
        with self._mutex:
            self.count -= 1
            self.bytes -= size
            if self._waiting:
                self._has_room.notify_all()
