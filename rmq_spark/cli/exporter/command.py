"""``rocketpoll exporter``: serves the metrics of a cluster until it is stopped."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import ClusterAccess, cluster_options
from rmq_spark.cli.shell.failures import explain_port_errors
from rmq_spark.cli.shell.parameter_types import PositiveFloat
from rmq_spark.http_server import MetricsServer, PathHandler

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin


@click.command(cls=CommandWithExample, example="rocketpoll exporter --interval 30")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=5558, show_default=True,
              metavar="PORT",
              help="Port to listen on; 0 takes any free one.")  # fmt: skip
@click.option("--interval", type=PositiveFloat(1, 3_600), default=15.0, show_default=True,
              metavar="SECONDS", help="Time between two reads of the cluster.")  # fmt: skip
@cluster_options
def exporter(*, host: str, port: int, interval: float, access: ClusterAccess) -> None:
    """Serve lag, offsets and rates of a cluster to Prometheus at /metrics, until Ctrl-C.

    /healthz answers while the exporter runs, /readyz once it has read the cluster.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    with access.admin() as admin:
        _serve(admin, host, port, interval)


def _serve(admin: Admin, host: str, port: int, interval_seconds: float) -> None:
    from rmq_spark.cli.exporter.cluster_metrics import ClusterMetrics  # noqa: PLC0415  # imports the Prometheus client

    metrics = ClusterMetrics(admin, interval_seconds)

    def readiness() -> tuple[HTTPStatus, bytes]:
        why_not = metrics.not_ready_reason
        if why_not is None:
            return HTTPStatus.OK, b"ready\n"
        return HTTPStatus.SERVICE_UNAVAILABLE, f"{' '.join(why_not.split())}\n".encode()

    handlers: dict[str, PathHandler] = {
        "/metrics": lambda: (HTTPStatus.OK, metrics.text),
        "/healthz": lambda: (HTTPStatus.OK, b"ok\n"),
        "/readyz": readiness,
    }
    with explain_port_errors(host, port):
        server = MetricsServer(host, port, handlers)
    with server:
        metrics.start()
        server.serve_until_signal(f"metrics at {server.url}/metrics\n")
        metrics.stop()
