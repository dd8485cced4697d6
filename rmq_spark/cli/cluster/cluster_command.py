"""``rocketpoll cluster``: shows the brokers of a cluster, and whether they are healthy.

Every name server and every broker is asked separately: if one does not answer, the command reports
that and continues.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from rmq_spark.cli.groups.diagnosis import (
    GroupCondition,
    GroupExamination,
    OffsetWatch,
    examine_groups,
    wait_for_moves,
)
from rmq_spark.cli.groups.group_state import queue_text
from rmq_spark.cli.shell.command_tree import CommandGroup
from rmq_spark.cli.shell.connection import ClusterAccess, cluster_options
from rmq_spark.cli.shell.failures import UNHEALTHY
from rmq_spark.cli.shell.health_check import HealthCheck, report_lines
from rmq_spark.cli.shell.output import (
    Row,
    format_cell,
    local_time,
    output_option,
    show_rows,
    terminal_width,
)
from rmq_spark.cli.shell.parameter_types import PositiveFloat
from rmq_spark.client.admin.lag import count_messages
from rmq_spark.client.errors import AccessDenied, BrokerRefused, ClientError
from rmq_spark.errors import BodyError, format_count
from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.operators import RECENT_LOSSES, RecentLoss
from rmq_spark.wire.codes import MASTER_ID
from rmq_spark.wire.names import DLQ_PREFIX, is_system_group

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

OUT_RATE: Final = ("getTransferredTps", "getTransferedTps")
"""The rate at which a broker delivers messages, in both of RocketMQ's spellings."""

_DISK_RATIO_MAX: Final = 0.85
"""Disk usage above which RocketMQ deletes files before they expire; a little later it refuses
sends."""

LOSS_REMEDY: Final = "read the broker's log, which says what to do, and check the groups named here"

_COLUMNS: Final = (
    *("cluster", "broker", "role", "address", "version", "in_per_s", "out_per_s", "messages_today"),
    *("disk", "since", "state"),
)


class BrokerStatus(NamedTuple):
    """A broker and the status that it reports, or why it does not answer.

    ``remedy`` says what to do if the broker refuses this user.
    """

    cluster: str | None
    name: str
    broker_id: int
    address: str
    info: Mapping[str, str] | None
    fault: str | None = None
    remedy: str | None = None

    @property
    def title(self) -> str:
        """The broker's name, and its number if it is a slave."""
        return self.name if self.broker_id == MASTER_ID else f"{self.name} slave {self.broker_id}"

    def number(self, *keys: str) -> float | None:
        """Return the number under the first key that the broker reports; the first of several."""
        for key in keys:
            with suppress(IndexError, ValueError):
                return float((self.info or {}).get(key, "").split()[0])
        return None

    @property
    def version(self) -> str | None:
        """Name of the RocketMQ release, and a rocketpoll broker's own release."""
        info = self.info or {}
        name, own = info.get("brokerVersionDesc"), info.get("rocketpollVersion")
        return f"{name} (rocketpoll {own})" if name and own else name

    @property
    def losses(self) -> Sequence[RecentLoss] | None:
        """The losses of the last hour; None if the broker reports nothing about losses."""
        text = (self.info or {}).get("recentLosses")
        if text is None:
            return None
        try:
            found: Sequence[RecentLoss] = decode_body(RECENT_LOSSES, text.encode())
        except BodyError:
            return None
        return found

    @property
    def messages_today(self) -> int | None:
        """Number of messages stored since midnight."""
        now, morning = self.number("msgPutTotalTodayNow"), self.number("msgPutTotalTodayMorning")
        return None if now is None or morning is None else int(now - morning)


@click.group(cls=CommandGroup)
def cluster() -> None:
    """List the brokers of a cluster and check their health."""


@cluster.command(example="rocketpoll cluster info")
@output_option
@cluster_options
def info(output: str, access: ClusterAccess) -> None:
    """Show all brokers with address, version, rates and disk usage."""
    with access.admin() as admin:
        rows = [_row(broker) for broker in query_brokers(admin)]
    show_rows(rows, _COLUMNS, output, empty_text="no broker is registered")


@cluster.command(example="rocketpoll cluster health")
@click.option(
    "--watch", "is_watching", is_flag=True, help="Repeat until Ctrl-C, and print each change."
)
@click.option("--exit-when-healthy", is_flag=True, help="Repeat until everything is healthy.")
@click.option("--interval", type=PositiveFloat(0.1), default=2.0, show_default=True,
              metavar="SECONDS", help="Time between two checks.")  # fmt: skip
@click.option("--groups/--no-groups", "with_groups", default=True, show_default=True,
              help="Look for stuck groups and dead letters.")  # fmt: skip
@output_option
@cluster_options
def health(
    output: str,
    *,
    is_watching: bool,
    exit_when_healthy: bool,
    interval: float,
    with_groups: bool,
    access: ClusterAccess,
) -> int:
    """Check all name servers, brokers and groups.

    The command says how to fix what fails. The exit code is 10 if something fails: a name server or
    a broker does not answer, a broker has a problem, or a group is stuck. Dead letters, and groups
    that have lag and no consumer, are warnings: with these alone, the exit code is 0.

    The command checks the first 1,000 groups, with one request each and a few more for groups with
    lag. If a group may be stuck, it checks again after 6 s. --no-groups leaves groups and dead
    letters out.
    """
    shown: list[HealthCheck] = []
    watch = OffsetWatch()
    while True:
        checks = list(_check_cluster(access))
        if with_groups:
            checks += check_groups(access, watch)
        is_healthy = all(check.is_ok for check in checks)
        if checks != shown:
            if shown and sys.stdout.isatty():
                click.clear()
            _show_checks(checks, output)
            sys.stdout.flush()
            shown = checks
        if is_healthy and (exit_when_healthy or not is_watching):
            return 0
        if not (is_watching or exit_when_healthy):
            return UNHEALTHY
        time.sleep(interval)


def _show_checks(checks: Sequence[HealthCheck], output: str) -> None:
    if output == "table":
        columns = terminal_width() if sys.stdout.isatty() else None
        click.echo("\n".join(report_lines(checks, "everything is healthy", columns)))
    else:
        rows = [check.row for check in checks]
        show_rows(rows, ("check", "state", "found", "fix"), output, empty_text="")


def _check_cluster(access: ClusterAccess) -> Iterator[HealthCheck]:
    brokers: dict[str, BrokerStatus] = {}
    for address in filter(None, access.name_servers.split(";")):
        what = f"name server {address}"
        try:
            with ClusterAccess({**access.settings, "namesrv": address}).admin() as admin:
                found = query_brokers(admin)
        except ClientError as error:
            yield HealthCheck(
                what, " ".join(str(error).split()), "start it, or correct the address"
            )
            continue
        yield HealthCheck(what, f"answers, knows {format_count(len(found), 'broker')}")
        brokers.update({broker.address: broker for broker in found})
    if not brokers:
        yield HealthCheck("brokers", "none is registered", "start a broker that registers there")
    for broker in brokers.values():
        yield from check_broker(broker)
    names = {broker.name for broker in brokers.values()}
    masters = {broker.name for broker in brokers.values() if broker.broker_id == MASTER_ID}
    for name in sorted(names - masters):
        yield HealthCheck(f"broker {name}", "has slaves only: nobody can write", "start its master")


def check_broker(broker: BrokerStatus) -> Iterator[HealthCheck]:
    """Yield the checks of one broker, from the status that it reports."""
    yield from check_state(broker)
    yield from _check_losses(broker)


def check_state(broker: BrokerStatus) -> Iterator[HealthCheck]:
    """Yield the checks of one broker's present state, without its recent losses."""
    what = f"broker {broker.title}"
    if broker.info is None:
        yield HealthCheck(
            what, broker.fault or "does not answer", f"restart it at {broker.address}"
        )
        return
    version = broker.fault or f"version {broker.version}"
    yield HealthCheck(what, f"{broker.address} answers, {version}", broker.remedy)
    failure = broker.info.get("storeFailure")
    if failure:
        remedy = "remove this cause; the broker retries, and its log says when that succeeds"
        yield HealthCheck(f"{what}: store", failure, remedy)
    disk = broker.number("commitLogDiskRatio")
    if disk is not None:
        remedy = "free disk space; run rocketpoll topic list --sizes to see the largest topics"
        yield HealthCheck(
            f"{what}: disk", f"{disk:.0%} in use", remedy if disk >= _DISK_RATIO_MAX else None
        )


def _check_losses(broker: BrokerStatus) -> Iterator[HealthCheck]:
    what, losses = f"broker {broker.title}", broker.losses
    if losses is None:
        return
    for loss in losses:
        last = format_cell(local_time(loss.last_ms)).rpartition(".")[0]
        yield HealthCheck(
            f"{what}: {loss.kind}",
            f"{loss.count:,} within the last hour, the last at {last}: {loss.text}",
            LOSS_REMEDY,
            is_warning=not loss.is_failure,
        )
    if not losses:
        yield HealthCheck(
            f"{what}: losses", "nothing was lost in the last hour, or since the broker started"
        )


def query_brokers(admin: Admin) -> list[BrokerStatus]:
    """Return all brokers, masters and slaves, each with the status that it reports."""
    found = []
    for name, data in sorted(admin.cluster_info().broker_addr_table.items()):
        for number, address in sorted(data.broker_addrs.items()):
            info: Mapping[str, str] | None = None
            fault = remedy = None
            try:
                info = admin.broker_info(address)
            except AccessDenied as error:
                info, fault = {}, f"reports no figures: {(error.remark or '').rstrip('.')}"
                remedy = error.remedy[:1].lower() + error.remedy[1:]
            except BrokerRefused as error:  # RocketMQ in its first seconds, without figures yet
                info, fault = {}, f"reports no figures: {error.remark}"
            except ClientError as error:
                fault = " ".join(str(error).split())
            found.append(BrokerStatus(data.cluster, name, number, address, info, fault, remedy))
    return found


def _row(broker: BrokerStatus) -> Row:
    disk = broker.number("commitLogDiskRatio")
    return {
        "cluster": broker.cluster,
        "broker": broker.name,
        "role": "master" if broker.broker_id == MASTER_ID else f"slave {broker.broker_id}",
        "address": broker.address,
        "version": broker.version,
        "in_per_s": broker.number("putTps"),
        "out_per_s": broker.number(*OUT_RATE),
        "messages_today": broker.messages_today,
        "disk": None if disk is None else f"{disk:.0%}",
        "since": local_time(int(broker.number("bootTimestamp") or 0)),
        "state": broker.fault or "answers",
    }


# ---- Checks of consumer groups and dead letters. Each group costs one request, and a few more with
# lag: only the first `GROUPS_MAX` by name are checked, and the result says so. Details contain
# neither ages nor lag, because these change all the time, and ``--watch`` prints each change.

GROUPS_MAX: Final = 1_000
"""Limit on the groups that are checked, and on the topics of dead letters that are counted."""
_NAMED_MAX: Final = 5


def check_groups(access: ClusterAccess, watch: OffsetWatch) -> Iterator[HealthCheck]:
    """Yield the checks of groups: which are stuck, have no consumer, or have dead letters."""
    try:
        with access.admin() as admin:
            names = sorted(each for each in admin.groups() if not is_system_group(each))
            checked = names[:GROUPS_MAX]
            found = examine_groups(admin, checked, watch, wait_for_moves, with_members=False)
            letters = _count_dead_letters(admin)
    except AccessDenied as error:
        remedy = error.remedy[:1].lower() + error.remedy[1:]
        yield HealthCheck("groups", f"not checked: {error.remark}", remedy, is_warning=True)
        return
    except ClientError as error:
        detail = f"not checked: {' '.join(str(error).split())}"
        yield HealthCheck("groups", detail, "fix the brokers first", is_warning=True)
        return
    yield from _check_conditions(found, len(names), access)
    yield _check_dead_letters(letters, access)


def _check_conditions(
    found: Mapping[str, GroupExamination], group_count: int, access: ClusterAccess
) -> Iterator[HealthCheck]:
    stuck = [each for each in found.values() if each.condition is GroupCondition.STUCK]
    offline = [each for each in found.values() if each.condition is GroupCondition.OFFLINE]
    groups = (
        f"the first {len(found):,} of {group_count:,} groups by name"
        if group_count > len(found)
        else format_count(len(found), "group")
    )
    if not stuck:
        yield HealthCheck("groups", f"{groups}, none of them stuck")
    for each in stuck[:_NAMED_MAX]:
        yield HealthCheck(f"group {each.summary.name}", *_describe_stuck(each, access))
    if len(stuck) > _NAMED_MAX:
        detail = f"{len(stuck) - _NAMED_MAX:,} more groups are stuck, of {groups}"
        yield HealthCheck("groups", detail, f"run {access.next_command('group list')}")
    if offline:
        names = _name_some([each.summary.name for each in offline])
        yield HealthCheck(
            "groups without consumers",
            f"messages wait for {names}",
            "start their consumers, or delete the groups",
            is_warning=True,
        )


def _describe_stuck(found: GroupExamination, access: ClusterAccess) -> tuple[str, str]:
    name, queue = found.summary.name, found.queue
    since = format_cell(local_time(found.waiting_since_ms or 0))
    location = "" if queue is None else f" in {queue.topic} {queue_text(queue)}"
    return (
        f"stuck{location}, whose next message has waited since {since.rpartition('.')[0]}",
        f"run {access.next_command('group describe', name)}",
    )


def _check_dead_letters(letters: Mapping[str, int], access: ClusterAccess) -> HealthCheck:
    if not letters:
        return HealthCheck("dead letters", "none")
    most = sorted(letters, key=lambda name: (-letters[name], name))
    named = _name_some([f"{name} ({letters[name]:,})" for name in most])
    shown = access.next_command("dlq show", most[0])
    detail = f"{format_count(sum(letters.values()), 'dead letter')}: {named}"
    return HealthCheck("dead letters", detail, f"run {shown}", is_warning=True)


def _count_dead_letters(admin: Admin) -> dict[str, int]:
    topics = sorted(each for each in admin.topics() if each.startswith(DLQ_PREFIX))
    counts = {
        topic.removeprefix(DLQ_PREFIX): count_messages(admin, topic)
        for topic in islice(topics, GROUPS_MAX)
    }
    return {name: count for name, count in counts.items() if count}


def _name_some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
