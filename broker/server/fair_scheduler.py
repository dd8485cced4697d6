"""LoopTurn: how long the broker's one thread works before it looks at all clients and timers again.

    begin      work for as long as this turn of the loop has time; the rest then waits in a line
    work       do a piece of work in steps, in the same way; one that waits for something is not in
               the line
    when_done  go on once a future is done; one that is done already asks for a whole turn, as a
               step follows that takes the most of one
    soon       write to a socket, or close it: some hundreds in a turn

What waits in the line goes on in the turns that follow, one after the other and each for a short
while. The line gets a part of a turn, and newcomers that are done soon another; what is left of it
is for the last step of each, which may begin when its time is nearly over. So nobody who asks for
much keeps the others waiting for longer than a turn.

    sockets are read: newcomers ── the line ── sockets are read: nobody begins ── a whole turn

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
    from ..common.connection import Work

_log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.020
"""The maximum time that anybody waits because of others, unless there are very many of them."""
NEWCOMERS_SECONDS: Final = 0.010
"""The time of a turn for what has just been read, and for what is begun by anybody else."""
LINE_SECONDS: Final = 0.007
"""The time of a turn for what earlier ones have left."""
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
        self._left_seconds = NEWCOMERS_SECONDS
        self._until: float | None = None
        """The time at which the work under way has to stop; None without any."""
        self._in_line: deque[GoOn] = deque()
        self._whole_turns: deque[Callable[[], object]] = deque()
        """What asks for a turn that nobody else has worked in."""
        self._is_next_whole = False
        self._soon: deque[Callable[[], object]] = deque()
        self._is_planned = False

    @property
    def is_over(self) -> bool:
        """True if the work under way should leave its rest for a later turn."""
        return self._until is not None and self._time() >= self._until

    @property
    def is_idle(self) -> bool:
        """True if no work is left for a later turn, but for work that waits for something."""
        return self._until is None and not (self._in_line or self._whole_turns or self._soon)

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
                if self._left_seconds < NEWCOMERS_SECONDS - _NOTICED_SECONDS:
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
        """Call a function in a later turn, once a future is done.

        If that is so already, the turn is one in which nobody else has worked.
        """
        if awaited.done():
            self._whole_turns.append(then)
            self._plan()
            return

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
        """Begin a new turn: let the work in the line go on, or what needs a whole turn."""
        self._is_planned = False
        is_whole, self._is_next_whole = self._is_next_whole, False
        self._left_seconds = NEWCOMERS_SECONDS
        if is_whole:
            self._attempt(self._whole_turns.popleft())  # newcomers have what that leaves
        elif self._in_line:
            self._left_seconds -= self._serve_line()
        if self._whole_turns and not is_whole:  # the line has the next turn behind a whole one
            self._is_next_whole = True
            self._left_seconds = 0
        if self._whole_turns or self._in_line:
            self._plan()

    def _serve_line(self) -> float:
        """Let the work in the line go on; return the seconds that it took beyond its time."""
        began = now = self._time()
        for _ in range(len(self._in_line)):
            go_on = self._in_line.popleft()
            self._until = min(now + SLICE_SECONDS, began + LINE_SECONDS)
            if self._attempt(partial(go_on, self._until)) is False:
                self._in_line.append(go_on)
            now = self._time()
            if now >= began + LINE_SECONDS:
                break
        self._until = None
        return max(now - began - LINE_SECONDS, 0.0)

    def _attempt(self, call: Callable[[], object]) -> object:
        """Return what a call does; None, with a word in the log, if it fails."""
        try:
            return call()
        except Exception:  # noqa: BLE001  # one that fails must not keep the others waiting
            _log.exception("work that was left for a later turn failed: %r", call)
            return None
