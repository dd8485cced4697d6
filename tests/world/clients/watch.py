"""The watch: checks that no call of a client takes longer than documented."""

import contextlib


class Watch:
    """Checks how long calls take."""

    def __init__(self, world):
        self._world = world

    def is_excused(self, error):  # disks have no faults here
        """Return whether a broker's log line is expected."""
        return False

    @contextlib.contextmanager
    def within(self, process, what, seconds):
        """Check that the block ends within these seconds, unless its process dies."""
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
