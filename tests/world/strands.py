"""Strands, on which actors run: one runs at a time, and passes control to another.

    Strands ──new──> Strand ──give(other)──> the other continues where it last gave control away

Each is a greenlet, and all of a world share the thread that created it: a switch costs a tenth of
one between threads of the system. What Python keeps for each thread also belongs to a strand: its
context, its handled exception, and here its running event loop.
"""

import itertools
import sys
import threading
from asyncio import _get_running_loop, _set_running_loop

from greenlet import getcurrent, greenlet

_FIRST_NUMBER = 1 << 48
"""Beyond the numbers of the system's threads."""


class Strands:
    """Creates strands in its creator's thread."""

    def __init__(self):
        self._numbers = itertools.count(_FIRST_NUMBER)
        self._hub = greenlet(_start_each)

    def main(self):
        """Return a strand for the running code, which has its turn."""
        return Strand(self._hub, threading.get_ident(), getcurrent())

    def new(self):
        """Return a strand for code that `begin` will start."""
        return Strand(self._hub, next(self._numbers))


class Strand:
    """A strand, which runs in turns."""

    __slots__ = ("_greenlet", "_has_begun", "_hub", "number")

    def __init__(self, hub, number, own=None):
        self._hub = hub
        self._greenlet = own
        self._has_begun = own is not None
        self.number = number
        """The number that `threading.get_ident` returns in the strand."""

    def begin(self, run):
        """Run a function from its first turn on; return what `end` returns."""

        def work():
            _set_running_loop(None)
            return run()

        self._greenlet = greenlet(work, self._hub)

    def give(self, other):
        """Pass control to another strand; return at this one's next turn."""
        loop = _get_running_loop()
        if other._has_begun:
            other._greenlet.switch()
        else:
            other._has_begun = True
            self._hub.switch(other)
        if loop is not _get_running_loop():
            _set_running_loop(loop)

    def end(self, other):
        """Pass control to another strand for good."""
        self._greenlet.parent = other._greenlet if other._has_begun else self._hub
        is_new, other._has_begun = not other._has_begun, True
        return other if is_new else None

    def frame(self):
        """Return the current frame; None before its beginning and after its end."""
        return sys._getframe() if self._greenlet is getcurrent() else self._greenlet.gr_frame


def _start_each(strand):
    """Start greenlets from here, because Python counts the depth of calls from their start."""
    while True:
        strand = strand._greenlet.switch()
