"""The loops that stories are told on: their clocks go as usual, and can be put forward.

Brokers run on uvloop where it is there, and on asyncio's own loop elsewhere. The two differ in
small things, as in a timer that is due at once: stories in which the loop matters are told on both.
"""

from __future__ import annotations

import asyncio

try:
    import uvloop
except ImportError:  # not on every platform
    uvloop = None


class MovedLoop(asyncio.SelectorEventLoop):
    """The standard library's."""

    moved_seconds = 0.0
    stands_at = None

    def time(self):
        return (super().time() if self.stands_at is None else self.stands_at) + self.moved_seconds

    def stand_still(self):
        """From now on the clock moves only when it is told to."""
        if self.stands_at is None:
            self.stands_at = super().time()

    def move(self, seconds):
        """What was due within this time is due now."""
        self.moved_seconds += seconds


LOOPS = {"asyncio": MovedLoop}


class _Timer:
    """A call that is due at a time; ``handle`` is what whoever asked for it has."""

    def __init__(self, when, call):
        self.when = when
        self.call = call
        self.handle = None


if uvloop is not None:

    class MovedUvloop(uvloop.Loop):
        """uvloop's timers know its own clock alone: a move sets each once more,
        and it rings once."""

        moved_seconds = 0.0

        def __init__(self):
            super().__init__()
            self._timers = {}

        def time(self):
            return super().time() + self.moved_seconds

        def call_at(self, when, callback, *args, context=None):
            return self.call_later(when - self.time(), callback, *args, context=context)

        def call_later(self, delay, callback, *args, context=None):
            timer = _Timer(self.time() + delay, lambda: callback(*args))
            self._timers[timer] = None
            timer.handle = super().call_later(delay, self._ring, timer, context=context)
            return timer.handle

        def move(self, seconds):
            """What was due within this time is due now."""
            self.moved_seconds += seconds
            self._timers = {timer: None for timer in self._timers if not timer.handle.cancelled()}
            for timer in self._timers:
                super().call_later(timer.when - self.time(), self._ring, timer)

        def _ring(self, timer):
            if timer in self._timers and not timer.handle.cancelled():
                del self._timers[timer]
                timer.call()

    LOOPS["uvloop"] = MovedUvloop
