"""``rocketpoll group``: list, describe, seek, clone, delete.

How a group stands is read in `group_state`, and a seek is planned and carried out in `group_seek`;
the console does so, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from rmq_spark.cli.cluster.topic_command import confirm
from rmq_spark.cli.groups.group_seek import Move, carry_out, plan
from rmq_spark.cli.groups.group_state import (
    QueueState,
    check_group,
    is_retry,
    is_unknown,
    messages_in,
    read_group,
    topics_of,
)
from rmq_spark.cli.shell.connection import Access, connected
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.output import output_option, show_document, show_rows, time_of, write_text
from rmq_spark.cli.shell.positions import PLACE, Place
from rmq_spark.cli.shell.queues import QUEUE, QueueName
from rmq_spark.cli.shell.tree import Noun
from rmq_spark.errors import counted
from rmq_spark.wire.names import dlq_topic, is_system_group

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

_MOVES: Final = ("topic", "broker", "queue", "committed", "to", "moves", "behind")


@click.group(cls=Noun)
def group() -> None:
    """Look at lag, members and offsets of consumer groups, and change offsets."""


@group.command("list", example="rocketpoll group list")
@click.option("--all", "with_all", is_flag=True, help="RocketMQ's own groups, too.")
@output_option
@connected
def list_groups(*, with_all: bool, output: str, access: Access) -> None:
    """List all groups: members that are online, topics, messages behind."""
    with access.admin() as admin:
        rows = []
        for name in sorted(admin.groups()):
            if is_system_group(name) and not with_all:
                continue
            progress = admin.progress(name)
            times = [lag.last_timestamp for lag in progress]
            rows.append(
                {
                    "group": name,
                    "members": len(admin.members(name)),
                    "topics": sorted(topics_of(progress)),
                    "behind": sum(lag.messages for lag in progress if not is_retry(lag.queue)),
                    "last_consumed": time_of(max(times, default=0)),
                }
            )
    columns = ["group", "members", "topics", "behind", "last_consumed"]
    show_rows(rows, columns, output, none="no groups; a consumer's first start makes its group")


@group.command(example="rocketpoll group describe billing")
@click.argument("name", metavar="GROUP")
@output_option
@connected
def describe(name: str, output: str, access: Access) -> None:
    """Show the lag of a group by queue, its members, and what failed.

    For a queue that is behind, "waiting since" is when its next message was stored. last consumed
    is the time of storing, too: of the last message that the group has consumed. last tried is when
    the member last took up or finished a message of the queue: if that was just now, its listener
    fails again and again; if it was long ago, it hangs. Messages wait for retry when their delay is
    over.
    """
    with access.admin() as admin:
        state = read_group(admin, name)
    document = {
        "group": name,
        "members": len(state.members),
        "behind": state.behind,
        "waiting_for_retry": state.waiting_for_retry,
        "dead_letters": state.dead_letters,
        "queues": [_queue_row(each) for each in state.queues],
        "online": [
            {
                "client": member.client_id,
                "address": member.client_addr,
                "language": member.language,
                "queues": state.queues_of(member.client_id),
            }
            for member in state.members
        ],
    }
    show_document(document, output)


@group.command(
    example="rocketpoll group seek billing --to @-1h --dry-run\n"
    "rocketpoll group seek billing --topic orders --queue 0 --to +1 --yes",
)
@click.argument("name", metavar="GROUP")
@click.option("--to", "place", type=PLACE, required=True, metavar="PLACE",
              help="start, end, an offset, a time (@09:00, @-1h, @2026-11-23T09:00Z), or relative "
              "to what it has committed: +1 skips one message, -10 repeats ten.")  # fmt: skip
@click.option("--topic", "topics", multiple=True, metavar="TOPIC",
              help="Only this topic, instead of all; may be given several times.")  # fmt: skip
@click.option("-q", "--queue", type=QUEUE, metavar="N|BROKER:N", help="Only this queue.")
@click.option("--dry-run", is_flag=True, help="Show what it would do, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@connected
def seek(
    name: str,
    place: Place,
    topics: tuple[str, ...],
    queue: QueueName | None,
    output: str,
    *,
    dry_run: bool,
    yes: bool,
    access: Access,
) -> None:
    """Move the committed offsets of a group, and show each queue's old and new offset.

    The command shows the moves and asks before it replaces offsets. Members that are online are
    notified and continue from there at once. behind is the lag of the group after the move.
    """
    with access.admin() as admin:
        moves = plan(admin, name, topics, place, queue)
        if not moves:
            show_rows([], _MOVES, output, none=f"{name} has no queues there")
            return
        with moving(name, moves, output, is_dry=dry_run, yes=yes):
            if not dry_run:
                carry_out(admin, name, moves, place, is_all=queue is None)


@group.command(example="rocketpoll group clone billing billing-test")
@click.argument("source", metavar="GROUP")
@click.argument("target", metavar="NEW-GROUP")
@click.option("--topic", metavar="TOPIC", help="Only this topic; all that GROUP consumes.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@connected
def clone(
    source: str, target: str, topic: str | None, output: str, *, yes: bool, access: Access
) -> None:
    """Give a group the offsets of another, so that it continues where that one is.

    The command asks before it replaces offsets that NEW-GROUP has already.
    """
    with access.admin() as admin:
        if is_unknown(admin, source):
            check_group(admin, source)
        _check_offline(admin, target)
        _confirm_replacing(admin, source, target, topic, yes=yes)
        admin.clone_offsets(source, target, topic=topic)
        rows = [
            {
                "topic": lag.queue.topic,
                "broker": lag.queue.broker_name,
                "queue": lag.queue.queue_id,
                "committed": lag.consumer_offset,
                "behind": lag.messages,
            }
            for lag in admin.progress(target)
            if not is_retry(lag.queue)
        ]
    columns = ["topic", "broker", "queue", "committed", "behind"]
    show_rows(rows, columns, output, none=f"{source} has no offsets")


@group.command(example="rocketpoll group delete billing-test --yes")
@click.argument("name", metavar="GROUP")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def delete(name: str, *, yes: bool, access: Access) -> None:
    """Delete a group, with its offsets, its retries and its dead letters."""
    with access.admin() as admin:
        if is_unknown(admin, name):
            check_group(admin, name)
        _check_offline(admin, name)
        dead = counted(messages_in(admin, dlq_topic(name)), "dead letter")
        confirm(f"delete {name} with its offsets and {dead}", yes=yes)
        admin.delete_group(name)
    write_text(f"deleted {name} with its offsets and {dead}\n")


@contextmanager
def moving(
    name: str, moves: Sequence[Move], output: str, *, is_dry: bool, yes: bool
) -> Iterator[None]:
    """Print how a group moves, or would; ask before the block if that replaces offsets.

    Raises:
        click.UsageError: The question cannot be asked here.
        Failure: The answer was no.
    """
    rows: list[dict[str, object]] = [
        {
            "topic": move.queue.topic,
            "broker": move.queue.broker_name,
            "queue": move.queue.queue_id,
            "committed": move.committed,
            "to": move.to,
            "moves": None if move.committed is None else move.to - move.committed,
            "behind": move.behind,
        }
        for move in moves
    ]

    def show() -> None:
        show_rows(rows, _MOVES, output, none="")

    replaced = sum(move.committed is not None for move in moves)
    is_asking = not is_dry and not yes and replaced > 0
    if is_asking:
        what = f"move {name} in {counted(len(moves), 'queue')}"
        confirm(what, yes=False, show=show)
    yield
    if not is_asking:
        show()
    if output == "table":
        sys.stderr.write("nothing was changed: a dry run\n" if is_dry else "moved\n")


def _confirm_replacing(
    admin: Admin, source: str, target: str, topic: str | None, *, yes: bool
) -> None:
    """Ask before a clone replaces offsets."""
    copied = {lag.queue for lag in admin.progress(source) if topic in (None, lag.queue.topic)}
    replaced = [
        lag
        for lag in admin.progress(target)
        if lag.consumer_offset is not None and lag.queue in copied and not is_retry(lag.queue)
    ]
    if replaced:
        what = f"replace the offsets of {target} in {counted(len(replaced), 'queue')}"
        confirm(what, yes=yes)


def _check_offline(admin: Admin, name: str) -> None:
    members = admin.members(name)
    if members:
        online = counted(len(members), "member")
        raise Failure(f"{name} has {online} online: stop its consumers first")


def _queue_row(state: QueueState) -> dict[str, object]:
    lag = state.lag
    return {
        "topic": lag.queue.topic,
        "broker": lag.queue.broker_name,
        "queue": lag.queue.queue_id,
        "committed": lag.consumer_offset,
        "end": lag.broker_offset,
        "behind": lag.messages,
        "last_consumed": time_of(lag.last_timestamp),
        "waiting_since": time_of(state.waiting_since_ms or 0),
        "last_tried": time_of(state.tried_ms or 0),
        "member": state.member,
    }
