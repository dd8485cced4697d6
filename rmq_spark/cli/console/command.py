"""``rocketpoll console``: serves pages about a cluster until it is stopped."""

from __future__ import annotations

import logging
import secrets

import click

from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import ClusterAccess, cluster_options


@click.command(
    cls=CommandWithExample, example="rocketpoll console\nrocketpoll console --port 8080 --writes"
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on. "
              "Addresses that other machines can reach require the token.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65_535), default=5559, show_default=True,
              metavar="PORT", help="Port to listen on; 0 takes any free one.")  # fmt: skip
@click.option("--writes", is_flag=True,
              help="Allow signed-in users to send and recall messages, create, alter and delete "
              "topics, seek groups and resend dead letters.")  # fmt: skip
@click.option("--allow-host", "names", multiple=True, metavar="NAME", help="Host name by which "
              "browsers reach the console, for example behind a proxy. Repeatable.")  # fmt: skip
@click.option("--checkpoint", "checkpoints", multiple=True, metavar="DIR",
              help="Checkpoint of a Spark query to show. Repeatable.")  # fmt: skip
@cluster_options
def console(
    *,
    host: str,
    port: int,
    writes: bool,
    names: tuple[str, ...],
    checkpoints: tuple[str, ...],
    access: ClusterAccess,
) -> None:
    """Serve a cluster's pages to browsers, until Ctrl-C.

    The console is read-only without --writes. With it, the console prints a token for signing in,
    and logs each change with the session and the user that made it.
    """
    from rmq_spark.cli.console.guard import (  # noqa: PLC0415  # --help needs no server
        AUDIT_LOGGER,
        Guard,
        is_loopback,
    )
    from rmq_spark.cli.console.history import History  # noqa: PLC0415  # --help needs no server
    from rmq_spark.cli.console.server import ConsoleServer  # noqa: PLC0415  # --help needs no server
    from rmq_spark.cli.console.site import Site  # noqa: PLC0415  # --help needs no server
    from rmq_spark.cli.shell.failures import explain_port_errors  # noqa: PLC0415  # --help needs no server

    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.ERROR
    )
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)
    is_open = is_loopback(host)
    token = secrets.token_urlsafe(16) if writes or not is_open else None
    guard = Guard(
        token=token, has_public_reads=is_open, is_writable=writes, host_names=(host, *names)
    )
    history = History()
    with access.admin() as admin:
        site = Site(admin, guard, history, checkpoints, access)
        with explain_port_errors(host, port):
            server = ConsoleServer(host, port, site.respond)
        with server:
            history.start()
            mode = "read-write after sign-in" if writes else "read-only"
            secret = "" if token is None else f"token {token}\n"
            server.serve_until_signal(f"console at {server.url}/ ({mode})\n{secret}")
            site.stop()
            history.stop()
