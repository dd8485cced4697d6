"""Discovery: which queues there are, of the topics that a query names or whose names match.

A name server that knows nothing at the moment, as one that has just started, changes nothing: what
was found before stays known, and brokers say whether it is gone. Queues that are assigned by the
name of their broker are known by that alone while no name server knows the broker (`strangers`).
It asks name servers only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping

from rmq_spark.client.errors import CONNECTION_FAULTS, BrokerRefused, RouteNotFound
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.nearest import nearest
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import ReadOptions, Selection, selects
from rmq_spark.spark.options.start_positions import ANY, Positions
from rmq_spark.wire.message_queue import MessageQueue

# ---- Strangers: brokers that options name, and that no name server knows just then.

_log = logging.getLogger(__name__)


class Strangers:
    """The brokers that a query's options name, held against those that name servers know."""

    def __init__(self, options: ReadOptions, instance: ClientInstance) -> None:
        self._options = options
        self._instance = instance
        self._told: set[str] = set()

    def known(self) -> frozenset[str]:
        """Return the brokers that name servers know, whatever topics these have."""
        try:
            return frozenset(self._instance.name_servers.admin.cluster_info().broker_addr_table)
        except BrokerRefused:
            return frozenset()

    def may_have(self, topic: str) -> bool:
        """Return whether an option names a broker for a topic that no name server knows."""
        named = self._named_for(topic)
        return bool(named) and not named.keys() <= self.known()

    def absent(
        self,
        given: Iterable[Positions],
        routes: Mapping[str, frozenset[str]],
        unrouted: Container[str],
    ) -> dict[str, str]:
        """Return the brokers that positions name and no route does, each with the option.

        For a topic that is not routed they are those that any option names: one of them may have
        it. What ``assign`` names is not among them: it is waited for queue by queue.

        Args:
            given: The positions.
            routes: The brokers of each topic that has been routed.
            unrouted: The topics that are not at the moment.
        """
        absent: dict[str, str] = {}
        for positions in given:
            for topic in sorted({*positions.topics, ANY}):
                named = self._named_for(topic)
                if topic not in unrouted:
                    named = {name: named[name] for name in positions.brokers_named(topic)}
                elif self._options.waits_for_topic:
                    continue
                routed = _brokers_of(topic, routes)
                absent |= {
                    name: option
                    for name, option in named.items()
                    if name not in routed and _is_open(self._options.selection, topic, name)
                }
        return absent

    def note(self, option: str, name: str, known: Iterable[str]) -> OptionError:
        """Log once that nobody knows a broker; return the error if it is waited for in vain."""
        there = sorted(known)
        meant = nearest(name, there)
        hint = "" if meant is None else f" Did you mean {meant}?"
        others = f"they know {', '.join(there) or 'none'}.{hint}"
        if name not in self._told:
            self._told.add(name)
            _log.warning(
                "option %s: no name server knows broker %s at the moment; %s", option, name, others
            )
        return OptionError(
            option,
            f"it names broker {name}, which no name server has known for "
            f"{self._options.access.retry_timeout_ms} ms (option retryTimeoutMs); {others} Correct "
            "the name, or start the broker, and then this query",
        )

    def _named_for(self, topic: str) -> dict[str, str]:
        """Return the brokers that options name for a topic, each with the option."""
        named = dict.fromkeys(self._options.selection.assigned.get(topic, {}), "assign")
        for each in (self._options.starting, self._options.ending):
            if each is not None:
                named = {**dict.fromkeys(each.brokers_named(topic), each.option), **named}
        named.pop(ANY, None)
        return named


def _brokers_of(topic: str, routes: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the brokers of a topic, or of any."""
    found = routes.values() if topic == ANY else [routes.get(topic, frozenset())]
    return frozenset().union(*found)


def _is_open(selection: Selection, topic: str, broker: str) -> bool:
    """Return whether queues of a broker may be read that only its route tells."""
    if not selection.assigned:
        return topic == ANY or selects(selection, topic)
    topics = selection.topics if topic == ANY else (topic,)
    assigned = [selection.assigned.get(each, {}) for each in topics]
    return any(ANY in brokers and broker not in brokers for brokers in assigned)


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
        self._unchecked = set(options.selection.assigned)  # topics with numbers that may be wrong
        self._by_options = Strangers(options, instance)
        self._strangers: dict[
            str, OptionError
        ] = {}  # brokers that are assigned, and that no name server knew at first

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

    def known_by_name(self) -> frozenset[MessageQueue]:
        """Return the queues that are assigned, and that no route has named so far."""
        return frozenset(
            queue
            for queue in self._known
            if queue.broker_name in self._strangers
            and queue.broker_name not in self._brokers.get(queue.topic, ())
        )

    def wrongly_assigned(self, brokers: Iterable[str]) -> OptionError | None:
        """Return the error for brokers that nobody knows, though they have been waited for.

        None if no queue is known by the name of one of them alone.
        """
        of_strangers = {queue.broker_name for queue in self.known_by_name()}
        name = min(of_strangers.intersection(brokers), default=None)
        return None if name is None else self._strangers[name]

    def strangers(self, given: Iterable[Positions]) -> dict[str, OptionError]:
        """Return the brokers that positions name, and that no name server knows, as last looked.

        Each comes with the error for it, should it have been waited for in vain; each is logged
        once. A broker without the topic is none: whoever reads the position refuses it.
        """
        absent = self._by_options.absent(given, self._brokers, self._unknown)
        if not absent:
            return {}
        known = self._by_options.known()
        if not known.isdisjoint(absent):
            self.queues(now=True)  # one that has come between two questions is in the route by now
        return {
            name: self._by_options.note(absent[name], name, known)
            for name in sorted(absent.keys() - known)
        }

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
        by_name = self.known_by_name()
        found: list[MessageQueue] = []
        unknown: set[str] = set()
        for topic, route in self._instance.routes.refresh_each(topics).items():
            if isinstance(route, RouteNotFound):
                # A name server that has just started knows nothing: its broker says whether it is
                # gone.
                before = [queue for queue in self._known if queue.topic == topic]
                is_to_come = self._options.waits_for_topic
                if (
                    before
                    or selection.pattern is not None
                    or is_to_come
                    or self._by_options.may_have(topic)
                ):
                    if topic not in self._unknown:
                        begins = "; what comes to it is read from its first message on"
                        waits = begins if is_to_come and not before else ""
                        _log.warning("no name server knows topic %s at the moment%s", topic, waits)
                    unknown.add(topic)
                    found += before
                    continue
                # One that has come between two questions is in the route by now.
                route = self._instance.routes.refresh(topic)  # noqa: PLW2901  # as if it had been there
            if isinstance(route, Exception):
                raise route
            found += [queue for queue in route.subscribe_queues if _is_assigned(selection, queue)]
            self._brokers[topic] = frozenset(route.brokers)
        self._unknown = unknown
        self._check_numbers(selection, found)
        if selection.assigned and self._discovered_at is None:
            found += self._checked(selection, found)
        elif selection.assigned:  # of a broker that is away no name server tells
            self._check_those_that_came(found, by_name)
            found += self._known.difference(found)
        return found

    def _check_numbers(self, selection: Selection, found: Iterable[MessageQueue]) -> None:
        """Refuse queues assigned of any broker that none has, once no broker may come with them."""
        there = {(queue.topic, queue.queue_id) for queue in found}
        for topic in sorted(self._unchecked):
            numbers = selection.assigned[topic].get(ANY, frozenset())
            missing = {number for number in numbers if (topic, number) not in there}
            if missing and self._by_options.may_have(topic):
                continue
            if missing:  # one that has come between two questions is in the route by now
                route = self._instance.routes.refresh(topic)
                missing -= {queue.queue_id for queue in route.subscribe_queues}
            if missing:
                raise OptionError("assign", f"topic {topic} has no queue {min(missing)}")
            self._unchecked.remove(topic)

    def _check_those_that_came(
        self, found: Iterable[MessageQueue], by_name: frozenset[MessageQueue]
    ) -> None:
        """Refuse queues known by name alone that their brokers, which have come, do not have."""
        came = by_name - self.known_by_name()
        for queue in sorted(came.difference(found)):
            raise _no_such_queue(queue, self._brokers[queue.topic])
        for name in {queue.broker_name for queue in came}:
            self._strangers.pop(name)

    def _checked(self, selection: Selection, found: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return the assigned queues that are missing, as no name server knows their brokers.

        Raises:
            OptionError: A queue is missing although its broker is known.
        """
        missing = _missing(selection, found)
        if not missing:
            return []
        known = self._by_options.known()
        for queue in missing:
            routed = self._brokers.get(queue.topic, ())
            if queue.broker_name in routed or queue.broker_name in known:
                # One that has come between two questions is in the route by now.
                route = self._instance.routes.refresh(queue.topic)
                if queue not in route.subscribe_queues:
                    raise _no_such_queue(queue, route.brokers)
        for name in dict.fromkeys(queue.broker_name for queue in missing):
            if name not in known:
                self._strangers[name] = self._by_options.note("assign", name, known)
        return missing


def _is_assigned(selection: Selection, queue: MessageQueue) -> bool:
    if not selection.assigned:
        return True
    brokers = selection.assigned[queue.topic]
    return queue.queue_id in brokers.get(queue.broker_name, brokers.get("*", ()))


def _missing(selection: Selection, found: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues that are assigned by the names of their brokers, and were not found."""
    there = frozenset(found)
    named = (
        MessageQueue(topic, broker, number)
        for topic, brokers in selection.assigned.items()
        for broker, numbers in brokers.items()
        if broker != ANY
        for number in sorted(numbers)
    )
    return [queue for queue in named if queue not in there]


def _no_such_queue(queue: MessageQueue, routed: Iterable[str]) -> OptionError:
    """Return the error for a queue that its broker, which is known, does not have."""
    where = "" if queue.broker_name in routed else f": it is on {', '.join(sorted(routed))}"
    return OptionError(
        "assign",
        f"topic {queue.topic} has no queue {queue.queue_id} on broker {queue.broker_name}{where}",
    )
