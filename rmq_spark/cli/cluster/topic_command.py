"""``rocketpoll topic``: create, alter, list, describe, copy, delete.

A topic's configuration is shown and changed for each broker, because brokers of a cluster may
differ.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.cluster.topic_copy import QueueCopy, copy_queues, plan_copy
from rmq_spark.cli.cluster.topic_settings import (
    DEFAULT_QUEUES,
    PERMS,
    QUEUES_MAX,
    TopicEdit,
    apply_edit,
    new_topic_config,
    perm_text,
    plan_creation,
    plan_edit,
)
from rmq_spark.cli.shell.command_tree import CommandGroup
from rmq_spark.cli.shell.connection import (
    ClusterAccess,
    connection_options,
    full_name_options,
    other_cluster,
)
from rmq_spark.cli.shell.failures import Failure, confirm, print_error
from rmq_spark.cli.shell.output import (
    ByteSize,
    Row,
    local_time,
    output_option,
    show_document,
    show_rows,
    write_text,
)
from rmq_spark.cli.shell.parameter_types import (
    PositiveFloat,
    TopicPosition,
    parse_pairs,
    parse_position,
    select_names,
)
from rmq_spark.client.admin.lag import total_lag
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.errors import format_count
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.names import is_internal_topic, is_system_group

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

_perm = click.option(
    "--perm",
    type=click.Choice(list(PERMS)),
    help="Whether the topic can be read (r) and written (w).",
)
_attributes = click.option(
    "--attribute", "attributes", multiple=True, metavar="NAME=VALUE",
    help="Attribute of RocketMQ 5, for example message.type=FIFO. Repeatable.",
)  # fmt: skip
_cluster = click.option("--cluster", metavar="NAME", help="Limit to the masters of this cluster.")
_count = click.IntRange(1, QUEUES_MAX)


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create, change and inspect topics."""


@topic.command(example="rocketpoll topic create orders --queues 4")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--queues", type=_count, default=DEFAULT_QUEUES, show_default=True, metavar="N",
              help="Read and write queues of each topic, on each master.")  # fmt: skip
@_perm
@_attributes
@_cluster
@connection_options
def create(
    names: tuple[str, ...],
    queues: int,
    perm: str | None,
    attributes: tuple[str, ...],
    cluster: str | None,
    access: ClusterAccess,
) -> None:
    """Create topics on all masters.

    Nothing is created if one of them exists: to change a topic, use rocketpoll topic alter.
    """
    pairs = parse_pairs("--attribute", attributes)
    config = new_topic_config(names[0], queues, perm or "rw", pairs)
    with access.admin() as admin:
        masters = plan_creation(admin, names, cluster)
        admin.create_topics(names, cluster=cluster, config=config)
    count = len(set(names))
    what = names[0] if count == 1 else format_count(count, "topic")
    each = "" if count == 1 else " each"
    broker_names = ", ".join(masters)
    write_text(f"created {what} with {format_count(queues, 'queue')}{each} on {broker_names}\n")


@topic.command(example="rocketpoll topic alter orders --queues 8 --perm rw")
@click.argument("name", metavar="TOPIC")
@click.option("--queues", type=_count, metavar="N", help="Read and write queues on each master.")
@click.option("--read-queues", type=_count, metavar="N", help="Queues that consumers read.")
@click.option("--write-queues", type=_count, metavar="N", help="Queues that producers write to.")
@_perm
@_attributes
@output_option
@connection_options
def alter(
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: str | None,
    attributes: tuple[str, ...],
    output: str,
    access: ClusterAccess,
) -> None:
    """Change settings of a topic, and show them before and after.

    Settings without an option are not changed. Before you remove queues, lower --write-queues so
    that producers stop writing to them, and let consumers read what they hold.
    """
    read, write = read_queues or queues, write_queues or queues
    if not (read or write or perm or attributes):
        raise click.UsageError("nothing to change. Give --queues, --perm or --attribute")
    edit = TopicEdit(read, write, perm, parse_pairs("--attribute", attributes))
    with access.admin() as admin:
        rows = []
        for change in plan_edit(admin, name, edit):
            apply_edit(admin, name, edit, [change])
            rows.append(_setting_row(change.broker_name, "before", change.old))
            rows.append(_setting_row(change.broker_name, "after", change.new))
    show_rows(rows, list(rows[0]), output, empty_text=f"no broker has {name}")


@topic.command("list", example="rocketpoll topic list --sizes\nrocketpoll topic list 'o*'")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--sizes", is_flag=True, help="Show messages and bytes, the largest topic first. "
              "Needs requests for each topic.")  # fmt: skip
@click.option("--all", "with_all", is_flag=True, help="Include system topics, retry topics and "
              "dead-letter topics.")  # fmt: skip
@output_option
@connection_options
def list_topics(
    patterns: tuple[str, ...], output: str, *, sizes: bool, with_all: bool, access: ClusterAccess
) -> None:
    """List topics with their queues.

    PATTERN is a name, or a pattern such as 'orders*', quoted for the shell. [default: all topics]

    --sizes shows which topic fills the disk. The bytes are estimated from the first and last
    messages of each queue; "rocketpoll store stat" counts them in a store's directory.
    """
    with access.admin() as admin:
        tables = admin.all_topic_configs()
        own = {*tables, *admin.cluster_info().cluster_addr_table}
        names = sorted({name for table in tables.values() for name in table})
        if not with_all:
            names = [name for name in names if not is_internal_topic(name, own)]
        names = select_names(names, patterns, "topic")
        rows: list[dict[str, Any]] = [_list_row(name, tables) for name in names]
        if sizes:
            rows = [{**row, **_size_of(admin, row["topic"])} for row in rows]
            rows.sort(key=lambda row: row["bytes"] or 0, reverse=True)
    columns = ["topic", "brokers", "queues", "perm"]
    if sizes:
        columns += ["messages", "bytes", "last_stored"]
    show_rows(
        rows, columns, output, empty_text="no topics. Create one with rocketpoll topic create NAME"
    )


@topic.command(example="rocketpoll topic describe orders")
@click.argument("name", metavar="TOPIC")
@output_option
@connection_options
def describe(name: str, output: str, access: ClusterAccess) -> None:
    """Show settings, queues and consuming groups of a topic."""
    with access.admin() as admin:
        configs = admin.topic_configs(name)
        offsets = admin.topic_offsets(name)
        size = admin.topic_size(name)
        waiting = admin.timer_count(name)
        groups = sorted(each for each in admin.groups_of_topic(name) if not is_system_group(each))
        behind = {each: total_lag(admin.lag(each, name)) for each in groups}
        online = {each: len(admin.members(each)) for each in groups}
    document = {
        "topic": name,
        "messages": size.messages,
        "bytes": ByteSize(size.stored_bytes),
        "last_stored": local_time(size.last_timestamp),
        **({} if waiting is None else {"waiting_for_timer": waiting}),
        "queues": [
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "first": held.min_offset,
                "end": held.max_offset,
                "messages": held.max_offset - held.min_offset,
                "last_stored": local_time(held.last_update_timestamp),
            }
            for queue, held in offsets.items()
        ],
        "settings": [_setting_row(broker, None, config) for broker, config in configs.items()],
        "groups": [
            {"group": each, "behind": behind[each], "members": online[each]} for each in groups
        ],
    }
    show_document(document, output)


@topic.command(
    example="rocketpoll topic copy orders orders-2026 --dry-run\n"
    "rocketpoll topic copy orders orders-2026 --from -1h --rate 1000"
)
@click.argument("source", metavar="SOURCE")
@click.argument("destination", metavar="DESTINATION")
@click.option("--to-profile", metavar="NAME", help="Profile of the cluster of DESTINATION. "
              "[default: the same cluster]")  # fmt: skip
@click.option("--to-namesrv", metavar="HOST:PORT", help="Name servers of the cluster of "
              "DESTINATION; other settings are those of --to-profile, or of SOURCE.")  # fmt: skip
@click.option("--from", "start", type=parse_position, default="start", show_default=True,
              metavar="POSITION", help="Where to start in each queue, as in rocketpoll consume; "
              "never before the last message that was copied.")  # fmt: skip
@click.option("--until", "end", type=parse_position, default="end", show_default=True,
              metavar="POSITION", help="Stop before this position in each queue.")  # fmt: skip
@click.option("--rate", type=PositiveFloat(), metavar="N",
              help="Copy at most this many messages per second.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be copied, and copy nothing.")
@output_option
@full_name_options
def copy(
    source: str,
    destination: str,
    to_profile: str | None,
    to_namesrv: str | None,
    start: TopicPosition,
    end: TopicPosition,
    rate: float | None,
    output: str,
    *,
    dry_run: bool,
    access: ClusterAccess,
) -> None:
    """Copy the messages of a topic to another, in the order of each queue.

    Keeps body, keys, tag, properties, id and time of birth; offsets and store times are new, and
    the old place is in the properties COPY_ORIGIN_TOPIC, _BROKER, _QUEUE_ID and _QUEUE_OFFSET. If
    run again, the command continues after the last message that was copied. A missing DESTINATION
    is created.
    """
    other = other_cluster(access, to_namesrv, to_profile)
    with access.admin() as admin, other.admin() as admin_there:
        copies = plan_copy(admin, admin_there, source, destination, start, end, creates=not dry_run)
        try:
            if not dry_run:
                copy_queues(admin, admin_there, copies, rate)
        finally:  # report what was copied even after an error
            rows = [_copy_row(each, dry_run=dry_run) for each in copies]
            show_rows(rows, list(_copy_row(copies[0], dry_run=dry_run)), output, empty_text="")
    for each in copies:
        if each.expired:
            print_error(
                "rocketpoll",
                f"{each.source.queue} has lost "
                f"{format_count(each.expired, 'message')} to retention before they were copied",
            )
        for text in each.left_out:
            print_error("rocketpoll", text)
    left_out = sum(len(each.left_out) for each in copies)
    if dry_run:
        sys.stderr.write("dry run: nothing was copied\n")
    elif left_out:
        raise Failure(
            f"{format_count(left_out, 'message was', 'messages were')} not copied, named above",
            "Print their stored bytes with rocketpoll consume -o json",
        )


def _copy_row(each: QueueCopy, *, dry_run: bool) -> Row:
    queue, first, end = each.source.queue, each.source.start, each.source.end
    return {
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "from": first,
        "until": end,
        "to_broker": each.target.broker_name,
        "to_queue": each.target.queue_id,
        **({"messages": end - first} if dry_run else {"copied": each.copied}),
        **({} if dry_run else {"left_out": len(each.left_out)}),
    }


@topic.command(example="rocketpoll topic delete orders --yes")
@click.argument("name", metavar="TOPIC")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_cluster
@connection_options
def delete(name: str, *, yes: bool, cluster: str | None, access: ClusterAccess) -> None:
    """Delete a topic with its messages, on all masters."""
    with access.admin() as admin:
        offsets = admin.topic_offsets(name).values()
        held = sum(each.max_offset - each.min_offset for each in offsets)
        confirm(f"delete {name} with {format_count(held, 'message')}", yes=yes)
        admin.delete_topic(name, cluster)
    write_text(f"deleted {name} with {format_count(held, 'message')}\n")


def _setting_row(broker: str, label: str | None, config: TopicConfig) -> dict[str, object]:
    return {
        "broker": broker,
        **({} if label is None else {"settings": label}),
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": perm_text(config.perm),
        "order": config.order,
        "attributes": dict(config.attributes or {}),
    }


def _list_row(name: str, tables: Mapping[str, Mapping[str, TopicConfig]]) -> dict[str, object]:
    configs = {broker: table[name] for broker, table in tables.items() if name in table}
    return {
        "topic": name,
        "brokers": sorted(configs),
        "queues": sum(config.read_queue_nums for config in configs.values()),
        "perm": "/".join(dict.fromkeys(perm_text(config.perm) for config in configs.values())),
    }


def _size_of(admin: Admin, name: str) -> Row:
    try:
        size = admin.topic_size(name)
    except RouteNotFound:  # deleted meanwhile, or a broker's own topic without a route
        return {"bytes": None}
    return {
        "messages": size.messages,
        "bytes": ByteSize(size.stored_bytes),
        "last_stored": local_time(size.last_timestamp),
    }
