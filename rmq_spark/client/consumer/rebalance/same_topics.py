"""SameTopics: a warning where members of a group subscribe to different topics.

Each of a group's queues goes to one of its members, whatever these subscribe to, and a broker knows
only the topics of the last heartbeat. So queues of a topic that some members do not want are read
by nobody, and no request ever fails: only by looking at what the broker knows does a member learn
of it. It is told when the same was seen twice, as members that begin subscribe one by one; other
members' may have been seen in between, as each look shows those of one.

It does not know how a broker is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from rmq_spark.client.consumer.clock import monotonic_ms
from rmq_spark.client.consumer.process_queue import Clock
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.names import RETRY_PREFIX

_log = logging.getLogger(__name__)

APART_MS: Final = 10_000
"""Least milliseconds between two looks."""

REMEMBERED_MS: Final = 600_000
"""Milliseconds within which the same is seen twice: among a hundred members that all want something
else, it takes a dozen looks."""

MEMBERS_MAX: Final = 100
"""Most members of a group that looks: what a broker answers has them all in it."""


class SameTopics:
    """Looks of one member at the topics of the others."""

    def __init__(
        self,
        group: str,
        topics_at_brokers: Callable[[str], frozenset[str]],
        clock: Clock = monotonic_ms,
    ) -> None:
        """Take a function that returns the group's topics as a broker of a topic knows them."""
        self._group = group
        self._topics_at_brokers = topics_at_brokers
        self._clock = clock
        self._looked_ms: int | None = None
        self._mine: frozenset[str] = frozenset()
        self._suspected: dict[frozenset[str], float] = {}  # when each was seen last
        self._told: set[frozenset[str]] = set()

    def look(self, topic: str, topics: frozenset[str], members: int) -> None:
        """Compare this member's topics, of which ``topic`` is one, with the broker's."""
        now = self._clock()
        is_soon = self._looked_ms is not None and now - self._looked_ms < APART_MS
        if is_soon or not 1 < members <= MEMBERS_MAX:
            return
        self._looked_ms = now
        try:
            others = _wanted(self._topics_at_brokers(topic))
        except ClientError as error:
            _log.debug("%s: the topics of other members are not known: %s", self._group, error)
            return
        mine = _wanted(topics)
        seen = {} if mine != self._mine else self._suspected
        self._suspected = {each: at for each, at in seen.items() if now - at <= REMEMBERED_MS}
        self._told &= self._suspected.keys()
        self._mine = mine
        if mine == others or not others:
            return
        is_seen_again = others in self._suspected
        self._suspected[others] = now
        if is_seen_again and others not in self._told:
            self._told.add(others)
            _log.warning(
                "%s: members subscribe to different topics, this one to %s, another to %s; queues "
                "are given to members that do not want them, and nobody reads these: have all "
                "members subscribe to the same topics, or give them groups of their own",
                *(self._group, ", ".join(sorted(mine)), ", ".join(sorted(others))),
            )


def _wanted(topics: frozenset[str]) -> frozenset[str]:
    return frozenset(topic for topic in topics if not topic.startswith(RETRY_PREFIX))
