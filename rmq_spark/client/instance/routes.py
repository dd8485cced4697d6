"""Routes: caches the queues of topics, and the brokers' addresses that follow from them.

    publish queues     of brokers with a master, where the topic may be written
    subscribe queues   where it may be read
    addresses          of a master for writes; for reads the suggested broker, or any other

A topic's route is fetched on first use; `refresh_all` fetches all known routes again. Several
routes are fetched in parallel. A cached route stays until a name server returns another one: a name
server that has just started knows no routes yet.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.threads import parallel_map, raise_first, start_thread
from rmq_spark.client.errors import (
    BrokerNotFound,
    ClientError,
    NoNameServer,
    RouteNotFound,
    ThreadNotStarted,
    TopicNotUsable,
)
from rmq_spark.wire.bodies.clients import BrokerData, TopicRouteData
from rmq_spark.wire.codes import MASTER_ID, TopicPermission
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

QUEUES_MAX: Final = 1 << 16
ROUTE_THREADS_MAX: Final = 16
"""Most routes that one caller fetches at a time."""

_DIGITS_MAX: Final = 10
"""Most digits of a number that is accepted as a count."""

_READ: Final = TopicPermission.READ.value
_WRITE: Final = TopicPermission.WRITE.value


class TopicRoute(NamedTuple):
    """The queues and brokers of one topic, in order."""

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    brokers: Mapping[str, BrokerData]


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Return the route in a name server's response."""
    brokers = {broker.broker_name: broker for broker in data.broker_datas}
    queues = sorted(data.queue_datas, key=lambda queue: queue.broker_name)
    writable = {
        queue.broker_name: queue.write_queue_nums
        for queue in queues
        if queue.perm & _WRITE
        and (broker := brokers.get(queue.broker_name)) is not None
        and MASTER_ID in broker.broker_addrs
    }
    publish = _parse_order_conf(data.order_topic_conf) or list(writable.items())
    return TopicRoute(
        topic,
        _make_queues(topic, publish),
        _make_queues(topic, [(q.broker_name, q.read_queue_nums) for q in queues if q.perm & _READ]),
        brokers,
    )


class Routes(ForkAware):
    """The routes that one client knows. All methods may be called from any thread."""

    def __init__(self, fetch: Callable[[str], TopicRouteData]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._refresh_threads: dict[str, threading.Thread] = {}
        self._table: dict[str, TopicRoute] = {}
        self._brokers: dict[str, BrokerData] = {}
        # by broker, the topics whose routes named it before
        self._former_topics: dict[str, set[str]] = {}
        ForkAware.__init__(self)

    @property
    def topics(self) -> frozenset[str]:
        """The topics whose routes are known."""
        return frozenset(self._table)

    @property
    def brokers(self) -> Mapping[str, BrokerData]:
        """All brokers of all known topics, by name."""
        return self._brokers

    def route(self, topic: str) -> TopicRoute:
        """Return a topic's route, fetching it if it is not known."""
        return self._table.get(topic) or self.refresh(topic)

    def require(self, topics: Iterable[str]) -> None:
        """Fetch the routes of several topics if they are not known, up to 16 at a time."""
        unknown = [topic for topic in topics if topic not in self._table]
        raise_first(self.refresh_each(unknown).values())

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a topic's messages may be sent to."""
        queues = self.route(topic).publish_queues or self.refresh(topic).publish_queues
        if not queues:
            why = (
                "no broker with a master allows writing to it. Set its perm to 6 (rw), or start "
                "its masters"
            )
            raise TopicNotUsable(topic, why)
        return queues

    def known_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return `publish_queues` from the cache; none if they are not known."""
        route = self._table.get(topic)
        return route.publish_queues if route is not None else ()

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a topic's messages may be pulled from."""
        queues = self.route(topic).subscribe_queues or self.refresh(topic).subscribe_queues
        if not queues:
            raise TopicNotUsable(topic, "no broker allows reading it. Set its perm to 6 (rw)")
        return queues

    def sendable_queues(
        self, topic: str, default_topic: str, queue_nums: int
    ) -> tuple[MessageQueue, ...]:
        """Return `publish_queues`, or those that the topic will have when a send creates it.

        Raises:
            RouteNotFound: There is no such topic, and no broker creates topics.
            TopicNotUsable: The topic exists, but none of its queues can be written.
        """
        try:
            return self.publish_queues(topic)
        except TopicNotUsable:
            raise
        except RouteNotFound:
            return self._future_queues(topic, default_topic, queue_nums)

    def _future_queues(
        self, topic: str, default_topic: str, queue_nums: int
    ) -> tuple[MessageQueue, ...]:
        """Return the queues that a missing topic will have once a message was sent to one."""
        try:
            model = self.refresh(default_topic)
        except RouteNotFound as error:
            raise RouteNotFound(
                topic, "it does not exist, and no broker creates topics automatically"
            ) from error
        counts: dict[str, int] = {}
        for queue in model.publish_queues:
            counts[queue.broker_name] = min(counts.get(queue.broker_name, 0) + 1, queue_nums)
        if not counts:
            raise RouteNotFound(
                topic, "it does not exist, and no broker creates topics automatically"
            )
        return _make_queues(topic, list(counts.items()))

    # ---- addresses

    def master_address(self, broker_name: str) -> str:
        """Return the address to write to."""
        address = self._get_broker(broker_name).broker_addrs.get(MASTER_ID)
        if address is None:
            raise BrokerNotFound(broker_name, "it has no master at the moment")
        return address

    def address_for_read(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the address to read from: the broker with that id, else the master, or any."""
        addresses = self._get_broker(broker_name).broker_addrs
        for number in (broker_id, MASTER_ID, *sorted(addresses)):
            if number in addresses:
                return addresses[number]
        raise BrokerNotFound(broker_name, "its route names no address")

    def refresh_if_missing(self, topic: str, find_address: Callable[[], str]) -> str:
        """Return the address found; if there is none, refresh the topic's route and look again."""
        try:
            return find_address()
        except BrokerNotFound:
            self.refresh(topic)
            return find_address()

    def addresses(self, *, masters_only: bool = False) -> tuple[str, ...]:
        """Return the addresses of all known brokers, each once."""
        found = {
            address: None
            for broker in self._brokers.values()
            for number, address in sorted(broker.broker_addrs.items())
            if number == MASTER_ID or not masters_only
        }
        return tuple(found)

    # ---- refreshing

    def refresh(self, topic: str) -> TopicRoute:
        """Fetch a topic's route again, and return it.

        If the route names a broker that the routes of other topics have lost, these are fetched as
        well, because the broker is back. Otherwise it would get requests for queues that the cached
        routes lack.

        Raises:
            RouteNotFound: The name servers know no such topic. The route known before is kept.
            NoNameServer: None of them answers. The route known before is kept.
        """
        found = topic_route(topic, self._fetch(topic))
        with self._lock:
            before = self._table.get(topic)
            for name in before.brokers.keys() - found.brokers.keys() if before else ():
                self._former_topics.setdefault(name, set()).add(topic)
            others = {each for name in found.brokers for each in self._former_topics.pop(name, ())}
            # The newest route comes last, because its addresses win: a deleted topic's become
            # stale.
            table = {name: route for name, route in self._table.items() if name != topic}
            table[topic] = found
            self._brokers = {
                name: broker for route in table.values() for name, broker in route.brokers.items()
            }
            self._table = table  # set after the brokers, which a known route refers to
        if others := (others & table.keys()) - {topic}:
            self.refresh_each(sorted(others))  # a route that cannot be fetched is kept
        return found

    def refresh_each(self, topics: Iterable[str]) -> Mapping[str, TopicRoute | Exception]:
        """Fetch the routes of several topics again, up to 16 at a time.

        Return each one's route, or the error of `refresh`. If no name server answers, the remaining
        topics are not fetched.
        """
        return parallel_map(
            topics,
            self.refresh,
            threads_max=ROUTE_THREADS_MAX,
            name="asks for routes",
            stop_on=(NoNameServer,),
        )

    def refresh_within(self, topic: str, seconds: float) -> None:
        """Fetch a topic's route again, waiting at most ``seconds``; the response may come later.

        If no thread can be started to fetch it, the route stays as it is. If the fetching thread
        itself calls this, as a logging handler that sends does, it does not wait.
        """
        with self._lock:
            thread = self._refresh_threads.get(topic)
            is_new = thread is None or not thread.is_alive()
            if thread is None or is_new:
                thread = threading.Thread(
                    target=self._refresh_in_thread,
                    args=(topic,),
                    name="rocketpoll-route",
                    daemon=True,
                )
                try:
                    start_thread(thread)
                except ThreadNotStarted as error:
                    failure: ThreadNotStarted | None = error
                else:
                    failure, self._refresh_threads[topic] = None, thread
        if is_new and failure is not None:
            _log.debug(
                "the route of %s was not refreshed, keeping the known one: %s", topic, failure
            )
        elif thread is not threading.current_thread():
            thread.join(seconds)

    def _refresh_in_thread(self, topic: str) -> None:
        try:
            self.refresh(topic)
        except ClientError as error:
            _log.debug("the route of %s was not refreshed, keeping the known one: %s", topic, error)
        finally:
            with self._lock:
                self._refresh_threads.pop(topic, None)

    def refresh_all(self) -> None:
        """Fetch the route of every known topic again; keep those that cannot be fetched now."""
        for topic, outcome in self.refresh_each(sorted(self._table)).items():
            if isinstance(outcome, NoNameServer):
                _log.warning("routes were not refreshed, keeping the known ones: %s", outcome)
                return
            if isinstance(outcome, ClientError):
                _log.warning(
                    "the route of %s was not refreshed, keeping the known one: %s", topic, outcome
                )
            elif isinstance(outcome, Exception):
                raise outcome

    def discard(self, topic: str) -> None:
        """Drop the route of a deleted topic until it is next needed."""
        with self._lock:
            self._table.pop(topic, None)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._refresh_threads = {}  # those threads belong to the parent

    def _get_broker(self, broker_name: str) -> BrokerData:
        broker = self._brokers.get(broker_name)
        if broker is None:
            raise BrokerNotFound(broker_name)
        return broker


def _make_queues(topic: str, counts: list[tuple[str, int]]) -> tuple[MessageQueue, ...]:
    if sum(count for _, count in counts) > QUEUES_MAX:
        raise TopicNotUsable(
            topic, f"its route claims over {QUEUES_MAX} queues. Check what its name server answers"
        )
    return tuple(
        MessageQueue(topic, name, number) for name, count in counts for number in range(count)
    )


def _parse_order_conf(text: str | None) -> list[tuple[str, int]]:
    """Return the brokers and numbers of queues in ``broker-a:4;broker-b:4``."""
    found = []
    for part in (text or "").split(";"):
        name, _, count = part.rpartition(":")
        if name and count.isascii() and count.isdigit():
            found.append((name, int(count) if len(count) < _DIGITS_MAX else QUEUES_MAX + 1))
    return found
