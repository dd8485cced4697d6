"""Sockets of this process, known from before they connect: a fork leaves all to the parent.

A child has copies of all descriptors. One that nobody closes there keeps a broker from noticing
that the parent has died, for as long as the child lives; those that another thread is just dialling
with belong to no connection yet, by which they could be found. So sockets are made here alone, and
no fork comes between the making of one and its being known. This module knows no protocol.
"""

from __future__ import annotations

import os
import socket
import weakref
from contextlib import suppress

from rmq_spark.client.connections.fork_locks import fork_lock
from rmq_spark.client.threads.process_bound import ProcessBound


class OwnSockets(ProcessBound):
    """The sockets of one process that are in use. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._making = fork_lock()
        self._known: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        ProcessBound.__init__(self)

    def connected(self, host: str, port: int, seconds: float) -> socket.socket:
        """Return a socket that is connected to a host's first address that answers in this time.

        Raises:
            OSError: None does, or the host is not known; the error is that of the last address.
        """
        failure = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            try:
                sock = self._new(family, kind, protocol)
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

    def _new(self, family: int, kind: int, protocol: int) -> socket.socket:
        with self._making:
            sock = socket.socket(family, kind, protocol)
            self._known.add(sock)
        return sock

    def add(self, sock: socket.socket) -> None:
        """Know a socket that has taken over the descriptor of one that was made here."""
        self._known.add(sock)

    def _forked(self) -> None:
        """Close the copies of the parent's descriptors, without a word to anybody."""
        for sock in list(self._known):
            descriptor = sock.detach()
            if descriptor >= 0:  # of what was closed it is none; gevent's close does not take that
                with suppress(OSError):
                    os.close(descriptor)
        self._known = weakref.WeakSet()


OWN_SOCKETS = OwnSockets()
"""The sockets of all clients of this process."""
