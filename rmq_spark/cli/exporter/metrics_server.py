"""MetricsServer: an HTTP server for scrapers and probes, with a function for each path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, TypeAlias

from rmq_spark.cli.shell.http_server import CLIENT_TIMEOUT_SECONDS, BoundedHttpServer

TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"

PathHandler: TypeAlias = "Callable[[], tuple[HTTPStatus, bytes]]"


class MetricsServer(BoundedHttpServer):
    """A port with a few paths."""

    def __init__(self, host: str, port: int, handlers: Mapping[str, PathHandler]) -> None:
        """Listen."""
        self.handlers = handlers
        super().__init__(host, port, _MetricsHandler)


class _MetricsHandler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = CLIENT_TIMEOUT_SECONDS

    def do_GET(self) -> None:  # http.server's name
        answering = self.server.handlers.get(self.path.partition("?")[0])
        if answering is None:
            paths = " ".join(self.server.handlers)
            status, body = HTTPStatus.NOT_FOUND, f"no such path. Use one of: {paths}\n".encode()
        else:
            status, body = answering()
        self.send_response(status)
        self.send_header("Content-Type", TEXT_FORMAT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
        """Suppress the log of single requests."""
