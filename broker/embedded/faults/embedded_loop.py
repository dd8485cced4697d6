"""EmbeddedLoop: a broker's event loop whose time, and with it its timers, can be moved forward.

    deadline    `call_at`: a move of the time stops at each, in order
    interval    `call_later`: a repeated job. It fires once, however often it would have fired in
                the skipped time

Timers wait in a heap by the time of this loop, and one timer of the underlying loop, uvloop's or
asyncio's, wakes it for the first of them. After a jump the heap is checked again, and whatever is
due fires, the earliest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import cache
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from ...server.event_loop import log_exception, loop_class
from .clock import ClockOffset
from .network import EmbeddedNetwork, NetworkedLoop

if TYPE_CHECKING:
    _Loop = asyncio.AbstractEventLoop
else:
    _Loop = object

_RESOLUTION_SECONDS: Final = 0.001
"""The resolution of uvloop's timers: a timer may fire this much early."""

_CANCELLED_TIMERS_MAX: Final = 100
"""Cancelled timers stay in the heap up to this number, or until they are half of it."""


class AdjustableTimeLoop(_Loop):
    """Timers of a loop whose time can be moved; a mixin for a loop's class."""

    def set_clock_offset(self, clock_offset: ClockOffset) -> None:
        """Use a clock that is ahead of the machine's; call this before any timer is set.

        The loop logs its exceptions in the broker's log.
        """
        self._clock_offset = clock_offset
        self._timer_heap: list[tuple[float, int, asyncio.TimerHandle, bool]] = []
        """Each timer's time, its number, its handle, and whether it is a deadline."""
        self._timer_count = 0
        self._cancelled = 0
        self._wake: asyncio.Handle | None = None
        self.set_exception_handler(log_exception)

    def time(self) -> float:
        """Return the time in seconds; it jumps only when `advance` moves it."""
        now: float = super().time()  # the underlying loop's time
        return now + self._clock_offset.seconds

    def call_at(  # type: ignore[override]  # without the types of the arguments
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call a function at a deadline; moves of the time stop there."""
        return self._set_timer(when, callback, args, context, is_deadline=True)

    def call_later(  # type: ignore[override]  # without the types of the arguments
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call a function when an interval has passed, or was skipped."""
        return self._set_timer(self.time() + delay, callback, args, context, is_deadline=False)

    # ---- called to move the time

    def advance(self, seconds: float) -> None:
        """Move the time forward; timers due by then fire in the next turn."""
        self._clock_offset.advance(seconds)
        self._schedule_wake()

    def next_deadline(self) -> float | None:
        """Return the time of the first pending deadline, or None."""
        return min(
            (
                when
                for when, _, timer, is_deadline in self._timer_heap
                if is_deadline and not timer.cancelled()
            ),
            default=None,
        )

    def has_due_timers(self) -> bool:
        """Return whether any timer is due; it fires in the next turn."""
        now = self.time()
        return any(when <= now and not timer.cancelled() for when, _, timer, _ in self._timer_heap)

    # ---- internals

    def _set_timer(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        *,
        is_deadline: bool,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heappush(self._timer_heap, (when, self._timer_count, timer, is_deadline))
        if self._timer_heap[0][2] is timer:
            self._schedule_wake()
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Count a cancelled timer; asyncio's timer handles call this."""
        if handle._scheduled:  # type: ignore[attr-defined]  # a timer of asyncio's loop
            super()._timer_handle_cancelled(handle)  # type: ignore[misc]  # asyncio's method
            return
        self._cancelled += 1
        if self._cancelled > max(_CANCELLED_TIMERS_MAX, len(self._timer_heap) // 2):
            self._timer_heap = [each for each in self._timer_heap if not each[2].cancelled()]
            heapify(self._timer_heap)
            self._cancelled = 0

    def _schedule_wake(self) -> None:
        if not self._timer_heap:
            return
        when = self._timer_heap[0][0]
        if self._wake is not None:
            self._wake.cancel()
        wait_seconds = when - self.time()
        if wait_seconds <= 0:
            self._wake = self.call_soon(self._run_due_timers)
        elif isinstance(self, asyncio.BaseEventLoop):
            self._wake = asyncio.BaseEventLoop.call_at(self, when, self._run_due_timers)
        else:  # uvloop's call_at would come back to call_later here
            self._wake = super().call_later(wait_seconds, self._run_due_timers)

    def _run_due_timers(self) -> None:
        self._wake = None
        due_until = self.time() + _RESOLUTION_SECONDS
        due: list[asyncio.TimerHandle] = []
        while self._timer_heap and self._timer_heap[0][0] <= due_until:
            timer = heappop(self._timer_heap)[2]
            if not timer.cancelled():
                due.append(timer)
        try:
            for timer in due:
                if not timer.cancelled():  # an earlier timer may have cancelled it
                    timer._run()  # as asyncio runs a handle
        finally:
            self._schedule_wake()


class EmbeddedLoop(AdjustableTimeLoop, NetworkedLoop):
    """The loop of an embedded broker; a mixin for uvloop's or asyncio's class."""


def new_embedded_loop(clock_offset: ClockOffset, network: EmbeddedNetwork) -> EmbeddedLoop:
    """Create the loop that an embedded broker runs on, with its own time and network."""
    loop = _embedded_class()()
    loop.network = network
    loop.set_clock_offset(clock_offset)
    return loop


@cache
def _embedded_class() -> type[EmbeddedLoop]:
    return type("EmbeddedLoop", (EmbeddedLoop, loop_class()), {})
