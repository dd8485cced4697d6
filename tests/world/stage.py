"""The common base of worlds: a kernel, a network, random generators for each part, and a trace."""

import functools
import gc
import random
import sys
import zlib

from world.kernel import Kernel
from world.network import Network, Weather
from world.tasks import Tasks

from rocketpoll.broker.store.bulk import bulk_tools

_OURS = ("rmq_spark", "rocketpoll")


@functools.cache
def keep_what_is_loaded():
    """Freeze all loaded objects before the first story, so that the collector checks each story's
    only.

    Called before each story, it acts once; the loaded objects are several times as many as a
    story's.
    """
    gc.collect()
    gc.freeze()


def forget_earlier_stories():
    """Reset a process as if no story had run in it, so that the order of stories does not matter.

    Loaded modules stay loaded, but cached results are computed again.
    """
    keep_what_is_loaded()
    bulk_tools.start_loading().result()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _OURS:
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


class Broken(AssertionError):
    """Raised when a promise was not kept."""


class Stage:
    """The base of all worlds."""

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
        """Return the random generator of a part of the world."""
        return random.Random(f"{self.story.seed} {part}")

    def note(self, what):
        """Write a line into the trace."""
        line = f"{self.kernel.now:12.6f} {what}"
        self.trace.append(line)
        self.checksum = zlib.crc32(line.encode(), self.checksum)

    def counts(self):
        """Return the counters of this story, by name."""
        return {}

    def complain(self, what, error=None):
        """Report an error that no client has seen."""
        broken = Broken(f"at {self.kernel.now:.6f} s, in life {self.lives}: {what}")
        broken.__cause__ = error
        self.kernel.fail(broken)
