"""Filters: what the members of a group subscribe to, and what need not be delivered to them.

Messages that a filter leaves out count as consumed. So a member that removes its filter gets
messages sent from then on, and a moment before: queues are pulled independently.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

_SETTLED_SECONDS = 45.0
"""So long pulls and rebalances by the filter may go on, where connections die or all is slow."""

_FELT_SECONDS = 6.0
"""So long what was pulled before may be under way to a program that polls."""


@dataclass(eq=False)
class Filter:
    """One member's, for as long as it has it."""

    topic: str
    tag: str
    host: object
    began_at: float
    ended_at: float = inf


class Filters:
    """Those of one reader."""

    def __init__(self):
        self._filters = []

    def set(self, host, topic, tag, now):
        """A member asks for messages of one tag, or for all."""
        self.end(host, now, topic)
        if tag is not None:
            self._filters.append(Filter(topic, tag, host, now))

    def end(self, host, now, topic=None):
        """A member has begun anew, or asks for all."""
        for each in self._filters:
            if each.host is host and each.ended_at == inf and topic in (None, each.topic):
                each.ended_at = now

    def may_leave_out(self, topic, tag, sent_at):
        """Whether a message may never come."""
        return any(
            each.topic == topic and each.tag != tag and sent_at < each.ended_at + _SETTLED_SECONDS
            for each in self._filters
        )

    def leave_out(self, topic, tag, host, sent_at, now):
        """Whether a message must not come to a member, as it was sent long enough behind that."""
        return any(
            each.host is host
            and each.topic == topic
            and each.tag != tag
            and each.began_at + _FELT_SECONDS < sent_at < now < each.ended_at
            for each in self._filters
        )
