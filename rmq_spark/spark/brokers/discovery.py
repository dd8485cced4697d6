"""QueueDiscovery: finds the queues of the topics that a query names or whose names match.

A name server without routes, such as one that has just started, changes nothing: queues found
before stay known, and their brokers report whether they still exist. A queue assigned by its
broker's name stays an unrouted queue while no name server knows that broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from rmq_spark.client.errors import CONNECTION_FAULTS, BrokerRefused, RouteNotFound
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.errors import nearest_name
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import ReadOptions, Selection, selects
from rmq_spark.spark.options.start_positions import ANY, Positions
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)


def _brokers_of(topic: str, routes: Mapping[str, frozenset[str]]) -> frozenset[str]:
    found = routes.values() if topic == ANY else [routes.get(topic, frozenset())]
    return frozenset().union(*found)


def _accepts_routed_queues(selection: Selection, topic: str, broker: str) -> bool:
    """Return whether a query reads the queues that a route names on this broker."""
    if not selection.assigned:
        return topic == ANY or selects(selection, topic)
    topics = selection.topics if topic == ANY else (topic,)
    assigned = [selection.assigned.get(each, {}) for each in topics]
    return any(ANY in brokers and broker not in brokers for brokers in assigned)


class QueueDiscovery:
    """The queues that a query may read, refreshed at intervals; for use by one thread."""

    def __init__(
        self, options: ReadOptions, instance: ClientInstance, clock: Callable[[], float]
    ) -> None:
        self._options = options
        self._instance = instance
        self._clock = clock
        self._known: frozenset[MessageQueue] = frozenset()
        # known topics that no name server knew at the last refresh
        self._unknown_topics: set[str] = set()
        # the brokers of each topic that had a route at its last refresh
        self._brokers_by_topic: dict[str, frozenset[str]] = {}
        self._discovered_at: float | None = None
        # topics whose assigned queue ids were not compared with their queues yet
        self._unchecked_topics = set(options.selection.assigned)
        self._logged_brokers: set[str] = set()
        # assigned brokers that no name server knew at first
        self._unknown_assigned: dict[str, OptionError] = {}

    def discover(self, *, is_forced: bool = False) -> frozenset[MessageQueue]:
        """Return all readable queues, refreshed when due, or at once if ``is_forced``."""
        at = self._discovered_at
        if (
            not is_forced
            and at is not None
            and self._clock() - at < self._options.discovery_ms / 1000
        ):
            return self._known
        try:
            found = self._discover(self._options.selection)
        except (*CONNECTION_FAULTS, BrokerRefused) as error:
            if at is None:
                raise
            _log.warning("refreshing the queues failed, continuing with those known: %s", error)
            return self._known
        self._discovered_at = self._clock()
        self._known = frozenset(found)
        return self._known

    def is_routed(self, topic: str) -> bool:
        """Return whether a name server knew a topic at the last refresh."""
        return topic in self._brokers_by_topic and topic not in self._unknown_topics

    def is_withdrawn(self, queue: MessageQueue) -> bool:
        """Return whether a queue must no longer be read.

        Its topic is not selected any more, or the topic's route has its broker but not the queue.
        """
        if queue in self._known:
            return False
        is_selected = selects(self._options.selection, queue.topic)
        return not is_selected or queue.broker_name in self._brokers_by_topic.get(queue.topic, ())

    def unrouted_queues(self) -> frozenset[MessageQueue]:
        """Return the assigned queues that no route has named so far."""
        return frozenset(
            queue
            for queue in self._known
            if queue.broker_name in self._unknown_assigned
            and queue.broker_name not in self._brokers_by_topic.get(queue.topic, ())
        )

    def assignment_error(self, brokers: Iterable[str]) -> OptionError | None:
        """Return the error for an assigned broker that no name server knows when the wait expires.

        None if routes name all queues of these brokers.
        """
        unrouted_brokers = {queue.broker_name for queue in self.unrouted_queues()}
        name = min(unrouted_brokers.intersection(brokers), default=None)
        return None if name is None else self._unknown_assigned[name]

    def unknown_brokers(self, *positions: Positions | None) -> dict[str, OptionError]:
        """Return the brokers that positions name and no name server knew at the last refresh.

        Each comes with the error to raise when the wait expires, and is logged once. A known broker
        that lacks the topic is left out: `PositionResolver` refuses its position.
        """
        unrouted = self._find_unrouted(each for each in positions if each is not None)
        if not unrouted:
            return {}
        known = self._known_brokers()
        if not known.isdisjoint(unrouted):
            # A broker that registered between two requests is in the route by now.
            self.discover(is_forced=True)
        return {
            name: self._report_unknown(unrouted[name], name, known)
            for name in sorted(unrouted.keys() - known)
        }

    def discard(self, queues: Iterable[MessageQueue]) -> None:
        """Drop queues that are gone; they return if a route names them again."""
        removed = frozenset(queues)
        self._known -= removed
        for topic in {queue.topic for queue in removed} - {queue.topic for queue in self._known}:
            self._brokers_by_topic.pop(topic, None)

    def invalidate(self) -> None:
        """Refresh the queues on the next call, because brokers may have moved."""
        self._discovered_at = None if self._discovered_at is None else float("-inf")

    # ---- brokers that options name, compared with those that name servers know

    def _known_brokers(self) -> frozenset[str]:
        """Return the brokers that name servers know, whatever topics they have."""
        try:
            return frozenset(self._instance.name_servers.admin.cluster_info().broker_addr_table)
        except BrokerRefused:
            return frozenset()

    def _may_host(self, topic: str) -> bool:
        """Return whether a broker that options name for a topic is unknown to name servers."""
        named = self._named_brokers(topic)
        return bool(named) and not named.keys() <= self._known_brokers()

    def _find_unrouted(self, positions_given: Iterable[Positions]) -> dict[str, str]:
        """Return the brokers that positions name and no route does, each with the option.

        If a topic has no route, these are the brokers that any option names: one of them may have
        the topic. Brokers in ``assign`` are left out, because the query waits for their queues one
        by one.
        """
        unrouted: dict[str, str] = {}
        for positions in positions_given:
            for topic in sorted({*positions.topics, ANY}):
                named = self._named_brokers(topic)
                if topic not in self._unknown_topics:
                    named = {name: named[name] for name in positions.named_brokers(topic)}
                elif self._options.waits_for_topic:
                    continue
                routed = _brokers_of(topic, self._brokers_by_topic)
                unrouted |= {
                    name: option
                    for name, option in named.items()
                    if name not in routed
                    and _accepts_routed_queues(self._options.selection, topic, name)
                }
        return unrouted

    def _report_unknown(self, option: str, name: str, known: Iterable[str]) -> OptionError:
        """Log once that no name server knows a broker; return the error to raise after the wait."""
        names = sorted(known)
        nearest = nearest_name(name, names)
        hint = "" if nearest is None else f" Did you mean {nearest}?"
        others = f"they know {', '.join(names) or 'none'}.{hint}"
        if name not in self._logged_brokers:
            self._logged_brokers.add(name)
            _log.warning(
                "option %s: no name server knows broker %s at the moment; %s", option, name, others
            )
        return OptionError(
            option,
            f"it names broker {name}, which no name server has known for "
            f"{self._options.access.retry_timeout_ms} ms (option retryTimeoutMs); {others} "
            "Correct the name; or start the broker, and then this query",
        )

    def _named_brokers(self, topic: str) -> dict[str, str]:
        named = dict.fromkeys(self._options.selection.assigned.get(topic, {}), "assign")
        for each in (self._options.starting, self._options.ending):
            if each is not None:
                named = {**dict.fromkeys(each.named_brokers(topic), each.option), **named}
        named.pop(ANY, None)
        return named

    # ---- a refresh

    def _discover(self, selection: Selection) -> list[MessageQueue]:
        topics: Iterable[str] = selection.topics
        if selection.pattern is not None:
            every = self._instance.name_servers.admin.topics()
            matching = {topic for topic in every if selects(selection, topic)}
            topics = sorted(matching | {queue.topic for queue in self._known})
        by_name = self.unrouted_queues()
        found: list[MessageQueue] = []
        unknown: set[str] = set()
        for topic, route in self._instance.routes.refresh_each(topics).items():
            if isinstance(route, RouteNotFound):
                # A name server that has just started knows no routes; the queue's broker knows
                # whether it exists.
                before = [queue for queue in self._known if queue.topic == topic]
                is_awaited = self._options.waits_for_topic
                if before or selection.pattern is not None or is_awaited or self._may_host(topic):
                    if topic not in self._unknown_topics:
                        begins = ". If it is created, it is read from its first message on"
                        waits = begins if is_awaited and not before else ""
                        _log.warning("no name server knows topic %s at the moment%s", topic, waits)
                    unknown.add(topic)
                    found += before
                    continue
                # A broker that registered between two requests is in the route by now.
                route = self._instance.routes.refresh(topic)  # noqa: PLW2901  # replaces the error
            if isinstance(route, Exception):
                raise route
            found += [queue for queue in route.subscribe_queues if _is_assigned(selection, queue)]
            self._brokers_by_topic[topic] = frozenset(route.brokers)
        self._unknown_topics = unknown
        self._check_queue_ids(selection, found)
        if selection.assigned and self._discovered_at is None:
            found += self._missing_assigned(selection, found)
        elif selection.assigned:  # name servers omit brokers that are away
            self._check_arrived_brokers(found, by_name)
            found += self._known.difference(found)
        return found

    def _check_queue_ids(self, selection: Selection, found: Iterable[MessageQueue]) -> None:
        """Refuse queue ids assigned under ``*`` that no broker has, once all brokers are known."""
        found_ids = {(queue.topic, queue.queue_id) for queue in found}
        for topic in sorted(self._unchecked_topics):
            numbers = selection.assigned[topic].get(ANY, frozenset())
            missing = {number for number in numbers if (topic, number) not in found_ids}
            if missing and self._may_host(topic):
                continue
            if missing:  # a broker that registered between two requests is in the route by now
                route = self._instance.routes.refresh(topic)
                missing -= {queue.queue_id for queue in route.subscribe_queues}
            if missing:
                raise OptionError("assign", f"topic {topic} has no queue {min(missing)}")
            self._unchecked_topics.remove(topic)

    def _check_arrived_brokers(
        self, found: Iterable[MessageQueue], unrouted_before: frozenset[MessageQueue]
    ) -> None:
        """Refuse unrouted queues whose brokers are known by now and do not have them."""
        arrived = unrouted_before - self.unrouted_queues()
        for queue in sorted(arrived.difference(found)):
            raise _queue_not_found(queue, self._brokers_by_topic[queue.topic])
        for name in {queue.broker_name for queue in arrived}:
            self._unknown_assigned.pop(name)

    def _missing_assigned(
        self, selection: Selection, found: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Return the assigned queues whose brokers no name server knows."""
        missing = _unlisted_assigned(selection, found)
        if not missing:
            return []
        known = self._known_brokers()
        for queue in missing:
            routed = self._brokers_by_topic.get(queue.topic, ())
            if queue.broker_name in routed or queue.broker_name in known:
                # A broker that registered between two requests is in the route by now.
                route = self._instance.routes.refresh(queue.topic)
                if queue not in route.subscribe_queues:
                    raise _queue_not_found(queue, route.brokers)
        for name in dict.fromkeys(queue.broker_name for queue in missing):
            if name not in known:
                self._unknown_assigned[name] = self._report_unknown("assign", name, known)
        return missing


def _is_assigned(selection: Selection, queue: MessageQueue) -> bool:
    if not selection.assigned:
        return True
    brokers = selection.assigned[queue.topic]
    return queue.queue_id in brokers.get(queue.broker_name, brokers.get("*", ()))


def _unlisted_assigned(selection: Selection, found: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues that are assigned by broker name and were not found."""
    found_queues = frozenset(found)
    named = (
        MessageQueue(topic, broker, number)
        for topic, brokers in selection.assigned.items()
        for broker, numbers in brokers.items()
        if broker != ANY
        for number in sorted(numbers)
    )
    return [queue for queue in named if queue not in found_queues]


def _queue_not_found(queue: MessageQueue, routed: Iterable[str]) -> OptionError:
    others = ", ".join(sorted(routed))
    where = f": it is on {others}" if others and queue.broker_name not in routed else ""
    return OptionError(
        "assign",
        f"topic {queue.topic} has no queue {queue.queue_id} on broker {queue.broker_name}{where}",
    )
