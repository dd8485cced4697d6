"""An asyncio event loop in a simulated world, with the kernel's time and the world's network.

It is asyncio's own loop except for waiting: instead of calling a selector, its thread passes the
baton on until an event is due. Where uvloop and asyncio differ, the dice decide which one it
follows: uvloop uses a plain `Handle` for a timer that is due in less than half a millisecond, and
silently retries when it cannot accept a connection.
"""

import asyncio
import errno
import os
from collections import deque
from functools import partial

from world.network import End

_TURN_SECONDS = 20e-6
"""Minimum duration of a turn, so that a spinning loop is detected."""
_AT_ONCE_SECONDS = 0.000_5
_ACCEPT_AGAIN_SECONDS = 1.0
_ACCEPT_AGAIN_AND_AGAIN_SECONDS = 0.01
"""Interval of uvloop's accept retries; it is longer than the real one to save events."""
_READ_BYTES_MAX = 1 << 18


class Loop(asyncio.BaseEventLoop):
    """A process's event loop, like uvloop's; run it in a thread of that process."""

    like_uvloop = True

    def __init__(self, kernel, network, process):
        asyncio.BaseEventLoop.__init__(self)
        self._kernel = kernel
        self._network = network
        self._process = process
        self._selector = self
        self._clock_resolution = 1e-9
        self._waits = None
        self._is_wakeup_pending = False
        self._turn_times = deque(maxlen=1_000)

    @property
    def turns_lately(self):
        """Return the number of turns in the last second."""
        since = self._kernel.now - 1.0
        return sum(1 for time in self._turn_times if time >= since)

    def time(self):
        return self._kernel.now

    def call_at(self, when, callback, *args, context=None):
        if self.like_uvloop and when - self.time() < _AT_ONCE_SECONDS:
            return self.call_soon(callback, *args, context=context)
        return super().call_at(when, callback, *args, context=context)

    # ---- methods that BaseEventLoop uses instead of a selector

    def select(self, timeout):
        kernel = self._kernel
        self._turn_times.append(kernel.now)
        if timeout == 0 or self._is_wakeup_pending:
            kernel.sleep(_TURN_SECONDS)
        else:
            until = None if timeout is None else kernel.now + max(timeout, _TURN_SECONDS)
            self._waits = kernel.current
            while not self._is_wakeup_pending and kernel.suspend(until):
                pass
            self._waits = None
        self._is_wakeup_pending = False
        return ()

    def _process_events(self, event_list):
        pass

    def _write_to_self(self):
        self._is_wakeup_pending = True
        if self._waits is not None:
            self._kernel.wake(self._waits)

    # ---- servers

    async def create_server(
        self, protocol_factory, host=None, port=None, *, sock=None, start_serving=True, **_
    ):
        if sock is None:
            sock = ListeningSocket(self._network, self._process, (host, port))
        server = _Server(sock, partial(self._accept, protocol_factory))
        if start_serving:
            await server.start_serving()
        return server

    async def connect_accepted_socket(self, protocol_factory, sock):
        transport = Transport(self, self._process)
        sock.join(transport)
        transport.begin(protocol_factory)
        return transport, None

    def _accept(self, protocol_factory, connect):
        """Accept a connection; called by the network.

        While the system has no descriptors, the client waits, and the call is repeated.
        """
        lack = self._network.accept_errno
        if lack is not None:
            if self.like_uvloop:
                return _ACCEPT_AGAIN_AND_AGAIN_SECONDS
            self.call_soon_threadsafe(self.call_exception_handler, _not_accepted(lack))
            return _ACCEPT_AGAIN_SECONDS
        transport = Transport(self, self._process)
        connect(transport)
        transport._soon(transport.begin, protocol_factory)
        return None

    def close(self):
        asyncio.BaseEventLoop.close(self)


class AsyncioLoop(Loop, asyncio.SelectorEventLoop):
    """A loop that behaves like asyncio's where `Loop` differs, and has its class."""

    like_uvloop = False


def _not_accepted(lack):
    return {
        "message": "socket.accept() out of system resource",
        "exception": OSError(lack, os.strerror(lack)),
        "socket": None,
    }


class ListeningSocket:
    """A listening socket: each of its duplicates may accept clients, and the last one closes the
    port.
    """

    def __init__(self, network, process, address, port=None, holders=None):
        self._network = network
        self._process = process
        self.port = port or network.open_port(address)
        self._holders = holders if holders is not None else []
        self._holders.append(self)
        process.on_death(self.close)

    def dup(self):
        self._check()
        return ListeningSocket(self._network, self._process, None, self.port, self._holders)

    def accept(self):
        self._check()
        if not self.port.is_waited_at:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return _Accepted(self.port.accepted()), ("127.0.0.1", 0)

    def close(self):
        if self in self._holders:
            self._process.forget(self.close)
            self._holders.remove(self)
            if not self._holders:
                self._network.listen_no_more(self.port.address)

    def getsockname(self):
        return self.port.address

    def fileno(self):
        return -1

    def setblocking(self, _):
        pass

    def listen(self, _):
        pass

    def _check(self):
        lack = self._network.accept_errno
        if lack is not None:
            raise OSError(lack, os.strerror(lack))


class _Accepted:
    """An accepted client that is not connected to its peer yet."""

    def __init__(self, join):
        self.join = join


class _Server:
    def __init__(self, sock, accept):
        self._sock = sock
        self._accept = accept
        self.sockets = (sock,)

    async def start_serving(self):
        self._sock.port.serve(self._accept)

    def close(self):
        if self.sockets:
            self.sockets = ()
            self._sock.port.serve(None)
            self._sock.close()

    async def wait_closed(self):
        pass


class _Socket:
    """The socket of a transport, with the methods that programs use."""

    def __init__(self, name):
        self._name = name

    def getsockname(self):
        return self._name

    def setsockopt(self, *_):
        pass

    def fileno(self):
        return -1


class Transport(End):
    """The broker's end of a connection, as asyncio's protocols see it."""

    def __init__(self, loop, process):
        super().__init__()
        self._loop = loop
        self._process = process
        self._protocol = None
        self._is_reading = True
        self._is_handed_over = False
        self._is_closing = False
        self._is_paused = False
        self._high = 1 << 16
        self._low = 1 << 14
        process.on_death(self._process_died)

    def begin(self, protocol_factory):
        self._protocol = protocol_factory()
        self._protocol.connection_made(self)
        self.take_on()

    # ---- methods for protocols

    def get_extra_info(self, name, default=None):
        return {
            "peername": self.other_address,
            "sockname": self.address,
            "socket": _Socket(self.address),
        }.get(name, default)

    def set_write_buffer_limits(self, high=None, low=None):
        self._high = high
        self._low = high // 4 if low is None else low

    def get_write_buffer_size(self):
        return self.waiting_bytes

    def write(self, data):
        if self.is_over or self._is_closing:
            return
        self.send(data)
        if not self._is_paused and self.waiting_bytes > self._high:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def pause_reading(self):
        self._is_reading = False

    def resume_reading(self):
        self._is_reading = True
        self._loop.call_soon(self.take_on)

    def is_closing(self):
        return self._is_closing or self.is_over

    def close(self):
        if not self._is_closing and not self.is_over:
            self._is_closing = True
            self.finish()
            if not self.waiting_bytes:
                self._loop.call_soon(self._lost, None)

    def abort(self):
        if not self.is_over:
            self.reset()
            self._loop.call_soon(self._lost, None)

    # ---- events of the network, in any thread

    @property
    def accepts(self):
        return (
            self._protocol is not None
            and self._is_reading
            and not self._is_closing
            and not self._is_handed_over
        )

    def received(self, data):
        self._is_handed_over = True  # returned bytes come before those that arrive meanwhile
        self._soon(self._received, data)

    def ended(self):
        self._soon(self._ended)

    def broken(self):
        self._soon(self._lost, ConnectionResetError())

    def has_room(self):
        if self._is_paused or self._is_closing:
            self._soon(self._has_room)

    def _soon(self, call, *arguments):
        if self._process.is_alive:
            self._loop.call_soon_threadsafe(call, *arguments)

    # ---- implementation, on the loop

    def _received(self, data):
        self._is_handed_over = False
        while data and self.accepts and not self.is_over:
            piece, data = data[:_READ_BYTES_MAX], data[_READ_BYTES_MAX:]
            self._protocol.data_received(piece)
        if data and not self.is_over:
            self._in.put_back(data)
        self.take_on()

    def _ended(self):
        if not self._protocol.eof_received():
            self.close()

    def _has_room(self):
        waiting = self.waiting_bytes
        if self._is_paused and waiting <= self._low and not self.is_over:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not waiting:
            self._lost(None)

    def _lost(self, error):
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            self.is_over = True
            self._process.forget(self._process_died)
            protocol.connection_lost(error)

    def _process_died(self):
        """Close everything that a process has left open; a machine without power does nothing."""
        if self._process.has_power:
            self.reset()
        else:
            self._loop._network.lose_power(self)
