"""BoundedHttpServer: the standard library's HTTP server with a limited number of client threads.

A slow client occupies a thread for at most a few seconds, and there are only so many threads.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from socketserver import TCPServer
from typing import Any, Final

from rmq_spark.cli.shell.failures import Failure

CLIENTS_MAX: Final = 32
CLIENT_TIMEOUT_SECONDS: Final = 10.0


@contextmanager
def explain_port_errors(host: str, port: int) -> Iterator[None]:
    """Turn the error for a port that cannot be opened into a Failure with the remedy."""
    try:
        yield
    except OSError as error:
        raise Failure(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            "Choose another --port or --host",
        ) from error


class QuietHandler(BaseHTTPRequestHandler):
    """A handler of requests that writes no log, and drops slow clients."""

    timeout = CLIENT_TIMEOUT_SECONDS

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

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._client_permits = threading.BoundedSemaphore(CLIENTS_MAX)
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
        stop: SimpleQueue[None] = SimpleQueue()  # its put is reentrant: an Event could deadlock
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.put(None))
        name = type(self).__name__
        threading.Thread(target=self.serve_forever, name=name, daemon=True).start()
        sys.stdout.write(greeting)
        sys.stdout.flush()
        stop.get()
        self.shutdown()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client in a thread, or refuse it if there are too many."""
        if not self._client_permits.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client, and release its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._client_permits.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect: nothing can be done about them."""
