"""``rocketpoll COMMAND ...``: the tree of all commands, and the exit code of each.

Commands are listed here and imported when they are run. However a command fails, its user sees one
line and gets an exit code: see `failures`.
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
from rmq_spark.cli.shell.command_tree import LazyCommand, RootGroup
from rmq_spark.cli.shell.failures import (
    FAILED,
    INTERRUPTED,
    USAGE,
    describe_error,
    print_error,
    redirect_to_devnull,
)
from rmq_spark.cli.shell.usage_errors import describe_usage_error
from rmq_spark.errors import RocketPollError

_PROGRAM: Final = "rocketpoll"
_COMPLETION_VARIABLE: Final = "_ROCKETPOLL_COMPLETE"  # as in shell.completion

SECTIONS: Final[Mapping[str, Mapping[str, LazyCommand]]] = {
    "Messages": {
        "produce": LazyCommand(".messages.produce_command", "send lines, files or JSON lines"),
        "request": LazyCommand(".messages.produce_command", "send requests, and print the replies"),
        "recall": LazyCommand(".messages.produce_command", "take back delayed messages"),
        "consume": LazyCommand(".messages.consume_command", "print messages of a topic"),
        "tail": LazyCommand(".messages.consume_command", "print new messages of topics"),
        "message": LazyCommand(".messages.message_command", "find a message and its consumers"),
        "dlq": LazyCommand(".messages.dlq_command", "list, show and resend dead letters"),
        "lake": LazyCommand(".messages.lake_command", "write a topic to a Delta table"),
    },
    "Cluster": {
        "topic": LazyCommand(".cluster.topic_command", "create, change and inspect topics"),
        "group": LazyCommand(".groups.group_command", "show lag and members, move offsets"),
        "store": LazyCommand(".cluster.store_command", "inspect and verify a store"),
        "cluster": LazyCommand(".cluster.cluster_command", "list brokers and check their health"),
    },
    "Settings": {
        "profile": LazyCommand(".access.profile_command", "name and choose connection settings"),
        "completion": LazyCommand(".shell.completion", "complete names in bash, zsh or fish"),
    },
    "Access": {
        "user": LazyCommand(".access.user_command", "create, change and list users"),
        "acl": LazyCommand(".access.acl_command", "list, grant and revoke what users may do"),
    },
    "Speed": {
        "bench": LazyCommand(".cluster.bench_command", "measure throughput and latency"),
        "top": LazyCommand(".cluster.top_command", "show live rates and lags"),
    },
    "Programs": {
        "broker": LazyCommand(".cluster.store_command", "run a broker with a built-in name server"),
        "demo": LazyCommand(".demo.command", "run a broker, a producer and a Spark stream"),
        "console": LazyCommand(".console.command", "show a cluster in a browser"),
        "exporter": LazyCommand(".exporter.command", "export lag and rates to Prometheus"),
    },
    "Spark": {
        "doctor": LazyCommand(".doctor", "check what a first Spark stream needs"),
        "checkpoint": LazyCommand(
            ".spark.checkpoint_command", "show a streaming query's checkpoint and lag"
        ),
        "sql": LazyCommand(".spark.sql_command", "print statements for topics as tables"),
        "sink": LazyCommand(".spark.sink_command", "show what exactly-once queries committed"),
        "archive": LazyCommand(".spark.archive_command", "pack source and sink for spark-submit"),
    },
}


def command_tree(root: type[RootGroup] = RootGroup) -> RootGroup:
    """Return the root of all commands."""
    version = click.version_option(
        __version__, "-V", "--version", prog_name=_PROGRAM, message="%(prog)s %(version)s"
    )
    return version(
        root(
            SECTIONS,
            name=_PROGRAM,
            help="Inspect and operate RocketMQ clusters and rocketpoll brokers.",
            epilog="Run rocketpoll COMMAND --help for options and an example, and rocketpoll help "
            "connection, positions or format for what many commands share.",
            no_args_is_help=False,
            invoke_without_command=True,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_missing_streams()
    logging.getLogger("rmq_spark").addHandler(logging.NullHandler())
    if isinstance(sys.stdout, io.TextIOWrapper):  # stdout may be ASCII only
        sys.stdout.reconfigure(errors="backslashreplace")
    tree = command_tree()
    instruction = os.environ.get(_COMPLETION_VARIABLE)
    if instruction:
        from rmq_spark.cli.shell.completion import CompletingRoot  # noqa: PLC0415  # only for shells

        completing = command_tree(CompletingRoot)
        return shell_complete(completing, {}, _PROGRAM, _COMPLETION_VARIABLE, instruction)
    try:
        code = _run(tree, given)
        sys.stdout.flush()
    except BrokenPipeError:  # a reader such as `head` has closed the pipe
        redirect_to_devnull(sys.stdout)
        return 0
    except OSError as error:  # for example, stdout on a full disk
        redirect_to_devnull(sys.stdout)
        print_error(
            _command_path(given),
            f"cannot write the output: {error.strerror or error}. Check where stdout leads",
        )
        return FAILED
    return code


def _run(tree: RootGroup, arguments: list[str]) -> int:
    if not arguments:
        arguments = ["--help"]
    if arguments[0] == "help":
        if len(arguments) == 2 and _print_topic(arguments[1]):
            return 0
        arguments = [*arguments[1:], "--help"]
    try:
        with tree.make_context(_PROGRAM, arguments) as context:
            result = tree.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else _command_path(arguments)
        message = describe_usage_error(error)
        print_error(where, f"{message}{'' if message[-1:] in '.?' else '.'} See {where} --help")
        return USAGE
    except click.ClickException as error:
        print_error(_command_path(arguments), error.format_message())
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except RocketPollError as error:
        print_error(_command_path(arguments), describe_error(error))
        return FAILED
    return result if isinstance(result, int) else 0


def _print_topic(name: str) -> bool:
    from rmq_spark.cli.shell.help_topics import help_topic  # noqa: PLC0415  # only when asked

    text = help_topic(name)
    if text is not None:
        click.echo(text)
    return text is not None


def _command_path(arguments: Sequence[str]) -> str:
    """Return the words of the command line that name the command, for messages."""
    tree: click.Command | None = command_tree()
    words = [_PROGRAM]
    for word in arguments:
        if not isinstance(tree, click.Group):
            break
        tree = tree.get_command(click.Context(tree), word)
        if tree is None:
            break
        words.append(word)
    return " ".join(words)


def _open_missing_streams() -> None:
    """Open /dev/null in place of each standard stream that is closed.

    Otherwise the first socket would get its descriptor, and receive what is written to the stream.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:  # noqa: PERF203  # three streams
            os.open(os.devnull, os.O_RDWR)  # os.open takes the lowest free descriptor
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: PTH123, SIM115  # a descriptor, and open while the process runs
