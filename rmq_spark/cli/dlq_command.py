"""``rocketpoll dlq``: dead letters, the messages that a group has failed to consume too often.

A dead letter lies in a topic of its group. Resent, it is a new message in the topic that it came
from, with its body, tag, keys and properties: all groups of that topic get it. The dead letter
stays, as RocketMQ's logs are only appended to.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from rmq_spark.cli.connection import Access, connected
from rmq_spark.cli.failures import Failure
from rmq_spark.cli.message_text import BODY_FORMATS, TEXT, renderer, user_properties, write
from rmq_spark.cli.output import output_option, show_rows, time_of
from rmq_spark.cli.places import Kind, Place
from rmq_spark.cli.queues import spans_from, stored_order
from rmq_spark.cli.topic_command import confirm
from rmq_spark.cli.tree import Noun
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.client.message import Message, MessageExt, decode_messages
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX, dlq_topic

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

_GROUP: Final = "rocketpoll-dlq"
_SHARDING_KEY: Final = "__SHARDINGKEY"
_ORIGIN_ID: Final = ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")


@click.group(cls=Noun)
def dlq() -> None:
    """List, show and resend dead letters: what a group has failed to consume too often."""


@dlq.command("list", example="rocketpoll dlq list")
@output_option
@connected
def list_letters(output: str, access: Access) -> None:
    """List the groups that have dead letters."""
    with access.admin() as admin:
        rows = []
        for topic in sorted(each for each in admin.topics() if each.startswith(DLQ_PREFIX)):
            offsets = admin.topic_offsets(topic).values()
            count = sum(each.max_offset - each.min_offset for each in offsets)
            last = max((each.last_update_timestamp for each in offsets), default=0)
            if count:
                group = topic.removeprefix(DLQ_PREFIX)
                rows.append({"group": group, "dead_letters": count, "last": time_of(last)})
    show_rows(rows, ["group", "dead_letters", "last"], output, none="no dead letters")


@dlq.command(example="rocketpoll dlq show billing -n 10")
@click.argument("group", metavar="GROUP")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop behind N.")
@click.option("-f", "--format", "text_format", metavar="FORMAT", help="As for rocketpoll consume.")
@click.option("-o", "--output", type=click.Choice(BODY_FORMATS), default=TEXT, show_default=True,
              help="As for rocketpoll consume.")  # fmt: skip
@connected
def show(
    group: str, count: int | None, text_format: str | None, output: str, access: Access
) -> None:
    """Print a group's dead letters, the oldest first."""
    render = renderer(output, text_format)
    with access.admin() as admin:
        for letter in islice(_letters(admin, group), count):
            write(render(letter))


@dlq.command(example="rocketpoll dlq resend billing --all --yes")
@click.argument("group", metavar="GROUP")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "is_all", is_flag=True, help="All dead letters of the group.")
@click.option("--yes", is_flag=True, help="Do not ask before --all.")
@click.option("--dry-run", is_flag=True, help="Show what it would send, and send nothing.")
@output_option
@connected
def resend(
    group: str,
    ids: tuple[str, ...],
    output: str,
    *,
    is_all: bool,
    yes: bool,
    dry_run: bool,
    access: Access,
) -> None:
    """Send dead letters to the topics that they came from, and show what was sent.

    All groups of that topic get them. The dead letters stay, and can be sent once more: mend what
    made the group fail first.
    """
    if bool(ids) == is_all:
        raise click.UsageError("name dead letters by their ids, or all by --all")
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # not for help

    with access.admin() as admin:
        letters = list(_letters(admin, group))
        chosen = letters if is_all else _named(letters, ids, group)
        messages = [(letter, _original(letter, group)) for letter in chosen]
        if is_all and not dry_run and messages:
            confirm(f"send {len(messages)} messages again", yes=yes)
        rows: list[dict[str, object]] = []
        with Producer(_GROUP, instance=admin.instance) as producer:
            for letter, message in messages:
                row: dict[str, object] = {"dead_letter": letter.message_id, "topic": message.topic}
                if dry_run:
                    rows.append({**row, "sent_as": None, "broker": None, "queue": None})
                    continue
                result = producer.send(message)
                rows.append(
                    {
                        **row,
                        "sent_as": result.message_id,
                        "broker": result.queue.broker_name,
                        "queue": result.queue.queue_id,
                    }
                )
    columns = ["dead_letter", "topic", "sent_as", "broker", "queue"]
    show_rows(rows, columns, output, none=f"{group} has no dead letters")
    if dry_run:
        sys.stderr.write("nothing was sent: a dry run\n")


def _letters(admin: Admin, group: str) -> Iterator[MessageExt]:
    """Yield all dead letters of a group, the oldest first.

    Raises:
        Failure: The group has none.
    """
    from rmq_spark.client.reading.bulk_pull import BulkPull  # noqa: PLC0415  # not for help
    from rmq_spark.client.reading.read_bounds import READER_GROUP  # noqa: PLC0415

    try:
        spans = spans_from(admin.instance, dlq_topic(group), Place(Kind.START), None)
    except RouteNotFound:
        raise Failure(f"{group} has no dead letters; rocketpoll dlq list shows who has") from None

    def of_queue(index: int) -> Iterator[MessageExt]:
        queue, address, start, end = spans[index]
        for chunk in BulkPull(admin.instance.api, address, READER_GROUP, queue, start, end):
            yield from decode_messages(chunk.records, queue.broker_name)

    queues = [of_queue(index) for index in range(len(spans))]
    return heapq.merge(*queues, key=stored_order)


def _named(letters: list[MessageExt], ids: tuple[str, ...], group: str) -> list[MessageExt]:
    """Return the dead letters with these ids, their own or those of their originals."""
    found = []
    for wanted in ids:
        same = [
            letter
            for letter in letters
            if wanted in (letter.message_id, letter.offset_message_id)
            or wanted in map(letter.properties.get, _ORIGIN_ID)
        ]
        if not same:
            raise Failure(
                f"{group} has no dead letter {wanted}: rocketpoll dlq show {group} -f '%i\\n' "
                "lists them"
            )
        found += same
    return found


def _original(letter: MessageExt, group: str) -> Message:
    """Return the message that a dead letter was, to be sent once more."""
    properties = letter.properties
    topic = properties.get("DLQ_ORIGIN_TOPIC") or letter.real_topic
    if topic.startswith((DLQ_PREFIX, RETRY_PREFIX)):
        raise Failure(
            f"the dead letter {letter.message_id} of {group} does not say which topic it came "
            "from: print it with rocketpoll dlq show -o json, and send it with rocketpoll produce"
        )
    return Message(
        topic,
        letter.body,
        tags=letter.tags,
        keys=list(letter.keys) or None,
        properties=user_properties(letter),
        flag=letter.flag,
        sharding_key=properties.get(_SHARDING_KEY),
    )
