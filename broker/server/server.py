"""RemotingServer: listens, and watches over all connections together.

What one client may do is in `client_connection`; here is what all of them share: how many there
are, in all and from one address and within a second; how much memory their requests take that wait
or are not whole (`HalfRequests`), and their unread answers (`UnreadAnswers`); which of them has
been silent, or half-way through a request, or not reading, for too long. It knows no processor.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from rmq_spark.errors import RocketPollError
from rmq_spark.wire.codes import ResponseCode

from ..settings.config import ServerLimits
from .client_connection import ClientConnection, Dispatch
from .event_loop import read_first
from .fair_scheduler import LoopTurn
from .fast_paths import Lane
from .limits import descriptors
from .limits.concurrency_limit import StepPlaces
from .limits.partial_requests import HalfRequests
from .limits.send_buffers import UnreadAnswers
from .listener import Listener

_log = logging.getLogger(__name__)
_SWEEP_SECONDS = 1.0
_SWEEPS_PER_IDLE_CHECK = 10
_SMALL_PARTIAL_BYTES = 4_096
"""A client is not held back for so few bytes, nor closed for them while it reads answers."""
_HALVES_SHARE = 2
"""Half requests may take so many times `in_flight_bytes_max`, beside the one that may go on.

From once that on all others are held back, after a first read of each: an honest crowd seldom comes
as far as twice.
"""
_MODEST_PART = 16
"""An address whose half requests take no more than this part of `in_flight_bytes_max` is modest."""
_FINISH_SECONDS = 2.0
_READS_NOT = "its requests wait, as it does not read its answers"


class CannotListen(RocketPollError, page="troubleshooting.md#the-broker-and-its-store"):
    """The port is in use, or the address is not this machine's."""


class RemotingServer:
    """A server on a port or two, with any number of clients."""

    def __init__(
        self,
        limits: ServerLimits,
        dispatch: Dispatch,
        on_closed: Callable[[ClientConnection], None],
        turn: LoopTurn,
        end_turn: Callable[[], None],
        lanes: Sequence[Lane] = (),
    ) -> None:
        """Prepare a server; ``on_closed`` gets each client that is gone.

        ``end_turn`` is called at the end of each turn, as by `ClientConnection`, which asks the
        ``lanes`` first.
        """
        self.limits = limits
        self._dispatch = dispatch
        self._on_closed = on_closed
        self._turn = turn
        self._end_turn = end_turn
        self._lanes = lanes
        self.step_places = StepPlaces()
        self._connections: dict[ClientConnection, None] = {}
        self._per_address: Counter[bytes] = Counter()
        self.refused: Counter[str] = Counter()
        self.cut = 0
        """Connections that the broker closed for what their clients did or failed to do."""
        """The number of clients that were turned away, by the setting that limits them."""
        self._since_new: dict[ClientConnection, float] = {}
        self._since_partial: dict[ClientConnection, float] = {}
        self._request_bytes: dict[ClientConnection, int] = {}
        self._in_flight = 0
        self._waiting: dict[ClientConnection, int] = {}
        self.waiting_bytes = 0
        """The bytes of requests that wait for their turn, with what has come behind them."""
        self._halves = HalfRequests[ClientConnection]()
        self._unread = UnreadAnswers[ClientConnection](limits.unread_bytes_max)
        self.is_short_of_memory = False
        self._held_back: dict[ClientConnection, None] = {}
        self._favoured: ClientConnection | None = None
        self._accepts = float(limits.max_accepts_per_second)
        self._accepts_at = 0.0
        self._lets_nobody_in = False
        self._sweeps = 0
        self._is_stopping = False
        self._listeners: list[Listener] = []
        self._away: list[tuple[str, int]] = []
        """The addresses and ports that are left for a while."""
        self._reserved: list[socket.socket] = []
        """Sockets on these ports that do not listen: nobody else gets the ports meanwhile."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Event | None = None

    # ---- for the broker

    @property
    def connections(self) -> int:
        """The number of clients."""
        return len(self._connections)

    @property
    def in_flight_bytes(self) -> int:
        """The bytes of requests that are incomplete or have to wait."""
        return self._in_flight

    @property
    def is_flooded(self) -> bool:
        """True if the requests that wait for their turn take more memory than there is for them.

        Those that are not whole are no reason to refuse one that is.
        """
        return self.waiting_bytes >= self.limits.in_flight_bytes_max

    @property
    def unread_bytes(self) -> int:
        """The bytes of answers that clients have not read."""
        return self._unread.bytes

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets, which a fork of this process has to let go of."""
        return [
            number
            for number in (
                *(number for listener in self._listeners for number in listener.descriptors()),
                *(connection.descriptor() for connection in self._connections),
            )
            if number >= 0
        ]

    async def start(self, address: str, port: int) -> int:
        """Listen on a first port; return it, which was chosen if 0 was asked for."""
        self._loop = asyncio.get_running_loop()
        self._accepts_at = self._loop.time()
        found = await self.listen(address, port)
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._read_and_sweep)
        return found

    async def listen(self, address: str, port: int) -> int:
        """Listen on one more port, for clients like all others; return it.

        Raises:
            CannotListen: The port is in use, or the address is not this machine's.
        """
        listener = Listener(self._loop, self._new_connection)
        self._listeners.append(listener)  # before it opens, as the broker may stop meanwhile
        try:
            found = await listener.open(address, port)
        except BaseException as error:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not isinstance(error, OSError):
                raise
            advice = (
                "let the broker have more descriptors (ulimit -n)"
                if error.errno in descriptors.LACKS
                else "choose another listenPort or bindAddress, or stop the program that has it"
            )
            raise CannotListen(
                f"cannot listen on {address}:{port}: {error.strerror or error}; {advice}"
            ) from error
        return found

    def pass_over(self, seconds: float) -> None:
        """Count a time that the loop's clock has just jumped over as no silence of any client."""
        self._accepts_at += seconds
        for times in (self._since_new, self._since_partial):
            for connection in times:
                times[connection] += seconds
        for connection in self._connections:
            connection.last_active += seconds
        self._unread.pass_over(seconds)

    def stop_listening(self) -> None:
        """Accept no more clients."""
        for listener in self._listeners:
            listener.close()
        self._let_go_of_ports()

    def go_away(self) -> None:
        """Cut all connections and refuse new ones, until `come_back`; the ports stay taken."""
        away = [listener.place for listener in self._listeners]
        self.stop_listening()
        self._listeners.clear()
        for host, port in away:
            self._reserved.append(_reserved(host, port))
            self._away.append((host, port))
        for connection in list(self._connections):
            connection.abort()

    @property
    def is_away(self) -> bool:
        """True between `go_away` and `come_back`."""
        return bool(self._away)

    async def come_back(self) -> None:
        """Listen again on the ports that were left by `go_away`.

        Raises:
            CannotListen: A port is in use by now.
        """
        away, self._away = self._away, []
        for host, port in away:
            await self.listen(host, port)
        self._let_go_of_ports()

    async def stop(self) -> None:
        """Close all connections, after a short while in which clients may read their answers."""
        self._is_stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.finish()
        if self._connections:
            self._all_gone = asyncio.Event()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), _FINISH_SECONDS)
        for connection in list(self._connections):
            connection.abort()

    # ---- what connections ask and tell

    @property
    def answer_bytes_max(self) -> int:
        """The maximum size of an answer now, in bytes; smaller as clients leave more unread."""
        return self._unread.answer_bytes_max

    def answer_fault(self, size: int) -> tuple[ResponseCode, str] | None:
        """Return why an answer of this size is refused, with the code for that.

        None if it is given.
        """
        return self._unread.answer_fault(size)

    def opened(self, connection: ClientConnection) -> str | None:
        """Count a new connection. Return None, or why it may not stay."""
        now = self._loop.time()
        limits = self.limits
        address = connection.remote_host.address
        self._connections[connection] = None
        self._per_address[address] += 1
        refill = (now - self._accepts_at) * limits.max_accepts_per_second
        self._accepts = min(self._accepts + refill, float(limits.max_accepts_per_second))
        self._accepts_at = now
        setting = why = None
        if len(self._connections) > limits.max_connections:
            setting, why = "maxConnections", f"there are {limits.max_connections} connections"
        elif self._per_address[address] > limits.max_connections_per_address:
            most = limits.max_connections_per_address
            setting, why = "maxConnectionsPerAddress", f"this address has {most} connections"
        if setting is not None:
            self.refused[setting] += 1
            return f"{why} already ({setting})"
        if self._accepts < 1:
            self.refused["maxAcceptsPerSecond"] += 1
            return (
                f"over {limits.max_accepts_per_second} new connections a second "
                "(maxAcceptsPerSecond)"
            )
        self._accepts -= 1
        self._since_new[connection] = now
        if self._is_stopping:  # it had been accepted before
            connection.abort()
            return None
        return "the broker is away" if self._away else None

    def understood(self, connection: ClientConnection) -> None:
        """Note that a client speaks the protocol."""
        self._since_new.pop(connection, None)

    def holds_requests(
        self, connection: ClientConnection, size: int, *, is_waiting: bool = False
    ) -> None:
        """Account for a client's unfinished requests, and hold it back if all take too much."""
        self._count(size - self._request_bytes.pop(connection, 0))
        waiting = size if is_waiting else 0
        self.waiting_bytes += waiting - self._waiting.pop(connection, 0)
        if waiting:
            self._waiting[connection] = waiting
        if not size:
            self._halves.note(connection, 0)
            self._since_partial.pop(connection, None)
            if self._favoured is connection:
                self._favoured = None
            self._let_go_on()
            return
        self._request_bytes[connection] = size
        self._since_partial.setdefault(connection, self._loop.time())
        is_large = size > _SMALL_PARTIAL_BYTES
        takes_more = is_large and self.is_short_of_memory and not connection.is_held_back
        if takes_more and self._favoured is None:
            self._favoured = connection  # one may always finish: else all would wait for each other
        is_favoured = connection is self._favoured
        self._halves.note(connection, 0 if is_waiting or is_favoured else size)
        bytes_max = self.limits.in_flight_bytes_max
        modest = bytes_max // _MODEST_PART
        if takes_more and not is_favoured and self._halves.holds_its_share(connection, modest):
            self._held_back[connection] = None
            connection.hold_back()
        for client in self._halves.to_close(_HALVES_SHARE * bytes_max, modest):
            self.refused["maxInFlightBytes"] += 1
            client.abort()

    def leaves_unread(self, connection: ClientConnection, size: int) -> None:
        """Account for answers that a client does not read."""
        self._unread.note(connection, size, self._loop.time())

    def read_all(self, connection: ClientConnection) -> None:
        """Note that a client has read all its answers."""
        self._unread.forget(connection)

    def closed(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended."""
        self.cut += connection.was_cut
        self._connections.pop(connection, None)
        address = connection.remote_host.address
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
        self._since_new.pop(connection, None)
        self._held_back.pop(connection, None)
        self._unread.forget(connection)
        self.holds_requests(connection, 0)
        self._on_closed(connection)
        if self._all_gone is not None and not self._connections:
            self._all_gone.set()

    # ---- within

    def _let_go_of_ports(self) -> None:
        for each in self._reserved:
            each.close()
        self._reserved.clear()

    def _new_connection(self) -> ClientConnection:
        return ClientConnection(
            loop=self._loop,
            limits=self.limits,
            table=self,
            dispatch=self._dispatch,
            turn=self._turn,
            end_turn=self._end_turn,
            lanes=self._lanes,
        )

    def _count(self, more_bytes: int) -> None:
        self._in_flight += more_bytes
        self.is_short_of_memory = self._in_flight >= self.limits.in_flight_bytes_max

    def _let_go_on(self) -> None:
        while self._held_back and (not self.is_short_of_memory or self._favoured is None):
            connection = next(iter(self._held_back))
            del self._held_back[connection]
            if not connection.is_closed:
                if self.is_short_of_memory:
                    self._favoured = connection
                    self._halves.note(connection, 0)
                connection.let_go_on()

    def _read_and_sweep(self) -> None:
        """Look after all clients once what they have sent is read."""
        read_first(self._loop, self._sweep)

    def _sweep(self) -> None:
        """Look after all clients, in steps."""
        if self._is_stopping:
            return
        self._sweeps += 1
        self._turn.work(self._swept(self._loop.time()))

    def _swept(self, now: float) -> Iterator[None]:
        """Close clients that keep the broker waiting too long, in steps; plan the next sweep."""
        try:
            lacks = [listener.look() for listener in self._listeners]
            self._tell_of_lack(descriptors.lack() or next(filter(None, lacks), None))
            if not self.is_short_of_memory:
                self._halves.have_room()
            for connection, why in self._to_close(now):
                if connection is not None:
                    connection.close(why)
                yield
        except Exception:  # noqa: BLE001  # whatever it is, the next sweep has to come
            _log.exception("looking after the clients failed")
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._read_and_sweep)

    def _to_close(self, now: float) -> Iterator[tuple[ClientConnection | None, str]]:
        """Yield the connections to close, with the reasons; None for those that may stay."""
        limits = self.limits
        for times in (self._since_new, self._since_partial):
            for connection in times:
                size = self._request_bytes.get(connection, 0)
                reads_first = connection.is_congested and size <= _SMALL_PARTIAL_BYTES
                if connection.is_kept_waiting or reads_first:
                    times[connection] = connection.last_active = now
        yield from _since(
            self._since_new, now - limits.first_frame_timeout_ms / 1000, "it says nothing"
        )
        partial_since = now - limits.partial_frame_timeout_ms / 1000
        for connection, why in _since(
            self._since_partial, partial_since, "its request does not end"
        ):
            yield connection, _READS_NOT if connection.is_congested else why
        self._unread.look_again(now)
        yield from self._unread.to_close(now, limits.slow_reader_timeout_ms / 1000)
        if self._sweeps % _SWEEPS_PER_IDLE_CHECK == 0:
            idle_since = now - limits.idle_timeout_ms / 1000
            for connection in tuple(self._connections):
                is_idle = connection.last_active < idle_since and not connection.is_closed
                yield connection if is_idle else None, "it has been idle"

    def _tell_of_lack(self, lack: OSError | None) -> None:
        """Log when clients cannot get in any more, and when they can again."""
        if lack is not None and not self._lets_nobody_in:
            _log.error("no new clients get in while the system says: %s", lack.strerror)
        elif lack is None and self._lets_nobody_in:
            _log.warning("new clients get in again")
        self._lets_nobody_in = lack is not None


def _reserved(host: str, port: int) -> socket.socket:
    """Return a socket that has a port without listening, so that who connects is refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reserved = socket.socket(family)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError:  # then it is as free as it was
        reserved.close()
    return reserved


def _since(
    times: dict[ClientConnection, float], since: float, why: str
) -> Iterator[tuple[ClientConnection, str]]:
    """Yield the connections noted in a table since before a time, unless removed meanwhile."""
    for connection in [connection for connection, time in times.items() if time < since]:
        if connection in times:
            yield connection, why
