"""MetricsService: the broker's second port, for monitoring.

    /metrics   all metrics, as Prometheus reads them
    /healthz   200 as long as the broker's one thread answers
    /readyz    200 if messages are accepted and served; else 503, and one line with the reason

It also measures how late the loop is. `rocketmq_families` and `rocketpoll_families` define the
metrics.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from itertools import chain
from typing import Final, NamedTuple, TypeAlias, cast

from rmq_spark import __version__
from rmq_spark.wire.message.hosts import host_of, names_this_machine

from ..common.channel import BackgroundSteps
from ..common.histogram import Histogram
from ..server.listener import Listener
from ..server.server import CannotListen
from .exposition import TEXT_FORMAT, Exposition, MetricFamily
from .rocketmq_families import RocketMQFamilies
from .rocketpoll_families import OwnFamilies
from .sources import MetricsSources

# ---- The HTTP server.

CLIENTS_MAX: Final = 32
HEAD_BYTES_MAX: Final = 8_192
HEAD_SECONDS: Final = 2.0
"""The time from connecting until the head of the request is complete."""
EXCHANGE_SECONDS: Final = 30.0
"""The time from connecting until the response is read; Prometheus gives up after ten seconds."""
PLAIN: Final = "text/plain; charset=utf-8"


class HttpResponse(NamedTuple):
    """The response to one client."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN


Respond: TypeAlias = Callable[[HttpResponse], None]
HttpHandler: TypeAlias = Callable[[Respond], None]
"""Passes the response to a callback, at once or later, on the loop's thread."""


class MetricsHttpServer:
    """One port, and the clients on it.

    A client gets one response and is disconnected. A slow or hostile client costs little, because
    requests and responses have time limits, a request has no body and a head of a few kilobytes at
    most, and only a few clients are accepted at once. It cannot keep others out either: if there
    are too many clients, the server disconnects one of the address that has most. Clients that have
    not sent a request go first, then those that read too slowly.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handlers: Mapping[str, HttpHandler], *, name: str
    ) -> None:
        """Store the handlers by path; ``name`` is sent to clients that request other paths."""
        self._loop = loop
        self._handlers = handlers
        self._name = name
        self._listener = Listener(loop, lambda: _HttpConnection(self))
        self._clients: dict[_HttpConnection, None] = {}

    async def listen(self, address: str, port: int) -> int:
        """Listen, and return the port, which the system chooses for 0."""
        return await self._listener.open(address, port)

    def poll_accept(self) -> None:
        """Accept waiting clients after a shortage; call this now and then."""
        self._listener.poll_accept()

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets."""
        return self._listener.descriptors() + [client.descriptor() for client in self._clients]

    def close(self) -> None:
        """Accept no more clients, and disconnect those that are still waiting or reading."""
        self._listener.close()
        for client in tuple(self._clients):
            client.abort()

    # ---- for its clients

    def register(self, client: _HttpConnection) -> bool:
        """Register a client, and return whether it may stay."""
        self._clients[client] = None
        while len(self._clients) > CLIENTS_MAX:
            evicted = self._select_evicted()
            if evicted is None:
                del self._clients[client]
                return False
            del self._clients[evicted]
            evicted.abort()
        return True

    def _select_evicted(self) -> _HttpConnection | None:
        """Return the client to disconnect for a new one; None if all are served in time."""
        numbers = Counter(client.network for client in self._clients)
        silent = [client for client in self._clients if not client.is_handled]
        slow_since = self._loop.time() - HEAD_SECONDS
        slow = [client for client in self._clients if client.connected_at <= slow_since]
        newest = next(reversed(self._clients))
        candidates = [client for client in silent if client is not newest] or slow
        return max(candidates, key=lambda client: numbers[client.network], default=None)

    def abort_later(self, client: _HttpConnection, seconds: float) -> asyncio.TimerHandle:
        """Return a timer that disconnects a client after a while."""
        return self._loop.call_later(seconds, client.abort)

    @property
    def now(self) -> float:
        """The time of the loop's clock."""
        return self._loop.time()

    def unregister(self, client: _HttpConnection) -> None:
        """Remove a client from the table."""
        self._clients.pop(client, None)

    def handle(
        self, method: str, path: str, respond: Respond, foreign_host: str | None = None
    ) -> None:
        """Pass the response to a request to ``respond``.

        ``foreign_host`` is the host that the request names, unless it is this machine.
        """
        handler = self._handlers.get(path)
        if foreign_host is not None:
            what = f"not a name of this machine: {foreign_host[:100]!r}. Use an address\n"
            respond(HttpResponse(HTTPStatus.FORBIDDEN, what.encode("ascii", "replace")))
        elif method not in ("GET", "HEAD"):
            respond(
                HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, b"GET and HEAD are answered here\n")
            )
        elif handler is None:
            paths = " ".join(self._handlers)
            respond(HttpResponse(HTTPStatus.NOT_FOUND, f"{self._name} answers {paths}\n".encode()))
        else:
            handler(respond)


class _HttpConnection(asyncio.Protocol):
    def __init__(self, server: MetricsHttpServer) -> None:
        self._server = server
        self._head = bytearray()
        self.is_handled = False
        self.connected_at = server.now
        self.network = b""
        self._is_loopback = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        names = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if not all(names):  # the client has disconnected already
            self._transport.abort()
            return
        peer, own = map(host_of, names)
        self.network, self._is_loopback = peer.network, own.is_loopback
        if self._server.register(self):
            self._timer = self._server.abort_later(self, HEAD_SECONDS)
        else:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's name
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._server.unregister(self)

    def data_received(self, data: bytes) -> None:
        if self.is_handled:
            return  # only one response is sent
        self._head += data[: HEAD_BYTES_MAX + 1 - len(self._head)]
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._handle_request()
        elif len(self._head) > HEAD_BYTES_MAX:
            what = b"the head of the request is too long\n"
            self._respond("", HttpResponse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, what))

    def _handle_request(self) -> None:
        self._expect_end_of_exchange()
        lines = bytes(self._head).decode("latin-1").split("\n")
        words = lines[0].split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            what = b"that is no request of HTTP/1.0 or 1.1\n"
            self._respond("", HttpResponse(HTTPStatus.BAD_REQUEST, what))
            return
        method, path = words[0], words[1].partition("?")[0]
        foreign_host = _foreign_host(lines[1:]) if self._is_loopback else None
        self._server.handle(
            method, path, lambda response: self._respond(method, response), foreign_host
        )

    def _expect_end_of_exchange(self) -> None:
        self.is_handled = True
        if self._timer is not None:
            self._timer.cancel()
            seconds = self.connected_at + EXCHANGE_SECONDS - self._server.now
            self._timer = self._server.abort_later(self, seconds)

    def _respond(self, method: str, response: HttpResponse) -> None:
        self._expect_end_of_exchange()
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
        self._transport.close()  # after the write; the timer aborts a slow reader

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


def _foreign_host(header_lines: list[str]) -> str | None:
    """Return the host that a request names, unless it is an address or a name of this machine."""
    for line in header_lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "host":
            return None if names_this_machine(value, [socket.gethostname()]) else value.strip()
    return None


_POLL_SECONDS: Final = 0.5


class MetricsService:
    """Metrics and health of one broker."""

    def __init__(
        self,
        sources: MetricsSources,
        loop: asyncio.AbstractEventLoop,
        run_steps: Callable[[BackgroundSteps], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare; ``clock`` measures in seconds how late the loop is."""
        self._unready_reason = sources.unready_reason
        self._loop = loop
        self._clock = clock
        self._loop_lag = Histogram()
        self._timer: asyncio.TimerHandle | None = None
        rocketmq = RocketMQFamilies(sources)
        own = OwnFamilies(sources, self._loop_lag, __version__)
        config = sources.broker.config
        self._exposition = Exposition(
            lambda: chain[MetricFamily](rocketmq.families(), own.families()),
            {
                "cluster": config.broker_cluster_name,
                "node_type": "broker",
                "node_id": config.broker_name,
            },
            run_steps,
            clock,
        )
        self._http_server = MetricsHttpServer(
            loop,
            {
                "/metrics": self._metrics,
                "/healthz": lambda respond: respond(HttpResponse(HTTPStatus.OK, b"ok\n")),
                "/readyz": self._ready,
            },
            name=f"rocketpoll {config.broker_name}",
        )

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses for 0.

        Raises:
            CannotListen: The port is in use, or the address is not this machine's.
        """
        try:
            found = await self._http_server.listen(host, port)
        except OSError as error:
            raise CannotListen(
                f"{host}:{port} for metrics",
                error,
                port_setting="metricsPort",
                address_setting="metricsHost",
            ) from error
        self._schedule_poll()
        return found

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets, which a forked child has to close."""
        return self._http_server.descriptors()

    def stop(self) -> None:
        """Close the port and all connections."""
        if self._timer is not None:
            self._timer.cancel()
        self._http_server.close()

    def _schedule_poll(self) -> None:
        self._timer = self._loop.call_later(
            _POLL_SECONDS, self._poll, self._clock() + _POLL_SECONDS
        )

    def _poll(self, due: float) -> None:
        self._loop_lag.add(max(self._clock() - due, 0.0))
        self._http_server.poll_accept()
        self._schedule_poll()

    def _metrics(self, respond: Respond) -> None:
        def given(text: bytes | None) -> None:
            if text is None:
                what = b"metrics cannot be collected; the broker's log has it\n"
                respond(HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, what))
            else:
                respond(HttpResponse(HTTPStatus.OK, text, TEXT_FORMAT))

        self._exposition.request(given)

    def _ready(self, respond: Respond) -> None:
        why_not = self._unready_reason()
        if why_not is None:
            respond(HttpResponse(HTTPStatus.OK, b"ready\n"))
        else:
            line = " ".join(why_not.split())
            respond(HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{line}\n".encode()))
