"""Client: the connections and threads that producers and consumers of an event loop share.

    Client ──▶ ClientInstance    connections, routes, heartbeats: made in a thread, when needed
           ──▶ SharedCrew        the consumers' background work, in a few threads for all
           ──▶ LoopBridge        the one loop that it is used in

It lives from its first user to its last. Once a second it looks whether its loop was closed without
a word; its members leave their groups then, as nobody could ever poll them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

from rmq_spark.client.aio.calls import Turns
from rmq_spark.client.aio.loop_bridge import LoopBridge
from rmq_spark.client.api.name_servers import parse_addresses
from rmq_spark.client.concurrency.fork_aware import ProcessBound
from rmq_spark.client.concurrency.locks import mutex, reentrant_mutex
from rmq_spark.client.concurrency.scheduler import Repeated
from rmq_spark.client.concurrency.worker_threads import SharedCrew
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.client.instance.instance import (
    HEARTBEAT_INTERVAL_MS,
    ROUTE_INTERVAL_MS,
    ClientInstance,
)
from rmq_spark.client.transport.connection import CONNECT_TIMEOUT_MS
from rmq_spark.client.transport.remoting_client import REQUEST_TIMEOUT_MS, Credentials
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.extensions import Extension

if TYPE_CHECKING:
    from rmq_spark.client.transport.tls.settings import TlsSettings

_log = logging.getLogger(__name__)

_KEEPER: Final = "the block in which the client is kept"

LOOK_AT_LOOP_MS: Final = 1_000
"""Milliseconds between two looks whether the event loop was closed."""

END_OF_THREADS_MS: Final = 2_000
"""Milliseconds that the end of a block of a thread waits for the threads of the crew."""


class Client(ProcessBound):
    """Connections, routes, heartbeats and threads that asyncio producers and consumers share.

    A producer or consumer that is given an address makes a client of its own; pass a client to have
    several share its connections and threads, or to set what only the client knows: credentials,
    TLS, timeouts. It starts with its first user and ends with its last; in an ``async with``
    statement it is in use itself. It belongs to the event loop in which it is first used.

    Example:
        async with Client("localhost:9876", credentials=Credentials("key", "secret")) as client:
            producer = Producer("shop", client)
            consumer = Consumer("billing", client)

    Args:
        name_servers: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
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

    What cannot work is an error of the first call that is awaited: `MessageRejected` for a
    number out of range or an id that cannot be one, `TlsRejected` for TLS settings that cannot
    work, `TypeError` for an argument of the wrong type. Only what cannot be addresses is refused
    at once, with a `ValueError`.
    """

    def __init__(
        self,
        name_servers: str | Iterable[str] | None = None,
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
    ) -> None:
        if name_servers is not None:
            name_servers = parse_addresses(name_servers)
        self._make: Callable[[], ClientInstance] = partial(
            ClientInstance,
            name_servers,
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
        )
        self._mutex = reentrant_mutex()
        self._making = mutex()  # apart: making may wait for a host's name, the loop not
        self._turns = Turns(are_ends=True)
        self._instance: ClientInstance | None = None
        self._bridge: LoopBridge | None = None
        self._users: dict[object, Callable[[], object]] = {}
        self._watching: Repeated | None = None
        self._is_of_the_parent = False
        self.crew = SharedCrew("rocketpoll asyncio")
        """The threads that do the consumers' work in the background."""

        ProcessBound.__init__(self)

    # ---- where it is used

    def bridge(self, what: object) -> LoopBridge:
        """Return the way into the running loop, which must be the one of the first use.

        Raises:
            ClientShutDown: ``what`` is used in another event loop, outside of any, or in a forked
                child process.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ClientShutDown(
                f"{what} is used where no event loop of asyncio runs (trio's is none): use it in a "
                "coroutine of its loop"
            ) from None
        if self._is_of_the_parent:
            raise ClientShutDown(f"{what} was made before this process was forked: make one here")
        bridge = self._bridge or self._bound_to(loop)
        if bridge.loop is not loop:
            raise ClientShutDown(f"{what} belongs to another event loop: make one in this loop")
        return bridge

    def _bound_to(self, loop: asyncio.AbstractEventLoop) -> LoopBridge:
        with self._mutex:
            if self._bridge is None:
                self._bridge = LoopBridge(loop)
            return self._bridge

    def instance(self) -> ClientInstance:
        """Return the threaded client; made with the first call, which may look up a host's name."""
        with self._making:
            if self._instance is None:
                self._instance = self._make()
            return self._instance

    # ---- users

    def enter(self, user: object, leave: Callable[[], object]) -> None:
        """Add a user; ``leave`` ends it, should the loop be closed without a word to it."""
        with self._mutex:
            self._users[user] = leave
            if self._watching is None:
                services = self.crew.services("loop")
                self._watching = Repeated(services, self._look_at_loop, LOOK_AT_LOOP_MS)
                self._watching.start(LOOK_AT_LOOP_MS)

    def left(self, user: object) -> None:
        """Remove a user that has ended; the last one ends the threads."""
        with self._mutex:
            if self._users.pop(user, None) is None or self._users:
                return
            if self._watching is not None:
                self._watching.stop()
        self.crew.stop()

    def _look_at_loop(self) -> None:
        if self._bridge is None or not self._bridge.is_closed:
            return
        with self._mutex:
            users = dict(self._users)
            users.pop(_KEEPER, None)  # which sees to its own end
        if not users:
            return
        names = ", ".join(str(each) for each in users)
        _log.warning("the event loop was closed before %s: what it had is given up", names)
        for user, leave in users.items():
            leave()
            self.left(user)

    @contextmanager
    def kept(self) -> Iterator[Client]:
        """Keep this client in use for a block of a thread, as a fixture's, whose end has no loop.

        Producers and consumers that are still there at the end of the block are ended by it.
        Beginning and end may wait for brokers: this is not for coroutines, which have
        ``async with``.
        """
        self.instance().start()
        self.enter(_KEEPER, self.instance().stop)
        try:
            yield self
        finally:
            with self._mutex:
                users = dict(self._users)
            for user, leave in users.items():
                leave()
                self.left(user)
            self.crew.stop(END_OF_THREADS_MS)

    async def __aenter__(self) -> Client:
        bridge = self.bridge(self)
        try:
            await self._turns.call(bridge, self._start)
        except asyncio.CancelledError:
            self._turns.call(bridge, self._stop)  # behind the start, should that have begun
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.shield(self._turns.call(self.bridge(self), self._stop))

    def _start(self) -> None:
        self.instance().start()
        self.enter(self, self._stop)

    def _stop(self) -> None:
        with self._mutex:
            is_user = self in self._users
        if is_user:
            self.instance().stop()
            self.left(self)

    def __str__(self) -> str:
        return "the client"

    def _forked(self) -> None:
        """Leave this client to the parent process."""
        self._mutex = reentrant_mutex()
        self._making = mutex()
        self._is_of_the_parent = True
