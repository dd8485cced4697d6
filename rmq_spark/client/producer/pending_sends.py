"""PendingSends: limits the sends that wait for their answers, and the bytes of their bodies.

A caller beyond the limit waits for room, behind those who wait already: small bodies that keep
coming do not pass over a large one. A body that is larger than all the room there is goes alone. A
signal may raise an error in a caller at any time: then he leaves, whether he has entered or not,
and leaving twice is leaving once. This module knows no connection.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from rmq_spark.client.threads.mutex import SIGNALS_SECONDS, mutex


class PendingSends:
    """The room for sends that wait. All methods may be called from any thread."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self._sizes: dict[object, int] = {}  # by the future of each send
        self._mutex = mutex()
        self._line: deque[threading.Condition] = deque()  # of those who wait, one for each

    @property
    def count(self) -> int:
        """Number of sends that have room."""
        return len(self._sizes)

    def enter(self, future: object, size: int, seconds: float) -> bool:
        """Take room for a body of so many bytes; return False if there was none within the time."""
        with self._mutex:
            has_room = not self._line and self._fits(size)
            if not has_room and not self._wait(size, seconds):
                return False
            self._sizes[future] = size
            self.bytes += size
            return True

    def _fits(self, size: int) -> bool:
        count = len(self._sizes)
        return not count or (count < self.count_max and self.bytes + size <= self.bytes_max)

    def _wait(self, size: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        place = threading.Condition(self._mutex)
        self._line.append(place)
        try:
            while self._line[0] is not place or not self._fits(size):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                place.wait(min(remaining, SIGNALS_SECONDS))
            return True
        finally:
            self._line.remove(place)
            self._wake_first()  # there may be room for it as well

    def leave(self, future: object) -> None:
        """Give the room of a send back, if it has any."""
        with self._mutex:
            size = self._sizes.pop(future, None)
            if size is None:
                return
            self.bytes -= size
            self._wake_first()

    def _wake_first(self) -> None:
        if self._line:
            self._line[0].notify()  # nobody else: hundreds that wake cost more than their sends
