"""Readers: groups or machines that must get every message of some topics, and their progress.

The ledger checks them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from world.clients.filters import Filters


@dataclass(eq=False)
class Call:
    """A running call of a listener."""

    reader: Reader
    process: object
    queue: tuple
    offsets: list
    began_at: float


@dataclass(eq=False)
class Reader:
    """The messages that a group or a machine must get, and its progress."""

    name: str
    group: str
    topics: tuple
    is_orderly: bool = False
    is_broadcasting: bool = False
    gives_back_after: float = inf
    """Seconds after which a message that a listener holds is sent back."""

    tries_max: float = inf
    """Maximum deliveries of a message to an orderly listener before it becomes a dead letter."""

    begun: dict = field(default_factory=lambda: defaultdict(list))  # times by place
    came_as: dict = field(default_factory=dict)  # delivered body by place
    firsts: dict = field(
        default_factory=lambda: defaultdict(list)
    )  # offset and time of each call, by queue
    finished: dict = field(default_factory=dict)  # time of the first by place
    failed: dict = field(default_factory=lambda: defaultdict(list))  # times by place
    bodies: set = field(default_factory=set)
    commits: list = field(default_factory=list)
    skipped: dict = field(default_factory=lambda: defaultdict(int))  # end offset by queue
    skipped_until: dict = field(default_factory=dict)  # last time by topic
    old_offsets: dict = field(default_factory=dict)
    """By queue of a recreated topic: an offset of the old topic that may apply to the new one,
    because it was on its way to a slow broker, or is in the file of a machine that did not consume
    the topic."""

    left_at_it: dict = field(default_factory=dict)
    """By place: when its member was shut down while the listener was still busy with it."""

    calls: dict = field(default_factory=dict)
    begun_first: dict = field(default_factory=dict)  # first time by body
    comes_again: set = field(default_factory=set)  # bodies that failed once, or took too long
    delivered: int = 0
    repeats: int = 0
    settled: int = 0
    """Number of deliveries so far that must not have been redeliveries."""

    begins_anywhere: bool = False
    """True if a member may begin elsewhere than at a queue's start: then the first offset that a
    broker has of the group counts."""

    first_commits: dict = field(default_factory=dict)  # time and offset by queue
    floors: dict = field(default_factory=dict)  # time and end offset by queue
    filters: Filters = field(default_factory=Filters)

    def begins_at(self, queue):
        """Return the first offset that must be delivered."""
        skipped = self.skipped[queue]
        if not self.begins_anywhere:
            return skipped
        _, first = self.first_commits.get(queue, (0.0, 0))
        return max(skipped, first)

    def may_have_begun_behind(self, place):
        """Return whether an offset past this position may belong to the topic before its
        recreation."""
        return place is not None and place[3] < self.old_offsets.get(place[:3], 0)

    def keeps_old_offset(self, queue, offset):
        """Record an offset of a queue from which a new queue of this name may be read."""
        self.old_offsets[queue] = max(self.old_offsets.get(queue, 0), offset)

    def ended_behind(self, place, moved_from, moved_until):
        """Return whether a member that had left before a move was processing this message at that
        time or later."""
        left_at = self.left_at_it.get(place, inf)
        return left_at <= moved_until and self.finished.get(place, inf) >= moved_from

    def lacks_offset(self, queue):
        """Return whether the offset at which the group begins is unknown."""
        return self.begins_anywhere and queue[0] in self.topics and queue not in self.first_commits

    def finished_up_to(self, queue, since, now):
        """Return the offset before which a reader has finished a queue, as its consumer knows.
        Messages that began before that time may belong to a consumer that had left."""
        reached = self.floors.get(queue, (0.0, 0))[1]
        for offset in sorted(place[3] for place in self.begun if place[:3] == queue):
            place = (*queue, offset)
            if offset >= reached:
                if self.begun[place][0] < since or self.finished.get(place, inf) > now:
                    break
                reached = offset + 1
        return reached

    def dealt_with(self, place):
        """Return when a message at a place could first be committed."""
        times = [self.finished.get(place, inf), *self.failed.get(place, ())]
        times += [begun + self.gives_back_after for begun in self.begun.get(place, ())]
        return min(times)
