"""Client: the connections and threads that producers and consumers of one event loop share.

    Client ──▶ ClientInstance    connections, routes, heartbeats: made in a thread, when needed
           ──▶ WorkerThreads     the consumers' background work, in a few threads for all
           ──▶ LoopBridge        the event loop that the client belongs to

A client starts with its first user and stops with its last. Once a second it checks whether its
loop was closed while it still had users. If so, its members leave their groups, because nothing can
poll them any more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Final

from rmq_spark.client.aio.loop_bridge import CallQueue, LoopBridge
from rmq_spark.client.api.name_servers import check_ports, parse_addresses
from rmq_spark.client.arguments import check_kind, explain_keywords
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.scheduler import RepeatedTask, WorkerThreads
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.client.instance.instance import (
    HEARTBEAT_INTERVAL_MS,
    ROUTE_INTERVAL_MS,
    ClientInstance,
)
from rmq_spark.client.namespace import Namespace
from rmq_spark.client.transport.connection import CONNECT_TIMEOUT_MS
from rmq_spark.client.transport.remoting_client import REQUEST_TIMEOUT_MS, Credentials
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.extensions import Extension

if TYPE_CHECKING:
    from rmq_spark.client.transport.tls.settings import TlsSettings

_log = logging.getLogger(__name__)

_SERVICE_THREADS_MAX: Final = 8
_BLOCK_USER: Final = "the block in which the client is open"

LOOP_CHECK_MS: Final = 1_000
"""Milliseconds between two checks whether the event loop was closed."""

THREAD_STOP_MS: Final = 2_000
"""Milliseconds to wait for the worker threads at the end of a synchronous block."""


class Client(ForkAware):
    """Connections, routes, heartbeats and threads that asyncio producers and consumers share.

    A producer or consumer that is given an address makes a client of its own; pass a client to have
    several share its connections and threads, or to set what only the client knows: credentials,
    TLS, timeouts. It starts with its first user and ends with its last; an ``async with`` statement
    counts as a user. It belongs to the event loop in which it is first used.

    Example:
        async with Client("localhost:9876", credentials=Credentials("key", "secret")) as client:
            producer = Producer("shop", client=client)
            consumer = Consumer("billing", client=client)

    Args:
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        credentials: Keys that requests are signed with, for brokers with access lists.
        tls: TLS settings, for name servers and brokers alike, on their usual ports.
        client_id: Name of this client; it must differ from those of all other clients.
        extensions: Extensions of rocketpoll's brokers that are used where a broker offers them.
        broker_addresses: Addresses at which brokers are reached, by broker name or by the address
            that name servers give: for brokers in containers or behind a NAT.
        request_timeout_ms: Milliseconds to wait for the response to a request.
        connect_timeout_ms: Milliseconds to wait for a connection.
        route_interval_ms: Milliseconds between refreshes of the routes.
        heartbeat_interval_ms: Milliseconds between heartbeats.
        max_body_bytes: Most bytes that a compressed body may inflate to when it is read, up to
            1 GiB; 16 MiB by default.
        namespace: Namespace of the topics and groups of all its users: a topic ``orders`` is
            ``eu%orders`` for brokers, as in RocketMQ's clients.

    Invalid arguments raise an error from the first call that is awaited: `MessageRejected` for a
    number out of range or an invalid id, `TlsRejected` for TLS settings that cannot work,
    `TypeError` for an argument of the wrong type. Only malformed addresses are refused at once,
    with a `ValueError`.
    """

    @explain_keywords
    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: TlsSettings | None = None,
        client_id: str | None = None,
        extensions: frozenset[Extension] = frozenset(Extension),
        broker_addresses: Mapping[str, str] | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        route_interval_ms: int = ROUTE_INTERVAL_MS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        max_body_bytes: int = PLAIN_BYTES_MAX,
        namespace: str | None = None,
    ) -> None:
        if namesrv is not None:
            namesrv = parse_addresses(namesrv)
            check_ports(namesrv)
        self._create: Callable[[], ClientInstance] = partial(
            ClientInstance,
            namesrv,
            credentials=credentials,
            tls=tls,
            client_id=client_id,
            extensions=extensions,
            broker_addresses=broker_addresses,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            route_interval_ms=route_interval_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_body_bytes=max_body_bytes,
            namespace=namespace,
        )
        self._mutex = threading.RLock()
        # not `_mutex`: creating an instance may look up a host's name, and the loop must not wait
        self._creation_lock = threading.Lock()
        self._call_queue = CallQueue(is_stop=True)
        self._instance: ClientInstance | None = None
        self._bridge: LoopBridge | None = None
        self._users: dict[object, Callable[[], object]] = {}
        self._loop_check: RepeatedTask | None = None
        self._is_parents = False
        self.threads = WorkerThreads("rocketpoll asyncio", service_threads_max=_SERVICE_THREADS_MAX)
        """The threads that do the consumers' work in the background."""

        ForkAware.__init__(self)

    # ---- event loop

    def bridge(self, what: object) -> LoopBridge:
        """Return the bridge to the running loop, which must be the loop of the first use.

        Raises:
            ClientShutDown: ``what`` is used in another event loop, outside of any, or in a forked
                child process.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ClientShutDown(
                f"{what} needs a running event loop of asyncio (trio's does not count). Use it in "
                "a coroutine of its loop"
            ) from None
        if self._is_parents:
            raise ClientShutDown(
                f"{what} was made before this process was forked. Make a new one here"
            )
        bridge = self._bridge
        if bridge is None:
            with self._mutex:
                bridge = self._bridge = self._bridge or LoopBridge(loop)
        if bridge.loop is not loop:
            raise ClientShutDown(f"{what} belongs to another event loop. Make one in this loop")
        return bridge

    def instance(self) -> ClientInstance:
        """Return the threaded client; the first call makes it, and may look up a host's name."""
        with self._creation_lock:
            if self._instance is None:
                self._instance = self._create()
            return self._instance

    # ---- users

    def register(self, user: object, stop: Callable[[], object]) -> None:
        """Add a user; ``stop`` is called if the loop is closed before the user is."""
        with self._mutex:
            self._users[user] = stop
            if self._loop_check is None:
                services = self.threads.service_scheduler
                self._loop_check = RepeatedTask(services, self._check_loop, LOOP_CHECK_MS)
                self._loop_check.start(LOOP_CHECK_MS)

    def unregister(self, user: object) -> None:
        """Remove a user that has stopped; the last one stops the threads."""
        with self._mutex:
            if self._users.pop(user, None) is None or self._users:
                return
            if self._loop_check is not None:
                self._loop_check.stop()
        self.threads.stop()

    def _check_loop(self) -> None:
        if self._bridge is None or not self._bridge.is_closed:
            return
        with self._mutex:
            users = dict(self._users)
            users.pop(_BLOCK_USER, None)  # the end of the block stops it
        if not users:
            return
        names = ", ".join(str(each) for each in users)
        _log.warning("the event loop was closed before %s: stopping, and leaving the groups", names)
        self._stop_users(users)

    def _stop_users(self, users: Mapping[object, Callable[[], object]]) -> None:
        for user, leave in users.items():
            leave()
            self.unregister(user)

    @contextmanager
    def kept(self) -> Iterator[Client]:
        """Keep this client in use for a block of synchronous code, such as a test fixture.

        Producers and consumers that still run at the end of the block are stopped by it. Entering
        and leaving the block may wait for brokers; coroutines use ``async with`` instead.
        """
        self.instance().start()
        self.register(_BLOCK_USER, self.instance().stop)
        try:
            yield self
        finally:
            with self._mutex:
                users = dict(self._users)
            self._stop_users(users)
            self.threads.stop(THREAD_STOP_MS)

    async def __aenter__(self) -> Client:
        bridge = self.bridge(self)
        try:
            await self._call_queue.call(bridge, self._start)
        except asyncio.CancelledError:
            self._call_queue.call(bridge, self._stop)  # runs after a start that has begun
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._call_queue.call(self.bridge(self), self._stop))

    def _start(self) -> None:
        self.instance().start()
        self.register(self, self._stop)

    def _stop(self) -> None:
        with self._mutex:
            is_user = self in self._users
        if is_user:
            self.instance().stop()
            self.unregister(self)

    def __str__(self) -> str:
        return "the client"

    def _after_fork(self) -> None:
        self._mutex = threading.RLock()
        self._creation_lock = threading.Lock()
        self._is_parents = True


def shared_or_own(
    client: Client | None,
    namesrv: str | Iterable[str] | None,
    namespace: str | None,
    *,
    request_timeout_ms: int = REQUEST_TIMEOUT_MS,
) -> Client:
    """Return the given client, or a new one if none is given."""
    check_kind("client", client, (Client, NoneType), "a Client", "aio.Client('localhost:9876')")
    Namespace.check_unshared(namespace, client, "client")
    return client or Client(namesrv, request_timeout_ms=request_timeout_ms, namespace=namespace)
