"""A small HTTP server for scrapers and probes: a few paths, each a function that has its answer.

It must not know what is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, TypeAlias

from rmq_spark.cli.shell.http_server import CLIENT_SECONDS, BoundedHttpServer

TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"

Answering: TypeAlias = "Callable[[], tuple[HTTPStatus, bytes]]"


class HttpServer(BoundedHttpServer):
    """A port with a few paths."""

    def __init__(self, host: str, port: int, answers: Mapping[str, Answering]) -> None:
        """Listen.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
        """
        self.answers = answers
        super().__init__(host, port, _Handler)


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
