"""Strangers: brokers that options name, and that no name server knows just then.

Such a broker may be down, as RocketMQ's name servers forget it at once, or its name be wrong:
nobody can say which. So it is told of in a warning, and is an error only when it has been waited
for in vain; `discovery` and `queues` wait. Options that name brokers are ``assign`` and positions
where a read starts or ends.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping

from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.nearest import nearest
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options import ReadOptions, Selection
from rmq_spark.spark.positions import ANY, Positions
from rmq_spark.spark.selecting import selects

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
