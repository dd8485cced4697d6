"""EmbeddedNetwork: the network between an embedded broker and its clients, with faults.

    slow       the broker's output to a client is delayed, in order
    cut        a connection ends after a number of bytes of the broker's output, in mid-frame
    paused     nothing is read from clients, for example while the broker's time is moved

It replaces the connections that the broker's loop creates: the server sees a `_NetworkTransport`
around the loop's own transport. All of it runs on the loop's thread. The network outlives the loop
when a broker is restarted.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from rmq_spark.wire.remoting.framing import Buffer

if TYPE_CHECKING:
    _Loop = asyncio.AbstractEventLoop
else:
    _Loop = object

_Factory: TypeAlias = Callable[[], asyncio.BaseProtocol]


class EmbeddedNetwork:
    """The connections of one broker, and their current faults."""

    def __init__(self) -> None:
        self.transports: dict[_NetworkTransport, None] = {}
        self.slow_seconds = 0.0
        self.cut_after_bytes: int | None = None
        """Bytes that the broker can send on each new connection before it is cut; None for all."""
        self.is_reading_paused = False

    def set_slow(self, seconds: float) -> None:
        """Delay all further output of the broker by ``seconds``; 0 releases what was delayed."""
        if seconds == self.slow_seconds:
            return
        self.slow_seconds = seconds
        if not seconds:
            for line in tuple(self.transports):
                line.send_delayed(float("inf"))

    def set_cut_after(self, count: int | None) -> None:
        """Cut each connection after ``count`` more bytes of the broker's output."""
        if count == self.cut_after_bytes:
            return
        self.cut_after_bytes = count
        for line in tuple(self.transports):
            line.bytes_left = count

    def pause_reading(self, *, is_paused: bool) -> None:
        """Stop reading from clients, or resume it."""
        self.is_reading_paused = is_paused
        for line in tuple(self.transports):
            line.update_reading()


class NetworkedLoop(_Loop):
    """Creates the connections of a loop; a mixin for a loop's class."""

    network: EmbeddedNetwork

    async def create_server(
        self, protocol_factory: _Factory, *args: Any, **kwargs: Any
    ) -> asyncio.Server:
        """Listen; all accepted connections go through the network."""
        server: asyncio.Server = await super().create_server(
            self._wrap_factory(protocol_factory), *args, **kwargs
        )
        return server

    async def connect_accepted_socket(  # type: ignore[override]  # as the broker calls it
        self, protocol_factory: _Factory, sock: socket.socket
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Serve an accepted client; its connection goes through the network."""
        return await super().connect_accepted_socket(self._wrap_factory(protocol_factory), sock)

    def close(self) -> None:
        """Close the loop with all remaining connections."""
        super().close()
        self.network.transports.clear()  # a closed loop does not report their end

    def _wrap_factory(self, protocol_factory: _Factory) -> _Factory:
        return lambda: _NetworkProtocol(self, self.network, protocol_factory())


class _NetworkProtocol(asyncio.Protocol):
    def __init__(
        self, loop: asyncio.AbstractEventLoop, network: EmbeddedNetwork, inner: Any
    ) -> None:
        self._loop = loop
        self._network = network
        self._inner = inner

    def set_inner(self, inner: Any) -> None:
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
        self._transport = _NetworkTransport(self._loop, self._network, transport, self)
        self._network.transports[self._transport] = None
        self._inner.connection_made(self._transport)
        self._loop.call_soon(self._transport.update_reading)  # loops start reading after this call

    def connection_lost(self, exc: Exception | None) -> None:
        self._network.transports.pop(self._transport, None)
        self._transport.discard_delayed()
        self._inner.connection_lost(exc)


class _NetworkTransport(asyncio.Transport):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        network: EmbeddedNetwork,
        transport: Any,
        protocol: _NetworkProtocol,
    ) -> None:
        super().__init__()
        self._protocol = protocol
        self._loop = loop
        self._network = network
        self._transport = transport
        self.bytes_left = network.cut_after_bytes
        """Bytes that the broker can send before the connection is cut; None for all."""
        self._wants_to_read = True
        self._is_reading = True
        self._delayed: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False

    # ---- called by the network

    def update_reading(self) -> None:
        """Read if the broker wants to, unless the network is paused."""
        reads = self._wants_to_read and not self._network.is_reading_paused
        if reads != self._is_reading and not self._transport.is_closing():
            self._is_reading = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    def discard_delayed(self) -> None:
        self._is_closing = True
        self._delayed.clear()
        if self._timer is not None:
            self._timer.cancel()

    # ---- called by the server

    def write(self, data: Buffer) -> None:
        network = self._network
        if network.slow_seconds or self._delayed:
            if not self._is_closing:
                self._delayed.append((self._loop.time() + network.slow_seconds, bytes(data)))
                self._schedule()
        elif self.bytes_left is None:
            self._transport.write(data)
        else:
            self._send(bytes(data))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._network.slow_seconds or self._delayed or self.bytes_left is not None:
            self.write(b"".join(list_of_data))
        else:
            self._transport.writelines(list_of_data)

    def close(self) -> None:
        self._is_closing = True
        if not self._delayed:
            self._transport.close()

    def abort(self) -> None:
        self._is_closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._is_closing or bool(self._transport.is_closing())

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass the events of the connection to another protocol, as TLS does."""
        self._protocol.set_inner(protocol)

    def pause_reading(self) -> None:
        self._wants_to_read = False
        self.update_reading()

    def resume_reading(self) -> None:
        self._wants_to_read = True
        self.update_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of unsent bytes, in the network or in this process."""
        waiting: int = self._transport.get_write_buffer_size()
        return waiting + sum(len(data) for _, data in self._delayed)

    # ---- internals

    def _schedule(self) -> None:
        if self._timer is None and self._delayed:
            seconds = max(self._delayed[0][0] - self._loop.time(), 0.0)
            self._timer = self._loop.call_later(seconds, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.send_delayed(self._loop.time() + 0.001)  # the loop's timers may fire this early

    def send_delayed(self, until: float) -> None:
        while self._delayed and self._delayed[0][0] <= until:
            self._send(self._delayed.popleft()[1])
        if self._is_closing and not self._delayed:
            self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._schedule()

    def _send(self, data: bytes) -> None:
        if self.bytes_left is not None:
            is_cut = len(data) >= self.bytes_left
            data = data[: self.bytes_left]
            self.bytes_left -= len(data)
            if is_cut:
                self._transport.write(data)
                self._delayed.clear()
                self._is_closing = True
                self._transport.close()
                return
        self._transport.write(data)
