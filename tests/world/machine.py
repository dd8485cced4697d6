"""A machine of a simulated world, and its processes: which parts die together, and which survive.

Machine      its disk, its clock, its power; it outlives its processes
Process      one life of a program: its threads, its sockets; dead at the next event
"""

from world.kernel import Killed


class Process:
    """A running program; it ends by itself, is killed, or loses power."""

    def __init__(self, kernel, name, host="127.0.0.1"):
        self._kernel = kernel
        self.name = name
        self.host = host
        self.is_alive = True
        self.has_power = True
        self._on_death = {}

    def __repr__(self):
        return f"<{self.name}>"

    def on_death(self, call):
        """Register a function that the system calls when this process ends in any way."""
        self._on_death[call] = None

    def forget(self, call):
        self._on_death.pop(call, None)

    def kill(self, *, power_lost=False):
        """Kill the process: none of its threads runs any more, and no `finally` counts."""
        if not self.is_alive:
            return
        self.has_power = not power_lost
        self._kernel.kill(self)
        self.end()
        current = self._kernel.current
        if current is not None and current.process is self:
            raise Killed

    def end(self):
        """Record the end: the system closes everything that the process had open."""
        self.is_alive = False
        calls, self._on_death = self._on_death, {}
        for call in calls:
            call()
