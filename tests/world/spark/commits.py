"""Troubles of exactly-once sinks in a simulated world, right at their commits.

    ends       a broker is killed or loses its power at one of the next changes of its disk, and
               perhaps at one of those of its next start
    lacks      for a while a broker's disk is full, for staged rows or for everything
    amid       a driver is killed while it commits
    twins      another driver has the same batch at the same time, from the same checkpoint

Troubles at random times hit a commit once in hundreds of stories; these hit commits. None starts
when all is to be calm.
"""

import errno

from world.disk import Verdict
from world.fate import CHANGES

KINDS = ("ends", "lacks", "amid", "twins")

_CHANGES_MAX = 10
"""Maximum number of disk changes in a commit: about those of a staged batch; a manifest
has fewer."""

_STARTS_CHANGES_MAX = 30
"""Maximum number of disk changes in the start afterwards."""

_LACK_SECONDS = (0.05, 0.5, 3.0)
_NEEDS_ROOM = frozenset({"create", "resize", "write", "make_directory"})


class Ending:
    """The end of a broker at a change of its disk."""

    def __init__(self, world, broker, dice):
        self._world = world
        self._broker = broker
        self._dice = dice
        self._again = dice.random() < 0.5
        self.has_started = False
        """Whether the broker has ended once; it may end again while it starts."""
        self._draw(_CHANGES_MAX)

    def _draw(self, most):
        self._left = self._dice.randint(1, most)
        self._action = self._dice.choice(("kill", "power"))

    def __call__(self, operation):
        if operation.kind not in CHANGES or self._world.calm_since is not None:
            return None
        self._left -= 1
        if self._left:
            return None
        world, broker = self._world, self._broker
        when = "in its recovery" if self.has_started else "amid a commit"
        world.note(f"{broker.name}: {self._action} {when}, at {operation}")
        if self._action == "power" and not world.story.is_sync:
            world.ledger.takes_away(broker=broker.name)
        verdict = Verdict(death=self._action, is_done=self._dice.random() < 0.5)
        if self._again and not self.has_started:
            self._draw(_STARTS_CHANGES_MAX)
        else:
            broker.degradation = None
        self.has_started = True
        return verdict


class Lack:
    """A full disk of a broker, for staged rows or for everything."""

    def __init__(self, world, broker, dice):
        self._world = world
        self._broker = broker
        self._below = dice.choice(("staging/", ""))
        self._until = world.kernel.now + dice.choice(_LACK_SECONDS)

    def __call__(self, operation):
        if self._world.kernel.now > self._until or self._world.calm_since is not None:
            self._broker.degradation = None
        elif operation.kind in _NEEDS_ROOM and self._below in operation.path:
            through = operation.in_place
            if operation.kind != "write" or through < operation.size:
                self._world.note(f"{self._broker.name}: no room for {operation}")
                return Verdict(error=errno.ENOSPC, let_through=through)
        return None


class CommitTroubles:
    """The troubles of one exactly-once program."""

    def __init__(self, world, name, arguments):
        self._world = world
        self._arguments = arguments
        self.dice = world.dice_for(f"{name} at commits")
        self.are_drawn = any(arguments.get(kind) for kind in KINDS)

    def comes(self, what):
        """Return whether the next batch has a trouble."""
        odds = self._arguments.get(what, 0)
        return bool(odds) and self._world.calm_since is None and self.dice.random() < odds

    def sends(self):
        """Start a trouble when rows of a batch are about to be sent or staged."""
        if self.comes("lacks"):
            self._hinder(Lack)

    def commits(self):
        """Start a trouble when a batch is about to be committed; return how to report
        its commit."""
        if self.comes("ends"):
            self._hinder(Ending)
        elif self.comes("lacks"):
            self._hinder(Lack)
        return self._committed

    def _hinder(self, kind):
        broker = self._world.brokers[0]  # it has all commits topics
        if broker.degradation is None and broker.is_serving:
            broker.degradation = kind(self._world, broker, self.dice)

    def _committed(self):
        hindrance = self._world.brokers[0].degradation
        if isinstance(hindrance, Ending) and not hindrance.has_started:
            self._world.brokers[0].degradation = None
