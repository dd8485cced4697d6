"""LoopTurn: how long the broker's one thread works before it looks at all clients and timers again.

    begin   work for as long as this turn of the loop has time; the rest then waits in a line
    work    do a piece of work in steps, in the same way; one that waits for something is not in the
            line
    soon    write to a socket, or close it: some hundreds in a turn

What waits in the line goes on in the turns that follow, one after the other and each for a short
while. The line gets half of a turn: the other half is for newcomers that are done soon. So nobody
who asks for much keeps the others waiting for longer than a turn and one step.

A call that writes or closes is short, but the loop and the system do the most of it behind it,
where no clock here sees it. So such calls are not timed but counted, and have a line of their own.

The time is the loop's. It knows no client, no request and no store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from rocketpoll.broker.connection import Work

_log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.020
"""The maximum time that anybody waits because of others, unless there are very many of them."""
LINE_SECONDS: Final = TURN_SECONDS / 2
SLICE_SECONDS: Final = 0.002
"""The time for which one piece of work goes on before the next in the line does."""
SOON_MAX: Final = 200
"""The most writes and closings of a turn: two or three milliseconds, with all behind them.

More at a time save nothing: a turn in which nobody else wants anything is over at once.
"""
_NOTICED_SECONDS = 0.001
"""Work shorter than this skips the check for a new turn, which would cost more than the work."""

GoOn: TypeAlias = Callable[[float], bool]
"""A function that works until a moment of the loop's clock, at least one step.

It returns whether nothing is left to do.
"""


class LoopTurn:
    """The shared working time of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._time = loop.time
        self._call_soon = loop.call_soon
        self._call_soon_threadsafe = loop.call_soon_threadsafe
        self._left_seconds = TURN_SECONDS
        self._until: float | None = None
        """The time at which the work under way has to stop; None without any."""
        self._in_line: deque[GoOn] = deque()
        self._soon: deque[Callable[[], object]] = deque()
        self._is_planned = False

    @property
    def is_over(self) -> bool:
        """True if the work under way should leave its rest for a later turn."""
        return self._until is not None and self._time() >= self._until

    @property
    def is_idle(self) -> bool:
        """True if no work is left for a later turn, but for work that waits for something."""
        return self._until is None and not self._in_line and not self._soon

    def begin(self, go_on: GoOn, now: float | None = None, *, at_once: bool = False) -> bool:
        """Work now if this turn has time, and in later turns; return whether all is done already.

        Work that is begun within other work shares its time. ``now`` saves a look at the clock.
        With ``at_once`` a first step is done even if this turn has no time.
        """
        is_done = False
        if self._until is not None:
            is_done = go_on(self._until)
        elif self._left_seconds > 0 or at_once:
            began = self._time() if now is None else now
            self._until = began + self._left_seconds
            try:
                is_done = go_on(self._until)
            finally:
                self._until = None
                self._left_seconds -= self._time() - began
                if self._left_seconds < TURN_SECONDS - _NOTICED_SECONDS:
                    self._plan()
        if not is_done:
            self._in_line.append(go_on)
            self._plan()
        return is_done

    def work(self, steps: Work) -> None:
        """Do a piece of work, step by step: now if this turn has time, and in later turns."""
        self.begin(partial(self._take_steps, steps))

    def soon(self, call: Callable[[], object]) -> None:
        """Write to a socket or close it by this call, behind those that came before, very soon."""
        if not self._soon:
            self._call_soon(self._call_some)
        self._soon.append(call)

    def when_done(self, awaited: Future[None], then: Callable[[], object]) -> None:
        """Call a function in a later turn, once a future is done."""

        def tell(_: Future[None]) -> None:  # in any thread
            with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
                self._call_soon_threadsafe(then)

        awaited.add_done_callback(tell)

    def _take_steps(self, steps: Work, until: float) -> bool:
        for awaited in steps:
            if awaited is not None:
                self.when_done(awaited, partial(self.work, steps))
                return True
            if self._time() >= until:
                return False
        return True

    def _call_some(self) -> None:
        for _ in range(min(len(self._soon), SOON_MAX)):
            call = self._soon.popleft()
            try:
                call()
            except Exception:  # noqa: BLE001  # one that fails must not keep the others waiting
                _log.exception("a client could not be written to, or closed: %r", call)
        if self._soon:
            self._call_soon(self._call_some)

    def _plan(self) -> None:
        if not self._is_planned:
            self._call_soon(self._next_turn)
            self._is_planned = True

    def _next_turn(self) -> None:
        """Begin a new turn: let the work in the line go on."""
        self._is_planned = False
        self._left_seconds = TURN_SECONDS
        if not self._in_line:
            return
        began = now = self._time()
        for _ in range(len(self._in_line)):
            go_on = self._in_line.popleft()
            self._until = min(now + SLICE_SECONDS, began + LINE_SECONDS)
            try:
                if not go_on(self._until):
                    self._in_line.append(go_on)
            except Exception:  # noqa: BLE001  # one that fails must not keep the others waiting
                _log.exception("work that was left for a later turn failed: %r", go_on)
            now = self._time()
            if now >= began + LINE_SECONDS:
                break
        self._until = None
        self._left_seconds -= now - began
        if self._in_line:
            self._plan()
