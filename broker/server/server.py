"""RemotingServer: listens, and enforces the limits that all connections share.

It limits the memory of queued and partial requests (`PartialRequests`) and of unread responses
(`SendBufferLimits`), and disconnects clients that for too long send nothing, leave a request
incomplete, or do not read. `accept_limits` decides which new clients may stay.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from rmq_spark.errors import RocketPollError

from ..common.log_limit import LogLimit
from ..settings.config import ServerLimits
from .accept_limits import AcceptLimits
from .client_connection import ClientConnection, Dispatch, FastPath
from .descriptors import RESOURCE_SHORTAGE_ERRNOS, descriptor_shortage
from .event_loop import call_after_read
from .fair_scheduler import FairScheduler
from .limits import ConcurrencyLimit, PartialRequests, SendBufferLimits
from .listener import Listener
from .tls.server_tls import ServerTls

_log = logging.getLogger(__name__)
_SWEEP_SECONDS = 1.0
_SWEEPS_PER_IDLE_CHECK = 10
_SMALL_PARTIAL_BYTES = 4_096
"""A partial request this small neither suspends its client, nor disconnects it while it still reads
responses.
"""
_PARTIAL_REQUESTS_FACTOR = 2
"""The limit of partial requests, as a multiple of `in_flight_bytes_max`.

Past `in_flight_bytes_max` itself, all clients but one are suspended after a first read of each, so
that honest clients seldom reach twice that size.
"""
_ALLOWANCE_DIVISOR = 16
"""The allowance of an address for partial requests, as a part of `in_flight_bytes_max`."""
_FINISH_SECONDS = 2.0
_NOT_READING = "its requests wait because it does not read its responses"


class CannotListen(RocketPollError, page="troubleshooting.md#the-broker-and-its-store"):
    """The port is in use or not permitted, or the address is not this machine's.

    Attributes:
        why: The reason, without the address.
    """

    def __init__(
        self,
        address: str,
        error: OSError,
        *,
        port_setting: str = "listenPort",
        address_setting: str = "bindAddress",
    ) -> None:
        # asyncio puts the address into the text, the system does not
        is_known = error.errno in errno.errorcode
        self.why = os.strerror(error.errno or 0) if is_known else str(error)
        advice = f"Choose another {port_setting} or {address_setting}"
        if error.errno in RESOURCE_SHORTAGE_ERRNOS:
            advice = "Raise the limit of open files (ulimit -n)"
        elif error.errno == errno.EADDRINUSE:
            advice = f"Choose another {port_setting}, or stop the program that uses this one"
        elif error.errno == errno.EADDRNOTAVAIL:
            advice = f"Set {address_setting} to an address of this machine"
        elif error.errno in (errno.EACCES, errno.EPERM):
            advice = (
                f"Choose a {port_setting} from 1024 on, or give the broker CAP_NET_BIND_SERVICE"
            )
        super().__init__(f"cannot listen on {address}: {self.why}. {advice}")


class RemotingServer:
    """A server on one or two ports, with any number of clients."""

    def __init__(
        self,
        limits: ServerLimits,
        dispatch: Dispatch,
        on_closed: Callable[[ClientConnection], None],
        scheduler: FairScheduler,
        end_turn: Callable[[], None],
        fast_paths: Sequence[FastPath] = (),
        tls: ServerTls | None = None,
    ) -> None:
        """Store the parts; ``on_closed`` is called with each disconnected client.

        Each `ClientConnection` calls ``end_turn`` at the end of a turn, and tries the
        ``fast_paths`` before the normal path. Without ``tls``, no client can use TLS.
        """
        self.limits = limits
        self.tls = tls
        self._dispatch = dispatch
        self._on_closed = on_closed
        self._scheduler = scheduler
        self._end_turn = end_turn
        self._fast_paths = fast_paths
        self.concurrency_limit = ConcurrencyLimit()
        self._connections: dict[ClientConnection, None] = {}
        self._accept_limits = AcceptLimits[ClientConnection](limits)
        self._evicted: Counter[str] = Counter()
        self.closed_by_broker = 0
        """Connections that the broker closed because of what their clients did or did not do."""
        self._unidentified_since: dict[ClientConnection, float] = {}
        self._silence_log = LogLimit()
        self._partial_since: dict[ClientConnection, float] = {}
        self._request_bytes: dict[ClientConnection, int] = {}
        self.in_flight_bytes = 0
        """The bytes of requests that are incomplete or have to wait."""
        self._waiting: dict[ClientConnection, int] = {}
        self.waiting_bytes = 0
        """The bytes of requests that wait for their turn, and of the input that follows them."""
        self._partial_requests = PartialRequests[ClientConnection]()
        self.send_buffers = SendBufferLimits[ClientConnection](limits.unread_bytes_max)
        self.is_short_of_memory = False
        self._throttled: dict[ClientConnection, None] = {}
        self._exempt_connection: ClientConnection | None = None
        self._is_accept_degraded = False
        self._sweeps = 0
        self._is_stopping = False
        self._listeners: list[Listener] = []
        self._suspended_addresses: list[tuple[str, int]] = []
        """The addresses and ports to listen on again after `suspend_listening`."""
        self._reserved_sockets: list[socket.socket] = []
        """Bound to these ports without listening, so that no other program gets the ports."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None

    # ---- called by the broker

    @property
    def connections(self) -> int:
        """The number of clients."""
        return len(self._connections)

    @property
    def refused(self) -> Counter[str]:
        """The number of refused clients, by the setting that limits them."""
        return self._accept_limits.refused + self._evicted

    @property
    def is_overloaded(self) -> bool:
        """True if queued requests use more memory than they may; partial ones do not count."""
        return self.waiting_bytes >= self.limits.in_flight_bytes_max

    @property
    def unread_bytes(self) -> int:
        """The bytes of responses that clients have not read."""
        return self.send_buffers.bytes

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets, which a forked child has to close."""
        return [
            number
            for number in (
                *(number for listener in self._listeners for number in listener.descriptors()),
                *(connection.descriptor() for connection in self._connections),
            )
            if number >= 0
        ]

    async def start(self, address: str, port: int) -> int:
        """Listen on the first port and return it; 0 picks any free port."""
        self._loop = asyncio.get_running_loop()
        self._accept_limits.skip_time(self._loop.time())
        found = await self.listen(address, port)
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep_after_read)
        return found

    async def listen(self, address: str, port: int) -> int:
        """Listen on one more port for ordinary clients; return it."""
        listener = Listener(self._loop, self._new_connection)
        # registered before it opens, because the broker may stop meanwhile
        self._listeners.append(listener)
        try:
            found = await listener.open(address, port)
        except BaseException as error:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not isinstance(error, OSError):
                raise
            raise CannotListen(f"{address}:{port}", error) from error
        return found

    def skip_time(self, seconds: float) -> None:
        """Ignore a jump of the loop's clock, so that no client counts as silent during it."""
        self._accept_limits.skip_time(seconds)
        for times in (self._unidentified_since, self._partial_since):
            for connection in times:
                times[connection] += seconds
        for connection in self._connections:
            connection.last_active += seconds
        self.send_buffers.skip_time(seconds)

    def stop_listening(self) -> None:
        """Accept no more clients."""
        for listener in self._listeners:
            listener.close()
        self._release_ports()

    def suspend_listening(self) -> None:
        """Close all connections and refuse new ones until `resume_listening`; keep the ports."""
        addresses = [listener.bound_address for listener in self._listeners]
        self.stop_listening()
        self._listeners.clear()
        for host, port in addresses:
            self._reserved_sockets.append(_reserve_port(host, port))
            self._suspended_addresses.append((host, port))
        for connection in list(self._connections):
            connection.abort()

    @property
    def is_listening_suspended(self) -> bool:
        """True between `suspend_listening` and `resume_listening`."""
        return bool(self._suspended_addresses)

    async def resume_listening(self) -> None:
        """Listen again on the ports that `suspend_listening` has closed."""
        addresses, self._suspended_addresses = self._suspended_addresses, []
        for host, port in addresses:
            await self.listen(host, port)
        self._release_ports()

    async def stop(self) -> None:
        """Close all connections, after a short time in which clients may read their responses."""
        self._is_stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.finish()
        if self._connections:
            self._all_closed = asyncio.Event()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), _FINISH_SECONDS)
        for connection in list(self._connections):
            connection.abort()

    # ---- called by connections

    def register(self, connection: ClientConnection) -> bool:
        """Register a new connection, and return whether it may stay."""
        now = self._loop.time()
        self._connections[connection] = None
        if not self._accept_limits.register(connection, now, self.limits):
            return False
        self._unidentified_since[connection] = now
        # a client may have been accepted just before a stop or a suspension
        return not (self._is_stopping or self._suspended_addresses)

    def protocol_accepted(self, connection: ClientConnection) -> None:
        """Record that a client speaks the protocol."""
        self._unidentified_since.pop(connection, None)

    def record_requests(
        self, connection: ClientConnection, size: int, *, is_waiting: bool = False
    ) -> None:
        """Account for a client's unfinished requests; suspend it if their total is too large."""
        self.in_flight_bytes += size - self._request_bytes.pop(connection, 0)
        self.is_short_of_memory = self.in_flight_bytes >= self.limits.in_flight_bytes_max
        waiting = size if is_waiting else 0
        self.waiting_bytes += waiting - self._waiting.pop(connection, 0)
        if waiting:
            self._waiting[connection] = waiting
        if not size:
            self._partial_requests.record(connection, 0)
            self._partial_since.pop(connection, None)
            if self._exempt_connection is connection:
                self._exempt_connection = None
            self._unthrottle()
            return
        self._request_bytes[connection] = size
        self._partial_since.setdefault(connection, self._loop.time())
        is_large = size > _SMALL_PARTIAL_BYTES
        is_growing = is_large and self.is_short_of_memory and not connection.is_throttled
        if is_growing and self._exempt_connection is None:
            # one client may always finish, or all would wait for each other
            self._exempt_connection = connection
        is_exempt = connection is self._exempt_connection
        self._partial_requests.record(connection, 0 if is_waiting or is_exempt else size)
        bytes_max = self.limits.in_flight_bytes_max
        allowance_bytes = bytes_max // _ALLOWANCE_DIVISOR
        if (
            is_growing
            and not is_exempt
            and self._partial_requests.is_over_fair_share(connection, allowance_bytes)
        ):
            self._throttled[connection] = None
            connection.throttle()
        for client in self._partial_requests.evict(
            _PARTIAL_REQUESTS_FACTOR * bytes_max, allowance_bytes
        ):
            self._evicted["maxInFlightBytes"] += 1
            client.abort()

    def unregister(self, connection: ClientConnection) -> None:
        """Unregister a closed connection."""
        self.closed_by_broker += connection.was_closed_by_broker
        self._connections.pop(connection, None)
        self._accept_limits.unregister(connection)
        self._unidentified_since.pop(connection, None)
        self._throttled.pop(connection, None)
        self.send_buffers.discard(connection, is_disconnected=True)
        self.record_requests(connection, 0)
        self._on_closed(connection)
        if self._all_closed is not None and not self._connections:
            self._all_closed.set()

    # ---- internals

    def _release_ports(self) -> None:
        for each in self._reserved_sockets:
            each.close()
        self._reserved_sockets.clear()

    def _new_connection(self) -> ClientConnection:
        return ClientConnection(
            loop=self._loop,
            limits=self.limits,
            table=self,
            dispatch=self._dispatch,
            scheduler=self._scheduler,
            end_turn=self._end_turn,
            fast_paths=self._fast_paths,
            server_tls=self.tls,
        )

    def _unthrottle(self) -> None:
        while self._throttled and (not self.is_short_of_memory or self._exempt_connection is None):
            connection = next(iter(self._throttled))
            del self._throttled[connection]
            if not connection.is_closed:
                if self.is_short_of_memory:
                    self._exempt_connection = connection
                    self._partial_requests.record(connection, 0)
                connection.unthrottle()

    def _sweep_after_read(self) -> None:
        call_after_read(self._loop, self._sweep)

    def _sweep(self) -> None:
        if self._is_stopping:
            return
        self._sweeps += 1
        self._scheduler.run_steps(self._sweep_steps(self._loop.time()))

    def _sweep_steps(self, now: float) -> Iterator[None]:
        """Disconnect clients that keep the broker waiting, in steps; schedule the next check."""
        try:
            errors = [listener.poll_accept() for listener in self._listeners]
            self._accept_limits.log_refused(now)
            self._log_accept_shortage(descriptor_shortage() or next(filter(None, errors), None))
            if not self.is_short_of_memory:
                self._partial_requests.end_eviction()
            for connection, why in self._overdue_connections(now):
                if connection is not None:
                    self._close_overdue(connection, why, now)
                yield
        except Exception:  # noqa: BLE001  # whatever it is, the next sweep has to come
            _log.exception("the periodic check of clients failed")
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep_after_read)

    def _close_overdue(self, connection: ClientConnection, why: str, now: float) -> None:
        """Close a connection and log why; for unused ones, such as a proxy's, once a minute."""
        level = logging.WARNING
        if connection.is_silent:
            suppressed = self._silence_log.admit(connection.remote_host.address, now)
            level = logging.DEBUG if suppressed is None else logging.INFO
            if suppressed:
                why += f" ({suppressed} more of this address since its last line)"
        connection.close(why, level)

    def _overdue_connections(self, now: float) -> Iterator[tuple[ClientConnection | None, str]]:
        """Yield the connections to close, with the reasons; None for each that may stay."""
        limits = self.limits
        for times in (self._unidentified_since, self._partial_since):
            for connection in times:
                size = self._request_bytes.get(connection, 0)
                reads_first = connection.is_congested and size <= _SMALL_PARTIAL_BYTES
                if connection.is_waiting_for_broker or reads_first:
                    times[connection] = connection.last_active = now
        yield from _recorded_before(
            self._unidentified_since,
            now - limits.first_frame_timeout_ms / 1000,
            "it sent no request",
        )
        partial_since = now - limits.partial_frame_timeout_ms / 1000
        for connection, why in _recorded_before(
            self._partial_since, partial_since, "its request is incomplete"
        ):
            yield connection, _NOT_READING if connection.is_congested else why
        self.send_buffers.update_progress(now)
        yield from self.send_buffers.slow_readers(now, limits.slow_reader_timeout_ms / 1000)
        if self._sweeps % _SWEEPS_PER_IDLE_CHECK == 0:
            idle_since = now - limits.idle_timeout_ms / 1000
            for connection in tuple(self._connections):
                is_idle = connection.last_active < idle_since and not connection.is_closed
                yield connection if is_idle else None, "it has been idle"

    def _log_accept_shortage(self, error: OSError | None) -> None:
        """Log when accepting clients fails, and when it works again."""
        if error is not None and not self._is_accept_degraded:
            _log.error("accepting clients failed, retrying: %s", error.strerror)
        elif error is None and self._is_accept_degraded:
            _log.warning("accepting clients again")
        self._is_accept_degraded = error is not None


def _reserve_port(host: str, port: int) -> socket.socket:
    """Return a socket that binds a port without listening, so that connections are refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reserved = socket.socket(family)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError:  # the port then stays unbound
        reserved.close()
    return reserved


def _recorded_before(
    times: dict[ClientConnection, float], since: float, reason: str
) -> Iterator[tuple[ClientConnection, str]]:
    """Yield the connections recorded before a time and still in the table."""
    for connection in [connection for connection, time in times.items() if time < since]:
        if connection in times:
            yield connection, reason
