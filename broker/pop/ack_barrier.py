"""AckBarrier: makes redelivery wait until stored acknowledgements are in the revive topic.

Acknowledgements reach the revive topic through the log, and most of them through a timer. They come
late if the broker stood still, or if many timers were due at once. The redelivery of their messages
must not overtake them:

    no timer       the log is dispatched up to its end ─> in the revive topic
    with a timer   ─> indexed ─> delivered, if due ─> the log is dispatched again ─> there as well

Usually no acknowledgement is late, and nothing has to wait.
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
"""Milliseconds from the due time of an acknowledgement's timer to the redelivery of messages."""


class AckBarrier:
    """Waits for acknowledgements, without a thread; times are monotonic, in milliseconds."""

    def __init__(self, store: MessageStore, timers: TimerMessageStore, start_ms: int) -> None:
        """Set `passed_ms` to ``start_ms``; ``timers`` deliver check points and acknowledgements."""
        self._store = store
        self._timers = timers
        self._steps: Iterator[None] | None = None
        self.passed_ms = start_ms
        """For check points due by this time, all acknowledgements are in the revive topic."""

    def advance(self, now_ms: int) -> None:
        """Move `passed_ms` to a time, in this call or a later one."""
        if self._steps is None:
            self._steps = self._pass(now_ms)
        if next(self._steps, self) is self:
            self._steps = None

    def _pass(self, started_ms: int) -> Iterator[None]:
        """Yield while acknowledgements are on their way, then move `passed_ms`."""
        yield from self._wait_dispatched()
        end_offset = self._timers.end_offset()
        while not self._timers.has_delivered(started_ms - _TIMER_LEAD_MS, end_offset):
            yield
        yield from self._wait_dispatched()
        self.passed_ms = started_ms

    def _wait_dispatched(self) -> Iterator[None]:
        end = self._store.state().written_offset
        while self._store.state().reput_from_offset < end:
            yield
