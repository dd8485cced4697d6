"""SocketRegistry: makes and registers all sockets, so that a forked child can close its copies.

A child has copies of all descriptors. A copy that stays open keeps a broker from noticing, for as
long as the child lives, that the parent has died. A socket that another thread is still connecting
belongs to no connection yet that could close it. So sockets are made only here, and no fork comes
between making a socket and registering it.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from rmq_spark.client.concurrency.fork_hooks import ForkAware, fork_lock


class SocketRegistry(ForkAware):
    """The open sockets of one process. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._creation_lock = fork_lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        ForkAware.__init__(self)

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        """Return a socket connected to the first address of a host that answers in time.

        Raises:
            OSError: No address answers, or the host is unknown; the error is that of the last
                address.
        """
        failure = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            try:
                sock = self._create(family, kind, protocol)
            except OSError as error:
                failure = error
                continue
            try:
                sock.settimeout(seconds)
                sock.connect(address)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:  # Ctrl-C, for example
                sock.close()
                raise
            else:
                return sock
        raise failure

    def _create(self, family: int, kind: int, protocol: int) -> socket.socket:
        with self._creation_lock:
            sock = socket.socket(family, kind, protocol)
            self._sockets.add(sock)
        return sock

    def register(self, sock: socket.socket) -> None:
        """Register a socket that has taken over the descriptor of one made here."""
        self._sockets.add(sock)

    def _after_fork(self) -> None:
        for sock in list(self._sockets):
            descriptor = sock.detach()
            if descriptor >= 0:  # -1 if closed, which gevent's close rejects
                with suppress(OSError):
                    os.close(descriptor)
        self._sockets = weakref.WeakSet()


SOCKETS = SocketRegistry()
"""The sockets of all clients of this process."""


# ---- Keepalive: the system probes a silent peer.

_KEEPALIVE_OPTIONS: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,
}
"""Socket options that find a silent peer: times in seconds, TCP_USER_TIMEOUT in milliseconds."""


def enable_keepalive(sock: socket.socket) -> None:
    """Let the system close a connection whose peer has been silent for about a minute."""
    for name, value in _KEEPALIVE_OPTIONS.items():
        option = getattr(socket, name, None)  # systems differ in their options
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


# ---- Waiting for one socket: by poll, or by select where there is none, as on Windows.


class PollableSocket(Protocol):
    """A socket of the system, or one with TLS around it."""

    def fileno(self) -> int:
        """Return the descriptor; -1 if it is closed."""


def poll_readable(sock: PollableSocket) -> Callable[[float | None], bool]:
    """Return a function that waits for data, up to a number of milliseconds; None: forever."""
    return _poll(sock, "POLLIN")


def poll_writable(sock: PollableSocket) -> Callable[[float | None], bool]:
    """Return a function that waits for room, up to a number of milliseconds; None: forever."""
    return _poll(sock, "POLLOUT")


def is_closed_by_peer(sock: PollableSocket) -> bool:
    """Return whether the peer has closed a connection, without reading from it."""
    try:
        if sys.platform == "linux":
            return _poll(sock, "POLLRDHUP")(0)
        if hasattr(select, "poll"):  # other systems always report the peer's close
            return _poll(sock, "POLLHUP")(0)
        if not isinstance(sock, socket.socket):  # TLS: the next request finds out
            return sock.fileno() < 0
        return _poll(sock, "POLLIN")(0) and not sock.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        return True
    except ValueError:  # this client has closed the socket
        return True


def _poll(sock: PollableSocket, event: str) -> Callable[[float | None], bool]:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, getattr(select, event))
        return lambda timeout_ms: bool(poll.poll(timeout_ms))
    if sock.fileno() < 0:
        raise ValueError("the socket is closed")
    readers, writers = ([], [sock]) if event == "POLLOUT" else ([sock], [])

    def wait(timeout_ms: float | None) -> bool:
        seconds = None if timeout_ms is None else timeout_ms / 1000
        return any(select.select(readers, writers, [], seconds))

    return wait
