"""MetricsHttpServer: answers GET for a few paths, for scrapers, probes and a person with a browser.

A client gets one response and is disconnected. It has to send its request, and to read the
response, within a time limit; a request has no body, and a head of a few kilobytes at most; only a
few clients are accepted at once. So a slow or hostile client cannot cost the broker more than that.

All of it runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias, cast

from ..server.listener import Listener

CLIENTS_MAX: Final = 32
HEAD_BYTES_MAX: Final = 8_192
EXCHANGE_SECONDS: Final = 30.0
"""The time from connecting until the answer is read; Prometheus gives up after ten seconds."""
PLAIN: Final = "text/plain; charset=utf-8"


class HttpResponse(NamedTuple):
    """The response to one client."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN


Respond: TypeAlias = Callable[[HttpResponse], None]
HttpHandler: TypeAlias = Callable[[Respond], None]
"""A function that gives the answer to a function, at once or later, on the loop's thread."""


class MetricsHttpServer:
    """One port, and the clients on it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handlers: Mapping[str, HttpHandler], *, name: str
    ) -> None:
        """Take the answers by path; ``name`` is said to clients of other paths."""
        self._loop = loop
        self._handlers = handlers
        self._name = name
        self._listener = Listener(loop, lambda: _HttpConnection(self))
        self._clients: dict[_HttpConnection, None] = {}

    async def listen(self, address: str, port: int) -> int:
        """Listen, and return the port, which the system chooses for 0.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
        """
        return await self._listener.open(address, port)

    def poll_accept(self) -> None:
        """Accept waiting clients after a shortage; call this now and then."""
        self._listener.poll_accept()

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets."""
        return self._listener.descriptors() + [client.descriptor() for client in self._clients]

    def close(self) -> None:
        """Accept no more clients, and disconnect those that still wait or read."""
        self._listener.close()
        for client in tuple(self._clients):
            client.abort()

    # ---- for its clients

    def register(self, client: _HttpConnection) -> asyncio.TimerHandle | None:
        """Register a client, and return the timer of its time limit; None if there are too many."""
        if len(self._clients) >= CLIENTS_MAX:
            return None
        self._clients[client] = None
        return self._loop.call_later(EXCHANGE_SECONDS, client.abort)

    def unregister(self, client: _HttpConnection) -> None:
        """Forget a client."""
        self._clients.pop(client, None)

    def handle(self, method: str, path: str, respond: Respond) -> None:
        """Give the answer to a request."""
        answering = self._handlers.get(path)
        if method not in ("GET", "HEAD"):
            respond(
                HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, b"GET and HEAD are answered here\n")
            )
        elif answering is None:
            paths = " ".join(self._handlers)
            respond(HttpResponse(HTTPStatus.NOT_FOUND, f"{self._name} answers {paths}\n".encode()))
        else:
            answering(respond)


class _HttpConnection(asyncio.Protocol):
    """One client, from its request to the end of its response."""

    def __init__(self, server: MetricsHttpServer) -> None:
        self._server = server
        self._head = bytearray()
        self._is_handled = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = self._server.register(self)
        if self._timer is None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's name
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._server.unregister(self)

    def data_received(self, data: bytes) -> None:
        if self._is_handled:
            return  # there is one answer only
        self._head += data[: HEAD_BYTES_MAX + 1 - len(self._head)]
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._handle_request()
        elif len(self._head) > HEAD_BYTES_MAX:
            what = b"the head of the request is too long\n"
            self._respond("", HttpResponse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, what))

    def _handle_request(self) -> None:
        words = bytes(self._head).split(b"\n", 1)[0].decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            what = b"that is no request of HTTP/1.0 or 1.1\n"
            self._respond("", HttpResponse(HTTPStatus.BAD_REQUEST, what))
            return
        method, path = words[0], words[1].partition("?")[0]
        self._is_handled = True
        self._server.handle(method, path, lambda answer: self._respond(method, answer))

    def _respond(self, method: str, response: HttpResponse) -> None:
        self._is_handled = True
        if self._transport is None or self._transport.is_closing():
            return
        status, body, content_type = response
        head = (
            f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode())
        if method != "HEAD":
            self._transport.write(body)
        self._transport.close()  # once all is written; a client that does not read runs out of time

    def abort(self) -> None:
        """Disconnect at once."""
        if self._transport is not None:
            self._transport.abort()

    def descriptor(self) -> int:
        """Return the descriptor of the socket, or -1."""
        if self._transport is None:
            return -1
        number: int = self._transport.get_extra_info("socket").fileno()
        return number
