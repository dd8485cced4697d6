"""``rocketpoll group``: list, describe, seek, clone, delete.

`group_state` reads the state of a group, and plans and applies a seek; the console uses it as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from rmq_spark.cli.groups.diagnosis import (
    GroupExamination,
    OffsetWatch,
    diagnose_groups,
    examine_groups,
    wait_for_moves,
)
from rmq_spark.cli.groups.group_state import (
    OffsetMove,
    apply_seek,
    check_group_exists,
    match_groups,
    plan_seek,
    read_group,
)
from rmq_spark.cli.groups.group_view import QUEUE_COLUMNS, QUEUES_SHOWN_MAX, GroupView
from rmq_spark.cli.shell.command_tree import CommandGroup
from rmq_spark.cli.shell.connection import ClusterAccess, connection_options
from rmq_spark.cli.shell.failures import Failure, confirm
from rmq_spark.cli.shell.output import (
    TableLayout,
    local_time,
    output_option,
    queue_fields,
    show_document,
    show_rows,
    write_text,
)
from rmq_spark.cli.shell.parameter_types import (
    QueueName,
    TopicPosition,
    is_pattern,
    parse_position,
    parse_queue,
    select_names,
)
from rmq_spark.client.admin.lag import count_messages, without_retries
from rmq_spark.client.errors import GroupNotFound
from rmq_spark.errors import format_count
from rmq_spark.wire.names import dlq_topic, is_system_group

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.wire.bodies.operators import Connection

_LIST_COLUMNS: Final = (
    *("group", "state", "members", "behind", "waiting_since", "last_consumed", "topics"),
)
_MOVE_COLUMNS: Final = ("topic", "broker", "queue", "committed", "to", "moves", "behind")


@click.group(cls=CommandGroup)
def group() -> None:
    """Show lag, members and offsets of consumer groups, and move offsets."""


@group.command("list", example="rocketpoll group list\nrocketpoll group list 'b*'")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--all", "with_all", is_flag=True, help="Include system groups.")
@output_option
@connection_options
def list_groups(
    patterns: tuple[str, ...], output: str, *, with_all: bool, access: ClusterAccess
) -> None:
    """List groups with their state, online members, lag and topics.

    PATTERN is a name, or a pattern such as 'billing*', quoted for the shell. [default: all groups]

    A group is "stuck" if the next message of a queue has waited for 30 s, and the group's offset
    does not move for 6 s: the command takes that long if a group may be stuck. "waiting since" is
    when that message was stored.
    """
    with access.admin() as admin:
        names = [name for name in admin.groups() if with_all or not is_system_group(name)]
        shown = select_names(names, patterns, "group")
        found = examine_groups(admin, shown, OffsetWatch(), wait_for_moves)
    show_rows(
        [_list_row(each) for each in found.values()],
        _LIST_COLUMNS,
        output,
        empty_text="no groups. Start a consumer: it creates its group",
        layout=TableLayout(
            ages=("waiting_since", "last_consumed"),
            optional_columns=("last_consumed", "waiting_since", "topics", "members"),
            flexible="topics",
        ),
    )


@group.command(
    example="rocketpoll group describe billing\nrocketpoll group describe 'b*' --lag-only"
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC",
              help="Limit to this topic. Repeatable. "
              "[default: every topic GROUP consumes]")  # fmt: skip
@click.option("--queues", "with_queues", is_flag=True,
              help=f"Show all queues, not only {QUEUES_SHOWN_MAX}.")  # fmt: skip
@click.option("--lag-only", is_flag=True, help="Show only queues that have lag, all of them.")
@output_option
@connection_options
def describe(
    names: tuple[str, ...],
    topics: tuple[str, ...],
    output: str,
    *,
    with_queues: bool,
    lag_only: bool,
    access: ClusterAccess,
) -> None:
    """Show the lag of groups by queue, their members, and why a group has lag.

    GROUP is a name, or a pattern such as 'billing*', quoted for the shell.

    "behind" is the lag in messages. "consumed" is when the last consumed message was stored,
    "waiting" when the next one was. "tried" is when the member last started or finished a message
    of the queue: if that was just now, its listener keeps failing; if it was long ago, the listener
    hangs. "waiting for retry" counts failed messages whose delay has ended.

    If a group may be stuck, the command looks again after 6 s to see whether it moves.
    """
    if with_queues and lag_only:
        raise click.UsageError("--queues and --lag-only exclude each other. Give one")
    with access.admin() as admin:
        states = [read_group(admin, name, topics) for name in match_groups(admin, names)]
        view = GroupView(access, with_all_queues=with_queues, is_lag_only=lag_only)
        if output == "table" and len(states) == 1:
            view.show_tables(states[0])
        diagnoses = diagnose_groups(admin, states, wait_for_moves)
    if output == "table":
        for number, (state, diagnosis) in enumerate(zip(states, diagnoses, strict=True)):
            if len(states) > 1:
                sys.stdout.write("\n\n" if number else "")
                view.show_tables(state)
            view.show_diagnosis(state, diagnosis)
        return
    documents = [
        view.document(state, diagnosis) for state, diagnosis in zip(states, diagnoses, strict=True)
    ]
    is_one = len(names) == 1 and not is_pattern(names[0])
    if is_one:
        show_document(documents[0], output)
    elif output == "csv":
        rows = [{"group": state.name, **row} for state in states for row in view.queue_rows(state)]
        show_rows(rows, ("group", *QUEUE_COLUMNS), output, empty_text="")
    else:
        show_rows(documents, list(documents[0]), output, empty_text="")


@group.command(
    example="rocketpoll group seek billing --to -1h --dry-run\n"
    "rocketpoll group seek billing --topic orders --queue 0 --to +1 --yes"
)
@click.argument("name", metavar="GROUP")
@click.option("--to", "position", type=parse_position, required=True, metavar="POSITION",
              help="start, end, an offset, a time (09:00, -1h, 2026-11-23T09:00Z), or relative "
              "to the committed offset: +1 skips one message, -10 repeats ten.")  # fmt: skip
@click.option("--topic", "topics", multiple=True, metavar="TOPIC",
              help="Limit to this topic. Repeatable. "
              "[default: every topic GROUP consumes]")  # fmt: skip
@click.option("-q", "--queue", type=parse_queue, metavar="N|BROKER:N",
              help="Limit to this queue. [default: all]")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the moves, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
@connection_options
def seek(
    name: str,
    position: TopicPosition,
    topics: tuple[str, ...],
    queue: QueueName | None,
    output: str,
    *,
    dry_run: bool,
    yes: bool,
    access: ClusterAccess,
) -> None:
    """Move the committed offsets of a group.

    The command shows each queue's old and new offset, and asks before it replaces offsets. Online
    members are notified and continue from the new offsets at once. "behind" is the lag after the
    move.
    """
    with access.admin() as admin:
        moves = plan_seek(admin, name, topics, position, queue)
        if not moves:
            show_rows([], _MOVE_COLUMNS, output, empty_text=f"{name} has no queues to move")
            return
        with confirm_moves(name, moves, output, is_dry_run=dry_run, yes=yes):
            if not dry_run:
                apply_seek(admin, name, moves, position, is_all=queue is None)


@group.command(example="rocketpoll group clone billing billing-test")
@click.argument("source", metavar="GROUP")
@click.argument("target", metavar="NEW-GROUP")
@click.option("--topic", metavar="TOPIC",
              help="Limit to this topic. [default: every topic GROUP consumes]")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
@connection_options
def clone(
    source: str, target: str, topic: str | None, output: str, *, yes: bool, access: ClusterAccess
) -> None:
    """Copy the offsets of a group to another group.

    NEW-GROUP then continues where GROUP is. The command asks before it replaces offsets.
    """
    with access.admin() as admin:
        check_group_exists(admin, source)
        _check_offline(admin, target)
        topic = None if topic is None else admin.instance.namespace.strip(topic)
        copied = {lag.queue for lag in admin.progress(source) if topic in (None, lag.queue.topic)}
        replaced = [
            lag
            for lag in without_retries(admin.progress(target))
            if lag.consumer_offset is not None and lag.queue in copied
        ]
        if replaced:
            what = f"replace the offsets of {target} in {format_count(len(replaced), 'queue')}"
            confirm(what, yes=yes)
        admin.clone_offsets(source, target, topic=topic)
        rows = [
            {
                **queue_fields(lag.queue),
                "committed": lag.consumer_offset,
                "behind": lag.messages,
            }
            for lag in without_retries(admin.progress(target))
        ]
    columns = ["topic", "broker", "queue", "committed", "behind"]
    show_rows(rows, columns, output, empty_text=f"{source} has no offsets")


@group.command(example="rocketpoll group delete billing-test --yes")
@click.argument("name", metavar="GROUP")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def delete(name: str, *, yes: bool, access: ClusterAccess) -> None:
    """Delete a group with its offsets, retries and dead letters."""
    with access.admin() as admin:
        check_group_exists(admin, name)
        _check_offline(admin, name)
        dead = format_count(count_messages(admin, dlq_topic(name)), "dead letter")
        confirm(f"delete {name} with its offsets and {dead}", yes=yes)
        admin.delete_group(name)
    write_text(f"deleted {name} with its offsets and {dead}\n")


@contextmanager
def confirm_moves(
    name: str, moves: Sequence[OffsetMove], output: str, *, is_dry_run: bool, yes: bool
) -> Iterator[None]:
    """Print a group's moves; before the block, ask for confirmation if they replace offsets."""
    rows: list[dict[str, object]] = [
        {
            **queue_fields(move.queue),
            "committed": move.committed,
            "to": move.target_offset,
            "moves": None if move.committed is None else move.target_offset - move.committed,
            "behind": move.behind,
        }
        for move in moves
    ]

    def show() -> None:
        show_rows(rows, _MOVE_COLUMNS, output, empty_text="")

    replaced = sum(move.committed is not None for move in moves)
    is_asking = not is_dry_run and not yes and replaced > 0
    if is_asking:
        what = f"move {name} in {format_count(len(moves), 'queue')}"
        confirm(what, yes=False, show_details=show)
    yield
    if not is_asking:
        show()
    if output == "table":
        sys.stderr.write("dry run: nothing was changed\n" if is_dry_run else "moved\n")


def _check_offline(admin: Admin, name: str) -> None:
    members: Sequence[Connection] = ()
    with suppress(GroupNotFound):  # a new group
        members = admin.members(name)
    if members:
        online = format_count(len(members), "member")
        raise Failure(f"{name} has {online} online", "Stop its consumers first")


def _list_row(found: GroupExamination) -> dict[str, object]:
    return {
        "group": found.summary.name,
        "state": found.condition.value,
        "members": found.summary.member_count,
        "behind": found.summary.behind,
        "waiting_since": local_time(found.waiting_since_ms or 0),
        "last_consumed": local_time(found.summary.last_consumed_ms),
        "topics": list(found.summary.topics),
    }
