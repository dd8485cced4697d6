"""Python's blocking sockets in a simulated world, with its network and its time.

    with Sockets(kernel, network):   socket.create_connection, socket.socket, select.poll ...
                                     are the world's

They implement what the client needs: TCP to an address of the world, with time-outs; and a datagram
socket that sends nothing, by which a program finds out its own address. A thread that waits on a
socket passes the baton on; closing the socket in another thread does not wake it, `shutdown` does.
"""

import contextlib
import errno
import os
import select
import socket

from world.network import WINDOW_BYTES, End

_REAL = socket.socket


class Sockets:
    """Replaces the sockets in Python's modules while it is active."""

    def __init__(self, kernel, network):
        self._kernel = kernel
        self._network = network
        self._before = contextlib.ExitStack()

    def __enter__(self):
        class WorldSocket(Socket):
            kernel, network = self._kernel, self._network

        def create_connection(address, timeout=None, *_, **__):
            sock = WorldSocket()
            sock.settimeout(timeout)
            try:
                sock.connect(address)
            except BaseException:
                sock.close()
                raise
            return sock

        for module, name, value in (
            (socket, "socket", WorldSocket),
            (socket, "create_connection", create_connection),
            (socket, "getaddrinfo", _address_info),
            (select, "poll", Poll),
        ):
            self._before.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        return self

    def __exit__(self, *_):
        self._before.close()


def _address_info(host, port, *_, type=socket.SOCK_STREAM, **__):  # noqa: A002  # signature of the original
    return [(socket.AF_INET, type, 0, "", (host, port))]


class Socket(End):
    """A socket of a process, closed when the process dies."""

    kernel = network = None

    def __init__(self, family=socket.AF_INET, kind=socket.SOCK_STREAM, *_):
        super().__init__()
        self._kind = kind
        self._timeout = None
        self._state = "new"
        self._data = bytearray()
        self._is_at_end = False
        self._is_given_up = False  # closed while it was connecting
        self._waiting = {}
        process = self.kernel.current.process
        self._process = process
        if process is not None:
            process.on_death(self._process_died)

    # ---- methods for programs

    def settimeout(self, seconds):
        self._timeout = seconds

    def setsockopt(self, *_):
        pass

    def connect(self, address):
        if self._state != "new":
            raise OSError(errno.EISCONN, os.strerror(errno.EISCONN))
        host = self._process.host if self._process is not None else "127.0.0.1"
        if self._kind == socket.SOCK_DGRAM:  # it sends nothing, but gets a local address
            self.address = host, 0
            return
        self._state = "connecting"
        self.network.connect(self, address, host)
        self._wait(lambda: self._state != "connecting")
        if self._state != "connected":
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    def getsockname(self):
        return self.address or ("0.0.0.0", 0)  # noqa: S104  # the address of an unbound socket

    def getpeername(self):
        return self.other_address

    def fileno(self):
        return -1 if self._state == "closed" else 1_000_000

    def recv(self, size):
        data = self._take(size)
        return bytes(data)

    def recv_into(self, buffer, size=0):
        data = self._take(size or len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send(self, data):
        self._check_open()
        data = memoryview(data).cast("B")
        self._wait(lambda: self.waiting_bytes < WINDOW_BYTES or self._state != "connected")
        self._check_open()
        taken = bytes(data[: WINDOW_BYTES - self.waiting_bytes])
        End.send(self, taken)
        return len(taken)

    def sendall(self, data):
        data = memoryview(data).cast("B")
        while data:
            data = data[self.send(data) :]

    def shutdown(self, _):
        if self._state not in ("connected", "broken"):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        self.finish()
        self._is_at_end = True
        self._wake()

    def close(self):
        if self._state == "connected":
            self.finish()
        if self._process is not None:
            self._process.forget(self._process_died)
        self._is_given_up |= self._state == "connecting"
        self._state = "closed"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def is_readable_or_over(self):
        """Return whether data has arrived, or the other side has closed or broken the
        connection."""
        return self._is_at_end or self._state == "broken"

    # ---- events of the network

    @property
    def accepts(self):
        return len(self._data) < WINDOW_BYTES

    def connected(self):
        if self._is_given_up:
            self.reset()
        if self._state == "connecting":
            self._state = "connected"
            self._wake()

    def received(self, data):
        self._data += data
        self._wake()

    def ended(self):
        self._is_at_end = True
        self._wake()

    def broken(self):
        if self._state != "closed":
            self._state = "refused" if self._state == "connecting" else "broken"
        self._wake()

    def has_room(self):
        self._wake()

    # ---- implementation

    def _take(self, size):
        self._check_open()
        self._wait(lambda: self._data or self._is_at_end or self._state != "connected")
        if not self._data and not self._is_at_end:
            self._check_open()
        data = self._data[:size]
        del self._data[:size]
        if self._state == "connected":
            self.take_on()
        return data

    def _check_open(self):
        if self._state == "broken":
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if self._state != "connected":
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _wait(self, is_there):
        kernel = self.kernel
        me = kernel.current
        until = None if self._timeout is None else kernel.now + self._timeout
        self._waiting[me] = None
        try:
            while not is_there():
                if not kernel.suspend(until) and not is_there():
                    raise TimeoutError("timed out")
        finally:
            self._waiting.pop(me, None)

    def _wake(self):
        for actor in self._waiting:
            self.kernel.wake(actor)

    def _process_died(self):
        if self._state == "connecting":
            self.close()
        if self._state != "connected":
            return
        if self._process.has_power:
            self.reset()
        else:
            self.network.lose_power(self)


class Poll:
    """The part of `select.poll` that detects, without waiting, that the other side has gone."""

    def __init__(self):
        self._registered = []

    def register(self, sock, _):
        if sock.fileno() < 0:
            raise ValueError("file descriptor cannot be a negative integer (-1)")
        self._registered.append(sock)

    def poll(self, _):
        return [
            (sock.fileno(), select.POLLRDHUP)
            for sock in self._registered
            if sock.is_readable_or_over
        ]
