"""What every world has: a kernel, a network, dice of its own for each part,
and a trace of what happens."""

from __future__ import annotations

import random
import zlib

from world.kernel import Kernel
from world.network import Network, Weather
from world.tasks import Tasks


class Broken(AssertionError):
    """A promise was not kept."""


class Stage:
    """Where a story is told."""

    def __init__(self, story):
        self.story = story
        self.kernel = Kernel(self.dice_for("kernel"))
        weather = Weather(latency_seconds=story.latency_seconds)
        self.network = Network(self.kernel, self.dice_for("network"), weather)
        self.tasks = Tasks(self.kernel)
        self.trace = []
        self.checksum = 0
        self.lives = 0

    def dice_for(self, part):
        """Dice of its own for each part of the world."""
        return random.Random(f"{self.story.seed} {part}")

    def note(self, what):
        """Write it into the trace."""
        line = f"{self.kernel.now:12.6f} {what}"
        self.trace.append(line)
        self.checksum = zlib.crc32(line.encode(), self.checksum)

    def counts(self):
        """What was counted in this story, by what it is."""
        return {}

    def complain(self, what, error=None):
        """Something is wrong that no client was told."""
        broken = Broken(f"at {self.kernel.now:.6f} s, in life {self.lives}: {what}")
        broken.__cause__ = error
        self.kernel.fail(broken)
