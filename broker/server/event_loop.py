"""The broker's event loop, its clock, a timer that can be rescheduled, and jobs that run on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from ..store.errors import Degradation, describe_error, is_transient
from .descriptors import RESOURCE_SHORTAGE_ERRNOS

_log = logging.getLogger(__name__)

_JOB_RETRY_MS: Final = 1_000
"""Milliseconds from a failed run of a `DueJob` to the next."""


def loop_class() -> type[asyncio.AbstractEventLoop]:
    """Return the event loop's class: uvloop's if installed, which serves 50 % more requests.

    A loop of this class needs `log_exception` as its exception handler.
    """
    try:
        import uvloop  # noqa: PLC0415  # not on every platform
    except ImportError:
        return asyncio.SelectorEventLoop
    return cast("type[asyncio.AbstractEventLoop]", uvloop.Loop)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create the event loop that a broker runs on."""
    loop = loop_class()()
    loop.set_exception_handler(log_exception)
    return loop


def log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an uncaught exception, a shortage in one line.

    Failures to accept a client are left out: the listener reports them once, uvloop not at all.
    """
    error = context.get("exception")
    if (
        isinstance(error, OSError)
        and error.errno in RESOURCE_SHORTAGE_ERRNOS
        and "socket" in context
    ):
        return
    if error is not None and is_transient(error):
        _log.warning("%s: %s", context["message"], describe_error(error))
    else:
        loop.default_exception_handler(context)


def monotonic_ms(loop: asyncio.AbstractEventLoop) -> int:
    """Return the loop's time, which never jumps, in whole milliseconds."""
    # uvloop's clock counts milliseconds: rounding keeps the conversion from seconds exact.
    return round(loop.time() * 1_000_000) // 1_000


def call_after_read(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call a function after the loop has read everything that has arrived by now.

    A timer that looks for silent clients needs this: after the process was stopped (SIGSTOP, a
    suspended machine), uvloop calls timers before it reads what clients have sent meanwhile.
    """
    loop.call_soon(loop.call_soon, callback)  # the inner call runs in the turn after the outer one


class EarliestTimer:
    """A timer that can be scheduled many times, and fires once, at the earliest of these times.

    It stores its time, because uvloop returns a handle without a time for anything due within half
    a millisecond.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[int], object]) -> None:
        """Store the callback; it gets the time in milliseconds, never earlier than scheduled."""
        self._loop = loop
        self._callback = callback
        self._at_ms = 0
        self._handle: asyncio.Handle | None = None

    def schedule(self, at_ms: int, *, is_deadline: bool = True) -> None:
        """Fire at this time of the loop's clock, unless the timer fires before that.

        A test that moves the clock stops it at each deadline. A timer that is not a deadline, such
        as a poll for work, may then fire late.
        """
        if self._handle is not None:
            if self._at_ms <= at_ms:
                return
            self._handle.cancel()
        self._at_ms = at_ms
        if is_deadline:
            self._handle = self._loop.call_at(at_ms / 1_000, self._fire)
        else:
            self._handle = self._loop.call_later(at_ms / 1_000 - self._loop.time(), self._fire)

    def cancel(self) -> None:
        """Do not fire until scheduled again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback(max(self._at_ms, monotonic_ms(self._loop)))


class DueJob:
    """A job of the loop that knows when it is due again, such as the delivery of timers.

    A failed run is logged and repeated a second later, so that one job never stops another.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: Callable[[int], int | None],
        what_fails: str,
        has_deadline: Callable[[], bool] = lambda: True,
    ) -> None:
        """Store the job, which does not run before `schedule`.

        Args:
            loop: The loop.
            run: Gets the time, and returns when it is due again; None for not before `schedule`.
            what_fails: The log text for what is not done while the job fails.
            has_deadline: Whether a test that moves the clock stops at the time that `run` returns.
        """
        self._loop = loop
        self._run = run
        self._has_deadline = has_deadline
        self._what_fails = what_fails
        self._degradation = Degradation(what_fails)
        self._timer = EarliestTimer(loop, self._run_due)

    def schedule(self) -> None:
        """Run the job in one of the next turns."""
        self._timer.schedule(monotonic_ms(self._loop))

    def cancel(self) -> None:
        """Do not run until scheduled again."""
        self._timer.cancel()

    def _run_due(self, now_ms: int) -> None:
        next_ms: int | None = now_ms + _JOB_RETRY_MS
        try:
            next_ms = self._run(now_ms)
            self._degradation.end()
        except Exception as error:  # noqa: BLE001  # whatever it is, the next run has to come
            if is_transient(error):
                self._degradation.begin(error)
            else:
                _log.exception("%s, retrying", self._what_fails)
        if next_ms is not None:
            self._timer.schedule(next_ms, is_deadline=self._has_deadline())
