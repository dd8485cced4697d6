"""``rocketpoll broker`` in the command tree: passes its arguments on to the broker.

It is separate from `broker_launcher`, which embedded brokers use without the command line.
"""

from __future__ import annotations

import click

from rmq_spark.cli.cluster.broker_launcher import run_broker
from rmq_spark.cli.shell.command_tree import CommandWithExample


@click.command(
    cls=CommandWithExample,
    example="rocketpoll broker -c conf/broker.conf flushDiskType=ASYNC_FLUSH",
    add_help_option=False,  # the broker's --help is its own, with this example
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def broker(arguments: tuple[str, ...]) -> None:
    """Run a broker with a built-in name server: rocketpoll broker -c FILE key=value."""
    run_broker(arguments)
