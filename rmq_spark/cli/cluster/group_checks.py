"""Health checks of consumer groups and dead letters.

Groups cost one request each, and a few more if they have lag: `GROUPS_MAX` of them are checked, the
first by name, and the result says so if there are more. Details have no ages and no lag, which
change all the time: ``rocketpoll cluster health --watch`` prints what changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from rmq_spark.cli.groups.diagnosis import (
    GroupCondition,
    GroupExamination,
    OffsetWatch,
    examine_groups,
    wait_for_moves,
)
from rmq_spark.cli.groups.group_state import queue_text
from rmq_spark.cli.shell.connection import ClusterAccess
from rmq_spark.cli.shell.health_check import HealthCheck
from rmq_spark.cli.shell.output import format_cell, local_time
from rmq_spark.client.admin.lag import count_messages
from rmq_spark.client.errors import AccessDenied, ClientError
from rmq_spark.errors import format_count
from rmq_spark.wire.names import DLQ_PREFIX, is_system_group

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

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
    """Return what is wrong with a group, and what to do."""
    name, queue = found.summary.name, found.queue
    since = format_cell(local_time(found.waiting_since_ms or 0))
    place = "" if queue is None else f" in {queue.topic} {queue_text(queue)}"
    return (
        f"stuck{place}, whose next message has waited since {since.rpartition('.')[0]}",
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
    """Return the number of dead letters by group, for groups that have some."""
    topics = sorted(each for each in admin.topics() if each.startswith(DLQ_PREFIX))
    counts = {
        topic.removeprefix(DLQ_PREFIX): count_messages(admin, topic)
        for topic in islice(topics, GROUPS_MAX)
    }
    return {name: count for name, count in counts.items() if count}


def _name_some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
