"""``rocketpoll dlq``: dead letters, the messages that a group has failed to consume too often.

`dead_letters` reads and resends them, for the console as well.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import Final

import click

from rmq_spark.cli.cluster.topic_command import confirm
from rmq_spark.cli.messages.dead_letters import (
    ResendResult,
    groups_with_dead_letters,
    original_message,
    read_dead_letters,
    resend_dead_letters,
    select_by_id,
)
from rmq_spark.cli.messages.message_text import BODY_FORMATS, TEXT, renderer, show_messages
from rmq_spark.cli.shell.command_tree import CommandGroup
from rmq_spark.cli.shell.connection import ClusterAccess, connection_options
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.output import local_time, output_option, show_rows
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import format_count


@click.group(cls=CommandGroup)
def dlq() -> None:
    """List, show and resend dead letters: messages that a group failed too often."""


@dlq.command("list", example="rocketpoll dlq list")
@output_option
@connection_options
def list_letters(output: str, access: ClusterAccess) -> None:
    """List the groups that have dead letters."""
    with access.admin() as admin:
        rows = [
            {
                "group": each.group,
                "dead_letters": each.messages,
                "last": local_time(each.last_stored_ms),
            }
            for each in groups_with_dead_letters(admin)
        ]
    show_rows(rows, ["group", "dead_letters", "last"], output, empty_text="no dead letters")


@dlq.command(example="rocketpoll dlq show billing -n 10")
@click.argument("group", metavar="GROUP")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after N.")
@click.option("-f", "--format", "text_format", metavar="FORMAT",
              help="Line format, as in rocketpoll consume.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(BODY_FORMATS), default=TEXT, show_default=True,
              help="Output format, as in rocketpoll consume.")  # fmt: skip
@connection_options
def show(
    group: str, count: int | None, text_format: str | None, output: str, access: ClusterAccess
) -> None:
    """Print a group's dead letters, the oldest first."""
    render = renderer(output, text_format)
    with access.admin() as admin:
        show_messages(islice(read_dead_letters(admin, group), count), render)


@dlq.command(example="rocketpoll dlq resend billing --all --yes")
@click.argument("group", metavar="GROUP")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "is_all", is_flag=True, help="Resend all dead letters of the group.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation of --all.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@output_option
@connection_options
def resend(
    group: str,
    ids: tuple[str, ...],
    output: str,
    *,
    is_all: bool,
    yes: bool,
    dry_run: bool,
    access: ClusterAccess,
) -> None:
    """Send dead letters to their original topics again.

    Fix the cause of the failures first. All groups of the topic receive the messages. The dead
    letters stay, and can be sent again.
    """
    if bool(ids) == is_all:
        raise click.UsageError("no dead letters chosen. Give their ids, or --all for all")
    with access.admin() as admin:
        held = list(read_dead_letters(admin, group))
        chosen = held if is_all else select_by_id(held, ids, group)
        if is_all and not dry_run and chosen:
            confirm(f"send {format_count(len(chosen), 'message')} again", yes=yes)
        rows: list[dict[str, object]] = []
        try:
            if dry_run:
                rows += (_plan_row(letter, group) for letter in chosen)
            else:
                rows += map(_row, resend_dead_letters(admin, group, chosen))
        finally:  # report what was sent even after an error
            show_rows(rows, _COLUMNS, output, empty_text=f"{group} has no dead letters")
    sent = sum(row["fault"] is None for row in rows)
    if dry_run:
        sys.stderr.write("dry run: nothing was sent\n")
    elif sent < len(chosen):
        tried = format_count(len(chosen), "dead letter was", "dead letters were")
        raise Failure(
            f"{sent} of {tried} sent again", "Fix the faults listed, and resend the others by id"
        )


_COLUMNS: Final = ["dead_letter", "topic", "sent_as", "broker", "queue", "fault"]


def _plan_row(letter: MessageExt, group: str) -> dict[str, object]:
    try:
        topic = original_message(letter, group).topic
    except Failure as error:
        return _row(ResendResult(letter, None, error.message))
    return _row(ResendResult(letter, None)) | {"topic": topic}


def _row(outcome: ResendResult) -> dict[str, object]:
    letter, result, fault = outcome
    return {
        "dead_letter": letter.message_id,
        "topic": letter.real_topic if result is None else result.queue.topic,
        "sent_as": None if result is None else result.message_id,
        "broker": None if result is None else result.queue.broker_name,
        "queue": None if result is None else result.queue.queue_id,
        "fault": fault,
    }
