"""``rocketpoll COMMAND ...``: finds the command and hands it its arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rmq_spark import __version__
from rmq_spark.cli.archive_command import run_archive
from rmq_spark.cli.broker_command import run_broker
from rmq_spark.cli.checkpoint_command import run_checkpoint
from rmq_spark.cli.demo.command import run_demo
from rmq_spark.cli.doctor.command import run_doctor
from rmq_spark.cli.exporter.command import run_exporter

Command = Callable[[Sequence[str]], int]

COMMANDS: Final[Mapping[str, tuple[Command, str]]] = {
    "broker": (
        run_broker,
        "run a broker, which is its own name server: rocketpoll broker -c FILE key=value",
    ),
    "demo": (run_demo, "a broker, a producer and a Spark stream at work, in this terminal"),
    "doctor": (
        run_doctor,
        "look for what keeps a first stream from running, and say how to mend it",
    ),
    "checkpoint": (
        run_checkpoint,
        "what a streaming query's checkpoint says, and how to go on from it",
    ),
    "exporter": (
        run_exporter,
        "lag, offsets and rates of a RocketMQ cluster, for Prometheus",
    ),
    "archive": (
        run_archive,
        "an archive of the Spark source and sink, for spark-submit --py-files",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; 2 if there is no such command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in (["--version"], ["-V"]):
        sys.stdout.write(f"rocketpoll {__version__}\n")
        return 0
    if not given or given[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage())
        return 0
    command = COMMANDS.get(given[0])
    if command is None:
        sys.stderr.write(f"rocketpoll: there is no command {given[0]!r}\n\n{_usage()}")
        return 2
    return command[0](given[1:])


def _usage() -> str:
    lines = [f"  {name:12}{what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: rocketpoll COMMAND ...", "", *lines, ""])
