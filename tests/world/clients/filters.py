"""Filters: the subscriptions of a group's members, and the messages that they need not deliver.

Messages that a filter leaves out count as consumed. A member that removes its filter gets messages
sent from then on; queues are pulled independently, so a moment before counts as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

_SETTLED_SECONDS = 45.0
"""Seconds for which pulls and rebalances may still use the filter, after dead or slow
connections."""

_FELT_SECONDS = 6.0
"""Seconds for which earlier pulls of a polling program may still be pending."""


@dataclass(eq=False)
class Filter:
    """One member's filter, and the time of its use."""

    topic: str
    tag: str
    host: object
    began_at: float
    ended_at: float = inf


class Filters:
    """The filters of one reader."""

    def __init__(self):
        self._filters = []

    def set(self, host, topic, tag, now):
        """Record that a member subscribes to one tag, or to all messages."""
        self.end(host, now, topic)
        if tag is not None:
            self._filters.append(Filter(topic, tag, host, now))

    def end(self, host, now, topic=None):
        """Record that a member has restarted, or subscribes to all messages."""
        for each in self._filters:
            if each.host is host and each.ended_at == inf and topic in (None, each.topic):
                each.ended_at = now

    def may_leave_out(self, topic, tag, sent_at):
        """Return whether a message may be left out for good."""
        return any(
            each.topic == topic and each.tag != tag and sent_at < each.ended_at + _SETTLED_SECONDS
            for each in self._filters
        )

    def leave_out(self, topic, tag, host, sent_at, now):
        """Return whether a member must not get a message, because it was sent long enough after the
        filter was set."""
        return any(
            each.host is host
            and each.topic == topic
            and each.tag != tag
            and each.began_at + _FELT_SECONDS < sent_at < now < each.ended_at
            for each in self._filters
        )
