"""``rocketpoll top``: shows live rates and lags of brokers, topics and groups.

    a sample of all ends and offsets ──> another ──> rates between the two

Each sample sends one request to each broker for each topic, one for the members of each group, and
one for all committed offsets: with thousands of topics or groups it takes a second or two. For
groups on the screen that have members and lag, a few more requests find out which are stuck. The
interval is the time from the end of a sample to the start of the next.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count as numbers
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rmq_spark.cli.cluster.cluster_command import OUT_RATE, BrokerStatus, query_brokers
from rmq_spark.cli.groups.diagnosis import (
    GroupCondition,
    OffsetWatch,
    current_time_ms,
    examine_group,
)
from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import ClusterAccess, cluster_options
from rmq_spark.cli.shell.output import Row, json_line, rich_table, text_lines
from rmq_spark.cli.shell.parameter_types import PositiveFloat
from rmq_spark.wire.names import RETRY_PREFIX, is_internal_topic, is_system_group

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.admin.broker_report import BrokerReport

_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "brokers": ("broker", "in_per_s", "out_per_s", "held_pulls", "to_flush", "to_dispatch",
                "state"),
    "topics": ("topic", "in_per_s", "messages"),
    "groups": ("group", "state", "members", "out_per_s", "behind"),
}  # fmt: skip


class ClusterSample(NamedTuple):
    """The state of the cluster at one time.

    Attributes:
        sampled_at: Time of the sample, by the monotonic clock.
        brokers: All brokers, each with the status that it reports.
        ends: By topic, the sum of the ends of its queues, and its number of messages.
        groups: By group, the sum of its offsets, its lag in messages, and its members.
    """

    sampled_at: float
    brokers: Sequence[BrokerStatus]
    ends: Mapping[str, tuple[int, int]]
    groups: Mapping[str, tuple[int, int, int]]


@click.command(cls=CommandWithExample, example="rocketpoll top -n 1 --interval 0.5")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Exit after N samples.")
@click.option("--interval", type=PositiveFloat(0.1), default=2.0, show_default=True,
              metavar="SECONDS", help="Time between two samples.")  # fmt: skip
@click.option("--rows", type=click.IntRange(1), default=15, show_default=True, metavar="N",
              help="Show at most N topics and N groups.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table",
              show_default=True, help="Tables, or one JSON line per sample.")  # fmt: skip
@cluster_options
def top(count: int | None, interval: float, rows: int, output: str, access: ClusterAccess) -> None:
    """Show live rates and lags: brokers, the busiest topics, the groups with the most lag.

    Brokers report their own rates; those of topics and groups are measured between two samples. A
    group is "stuck" if the next message of a queue has waited for 30 s, and the group's offset has
    not moved for 6 s: so the first samples cannot show it.
    """
    watch = OffsetWatch()
    is_live = output == "table" and sys.stdout.isatty()
    with access.admin() as admin, _screen() if is_live else nullcontext() as show:
        before = _sample(admin)
        for _ in range(count) if count else numbers():
            time.sleep(interval)
            now = _sample(admin)
            tables = rate_tables(before, now, rows)
            for row in tables["groups"]:
                row["state"] = _group_state(admin, row, watch)
            before = now
            if show is not None:
                show(tables)
            elif output == "json":
                sys.stdout.write(json_line(tables).decode())
            else:
                for name, found in tables.items():
                    sys.stdout.write("\n".join([name, *text_lines(found, _COLUMNS[name]), "", ""]))
            sys.stdout.flush()


def rate_tables(
    previous: ClusterSample, current: ClusterSample, rows_max: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the tables to show: the changes between two samples."""
    seconds = max(current.sampled_at - previous.sampled_at, 0.001)
    topics: list[dict[str, Any]] = [
        {
            "topic": topic,
            "in_per_s": (end - previous.ends.get(topic, (end, 0))[0]) / seconds,
            "messages": messages,
        }
        for topic, (end, messages) in current.ends.items()
    ]
    groups: list[dict[str, Any]] = [
        {
            "group": group,
            "members": members,
            "out_per_s": (consumed - previous.groups.get(group, (consumed, 0, 0))[0]) / seconds,
            "behind": behind,
        }
        for group, (consumed, behind, members) in current.groups.items()
    ]
    topics.sort(key=lambda row: (-row["in_per_s"], row["topic"]))
    groups.sort(key=lambda row: (-row["behind"], row["group"]))
    return {
        "brokers": [_broker_row(broker) for broker in current.brokers],
        "topics": [*topics[:rows_max]],
        "groups": [*groups[:rows_max]],
    }


def _group_state(admin: Admin, row: Row, watch: OffsetWatch) -> str:
    """Return the state of a group; send further requests only if it has members and lag."""
    if not row["members"]:
        return GroupCondition.OFFLINE.value
    if not row["behind"]:
        return GroupCondition.OK.value
    return examine_group(admin, str(row["group"]), watch, current_time_ms()).condition.value


def _sample(admin: Admin) -> ClusterSample:
    from rmq_spark.client.admin.broker_report import read_broker_report  # noqa: PLC0415  # --help does not need it

    brokers = query_brokers(admin)
    own = {name for broker in brokers for name in (broker.name, broker.cluster) if name}
    addresses = admin.masters().values()
    reports = [read_broker_report(admin, address, with_times=False) for address in addresses]
    ends: dict[str, tuple[int, int]] = {}
    groups: dict[str, tuple[int, int, int]] = {}
    for report in reports:
        for each in report.topics:
            if not is_internal_topic(each.topic, own):
                end, held = ends.get(each.topic, (0, 0))
                ends[each.topic] = (end + each.end, held + each.end - each.begin)
        _add_groups(report, groups)
    return ClusterSample(time.monotonic(), brokers, ends, groups)


def _add_groups(report: BrokerReport, groups: dict[str, tuple[int, int, int]]) -> None:
    for name in report.group_names:
        if not is_system_group(name):
            consumed, behind, members = groups.get(name, (0, 0, 0))
            online = report.members.get(name)
            connected = 0 if online is None else len(online.connection_set)
            groups[name] = (consumed, behind, max(members, connected))  # every broker reports all
    for each in report.groups:
        if each.group in groups and not each.topic.startswith(RETRY_PREFIX):
            consumed, behind, members = groups[each.group]
            groups[each.group] = (consumed + each.consumed, behind + each.messages, members)


def _broker_row(broker: BrokerStatus) -> dict[str, Any]:
    info = broker.info or {}
    return {
        "broker": broker.title,
        "in_per_s": broker.number("putTps"),
        "out_per_s": broker.number(*OUT_RATE),
        "held_pulls": info.get("pullsHeld"),
        "to_flush": info.get("remainHowManyDataToFlush"),
        "to_dispatch": info.get("dispatchBehindBytes"),
        "state": broker.fault or "answers",
    }


@contextmanager
def _screen() -> Iterator[Callable[[Mapping[str, Sequence[Row]]], None]]:
    """Yield the function that shows tables on the whole terminal."""
    from rich.console import Group  # noqa: PLC0415  # only in a terminal
    from rich.live import Live  # noqa: PLC0415  # rich loads slowly

    with Live(screen=True, auto_refresh=False) as live:
        yield lambda tables: live.update(
            Group(*(rich_table(found, _COLUMNS[name], name) for name, found in tables.items())),
            refresh=True,
        )
