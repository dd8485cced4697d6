"""The watch: no call of a client takes longer than is said, and nothing is left of one that has ended."""

from __future__ import annotations

import contextlib


class Watch:
    """Looks at the time, and at what is left."""

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
                    f"{what} of {process} is under way since {began:.6f} s, and may take {seconds} s:\n"
                    f"{world.kernel.stacks([actor])}"
                )

        timer = world.kernel.after(seconds, complain)
        try:
            yield
        finally:
            timer.cancel()

    def check_nothing_is_left(self, broker):
        """A broker that nobody uses has no connections, and nobody waits."""
        controller = broker.life.controller
        left = {
            "connections": controller.server.connections,
            "bytes in flight": controller.server.in_flight_bytes,
            "waiting pulls": controller.hold_service.held,
        }
        for what, count in left.items():
            if count:
                self._world.complain(f"when all clients had gone, {count} {what} were left at {broker.name}")
