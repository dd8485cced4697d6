"""BoundedHttpServer: the standard library's HTTP server with a limited number of client threads.

A client occupies a thread for at most `REQUEST_SECONDS` while it sends its request, however slowly,
and `RESPONSE_SECONDS` for each piece of the response. If there are too many clients, the server
disconnects one whose request has not arrived: the oldest, of the address that has most clients.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader, RawIOBase
from queue import SimpleQueue
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rmq_spark.wire.message.hosts import host_of, names_this_machine

if TYPE_CHECKING:
    from prometheus_client.core import Metric

TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"
PathHandler: TypeAlias = "Callable[[], tuple[HTTPStatus, bytes]]"

CLIENTS_MAX: Final = 32
REQUEST_SECONDS: Final = 5.0
"""The time that a client has from connecting to the last byte of its request."""
RESPONSE_SECONDS: Final = 10.0
"""The time in which a client has to read each piece of the response."""


class _DeadlineReader(RawIOBase):
    """Reads from a socket up to a deadline, in however many pieces the data arrives."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the request has not arrived in time")
        self._connection.settimeout(seconds)
        return self._connection.recv_into(buffer)


class QuietHandler(BaseHTTPRequestHandler):
    """A request handler that writes no log and disconnects slow clients."""

    server: BoundedHttpServer
    request_seconds = REQUEST_SECONDS

    def setup(self) -> None:
        """Set a deadline for reading the request."""
        super().setup()
        self.rfile.close()
        self.rfile = BufferedReader(_DeadlineReader(self.connection, self.request_seconds))

    def parse_request(self) -> bool:
        """Parse the head; a request without a body is complete then."""
        is_valid = super().parse_request()
        if is_valid and self.command != "POST":
            self.mark_complete()
        return is_valid

    def mark_complete(self) -> None:
        """Note that the whole request has arrived, so that no new client evicts this one."""
        self.connection.settimeout(RESPONSE_SECONDS)
        self.server.request_arrived(self.connection)

    def send_body(
        self, status: HTTPStatus, kind: str, body: bytes, *headers: tuple[str, str]
    ) -> None:
        """Send a response; without the body for HEAD."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
        """Suppress the log of single requests."""


class BoundedHttpServer(ThreadingHTTPServer):
    """An HTTP server with one thread for each client, up to a limit."""

    daemon_threads = True
    request_queue_size = 128
    """The backlog: with five, the default, clients that come at the same time wait for seconds."""

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, str] = {}
        """The addresses of all clients, the oldest first."""
        self._unread: dict[socket.socket, None] = {}
        """The clients whose requests have not arrived yet."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}"

    def server_bind(self) -> None:
        """Bind without a lookup of the host's name, which takes long without a network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def serve_until_signal(self, greeting: str) -> None:
        """Serve until SIGTERM or SIGINT; print a greeting once clients are served."""
        stop: SimpleQueue[None] = SimpleQueue()  # reentrant, whereas an Event could deadlock
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.put(None))
        name = type(self).__name__
        threading.Thread(target=self.serve_forever, name=name, daemon=True).start()
        sys.stdout.write(greeting)
        sys.stdout.flush()
        stop.get()
        self.shutdown()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client in a thread, or refuse it if too many are being answered."""
        with self._lock:
            if len(self._clients) >= CLIENTS_MAX and not self._evict():
                self.shutdown_request(request)
                return
            self._clients[request] = str(client_address[0])
            self._unread[request] = None
        super().process_request(request, client_address)

    def _evict(self) -> bool:
        """Disconnect a client whose request has not arrived; return whether there was one."""
        numbers = Counter(self._clients.values())
        evicted = max(self._unread, key=lambda client: numbers[self._clients[client]], default=None)
        if evicted is None:
            return False
        del self._clients[evicted], self._unread[evicted]
        with suppress(OSError):  # the client has disconnected already
            evicted.shutdown(socket.SHUT_RDWR)  # the client's thread closes the socket
        return True

    def request_arrived(self, request: socket.socket) -> None:
        """Note that the whole request of a client has arrived."""
        with self._lock:
            self._unread.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client, and release its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._clients.pop(request, None)
                self._unread.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect: nothing can be done about them."""


def render_metrics(families: Iterable[Metric]) -> bytes:
    """Return families of metrics in `TEXT_FORMAT`."""
    from prometheus_client.exposition import generate_latest  # noqa: PLC0415  # not for the console
    from prometheus_client.registry import Collector  # noqa: PLC0415  # not for the console

    class Families(Collector):
        def collect(self) -> Iterable[Metric]:
            return families

    return generate_latest(Families())


class MetricsServer(BoundedHttpServer):
    """An HTTP server for scrapers and probes, with a function for each path."""

    def __init__(self, host: str, port: int, handlers: Mapping[str, PathHandler]) -> None:
        self.handlers = handlers
        super().__init__(host, port, _MetricsHandler)


class _MetricsHandler(QuietHandler):
    server: MetricsServer

    @property
    def _is_rebound(self) -> bool:
        """True if a request to a local port may come from another site's page (DNS rebinding)."""
        is_own = names_this_machine(self.headers.get("Host", ""), [socket.gethostname()])
        return not is_own and host_of(self.connection.getsockname()).is_loopback

    def do_GET(self) -> None:  # http.server's name
        handler = self.server.handlers.get(self.path.partition("?")[0])
        if self._is_rebound:
            status, body = HTTPStatus.FORBIDDEN, b"not a name of this machine. Use its address\n"
        elif handler is None:
            paths = " ".join(self.server.handlers)
            status, body = HTTPStatus.NOT_FOUND, f"no such path. Use one of: {paths}\n".encode()
        else:
            status, body = handler()
        self.send_body(status, TEXT_FORMAT, body)
