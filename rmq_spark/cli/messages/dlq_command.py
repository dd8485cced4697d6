"""``rocketpoll dlq``: dead letters, the messages that a group has failed to consume too often.

Messages that a Spark query could not read are dead letters as well, in the topic of the query's
option deadLetterTopic: --topic names it in place of a group. `dead_letters` reads and resends them,
for the console as well.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Final

import click

from rmq_spark.cli.messages.dead_letters import (
    DeadLetterSource,
    ResendResult,
    count_dead_letters,
    group_source,
    groups_with_dead_letters,
    original_message,
    read_dead_letters,
    resend_dead_letters,
    select_by_id,
    without_repeats,
)
from rmq_spark.cli.messages.message_text import BODY_FORMATS, TEXT, renderer, show_messages
from rmq_spark.cli.shell.command_tree import CommandGroup, option_set
from rmq_spark.cli.shell.connection import ClusterAccess, connection_options
from rmq_spark.cli.shell.failures import Failure, confirm
from rmq_spark.cli.shell.output import local_time, output_option, show_rows
from rmq_spark.cli.shell.parameter_types import PositiveFloat, TopicPosition, parse_position
from rmq_spark.client.message import MessageExt
from rmq_spark.client.subscriptions import by_tag
from rmq_spark.errors import format_count
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX

_selection_options: Final = option_set(
    click.option("--topic", metavar="TOPIC", help="Instead of a group, a topic that Spark sends "
                 "dead letters to (deadLetterTopic)."),
    click.option("--from", "start", type=parse_position, default="start", show_default=True,
                 metavar="POSITION", help="Only dead letters from this position on, as in "
                 "rocketpoll consume, for example -1h."),
    click.option("--until", "end", type=parse_position, default="end", show_default=True,
                 metavar="POSITION", help="Only dead letters before this position."),
    click.option("--tags", metavar="TAGS", help="Only dead letters with one of these tags, for "
                 "example 'paid || refunded'."),
)  # fmt: skip


@click.group(cls=CommandGroup)
def dlq() -> None:
    """List, show and resend dead letters: messages that a group failed to consume too often."""


@dlq.command("list", example="rocketpoll dlq list")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Also a topic that Spark "
              "sends dead letters to (deadLetterTopic). Repeatable.")  # fmt: skip
@output_option
@connection_options
def list_dead_letters(topics: tuple[str, ...], output: str, access: ClusterAccess) -> None:
    """List the groups that have dead letters."""
    with access.admin() as admin:
        found = count_dead_letters(admin, map(DeadLetterSource, topics))
        rows = [
            {
                "group": each.source.group,
                "topic": each.source.topic,
                "dead_letters": each.messages,
                "last": local_time(each.last_stored_ms),
            }
            for each in [*groups_with_dead_letters(admin), *found]
        ]
    columns = ["group", "topic", "dead_letters", "last"]
    show_rows(rows, columns, output, empty_text="no dead letters")


@dlq.command(
    example="rocketpoll dlq show billing -n 10\n"
    "rocketpoll dlq show billing --from -1h --tags paid -f '%i %r %s\\n'\n"
    "rocketpoll dlq show --topic orders-dead"
)
@click.argument("group", required=False, metavar="[GROUP]")
@_selection_options
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after N.")
@click.option("-f", "--format", "text_format", metavar="FORMAT",
              help="Line format, as in rocketpoll consume.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(BODY_FORMATS), default=TEXT, show_default=True,
              help="Output format, as in rocketpoll consume.")  # fmt: skip
@connection_options
def show(
    group: str | None,
    topic: str | None,
    start: TopicPosition,
    end: TopicPosition,
    tags: str | None,
    count: int | None,
    text_format: str | None,
    output: str,
    access: ClusterAccess,
) -> None:
    """Print dead letters of a group or topic, the oldest first."""
    source, rest = _source(() if group is None else (group,), topic)
    if rest:
        raise click.UsageError("GROUP and --topic exclude each other. Give one")
    render = renderer(output, text_format)
    selector = None if tags is None else by_tag(tags)
    with access.admin() as admin:
        found = read_dead_letters(admin, source, start, end, selector)
        show_messages(islice(found, count), render)


@dlq.command(
    example="rocketpoll dlq resend billing --all --yes\n"
    "rocketpoll dlq resend billing --all --from -1h --tags paid --rate 10 --yes\n"
    "rocketpoll dlq resend --topic orders-dead --all --to orders-fixed --dry-run"
)
@click.argument("names", nargs=-1, metavar="[GROUP] [ID]...")
@_selection_options
@click.option("--all", "is_all", is_flag=True, help="Resend all dead letters of the group, or all "
              "that --from, --until and --tags select.")  # fmt: skip
@click.option("--to", metavar="TOPIC", help="Send to this topic. [default: the original one]")
@click.option("--rate", type=PositiveFloat(), metavar="N",
              help="Send at most this many messages per second.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask for confirmation of --all.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@output_option
@connection_options
def resend(
    names: tuple[str, ...],
    topic: str | None,
    start: TopicPosition,
    end: TopicPosition,
    tags: str | None,
    to: str | None,
    rate: float | None,
    output: str,
    *,
    is_all: bool,
    yes: bool,
    dry_run: bool,
    access: ClusterAccess,
) -> None:
    """Send dead letters to their original topics again, or to another.

    Fix the cause of the failures first. All groups of the topic receive the messages. The dead
    letters stay, and can be sent again. A dead letter that Spark has sent repeatedly, with one id,
    is sent once.
    """
    source, ids = _source(names, topic)
    if ids and is_all:
        name = "group" if topic is not None else "id"
        raise click.UsageError(f"--all excludes {' '.join(ids)}. Leave out --all, or the {name}")
    if not ids and not is_all:
        raise click.UsageError("no dead letters chosen. Give their ids, or --all for all")
    if to is not None and to.startswith((DLQ_PREFIX, RETRY_PREFIX)):
        raise click.UsageError(f"--to {to} is a retry or dead-letter topic. Give another topic")
    selector = None if tags is None else by_tag(tags)
    with access.admin() as admin:
        held = list(read_dead_letters(admin, source, start, end, selector))
        chosen = without_repeats(held if is_all else select_by_id(held, ids, source))
        if is_all and not dry_run and chosen:
            confirm(f"send {format_count(len(chosen), 'message')} again", yes=yes)
        rows: list[dict[str, object]] = []
        try:
            plan = (_plan_row(letter, to) for letter in chosen)
            outcomes = plan if dry_run else map(_row, resend_dead_letters(admin, chosen, to, rate))
            strip = admin.instance.namespace.strip
            rows += ({**row, "topic": strip(str(row["topic"]))} for row in outcomes)
        finally:  # report what was sent even after an error
            show_rows(rows, _COLUMNS, output, empty_text=f"{source.name} has no such dead letters")
    sent = sum(row["fault"] is None for row in rows)
    if dry_run:
        sys.stderr.write("dry run: nothing was sent\n")
    elif sent < len(chosen):
        tried = format_count(len(chosen), "dead letter was", "dead letters were")
        raise Failure(
            f"{sent} of {tried} sent again", "Fix the faults listed, and resend the others by id"
        )


_COLUMNS: Final = ["dead_letter", "failures", "topic", "sent_as", "broker", "queue", "fault"]


def _source(names: Sequence[str], topic: str | None) -> tuple[DeadLetterSource, Sequence[str]]:
    """Return where dead letters are, and the names that follow the group."""
    if topic is not None:
        return DeadLetterSource(topic), names
    if not names:
        raise click.UsageError(
            "no group. Give the group of the dead letters, or a topic with --topic"
        )
    return group_source(names[0]), names[1:]


def _plan_row(letter: MessageExt, to: str | None) -> dict[str, object]:
    try:
        topic = original_message(letter, to).topic
    except Failure as error:
        return _row(ResendResult(letter, None, error.message))
    return _row(ResendResult(letter, None)) | {"topic": topic}


def _row(outcome: ResendResult) -> dict[str, object]:
    letter, result, fault = outcome
    return {
        "dead_letter": letter.message_id,
        "failures": letter.reconsume_times,
        "topic": letter.real_topic if result is None else result.queue.topic,
        "sent_as": None if result is None else result.message_id,
        "broker": None if result is None else result.queue.broker_name,
        "queue": None if result is None else result.queue.queue_id,
        "fault": fault,
    }
