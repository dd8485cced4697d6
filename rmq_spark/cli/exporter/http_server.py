"""A small HTTP server for scrapers and probes: a few paths, each a function that has its answer.

Clients that are slow cost a thread each, for a few seconds, and there are only so many. It must not
know what is answered.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias

CLIENTS_MAX: Final = 32
CLIENT_SECONDS: Final = 10.0
TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"

Answering: TypeAlias = "Callable[[], tuple[HTTPStatus, bytes]]"


class HttpServer(ThreadingHTTPServer):
    """A port, and a thread for each client on it."""

    daemon_threads = True

    def __init__(self, host: str, port: int, answers: Mapping[str, Answering]) -> None:
        """Listen.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
        """
        self.answers = answers
        self._room = threading.BoundedSemaphore(CLIENTS_MAX)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client in a thread, or turn it away if there are too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a client, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let a client go that breaks off: nobody can mend that."""


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    timeout = CLIENT_SECONDS

    def do_GET(self) -> None:  # http.server's name
        answering = self.server.answers.get(self.path.partition("?")[0])
        if answering is None:
            paths = " ".join(self.server.answers)
            status, body = HTTPStatus.NOT_FOUND, f"there are {paths}\n".encode()
        else:
            status, body = answering()
        self.send_response(status)
        self.send_header("Content-Type", TEXT_FORMAT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
        """Log nothing of single requests."""
