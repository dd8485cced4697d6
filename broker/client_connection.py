"""ClientConnection: one client's bytes to requests and answers to bytes.

    bytes ──> FrameReader ──> RemotingCommand ──> dispatch ──> answers, all of one turn in one write

Reading follows writing: what a client does not read piles up to a limit, and from there on nothing more is
taken from it, not even the requests that have arrived already. It knows no processor, only the ``dispatch``
that it was given; limits over all clients are the server's (`ConnectionTable`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol, cast

from broker.config import ServerLimits
from rmq_spark.errors import FrameError, HeaderError
from rmq_spark.wire.command import RemotingCommand, decode_command
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.flags import CommandFlag
from rmq_spark.wire.framing import Buffer, FrameReader
from rmq_spark.wire.hosts import Host

if TYPE_CHECKING:
    from broker.connection import Connection

_log = logging.getLogger(__name__)
_RESPONSE = CommandFlag.RESPONSE.value
_LINGER_SECONDS = 2.0
_STRANGERS = (
    (b"GET ", "HTTP"),
    (b"POST", "HTTP"),
    (b"HEAD", "HTTP"),
    (b"PRI ", "HTTP/2"),
    (b"\x16\x03", "TLS"),
)

Dispatch = Callable[["Connection", RemotingCommand], "RemotingCommand | None"]
Then = Callable[["RemotingCommand | None"], None]


def _nothing() -> None:
    """A turn ends without anything left to be done."""


class ConnectionTable(Protocol):
    """What a connection tells the server, which watches over all of them."""

    def opened(self, connection: ClientConnection) -> str | None:
        """It is there; why it may not stay, if so."""

    def understood(self, connection: ClientConnection) -> None:
        """Its first request has arrived."""

    def holds_partial_frame(self, connection: ClientConnection, size: int) -> None:
        """So many bytes of a request that is not whole; 0: none."""

    def congested(self, connection: ClientConnection, size: int) -> None:
        """So many bytes of answers that it does not read; 0: it reads again."""

    def closed(self, connection: ClientConnection) -> None:
        """It has gone."""


class ClientConnection(asyncio.Protocol):
    """See the module. One for each client."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: ServerLimits,
        table: ConnectionTable,
        dispatch: Dispatch,
        end_turn: Callable[[], None] = _nothing,
    ) -> None:
        """``end_turn`` is called when all requests of a turn have been dispatched, before answers leave."""
        self._loop = loop
        self._limits = limits
        self._table = table
        self._dispatch = dispatch
        self._end_turn = end_turn
        self._reader = FrameReader(limits.frame_bytes_max, limits.header_bytes_max)
        self._transport: asyncio.Transport
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._is_corked = False
        self._is_new = True
        self._first_bytes = b""
        self._partial = 0
        self._opaque = 0
        self._waiting: dict[int, tuple[Then, asyncio.TimerHandle]] = {}
        self.extensions: frozenset[Extension] = frozenset()
        self.is_closed = False
        self.is_congested = False
        self.is_held_back = False
        self.last_active = 0.0
        self.remote_host = self.local_host = Host(bytes(4), 0)

    # ---- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(self._limits.write_buffer_bytes)
        self.remote_host = _host_of(transport.get_extra_info("peername"))
        self.local_host = _host_of(transport.get_extra_info("sockname"))
        tcp: socket.socket = transport.get_extra_info("socket")
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.last_active = self._loop.time()
        refusal = self._table.opened(self)
        if refusal is not None:
            self.close(refusal)

    def data_received(self, data: bytes) -> None:
        """The next piece of its stream."""
        self.last_active = self._loop.time()
        if self._is_new and not self._first_bytes:
            self._first_bytes = data[:8]
        self._reader.feed(data)
        self._take_turn()

    def pause_writing(self) -> None:
        """It does not read what it is sent: take nothing more from it meanwhile."""
        self.is_congested = True
        self._transport.pause_reading()
        self._table.congested(self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has caught up."""
        self.is_congested = False
        self.last_active = self._loop.time()
        self._table.congested(self, 0)
        self._loop.call_soon(self._go_on)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone, or was closed."""
        self.is_closed = True
        self._out.clear()
        if exc is not None and not isinstance(exc, ConnectionError):
            _log.info("%s: lost: %s", self.remote_host, exc)
        self._table.closed(self)
        waiting, self._waiting = self._waiting, {}
        for then, timer in waiting.values():
            timer.cancel()
            self._loop.call_soon(then, None)

    # ---- what others may do

    def send(self, command: RemotingCommand) -> None:
        """Send a command."""
        self.send_frame(command.encode())

    def send_frame(self, head: bytes, body: Sequence[Buffer] = ()) -> None:
        """Send a frame that is encoded already."""
        if self.is_closed:
            return
        self._out.append(head)
        self._out_bytes += len(head)
        if body:
            self._out += body
            self._write_out()  # its pieces are large: the answers before it need not wait
        elif self._out_bytes > self._limits.write_buffer_bytes:
            self._write_out()
        elif not self._is_corked:  # answers that are ready at the same time go out together
            self._is_corked = True
            self._loop.call_soon(self._uncork)

    def request(self, command: RemotingCommand, timeout_ms: int, then: Then) -> None:
        """Ask the client something; one that does not read would not answer in time."""
        if self.is_closed or self.is_congested:
            self._loop.call_soon(then, None)
            return
        self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        timer = self._loop.call_later(timeout_ms / 1000, self._unanswered, opaque)
        self._waiting[opaque] = (then, timer)
        self.send(command._replace(opaque=opaque))

    def close(self, why: str) -> None:
        """End it, with what it was sent before as far as it reads that at once."""
        if not self.is_closed:
            _log.warning("%s: closed: %s", self.remote_host, why)
            self._write_out()  # what is corked
            self.is_closed = True
            if self.is_congested:
                self._transport.abort()
            else:
                self._transport.close()
                self._loop.call_later(_LINGER_SECONDS, self._transport.abort)

    def finish(self) -> None:
        """End it in order: the broker stops."""
        self._write_out()
        self.is_closed = True
        self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        self.is_closed = True
        self._transport.abort()

    def hold_back(self) -> None:
        """Read nothing until told to go on: the memory for requests is used up."""
        self.is_held_back = True
        self._transport.pause_reading()

    def let_go_on(self) -> None:
        """There is memory again."""
        self.is_held_back = False
        self._go_on()

    def descriptor(self) -> int:
        """The number of its socket in this process."""
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    # ---- within

    @property
    def _is_stopped(self) -> bool:
        return self.is_congested or self.is_closed

    def _go_on(self) -> None:
        """Take what has arrived already, then read on."""
        if not self._is_stopped:
            self._take_turn()
        if not self._is_stopped and not self.is_held_back:
            self._transport.resume_reading()

    def _take_turn(self) -> None:
        """Answer the requests that are there, as long as the client reads the answers."""
        reader, dispatch = self._reader, self._dispatch
        self._is_corked = True
        understood = False
        wrong: FrameError | HeaderError | None = None
        try:
            while not self._is_stopped:
                frame = reader.next_frame()
                if frame is None:
                    break
                if self._partial:  # it is whole now, and must not keep itself out
                    self._partial = 0
                    self._table.holds_partial_frame(self, 0)
                command = decode_command(frame)
                understood = True
                if command.flag & _RESPONSE:
                    self._answered(command)
                    continue
                answer = dispatch(self, command)
                if answer is not None:
                    self.send_frame(answer.encode())
        except (FrameError, HeaderError) as error:
            wrong = error
        self._end_turn()
        self._uncork()
        if wrong is not None:
            self.close(self._what_is_wrong(wrong))
        self._tell(understood=understood)

    def _tell(self, *, understood: bool) -> None:
        """Keep the server informed of what this one holds."""
        if understood and self._is_new:
            self._is_new = False
            self._first_bytes = b""
            self._table.understood(self)
        held = 0 if self.is_congested or self.is_closed else self._reader.bytes_held
        if held != self._partial:
            self._partial = held
            self._table.holds_partial_frame(self, held)

    def _uncork(self) -> None:
        self._is_corked = False
        self._write_out()

    def _write_out(self) -> None:
        out = self._out
        if out and not self.is_closed:
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)
        out.clear()
        self._out_bytes = 0

    def _answered(self, command: RemotingCommand) -> None:
        waiting = self._waiting.pop(command.opaque, None)
        if waiting is not None:  # else it came too late, or answers nothing: RocketMQ ignores that, too
            then, timer = waiting
            timer.cancel()
            then(command)

    def _unanswered(self, opaque: int) -> None:
        then, _ = self._waiting.pop(opaque)
        then(None)

    def _what_is_wrong(self, error: FrameError | HeaderError) -> str:
        for start, name in _STRANGERS:
            if self._first_bytes.startswith(start):
                return f"it speaks {name}, not RocketMQ's remoting protocol"
        return f"not RocketMQ's remoting protocol: {error}"


def _host_of(name: Any) -> Host:
    """The address of a socket's end; one of IPv4 that came over an IPv6 socket is one of IPv4."""
    address = ip_address(name[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return Host((mapped or address).packed, name[1])
