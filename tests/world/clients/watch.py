"""The watch: no call of a client takes longer than documented."""

from __future__ import annotations

import contextlib


class Watch:
    """Looks at the time."""

    def __init__(self, world):
        self._world = world

    def is_excused(self, error):  # nothing is wrong with any disk here
        """Whether there is a reason for what a broker logs."""
        return False

    @contextlib.contextmanager
    def within(self, process, what, seconds):
        """What is done inside is done within so many seconds, or its process is dead."""
        world = self._world
        actor = world.kernel.current
        began = world.kernel.now

        def complain():
            if process.is_alive:
                world.complain(
                    f"{what} of {process} is under way since {began:.6f} s, and may take {seconds} "
                    f"s:\n{world.kernel.stacks([actor])}"
                )

        timer = world.kernel.after(seconds, complain)
        try:
            yield
        finally:
            timer.cancel()
