"""A process number and randomness of a simulated world.

with Identity(kernel, dice):     os.getpid, os.urandom are the world's
"""

import contextlib
import os

_FIRST = 1_000


class Identity:
    """Replaces these functions of Python within the block; threads outside of the world keep the
    real ones."""

    def __init__(self, kernel, dice):
        self._kernel = kernel
        self._dice = dice
        self._numbers = {}
        self._before = contextlib.ExitStack()

    def __enter__(self):
        for name, ours in (("getpid", self._process_id), ("urandom", self._dice.randbytes)):
            real = getattr(os, name)
            self._before.callback(setattr, os, name, real)
            setattr(os, name, self._in_world(ours, real))
        return self

    def __exit__(self, *_):
        self._before.close()

    def _in_world(self, ours, real):
        def call(*arguments):
            return (ours if self._kernel.is_here() else real)(*arguments)

        return call

    def _process_id(self):
        return self._numbers.setdefault(self._kernel.actor().process, len(self._numbers) + _FIRST)
