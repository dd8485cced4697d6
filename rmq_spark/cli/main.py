"""``rocketpoll COMMAND ...``: the tree of all commands, and how each ends.

Commands are listed here and imported when they are run. Whatever ends one, its user sees one line
and gets an exit code: see `failures`.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click
from click.shell_completion import shell_complete

from rmq_spark import __version__
from rmq_spark.cli.shell.failures import FAILED, INTERRUPTED, USAGE, complain, forget, line_of
from rmq_spark.cli.shell.tree import Leaf, Tree
from rmq_spark.errors import RocketPollError

_PROGRAM: Final = "rocketpoll"
_COMPLETION_VARIABLE: Final = "_ROCKETPOLL_COMPLETE"
_HERE: Final = "rmq_spark.cli"

SECTIONS: Final[Mapping[str, Mapping[str, Leaf]]] = {
    "Messages": {
        "produce": Leaf(
            f"{_HERE}.messages.produce_command", "produce", "send lines, files or JSON lines"
        ),
        "consume": Leaf(
            f"{_HERE}.messages.consume_command", "consume", "print messages of a topic"
        ),
        "tail": Leaf(
            f"{_HERE}.messages.consume_command", "tail", "print messages of topics as they come"
        ),
        "message": Leaf(
            f"{_HERE}.messages.message_command", "message", "find a message, and who has it"
        ),
        "dlq": Leaf(f"{_HERE}.messages.dlq_command", "dlq", "list, show and resend dead letters"),
    },
    "Cluster": {
        "topic": Leaf(
            f"{_HERE}.cluster.topic_command", "topic", "create, change and look at topics"
        ),
        "group": Leaf(
            f"{_HERE}.groups.group_command", "group", "lag, members and offsets of groups"
        ),
        "store": Leaf(
            f"{_HERE}.cluster.store_command", "store", "what lies in a store's directory"
        ),
        "cluster": Leaf(
            f"{_HERE}.cluster.cluster_command", "cluster", "brokers, and whether all is well"
        ),
    },
    "Speed": {
        "bench": Leaf(
            f"{_HERE}.cluster.bench_command", "bench", "how fast a cluster takes and gives"
        ),
        "top": Leaf(f"{_HERE}.cluster.top_command", "top", "live rates and lags"),
    },
    "Programs": {
        "broker": Leaf(
            f"{_HERE}.cluster.broker_entry",
            "broker",
            "run a broker, which is its own name server",
        ),
        "demo": Leaf(
            f"{_HERE}.demo.command",
            "demo",
            "a broker, a producer and a Spark stream at work",
        ),
        "console": Leaf(f"{_HERE}.console.command", "console", "a cluster in a browser"),
        "exporter": Leaf(
            f"{_HERE}.exporter.command", "exporter", "lag and rates of a cluster for Prometheus"
        ),
    },
    "Spark": {
        "doctor": Leaf(
            f"{_HERE}.doctor.command",
            "doctor",
            "find what keeps a first stream from running",
        ),
        "checkpoint": Leaf(
            f"{_HERE}.spark.checkpoint_command",
            "checkpoint",
            "what a streaming query's checkpoint says",
        ),
        "sink": Leaf(
            f"{_HERE}.spark.sink_command", "sink", "what queries have committed exactly once"
        ),
        "archive": Leaf(
            f"{_HERE}.spark.archive_command",
            "archive",
            "source and sink as a file for spark-submit",
        ),
    },
}


def command_tree() -> Tree:
    """Return the root of all commands."""
    version = click.version_option(
        __version__, "-V", "--version", prog_name=_PROGRAM, message="%(prog)s %(version)s"
    )
    return version(
        Tree(
            SECTIONS,
            name=_PROGRAM,
            help="Look into RocketMQ clusters and rocketpoll's brokers, and steer them.",
            epilog="COMMAND --help shows its options and an example.",
            no_args_is_help=False,
            invoke_without_command=True,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_missing_streams()
    logging.getLogger("rmq_spark").addHandler(logging.NullHandler())
    if isinstance(sys.stdout, io.TextIOWrapper):  # names and bodies may be no ASCII, and it may be
        sys.stdout.reconfigure(errors="backslashreplace")
    tree = command_tree()
    instruction = os.environ.get(_COMPLETION_VARIABLE)
    if instruction:
        return shell_complete(tree, {}, _PROGRAM, _COMPLETION_VARIABLE, instruction)
    try:
        code = _run(tree, given)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, as `head`, has seen enough
        forget(sys.stdout)
        return 0
    except OSError as error:  # a full disk behind stdout, for example
        forget(sys.stdout)
        complain(_path(given), str(error))
        return FAILED
    return code


def _run(tree: Tree, given: list[str]) -> int:
    if not given or given == ["help"]:
        given = ["--help"]
    try:
        with tree.make_context(_PROGRAM, given) as context:
            result = tree.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else _path(given)
        complain(where, f"{error.format_message()} (see {where} --help)")
        return USAGE
    except click.ClickException as error:
        complain(_path(given), error.format_message())
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except RocketPollError as error:
        complain(_path(given), line_of(error))
        return FAILED
    return result if isinstance(result, int) else 0


def _path(given: Sequence[str]) -> str:
    """Return the words of the command line that name the command, for messages."""
    tree: click.Command | None = command_tree()
    words = [_PROGRAM]
    for word in given:
        if not isinstance(tree, click.Group):
            break
        tree = tree.get_command(click.Context(tree), word)
        if tree is None:
            break
        words.append(word)
    return " ".join(words)


def _open_missing_streams() -> None:
    """Open /dev/null in place of each standard stream that was closed.

    Else the first socket would get its number, and what is written to the stream.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if not _is_open(descriptor):
            os.open(os.devnull, os.O_RDWR)  # it gets the first number that is free
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
