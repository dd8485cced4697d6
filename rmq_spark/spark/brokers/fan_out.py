"""BrokerFanOut: sends one query about many queues to all brokers, then collects the responses.

    connect    to all brokers at the same time: one that is down costs one attempt,
               however many queues it has
    send       all requests at once
    retry      required requests without a response, until `retry_timeout_ms` have passed

A broker that does not answer is logged once, and once more when it has recovered. Callers pass the
request, and the value to assume where a queue is gone.

`BrokerAddresses` resolves a queue to the address of its broker.

    known routes ──> the topic's route, asked for once ──> the name servers' list of all brokers

The last step is for brokers to which no route leads: of a deleted topic, or while a name server has
just started. After a broker has not answered, this step comes first, because the broker may have
another address by then. The list is cached until `refresh`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, Final, TypeVar

from rmq_spark.client.concurrency.retry_timer import TRANSIENT_ERRORS, RetryTimer
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerNotFound,
    BrokerRefused,
    ClientError,
    ConnectionFailed,
    RouteNotFound,
    TopicNotFound,
)
from rmq_spark.client.failure_log import FailureLog
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.transport.connection import CONNECT_TIMEOUT_MS
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.spark.errors import BrokersAway, BrokersGone
from rmq_spark.spark.options.access import BrokerAccess
from rmq_spark.wire.message_queue import MessageQueue


def instance_for(access: BrokerAccess) -> ClientInstance:
    """Return a client that runs no threads of its own: it fetches routes only when needed."""
    return ClientInstance(
        access.name_servers,
        credentials=access.credentials,
        tls=access.tls,
        broker_addresses=dict(access.broker_addresses),
        request_timeout_ms=access.request_timeout_ms,
    )


class BrokerAddresses:
    """The addresses at which queues are read, including topics that name servers no longer know."""

    def __init__(self, instance: ClientInstance) -> None:
        self.instance = instance
        self._is_stale = False
        self._refreshed_topics: set[str] = set()
        self._all_addresses: Mapping[str, str] | None = None

    def resolve(self, queue: MessageQueue) -> str:
        """Return the address at which to read a queue.

        Raises:
            BrokerNotFound: No route leads to its broker, and no name server knows the broker.
            NoNameServer: No name server answers.
        """
        if self._is_stale:
            with suppress(ClientError):
                return self._resolve_by_name(queue.broker_name)
        routes = self.instance.routes
        with suppress(BrokerNotFound):
            return routes.address_for_read(queue.broker_name)
        if queue.topic not in routes.topics and queue.topic not in self._refreshed_topics:
            self._refreshed_topics.add(queue.topic)
            with suppress(RouteNotFound, BrokerNotFound):
                routes.refresh(queue.topic)
                return routes.address_for_read(queue.broker_name)
        return self._resolve_by_name(queue.broker_name)

    def all_addresses(self) -> Mapping[str, str]:
        """Return the address of each broker by name, including brokers to which no route leads."""
        if self._all_addresses is None:
            brokers = self.instance.name_servers.admin.cluster_info().broker_addr_table
            self._all_addresses = {
                name: min(broker.broker_addrs.items())[1]
                for name, broker in brokers.items()
                if broker.broker_addrs
            }
        return self._all_addresses

    def refresh(self) -> None:
        """Ask the name servers again, because a broker did not answer and may have moved."""
        self._is_stale = True
        self._refreshed_topics.clear()
        self._all_addresses = None

    def _resolve_by_name(self, broker_name: str) -> str:
        try:
            address = self.all_addresses().get(broker_name)
        except BrokerRefused as error:
            raise BrokerNotFound(broker_name, f"no route names it, and {error}") from error
        if address is None:
            raise BrokerNotFound(broker_name, "no name server knows a broker of that name")
        return address


_PAUSE_SECONDS: Final = 0.2
_ROUTE_REFRESH_SECONDS: Final = 5.0
"""Seconds between two route lookups for an unavailable broker that the query does not wait for."""

_CONNECT_MARGIN_MS: Final = 1_000

_UNKNOWN_QUEUE_REMARK: Final = "is illegal"
"""Part of the refusal of a queue id that the topic does not have, or no longer has."""

_Key = TypeVar("_Key")
_Faults = dict[str, ClientError]


def is_unknown_queue(error: BrokerRefused) -> bool:
    """Return whether a broker refuses a request because it has no such topic or queue."""
    return isinstance(error, TopicNotFound) or _UNKNOWN_QUEUE_REMARK in (error.remark or "")


class BrokerFanOut:
    """Sends one query to the brokers of many queues; for use by one thread."""

    def __init__(
        self, instance: ClientInstance, access: BrokerAccess, on_unavailable: Callable[[], None]
    ) -> None:
        """Create a fan-out that calls ``on_unavailable`` if a broker may have a new address."""
        self.addresses = BrokerAddresses(instance)
        self._connections = instance.connections
        self._access = access
        self._on_unavailable = on_unavailable
        self._failure_log = FailureLog()
        self._connecting: dict[str, Future[None]] = {}
        self._route_refresh_at = 0.0

    def retry_timer(self) -> RetryTimer:
        """Return the timer of requests to brokers that the query waits for."""
        return RetryTimer(
            "queries of brokers", self._access.retry_timeout_ms, pause_seconds=_PAUSE_SECONDS
        )

    def query_all(
        self,
        queues: Mapping[_Key, MessageQueue],
        request: Callable[[str, _Key], Future[Any]],
        *,
        unknown_value: Any,
        required: Container[_Key] | None = None,
    ) -> dict[_Key, Any]:
        """Return the responses by key; for keys that are not required, only immediate answers.

        ``request`` sends the request to the broker at an address; ``unknown_value`` is the response
        for a queue that its broker no longer has. All keys are ``required`` by default, and also if
        no broker answers.
        """
        timer = self.retry_timer()
        found: dict[_Key, Any] = {}
        missing = dict(queues)
        while missing:
            needs = {
                queue.broker_name
                for key, queue in missing.items()
                if required is None or key in required
            }
            faults = self._query_once(missing, request, unknown_value, found, needs)
            waits_for = needs & faults.keys() or (set() if found else set(faults))
            has_new_failure = self._log_availability(missing, faults, waits_for)
            missing = {key: queue for key, queue in missing.items() if key not in found}
            if (
                waits_for
                or has_new_failure
                or (faults and time.monotonic() >= self._route_refresh_at)
            ):
                self._route_refresh_at = time.monotonic() + _ROUTE_REFRESH_SECONDS
                self.addresses.refresh()
                self._on_unavailable()
            if not waits_for:
                break
            if not timer.sleep_or_expire():
                raise self._timeout_error(
                    {name: faults[name] for name in sorted(waits_for)}, has_others=bool(found)
                )
        return found

    def _query_once(
        self,
        queues: Mapping[_Key, MessageQueue],
        request: Callable[[str, _Key], Future[Any]],
        unknown_value: Any,
        results: dict[_Key, Any],
        required_brokers: Container[str],
    ) -> _Faults:
        """Add the answers to ``results``; return the brokers whose answers are missing, and why."""
        faults: _Faults = {}
        by_broker: dict[str, list[_Key]] = {}
        for key, queue in queues.items():
            by_broker.setdefault(queue.broker_name, []).append(key)
        pending: list[tuple[str, _Key, Future[Any]]] = []
        brokers = {name: queues[keys[0]] for name, keys in by_broker.items()}
        for name, address in self._connect_each(brokers, faults, required_brokers):
            try:
                pending += [(name, key, request(address, key)) for key in by_broker[name]]
            except TRANSIENT_ERRORS as error:  # noqa: PERF203  # the other brokers are still asked
                faults[name] = error
        for name, key, response in pending:
            try:
                results[key] = response.result()
            except TRANSIENT_ERRORS as error:  # noqa: PERF203  # the other brokers are still asked
                faults.setdefault(name, error)
            except BrokerRefused as error:
                if not is_unknown_queue(error):
                    raise
                results[key] = unknown_value
        return faults

    # ---- connecting

    def connect(self, queues: Iterable[MessageQueue]) -> tuple[dict[str, str], _Faults]:
        """Connect to the brokers of these queues, to all at the same time.

        A broker known to be away is tried as well, but without waiting for it.

        Returns:
            The addresses of the connected brokers by name, and why the others are not connected.
        """
        faults: _Faults = {}
        brokers = {queue.broker_name: queue for queue in queues}
        return dict(self._connect_each(brokers, faults, required_brokers=())), faults

    def connected_address(self, queue: MessageQueue) -> str:
        """Return the address for a queue if its broker is connected; else start to connect."""
        address = self.addresses.resolve(queue)
        if not self._connections.is_ready(address):
            self._start_connecting(address)
            raise ConnectionFailed(address, "the connection is being made")
        return address

    def _connect_each(
        self, brokers: Mapping[str, MessageQueue], faults: _Faults, required_brokers: Container[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield name and address of each broker, given a queue of it, once it is connected.

        Brokers that are already connected come first, so that their requests are sent before any
        wait for the others. The causes of failed connections are added to ``faults``.
        """
        addresses, pending = self._resolve_addresses(brokers, faults)
        for name in sorted(addresses, key=lambda each: (each in pending, each)):
            try:
                if name in pending:
                    self._await_connection(
                        name, addresses[name], pending[name], is_required=name in required_brokers
                    )
            except TRANSIENT_ERRORS as error:  # noqa: PERF203  # the loop connects the others
                faults[name] = error
            else:
                yield name, addresses[name]

    def _resolve_addresses(
        self, brokers: Mapping[str, MessageQueue], faults: _Faults
    ) -> tuple[dict[str, str], dict[str, Future[None]]]:
        """Return brokers' addresses and pending connections; ``brokers`` has a queue of each."""
        addresses: dict[str, str] = {}
        for name, queue in brokers.items():
            try:
                addresses[name] = self.addresses.resolve(queue)
            except TRANSIENT_ERRORS as error:  # noqa: PERF203  # the loop connects the others
                faults[name] = error
        unconnected = {
            name: address
            for name, address in addresses.items()
            if not self._connections.is_ready(address)
        }
        return addresses, {
            name: self._start_connecting(address) for name, address in unconnected.items()
        }

    def _start_connecting(self, address: str) -> Future[None]:
        """Start a connection in a thread of its own, unless one is being made."""
        future = self._connecting.get(address)
        if future is None or future.done():
            future = self._connecting[address] = Future()
            threading.Thread(
                target=_connect,
                args=(self._connections, address, future),
                name=f"dials {address}",
                daemon=True,
            ).start()
        return future

    def _await_connection(
        self, name: str, address: str, future: Future[None], *, is_required: bool
    ) -> None:
        """Wait until a broker is connected, unless it is known to be away and is not required."""
        before: ClientError | None = self._failure_log.cause_of(_requests_to(name))
        if before is not None and not is_required and not future.done():
            raise before
        timeout_ms = CONNECT_TIMEOUT_MS + self._access.request_timeout_ms + _CONNECT_MARGIN_MS
        try:
            future.result(timeout_ms / 1000)
        except FutureTimeout as error:
            raise ConnectionFailed(address, f"no connection within {timeout_ms} ms") from error
        finally:
            if future.done():
                self._connecting.pop(address, None)

    # ---- brokers that are away

    def _log_availability(
        self, queues: Mapping[Any, MessageQueue], faults: _Faults, awaited: Container[str]
    ) -> bool:
        """Log brokers that fail or have recovered; return whether one fails that did not before."""
        has_new_failure, now = False, time.monotonic()
        for name in dict.fromkeys(queue.broker_name for queue in queues.values()):
            what, fault = _requests_to(name), faults.get(name)
            if fault is None:
                self._failure_log.record_success(what, now)
                continue
            action = "retrying" if name in awaited else "continuing without it"
            has_new_failure |= self._failure_log.record_failure(what, fault, now, action)
        return has_new_failure

    def _timeout_error(self, faults: _Faults, *, has_others: bool) -> BrokersAway | BrokersGone:
        """Return the error for brokers that are down, or for those that no longer exist."""
        try:
            known = self.addresses.all_addresses()
        except (*CONNECTION_FAULTS, BrokerRefused):
            known = {}
        unknown = [name for name in faults if name not in known]
        if unknown and known and has_others:
            return BrokersGone(unknown, sorted(known))
        name, fault = next(iter(faults.items()))
        return BrokersAway(name, self._access.retry_timeout_ms, fault)


def _requests_to(broker_name: str) -> str:
    return f"requests to broker {broker_name}"


def _connect(connections: RemotingClient, address: str, future: Future[None]) -> None:
    try:
        connections.agreement(address)
    except Exception as error:  # noqa: BLE001  # the waiting thread raises it
        future.set_exception(error)
    else:
        future.set_result(None)
