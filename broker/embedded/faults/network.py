"""EmbeddedNetwork: what lies between an embedded broker and its clients, and can be made worse.

    slow       what the broker sends to a client is held back for a while, in its order
    cut        a connection ends behind so many bytes of what the broker sends, in mid-frame
    held       nothing that clients send is read, as while the broker's time is moved

It stands where the broker's loop hands out connections, so that the server and all that is above
it are the ones that every broker has. A `_Line` is a connection as the server sees it, around the
loop's own transport. All of it runs on the loop's thread; the network outlives the loop when a
broker is restarted. It knows bytes, and no requests.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from rmq_spark.wire.framing import Buffer

if TYPE_CHECKING:
    _Loop = asyncio.AbstractEventLoop
else:
    _Loop = object

_Factory: TypeAlias = Callable[[], asyncio.BaseProtocol]


class EmbeddedNetwork:
    """The connections of one broker, and what is wrong with them now."""

    def __init__(self) -> None:
        """Begin with a network as good as the machine's."""
        self._lines: dict[_Line, None] = {}
        self.slow_seconds = 0.0
        """Seconds for which what the broker sends is held back."""
        self.cut_after_bytes: int | None = None
        """The bytes that the broker can send on one connection before it is cut."""
        self.is_held = False
        """True while nothing is read that clients send."""

    def slow(self, seconds: float) -> None:
        """Hold back what the broker sends for so long from now on; 0 lets out what was held."""
        if seconds == self.slow_seconds:
            return
        self.slow_seconds = seconds
        for line in tuple(self._lines):
            line.slowness_changed()

    def cut_after(self, count: int | None) -> None:
        """Cut each connection behind so many bytes of what the broker sends from now on."""
        if count == self.cut_after_bytes:
            return
        self.cut_after_bytes = count
        for line in tuple(self._lines):
            line.cut_after(count)

    def hold(self, *, is_held: bool) -> None:
        """Read nothing that clients send from now on, or go on with it."""
        self.is_held = is_held
        for line in tuple(self._lines):
            line.read_or_not()

    def opened(self, line: _Line) -> None:
        """Take note of a new connection."""
        self._lines[line] = None

    def closed(self, line: _Line) -> None:
        """Forget a connection that has ended."""
        self._lines.pop(line, None)

    def closed_all(self) -> None:
        """Forget all connections: their loop has been closed, and tells nobody of them."""
        self._lines.clear()


class NetworkedLoop(_Loop):
    """The part of a loop that hands out connections; mixed into a loop's class."""

    network: EmbeddedNetwork

    async def create_server(
        self, protocol_factory: _Factory, *args: Any, **kwargs: Any
    ) -> asyncio.Server:
        """Listen; each connection goes through the network."""
        server: asyncio.Server = await super().create_server(
            self._shaped(protocol_factory), *args, **kwargs
        )
        return server

    async def connect_accepted_socket(  # type: ignore[override]  # as the broker calls it
        self, protocol_factory: _Factory, sock: socket.socket
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Serve a client that was accepted; its connection goes through the network."""
        return await super().connect_accepted_socket(self._shaped(protocol_factory), sock)

    def close(self) -> None:
        """Close the loop, with all connections that are left."""
        super().close()
        self.network.closed_all()

    def _shaped(self, protocol_factory: _Factory) -> _Factory:
        return lambda: _Ends(self, self.network, protocol_factory())


class _Ends(asyncio.Protocol):
    """A protocol to which its transport is given as a `_Line`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        network: EmbeddedNetwork,
        inner: Any,
    ) -> None:
        self._loop = loop
        self._network = network
        self._inner = inner

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        is_kept: bool | None = self._inner.eof_received()
        return is_kept

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._line = _Line(self._loop, self._network, transport)
        self._network.opened(self._line)
        self._inner.connection_made(self._line)
        self._loop.call_soon(self._line.read_or_not)  # loops begin to read behind this call

    def connection_lost(self, exc: Exception | None) -> None:
        self._network.closed(self._line)
        self._line.ended()
        self._inner.connection_lost(exc)


class _Line(asyncio.Transport):
    """A transport, through the network."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, network: EmbeddedNetwork, transport: Any
    ) -> None:
        super().__init__()
        self._loop = loop
        self._network = network
        self._transport = transport
        self._left = network.cut_after_bytes
        self._wants_to_read = True
        self._is_reading = True
        self._held_back: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False

    # ---- what the network tells

    def slowness_changed(self) -> None:
        """Let out what was held back, if nothing is held back any more."""
        if not self._network.slow_seconds:
            self._let_out(float("inf"))

    def cut_after(self, count: int | None) -> None:
        """Have the connection cut behind so many bytes, or not at all with None."""
        self._left = count

    def read_or_not(self) -> None:
        """Read as the broker wants it, unless the network is held."""
        reads = self._wants_to_read and not self._network.is_held
        if reads != self._is_reading and not self._transport.is_closing():
            self._is_reading = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    def ended(self) -> None:
        """Forget what was held back: the connection is gone."""
        self._is_closing = True
        self._held_back.clear()
        if self._timer is not None:
            self._timer.cancel()

    # ---- what the server does

    def write(self, data: Buffer) -> None:
        """Send some bytes, now or when the network lets them go."""
        network = self._network
        if network.slow_seconds or self._held_back:
            self._hold_back(bytes(data))
        elif self._left is None:
            self._transport.write(data)
        else:
            self._send(bytes(data))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send some pieces, as `write` does."""
        if self._network.slow_seconds or self._held_back or self._left is not None:
            self.write(b"".join(list_of_data))
        else:
            self._transport.writelines(list_of_data)

    def close(self) -> None:
        """End the connection once all is sent that was to be sent."""
        self._is_closing = True
        if not self._held_back:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._is_closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether the connection is ending."""
        return self._is_closing or bool(self._transport.is_closing())

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        self._wants_to_read = False
        self.read_or_not()

    def resume_reading(self) -> None:
        """Read what clients send again."""
        self._wants_to_read = True
        self.read_or_not()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the loop knows of the connection."""
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set from when on the protocol is told that the client does not read."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are not sent yet, in the network or in this process."""
        waiting: int = self._transport.get_write_buffer_size()
        return waiting + sum(len(data) for _, data in self._held_back)

    # ---- within

    def _hold_back(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._held_back.append((self._loop.time() + self._network.slow_seconds, data))
        self._plan()

    def _plan(self) -> None:
        if self._timer is None and self._held_back:
            seconds = max(self._held_back[0][0] - self._loop.time(), 0.0)
            self._timer = self._loop.call_later(seconds, self._is_due)

    def _is_due(self) -> None:
        self._timer = None
        self._let_out(self._loop.time() + 0.001)  # the grain of the loop's timers

    def _let_out(self, until: float) -> None:
        """Send what was held back up to a time."""
        while self._held_back and self._held_back[0][0] <= until:
            self._send(self._held_back.popleft()[1])
        if self._is_closing and not self._held_back:
            self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._plan()

    def _send(self, data: bytes) -> None:
        if self._left is not None:
            is_cut = len(data) >= self._left
            data = data[: self._left]
            self._left -= len(data)
            if is_cut:
                self._transport.write(data)
                self._held_back.clear()
                self._is_closing = True
                self._transport.close()
                return
        self._transport.write(data)
