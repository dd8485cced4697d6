"""Patience: how long brokers that are away are tried again, and how long each pause is.

    first failure ──> pause ──> try again ──> pause ──> ...      until `timeout_ms` have passed
                                    └── success: `reset`; the next failure is a first one

It knows neither what is tried nor why it failed.
"""

from __future__ import annotations

from collections.abc import Callable


class Patience:
    """The pauses between failed tries, up to a time limit."""

    def __init__(
        self,
        timeout_ms: int,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        *,
        pause_seconds: float,
        pause_seconds_max: float | None = None,
    ) -> None:
        """Take how long failures in a row may last, and how long to pause after each.

        Args:
            timeout_ms: The time after the first failure at which pauses end.
            clock: Returns seconds.
            sleep: Waits for some seconds.
            pause_seconds: The first pause.
            pause_seconds_max: The limit up to which pauses double; without it all are equal.
        """
        self._timeout_seconds = timeout_ms / 1000
        self._clock = clock
        self._sleep = sleep
        self._first_pause_seconds = pause_seconds
        self._pause_seconds_max = pause_seconds_max or pause_seconds
        self._pause_seconds = pause_seconds
        self._failing_since: float | None = None

    def pause(self) -> bool:
        """Wait after a failure. Return False, without waiting, if no more tries are to be made."""
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > self._timeout_seconds:
            return False
        self._sleep(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, self._pause_seconds_max)
        return True

    def reset(self) -> None:
        """Note a success: the next failure counts as a first one."""
        self._failing_since = None
        self._pause_seconds = self._first_pause_seconds
