"""Help topics: ``rocketpoll help TOPIC``, for what many commands have in common.

``rocketpoll help COMMAND`` is the help of a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import click

from rmq_spark.cli.shell.command_tree import option_records
from rmq_spark.cli.shell.connection import connection_parameters
from rmq_spark.client.profiles import PROFILES_FILE, PROFILES_VARIABLE

_WIDTH_MAX: Final = 100

_POSITIONS: Final = (
    ("start, earliest", "the first message that the queue holds"),
    ("end, latest", "past the last message"),
    ("42", "an offset"),
    ("-10, +5", "ten before the end, five after the start; of a group: relative to its offset"),
    ("-1h, -1h30m, -2d", "the time this long before now"),
    ("09:00", "today at that time, in this machine's zone"),
    ("2026-11-23T09:00", "a time in this machine's zone; in UTC: 2026-11-23T09:00Z"),
    ("@1795424400000", "milliseconds since 1970"),
)
_FORMAT: Final = (
    ("%t  %b  %p  %o", "topic, broker, queue, offset"),
    ("%T", "store time in milliseconds"),
    ("%k  %g  %i", "keys, tags, id"),
    ("%s  %S", "body, size of the body"),
    ("%h  %r", "properties, number of failed deliveries"),
    ("%%  \\n  \\t  \\xHH", "a percent sign, a new line, a tab, a byte"),
)


def help_topic(name: str) -> str | None:
    """Return the text of a topic; None if there is no such topic."""
    write = TOPICS.get(name)
    if write is None:
        return None
    context = click.Context(click.Command(name), max_content_width=_WIDTH_MAX)
    formatter = context.make_formatter()
    write(context, formatter)
    return formatter.getvalue().rstrip()


def _write_connection(context: click.Context, formatter: click.HelpFormatter) -> None:
    formatter.write_text(
        "Options of all commands that connect to a cluster. An option overrides --profile, "
        "--profile overrides the environment, and the environment overrides the profile in use."
    )
    with formatter.section("Connection"):
        formatter.write_dl(option_records(connection_parameters(), context))
    with formatter.section("Profiles"):
        formatter.write_text(
            f"Sections of ${PROFILES_VARIABLE}, else of ~/.config/{PROFILES_FILE}. Make and choose "
            "them with rocketpoll profile create and rocketpoll profile use."
        )


def _write_positions(_: click.Context, formatter: click.HelpFormatter) -> None:
    formatter.write_text("A POSITION in each queue of a topic:")
    with formatter.section("Positions"):
        formatter.write_dl(_POSITIONS)


def _write_format(_: click.Context, formatter: click.HelpFormatter) -> None:
    formatter.write_text("The FORMAT of a line of consume and tail, as in kcat:")
    with formatter.section("Fields"):
        formatter.write_dl(_FORMAT)


TOPICS: Final[Mapping[str, Callable[[click.Context, click.HelpFormatter], None]]] = {
    "connection": _write_connection,
    "positions": _write_positions,
    "format": _write_format,
}
"""The topics, by name."""
