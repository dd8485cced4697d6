"""Countdown: does something once, when all that it waits for has ended.

Nothing here knows what that is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from rmq_spark.client.threads.mutex import mutex


class Countdown:
    """Calls a function when the last one has ended. Methods may be called from any thread."""

    def __init__(self, then: Callable[[], object], *those: Hashable) -> None:
        """Wait for those; ``then`` is called by whoever says of the last one that it has ended."""
        self._then = then
        self._left = set(those)
        self._lock = mutex()

    def wait_for(self, *those: Hashable) -> None:
        """Wait for these as well, if anything is waited for still."""
        with self._lock:
            if self._left:
                self._left.update(those)

    def waits_for(self, thing: Hashable) -> bool:
        """Return whether this has not ended yet."""
        with self._lock:
            return thing in self._left

    def ended(self, *those: Hashable) -> None:
        """Note that these have ended, if they are waited for."""
        with self._lock:
            was_waiting = bool(self._left)
            self._left.difference_update(those)
            is_over = was_waiting and not self._left
        if is_over:
            self._then()

    def end(self) -> None:
        """Wait for nothing any more."""
        with self._lock:
            left = tuple(self._left)
        self.ended(*left)
