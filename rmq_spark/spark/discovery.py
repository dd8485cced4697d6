"""Discovery: which queues there are, of the topics that a query names or whose names match.

A name server that knows nothing at the moment, as one that has just started, changes nothing: what
was found before stays known, and brokers say whether it is gone. It asks name servers only.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final

from rmq_spark.client.errors import CONNECTION_FAULTS, BrokerRefused, RouteNotFound
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options import ReadOptions, Selection
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, without_namespace

_log = logging.getLogger(__name__)

_NOT_THE_USERS: Final = (
    *SYSTEM_TOPICS,
    SYSTEM_TOPIC_PREFIX,
    *("%", "RMQ_SYS_", "DefaultCluster", "DefaultHeartBeatSyncerTopic"),
)
"""Beginnings of topic names that no pattern matches."""


class Discovery:
    """The queues that a query may read, looked for again from time to time.

    For use by one thread.
    """

    def __init__(
        self, options: ReadOptions, instance: ClientInstance, clock: Callable[[], float]
    ) -> None:
        """Take a clock that gives seconds."""
        self._options = options
        self._instance = instance
        self._clock = clock
        self._known: frozenset[MessageQueue] = frozenset()
        self._unknown: set[str] = (
            set()
        )  # topics that were known, and that no name server knew the last time
        self._brokers: dict[
            str, frozenset[str]
        ] = {}  # of each topic that was routed when it was last looked for
        self._discovered_at: float | None = None

    def queues(self, *, now: bool = False) -> frozenset[MessageQueue]:
        """Return all queues that may be read, looked for again when it is time, or ``now``."""
        at = self._discovered_at
        if not now and at is not None and self._clock() - at < self._options.discovery_ms / 1000:
            return self._known
        try:
            found = self._found(self._options.selection)
        except (*CONNECTION_FAULTS, BrokerRefused) as error:
            if at is None:
                raise
            _log.warning("no name server says where the queues are now: %s", error)
            return self._known
        self._discovered_at = self._clock()
        self._known = frozenset(found)
        return self._known

    def is_routed(self, topic: str) -> bool:
        """Tell whether a name server knew a topic when it was last looked for."""
        return topic in self._brokers and topic not in self._unknown

    def is_withdrawn(self, queue: MessageQueue) -> bool:
        """Return whether a queue is no longer to be read.

        That holds for a queue of a topic that the query does not name, and for one that is missing
        in its topic's route although the route names its broker.
        """
        if queue in self._known:
            return False
        is_selected = selects(self._options.selection, queue.topic)
        return not is_selected or queue.broker_name in self._brokers.get(queue.topic, ())

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Look no more for queues that are gone, unless they turn up again."""
        gone = frozenset(queues)
        self._known -= gone
        for topic in {queue.topic for queue in gone} - {queue.topic for queue in self._known}:
            self._brokers.pop(topic, None)

    def look_again(self) -> None:
        """Look for queues the next time that they are asked for, as brokers may have moved."""
        self._discovered_at = None if self._discovered_at is None else float("-inf")

    def _found(self, selection: Selection) -> list[MessageQueue]:
        topics: Iterable[str] = selection.topics
        if selection.pattern is not None:
            every = self._instance.name_servers.admin.topics()
            matching = {topic for topic in every if selects(selection, topic)}
            topics = sorted(matching | {queue.topic for queue in self._known})
        found: list[MessageQueue] = []
        unknown: set[str] = set()
        for topic, route in self._instance.routes.refresh_each(topics).items():
            if isinstance(route, RouteNotFound):
                # A name server that has just started knows nothing: its broker says whether it is
                # gone.
                before = [queue for queue in self._known if queue.topic == topic]
                if not (before or selection.pattern is not None or self._options.waits_for_topic):
                    raise route
                if topic not in self._unknown:
                    waits = "" if before else "; what comes to it is read from its first message on"
                    _log.warning("no name server knows topic %s at the moment%s", topic, waits)
                unknown.add(topic)
                found += before
                continue
            if isinstance(route, Exception):
                raise route
            found += [queue for queue in route.subscribe_queues if _is_assigned(selection, queue)]
            self._brokers[topic] = frozenset(route.brokers)
        self._unknown = unknown
        if selection.assigned and self._discovered_at is None:
            _check_assigned(selection, found)
        elif selection.assigned:  # of a broker that is away no name server tells
            found += self._known.difference(found)
        return found


def selects(selection: Selection, topic: str) -> bool:
    """Return whether a topic is named by a selection, or matches its pattern."""
    if selection.pattern is None:
        return topic in selection.topics
    name = without_namespace(selection.namespace, topic)
    if selection.namespace is not None and name == topic:
        return False  # it is in none, or in another
    return re.fullmatch(selection.pattern, name) is not None and not is_brokers_own(name)


def is_brokers_own(topic: str) -> bool:
    """Tell whether brokers have made a topic for themselves or for groups."""
    return topic.startswith(_NOT_THE_USERS)


def _is_assigned(selection: Selection, queue: MessageQueue) -> bool:
    if not selection.assigned:
        return True
    brokers = selection.assigned[queue.topic]
    return queue.queue_id in brokers.get(queue.broker_name, brokers.get("*", ()))


def _check_assigned(selection: Selection, found: Iterable[MessageQueue]) -> None:
    there = {(queue.topic, queue.broker_name, queue.queue_id) for queue in found}
    anywhere = {(queue.topic, queue.queue_id) for queue in found}
    for topic, brokers in selection.assigned.items():
        for broker, numbers in brokers.items():
            for number in sorted(numbers):
                is_there = (
                    (topic, number) in anywhere
                    if broker == "*"
                    else (topic, broker, number) in there
                )
                if not is_there:
                    where = "" if broker == "*" else f" on broker {broker}"
                    raise OptionError("assign", f"topic {topic} has no queue {number}{where}")
