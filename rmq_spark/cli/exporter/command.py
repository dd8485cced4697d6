"""``rocketpoll exporter``: serves the metrics of a cluster until it is stopped."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import ClusterAccess, connection_options
from rmq_spark.cli.shell.http_server import BoundedHttpServer, QuietHandler, explain_port_errors
from rmq_spark.cli.shell.parameter_types import PositiveFloat
from rmq_spark.wire.hosts import host_of, names_this_machine

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"
PathHandler: TypeAlias = "Callable[[], tuple[HTTPStatus, bytes]]"


@click.command(cls=CommandWithExample, example="rocketpoll exporter --port 5558 --interval 30")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=5557, show_default=True,
              metavar="PORT",
              help="Port to listen on; 0 takes any free one.")  # fmt: skip
@click.option("--interval", type=PositiveFloat(1, 3_600), default=15.0, show_default=True,
              metavar="SECONDS", help="Time between two reads of the cluster.")  # fmt: skip
@connection_options
def exporter(*, host: str, port: int, interval: float, access: ClusterAccess) -> None:
    """Serve lag, offsets and rates of a cluster to Prometheus at /metrics, until Ctrl-C.

    /healthz answers while the exporter runs, /readyz once it has read the cluster.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    with access.admin() as admin:
        _serve(admin, host, port, interval)


class MetricsServer(BoundedHttpServer):
    """An HTTP server for scrapers and probes, with a function for each path."""

    def __init__(self, host: str, port: int, handlers: Mapping[str, PathHandler]) -> None:
        self.handlers = handlers
        super().__init__(host, port, _MetricsHandler)


class _MetricsHandler(QuietHandler):
    server: MetricsServer

    @property
    def _is_rebound(self) -> bool:
        """True if a page of another site may ask, on a port that is for this machine only."""
        is_own = names_this_machine(self.headers.get("Host", ""), socket.gethostname())
        return not is_own and host_of(self.connection.getsockname()).is_loopback

    def do_GET(self) -> None:  # noqa: N802  # http.server's name
        answering = self.server.handlers.get(self.path.partition("?")[0])
        if self._is_rebound:
            status, body = HTTPStatus.FORBIDDEN, b"not a name of this machine. Ask by address\n"
        elif answering is None:
            paths = " ".join(self.server.handlers)
            status, body = HTTPStatus.NOT_FOUND, f"no such path. Use one of: {paths}\n".encode()
        else:
            status, body = answering()
        self.send_body(status, TEXT_FORMAT, body)


def _serve(admin: Admin, host: str, port: int, interval_seconds: float) -> None:
    from rmq_spark.cli.exporter.cluster_metrics import ClusterMetrics  # noqa: PLC0415  # Prometheus

    metrics = ClusterMetrics(admin, interval_seconds)

    def readiness() -> tuple[HTTPStatus, bytes]:
        why_not = metrics.not_ready_reason
        if why_not is None:
            return HTTPStatus.OK, b"ready\n"
        return HTTPStatus.SERVICE_UNAVAILABLE, f"{' '.join(why_not.split())}\n".encode()

    answers: dict[str, PathHandler] = {
        "/metrics": lambda: (HTTPStatus.OK, metrics.text),
        "/healthz": lambda: (HTTPStatus.OK, b"ok\n"),
        "/readyz": readiness,
    }
    with explain_port_errors(host, port):
        server = MetricsServer(host, port, answers)
    with server:
        metrics.start()
        server.serve_until_signal(f"metrics at {server.url}/metrics\n")
        metrics.stop()
