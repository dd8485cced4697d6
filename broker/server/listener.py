"""Listener: a port that keeps clients waiting while the system cannot accept them.

    loop's server ── accepts ──> a connection
    poll ── accept fails ──────> the loop's server ends, its socket stays: clients wait in the
                                 system
         ── accept succeeds ───> the loop has a server again

When it cannot accept a client, asyncio waits for a second, but uvloop silently retries at once and
for ever. Only another accept detects this, and only closing the server stops it. So the owner of a
listener polls it now and then.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from .descriptors import RESOURCE_SHORTAGE_ERRNOS

_BACKLOG = 1_024
_ACCEPTS_PER_TURN = 16
"""The backlog passed to asyncio, which accepts as many clients in one turn."""


class Listener:
    """One port, at all addresses of its host name."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, new_connection: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._loop = loop
        # uvloop's loop is none of these.
        self._has_accept_backoff = isinstance(loop, asyncio.SelectorEventLoop)
        self._new_connection = new_connection
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        """Duplicates of the servers' sockets, which outlive the servers."""
        self._tasks: dict[asyncio.Task[object], None] = {}
        """Running tasks, which the loop itself does not keep alive."""
        self._is_closed = self._is_restarting = False
        self.bound_address = "", 0
        """The address as it was given to `open`, and the port."""

    async def open(self, address: str, port: int) -> int:
        """Listen and return the port; 0 picks any free one.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
        """
        # A loop does not wait between binding a port and returning its server. So cancelling this
        # coroutine, or closing the listener meanwhile, leaves no port open.
        server = await self._loop.create_server(
            self._new_connection,
            _resolve(address),
            port,
            backlog=_ACCEPTS_PER_TURN,
            start_serving=False,
        )
        self._servers = [server]
        found: int = server.sockets[0].getsockname()[1]
        self.bound_address = address, found
        try:
            await server.start_serving()
            for each in server.sockets:
                own = each.dup()
                own.setblocking(False)  # noqa: FBT003  # named by the standard library
                own.listen(_BACKLOG)
                self._sockets.append(own)
        except BaseException:
            self.close()
            raise
        if self._is_closed:
            self.close()
            raise OSError(errno.ECANCELED, "the broker stopped listening meanwhile")
        return found

    def descriptors(self) -> list[int]:
        """Return the descriptors of the listening sockets."""
        sockets = [each for server in self._servers for each in server.sockets] + self._sockets
        return [each.fileno() for each in sockets]

    def poll_accept(self) -> OSError | None:
        """Accept a waiting client; return the error if the system lacks resources for it."""
        errors = [self._try_accept(own) for own in self._sockets]
        error = next(filter(None, errors), None)
        if error is not None and not self._has_accept_backoff:
            self._close_servers()
        elif not (self._servers or self._is_restarting or self._is_closed):
            self._is_restarting = True
            self._start_task(self._restart_servers())
        return error

    def _try_accept(self, listening_socket: socket.socket) -> OSError | None:
        try:
            client, _ = listening_socket.accept()
        except OSError as error:  # usually no client is waiting
            return error if error.errno in RESOURCE_SHORTAGE_ERRNOS else None
        self._start_task(self._loop.connect_accepted_socket(self._new_connection, client))
        return None

    def close(self) -> None:
        """Stop listening and close the port."""
        self._is_closed = True
        self._close_servers()
        for own in self._sockets:
            own.close()
        self._sockets.clear()

    async def _restart_servers(self) -> None:
        try:
            for own in tuple(self._sockets):
                duplicate = own.dup()
                self._servers.append(
                    await self._loop.create_server(
                        self._new_connection, sock=duplicate, backlog=_ACCEPTS_PER_TURN
                    )
                )
                own.listen(_BACKLOG)
        except OSError:  # the next poll retries all addresses
            self._close_servers()
        finally:
            self._is_restarting = False
        if self._is_closed:
            self._close_servers()

    def _close_servers(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    def _start_task(self, coroutine: Coroutine[Any, Any, object]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task, None))


def _resolve(address: str) -> str | list[str]:
    """Return the numeric addresses of a host name; asyncio would resolve it in a thread."""
    with suppress(ValueError):
        ip_address(address.partition("%")[0])
        return address
    found = socket.getaddrinfo(
        address or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return list(dict.fromkeys(str(each[4][0]) for each in found))
