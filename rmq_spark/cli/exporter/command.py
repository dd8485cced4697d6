"""``rocketpoll exporter``: serves the metrics of a cluster until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_spark.client import Admin, ClientInstance, Credentials, TlsSettings
from rmq_spark.client.connections.connection import parse_address
from rmq_spark.client.errors import ClientError

if TYPE_CHECKING:
    from rmq_spark.cli.exporter.cluster_metrics import ClusterMetrics


def run_exporter(arguments: Sequence[str]) -> int:
    """Run ``rocketpoll exporter`` and return the exit code: 0 stopped, 1 failed, 2 usage."""
    given = _parsed(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    try:
        credentials = _credentials(given)
        wants_tls = given.tls or given.tls_ca_file is not None
        tls = TlsSettings.of_files(ca_file=given.tls_ca_file) if wants_tls else None
        instance = ClientInstance(given.namesrv, credentials=credentials, tls=tls)
        for address in instance.name_servers.addresses:  # one that cannot be is not waited for
            parse_address(address)
        with Admin(instance=instance) as admin:
            return _serve(admin, given.host, given.port, given.interval)
    except (ClientError, ValueError) as error:
        sys.stderr.write(f"rocketpoll exporter: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"rocketpoll exporter: {error}\n")
        return 1


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="rocketpoll exporter",
        description="lag, offsets and rates of a RocketMQ cluster, for Prometheus, at /metrics",
    )
    parser.add_argument(
        "--namesrv",
        metavar="HOST:PORT",
        help="name servers, with ; between several (NAMESRV_ADDR)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=int, default=5557, help="port to listen on; 0: any free one (%(default)s)"
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="how often the cluster is read (%(default)s)",
    )
    parser.add_argument("--access-key", metavar="KEY", help="for a cluster with access lists")
    parser.add_argument(
        "--secret-key-file", type=Path, metavar="FILE", help="a file that holds the secret of it"
    )
    parser.add_argument("--tls", action="store_true", help="connect by TLS")
    parser.add_argument(
        "--tls-ca-file", type=Path, metavar="FILE", help="authorities to trust; implies --tls"
    )
    given = parser.parse_args(arguments)
    if (given.access_key is None) != (given.secret_key_file is None):
        parser.error("--access-key and --secret-key-file belong together")
    if not 0 <= given.port <= 65_535:
        parser.error(f"--port must be a number from 0 to 65535, not {given.port}")
    if not 1 <= given.interval <= 3_600:
        parser.error(f"--interval must be from 1 to 3600 seconds, not {given.interval}")
    if given.namesrv is None and not os.environ.get("NAMESRV_ADDR"):
        parser.error("no name server is named: say --namesrv HOST:PORT, or set NAMESRV_ADDR")
    return given


def _credentials(given: argparse.Namespace) -> Credentials | None:
    if given.access_key is None:
        return None
    secret = given.secret_key_file.read_text(encoding="utf-8").strip()
    return Credentials(given.access_key, secret)


def _serve(admin: Admin, host: str, port: int, interval_seconds: float) -> int:
    # Only this command needs them, and the library behind them.
    from rmq_spark.cli.exporter.cluster_metrics import ClusterMetrics  # noqa: PLC0415
    from rmq_spark.cli.exporter.http_server import HttpServer  # noqa: PLC0415

    metrics = ClusterMetrics(admin, interval_seconds)
    try:
        server = HttpServer(
            host,
            port,
            {
                "/metrics": lambda: (HTTPStatus.OK, metrics.text),
                "/healthz": lambda: (HTTPStatus.OK, b"ok\n"),
                "/readyz": lambda: _readiness(metrics),
            },
        )
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port or "
            "--host"
        ) from error
    with server:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        serving = threading.Thread(target=server.serve_forever, name="HttpServer", daemon=True)
        metrics.start()
        serving.start()
        shown = f"[{host}]" if ":" in host else host
        sys.stdout.write(f"metrics at http://{shown}:{server.server_address[1]}/metrics\n")
        sys.stdout.flush()
        stop.wait()
        server.shutdown()
        metrics.stop()
    return 0


def _readiness(metrics: ClusterMetrics) -> tuple[HTTPStatus, bytes]:
    why_not = metrics.why_not_ready
    if why_not is None:
        return HTTPStatus.OK, b"ready\n"
    return HTTPStatus.SERVICE_UNAVAILABLE, f"{' '.join(why_not.split())}\n".encode()
