"""LoopTurn: how long the broker's one thread works before it looks at all clients and timers again.

    begin   somebody works as long as this turn of the loop has time; what is left then waits in a line
    work    the same for a piece of work in steps; one that waits for something is not in the line

What waits in the line goes on in the turns that follow, one after the other and each for a short while. The
line gets half of a turn: the other half is for whoever comes newly and is done soon. So nobody who asks for
much keeps the others waiting for longer than a turn and one step.

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
"""What anybody waits for because of others, unless there are very many of them."""
LINE_SECONDS: Final = TURN_SECONDS / 2
SLICE_SECONDS: Final = 0.002
"""How long one goes on before the next in the line does."""
_NOTICED_SECONDS = 0.001
"""Less work than this needs no look at whether the turn is another: that would cost more than it does."""

GoOn: TypeAlias = Callable[[float], bool]
"""Works until a moment by the loop's clock, for one step at least; whether nothing is left to do."""


class LoopTurn:
    """One for each loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._time = loop.time
        self._call_soon = loop.call_soon
        self._call_soon_threadsafe = loop.call_soon_threadsafe
        self._left_seconds = TURN_SECONDS
        self._until: float | None = None
        """When whoever works now has to stop."""
        self._in_line: deque[GoOn] = deque()
        self._is_planned = False

    @property
    def is_over(self) -> bool:
        """Whether whoever works now should leave the rest for later."""
        return self._until is not None and self._time() >= self._until

    def begin(self, go_on: GoOn, now: float | None = None) -> bool:
        """Have somebody work now, if this turn has time, and in later turns; whether that is done already.

        Whoever is begun within the work of another shares the other's time. ``now`` is for who knows it.
        """
        is_done = False
        if self._until is not None:
            is_done = go_on(self._until)
        elif self._left_seconds > 0:
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

    def when_done(self, awaited: Future[None], then: Callable[[], object]) -> None:
        """Have somebody called in a turn that comes when something is done."""

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

    def _plan(self) -> None:
        if not self._is_planned:
            self._call_soon(self._next_turn)
            self._is_planned = True

    def _next_turn(self) -> None:
        """The loop has come round."""
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
