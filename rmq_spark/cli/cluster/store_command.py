"""``rocketpoll store`` and ``rocketpoll broker``: run the programs of the broker.

The tools are the broker's, and run as a separate process, because `rmq_spark` never imports the
broker. They change nothing, and can read a store that is in use.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click
import orjson

from rmq_spark.cli.cluster.broker_launcher import run_broker
from rmq_spark.cli.shell.command_tree import CommandGroup, CommandWithExample
from rmq_spark.cli.shell.failures import UNHEALTHY, Failure
from rmq_spark.cli.shell.output import (
    ByteSize,
    local_time,
    output_option,
    show_document,
    write_text,
)

_PROGRAM: Final = Path(__file__).resolve().parents[3] / "rocketpoll" / "start_store.py"

_directory = click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


@click.group(cls=CommandGroup)
def store() -> None:
    """Inspect a store's directory (storePathRootDir), rocketpoll's or a RocketMQ broker's."""


@store.command(example="rocketpoll store dump ~/store --limit 5")
@_directory
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, metavar="N",
              help="Number of last records, and of last entries of each queue.")  # fmt: skip
def dump(directory: Path, limit: int) -> None:
    """Print files, last records and last queue entries."""
    with _start_tool("dump", directory, f"--limit={limit}") as tool:
        for line in tool.stdout or ():
            write_text(line)
        _, errors = tool.communicate()
    _raise_if_failed(tool, errors)


@store.command(example="rocketpoll store verify ~/store")
@_directory
def verify(directory: Path) -> int:
    """Check every record of the log and every entry of the queues.

    The exit code is 10 if something is damaged.
    """
    with _start_tool("verify", directory) as tool:
        found, errors = tool.communicate()
    write_text(found)
    if tool.returncode and found and not errors:
        return UNHEALTHY
    _raise_if_failed(tool, errors)
    return 0


@store.command(example="rocketpoll store stat ~/store")
@_directory
@output_option
def stat(directory: Path, output: str) -> None:
    """Count messages and bytes by topic, the largest first. Reads the whole log."""
    with _start_tool("stat", directory) as tool:
        document, errors = tool.communicate()
    _raise_if_failed(tool, errors)
    found: dict[str, Any] = orjson.loads(document)
    rows = [
        {
            "topic": count["topic"],
            "queues": count["queues"],
            "messages": count["messages"],
            "bytes": ByteSize(count["bytes"]),
            "first_stored": local_time(count["first_stored_ms"]),
            "last_stored": local_time(count["last_stored_ms"]),
        }
        for count in found.pop("topics")
    ]
    fields = {
        name: ByteSize(value) if name.endswith("_bytes") else value for name, value in found.items()
    }
    if output == "table" and not found["was_stopped_in_order"]:
        fields["was_stopped_in_order"] = "no: the broker runs, or was killed"
    show_document({"directory": str(directory), **fields, "topics": rows}, output)


def _start_tool(name: str, directory: Path, *options: str) -> subprocess.Popen[str]:
    """Start a tool of this installation, in any working directory."""
    return subprocess.Popen(  # noqa: S603  # our own program
        [sys.executable, str(_PROGRAM), name, str(directory), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _raise_if_failed(tool: subprocess.Popen[str], stderr: str) -> None:
    if tool.returncode:
        words = stderr.strip().splitlines()
        raise Failure(words[-1] if words else f"the tool failed with exit code {tool.returncode}")


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
