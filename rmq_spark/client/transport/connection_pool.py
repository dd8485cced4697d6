"""ConnectionPool: one connection to each address, opened on demand and again after it closed.

    requested ──▶ an open connection
              └──▶ a thread connects, and negotiates with a broker; callers wait up to their timeout

If connecting takes long and fails, the broker is marked as silent, for callers that can ask
another. The pool tries again in the background while callers ask for it.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Final, NamedTuple

from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.threads import start_thread
from rmq_spark.client.errors import ClientError, ClientShutDown, ConnectionFailed
from rmq_spark.client.transport.connection import RemotingConnection
from rmq_spark.client.transport.pending_requests import ForkSafeFuture
from rmq_spark.wire.codes import SerializeType
from rmq_spark.wire.extensions import Extension

SLOW_SECONDS: Final = 0.5
"""Seconds that a failed attempt takes before its broker counts as silent; less costs no time."""

RECONNECT_SECONDS: Final = 1.0
"""Seconds between two attempts to connect to a silent broker while requests need it."""

_CLOSE_WAIT_SECONDS: Final = 1.0
_SHUT_DOWN: Final = "the client was shut down"
_DUPLICATE: Final = "another connection was made meanwhile"


class Agreement(NamedTuple):
    """The features that a broker and this client may use towards each other.

    Attributes:
        serialize_type: Encoding of the headers of requests.
        extensions: Extensions of rocketpoll's brokers that both know.
        born_host: Host that records must have as their producer's, if the client encodes them.
        store_host: Host that such records must have as their broker's.
    """

    serialize_type: SerializeType = SerializeType.ROCKETMQ
    extensions: frozenset[Extension] = frozenset()
    born_host: str | None = None
    store_host: str | None = None


class NegotiatedConnection(NamedTuple):
    """A connection, and the agreement on it; None before it is negotiated."""

    connection: RemotingConnection
    agreement: Agreement | None = None


class ConnectionPool(ForkAware, ABC):
    """The connections of one client, at most one to each address. All methods are thread-safe."""

    def __init__(
        self,
        on_ready: Callable[[str], None] | None,
        on_closed: Callable[[str], None] | None,
        *,
        wait_seconds_max: float,
    ) -> None:
        """Make a pool whose callers wait for a connection for at most ``wait_seconds_max``.

        ``on_ready`` is called with the address of each broker once its connection is negotiated,
        ``on_closed`` with that of each connection that has ended.
        """
        self._on_ready = on_ready
        self._on_closed = on_closed
        self._wait_seconds_max = wait_seconds_max
        self._lock = threading.Lock()
        self._connections: dict[str, NegotiatedConnection] = {}
        self._pending_connections: dict[tuple[str, bool], Future[NegotiatedConnection]] = {}
        self._silent: dict[str, float] = {}  # time of the next attempt
        self._connecting_threads: list[threading.Thread] = []
        self._is_shut_down = False
        ForkAware.__init__(self)

    @abstractmethod
    def _connect(self, address: str) -> RemotingConnection:
        """Connect to an address; `_discard` is called when the connection ends."""

    @abstractmethod
    def _negotiate(self, connection: RemotingConnection) -> Agreement:
        """Return the agreement with a broker."""

    # ---- state

    def get(self, address: str) -> NegotiatedConnection | None:
        """Return the connection to an address, or None."""
        return self._connections.get(address)

    def is_ready(self, address: str) -> bool:
        """Return whether a broker has a negotiated connection and can be asked at once."""
        return self._get_usable(address, is_broker=True) is not None

    def ready_addresses(self) -> tuple[str, ...]:
        """Return the addresses of brokers that can be asked at once."""
        with self._lock:
            addresses = list(self._connections)
        return tuple(address for address in addresses if self.is_ready(address))

    def is_silent(self, address: str) -> bool:
        """Return whether a broker is silent, so that it is better to ask another.

        Calls of this method reconnect to the address in the background.
        """
        reconnect_at = self._silent.get(address)
        if reconnect_at is None:
            return False
        if time.monotonic() >= reconnect_at:
            with suppress(ClientError):
                self._start_connection(address, is_broker=True)
        return True

    @property
    def silent_addresses(self) -> tuple[str, ...]:
        """The addresses of silent brokers."""
        return tuple(self._silent)

    def connections(self) -> tuple[RemotingConnection, ...]:
        """Return all connections."""
        with self._lock:
            return tuple(entry.connection for entry in self._connections.values())

    @property
    def connecting_count(self) -> int:
        """Number of threads that connect."""
        return len(self._pending_connections)

    # ---- connecting

    def get_or_connect(
        self, address: str, *, is_broker: bool = True, seconds: float | None = None
    ) -> NegotiatedConnection:
        """Return the connection to an address, or make one; a broker's is negotiated.

        Raises:
            ConnectionFailed: No broker answers, or it takes longer; the attempt then continues for
                other callers.
            ClientError: The negotiation has failed.
        """
        entry = self._connections.get(address)
        if entry is not None:
            entry.connection.detect_close()
            entry = self._get_usable(address, is_broker=is_broker)
        if entry is not None:
            return entry
        seconds = (
            self._wait_seconds_max if seconds is None else min(seconds, self._wait_seconds_max)
        )
        try:
            return self._start_connection(address, is_broker=is_broker).result(seconds)
        except FutureTimeout as error:
            why = f"no answer within {int(seconds * 1000)} ms, the time that was left"
            raise ConnectionFailed(address, why) from error

    def _get_usable(self, address: str, *, is_broker: bool) -> NegotiatedConnection | None:
        entry = self._connections.get(address)
        if entry is None or entry.connection.is_closed or (is_broker and entry.agreement is None):
            return None
        return entry

    def _start_connection(self, address: str, *, is_broker: bool) -> Future[NegotiatedConnection]:
        """Return the future of a connection; callers meanwhile get the same result or failure.

        A thread connects, so that callers can stop waiting at a timeout or when the program ends.
        """
        key, future = (address, is_broker), ForkSafeFuture[NegotiatedConnection]()
        try:
            with self._lock:
                if self._is_shut_down:
                    raise ClientShutDown  # noqa: TRY301  # no other caller waits for this future
                if (pending := self._pending_connections.get(key)) is not None:
                    return pending
                entry = self._get_usable(address, is_broker=is_broker)
                if entry is not None:  # opened by another thread meanwhile
                    future.set_result(entry)
                    return future
                self._pending_connections[key] = future
                connect = self._open_broker_connection if is_broker else self._open_connection
                name, args = f"rocketpoll dials {address}", (address, future)
                thread = threading.Thread(target=connect, args=args, name=name, daemon=True)
                self._connecting_threads = [
                    *(each for each in self._connecting_threads if each.is_alive()),
                    thread,
                ]
            start_thread(thread)
        except RuntimeError as error:  # at a limit of threads
            failed = ConnectionFailed(address, f"cannot start a thread that connects: {error}")
            self._finish_connection(key, future, failed)
        except BaseException:  # Ctrl-C, for example: others may wait for this by now
            self._finish_connection(key, future, ConnectionFailed(address, "interrupted"))
            raise
        return future

    def _open_connection(self, address: str, future: Future[NegotiatedConnection]) -> None:
        try:
            if self._is_shut_down:
                raise ClientShutDown  # noqa: TRY301  # handled below
            entry: NegotiatedConnection | Exception = NegotiatedConnection(self._connect(address))
        except Exception as error:  # noqa: BLE001  # any error must reach the future
            entry = error
        if isinstance(entry, NegotiatedConnection):
            # There may be two such threads: an interrupted caller may have left this one running.
            with self._lock:
                is_late = self._is_shut_down
                other = self._get_usable(address, is_broker=False)
                if other is None:
                    self._connections[address] = entry
            if is_late:
                entry.connection.close(_SHUT_DOWN)
                entry.connection.join(time.monotonic() + _CLOSE_WAIT_SECONDS)
            elif other is not None:
                entry.connection.close(_DUPLICATE)
                entry = other
        self._finish_connection((address, False), future, entry)

    def _open_broker_connection(self, address: str, future: Future[NegotiatedConnection]) -> None:
        started_at = time.monotonic()
        try:
            connection = self.get_or_connect(address, is_broker=False).connection
            entry: NegotiatedConnection | Exception = NegotiatedConnection(
                connection, self._negotiate(connection)
            )
        except Exception as error:  # noqa: BLE001  # any error must reach the future
            entry = error
        ended = time.monotonic()
        if isinstance(entry, NegotiatedConnection):
            self._silent.pop(address, None)
            with self._lock:
                if self._connections.get(address) == NegotiatedConnection(connection):
                    self._connections[address] = entry
        elif ended - started_at >= SLOW_SECONDS:
            self._silent[address] = ended + RECONNECT_SECONDS
        self._finish_connection((address, True), future, entry)
        if self._on_ready is not None and isinstance(entry, NegotiatedConnection):
            self._on_ready(address)

    def _finish_connection(
        self,
        key: tuple[str, bool],
        future: Future[NegotiatedConnection],
        result: NegotiatedConnection | Exception,
    ) -> None:
        with self._lock:
            if self._pending_connections.get(key) is future:
                del self._pending_connections[key]
        _resolve(future, result)

    # ---- closing

    def _discard(self, connection: RemotingConnection) -> None:
        address = connection.address
        with self._lock:
            entry = self._connections.get(address)
            if entry is not None and entry.connection is connection:
                del self._connections[address]
                if connection.is_silent and entry.agreement is not None:
                    self._silent[address] = time.monotonic()
        if self._on_closed is not None:
            self._on_closed(address)

    def shutdown(self, wait_ms: int = 0) -> None:
        """Close all connections, fail the callers that wait for one, and make no others.

        Wait for their threads, up to ``wait_ms``.
        """
        with self._lock:
            self._is_shut_down = True
            entries = list(self._connections.values())
            pending = list(self._pending_connections.values())
        for each in pending:
            _resolve(each, ClientShutDown())
        for entry in entries:
            entry.connection.close(_SHUT_DOWN)
        deadline = time.monotonic() + wait_ms / 1000
        for thread in self._connecting_threads:
            if thread.is_alive():  # a thread that has not begun yet ends at once
                thread.join(max(deadline - time.monotonic(), 0))
        for entry in entries if wait_ms else ():
            entry.connection.join(deadline)

    def _after_fork(self) -> None:
        entries, self._connections = self._connections, {}
        self._lock = threading.Lock()
        self._pending_connections = {}
        self._silent = {}
        self._connecting_threads = []
        for entry in entries.values():
            entry.connection.after_fork()


def _resolve(
    future: Future[NegotiatedConnection], result: NegotiatedConnection | Exception
) -> None:
    """Resolve a future with the result of connecting, unless it is resolved already."""
    with suppress(InvalidStateError):
        if isinstance(result, NegotiatedConnection):
            future.set_result(result)
        else:
            future.set_exception(result)
