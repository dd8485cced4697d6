"""AckBarrier: until when all stored acknowledgements are in the revive topic.

Acknowledgements reach the revive topic through the log, and most of them through a timer. If the
broker stood still, or if many timers were due at once, they come late, and must not be overtaken by
the redelivery of their messages:

    direct ones    the log is dispatched up to its end ─> in the revive topic
    with a timer   ─> indexed ─> delivered, if due ─> the log is dispatched again ─> there as well

Usually, all of this is so already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..schedule.timer_message_store import TimerMessageStore
from ..store.message_store import MessageStore
from .revive_log import ACK_INTERVAL_MS

REVIVE_AFTER_MS: Final = 2_000
"""Milliseconds from the arrival of a check point to the redelivery of its messages."""

_TIMER_LEAD_MS: Final = REVIVE_AFTER_MS - ACK_INTERVAL_MS
"""Timers of acknowledgements were due so long before their messages are redelivered."""


class AckBarrier:
    """Waits for acknowledgements, without a thread; times are those of a monotonic clock, in ms."""

    def __init__(self, store: MessageStore, timers: TimerMessageStore, start_ms: int) -> None:
        """Begin with ``start_ms`` passed; ``timers`` deliver check points and acknowledgements."""
        self._store = store
        self._timers = timers
        self._steps: Iterator[None] | None = None
        self.passed_ms = start_ms
        """All acknowledgements that were stored before this time, and count, are in the topic."""

    def advance(self, now_ms: int) -> None:
        """Move `passed_ms` to a time, now or in one of the next calls."""
        if self._steps is None:
            self._steps = self._pass(now_ms)
        if next(self._steps, self) is self:
            self._steps = None

    def _pass(self, began_ms: int) -> Iterator[None]:
        """Yield while there is something to wait for."""
        yield from self._wait_dispatched()
        end_offset = self._timers.end_offset()
        while not self._timers.has_delivered(began_ms - _TIMER_LEAD_MS, end_offset):
            yield
        yield from self._wait_dispatched()
        self.passed_ms = began_ms

    def _wait_dispatched(self) -> Iterator[None]:
        end = self._store.state().written_offset
        while self._store.state().reput_from_offset < end:
            yield
