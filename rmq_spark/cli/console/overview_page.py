"""The overview: whether all is well, each broker with its rates and its disk, the groups behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmq_spark.cli.cluster.cluster_command import Broker, asked_brokers, checks_of
from rmq_spark.cli.console.charts import sparkline
from rmq_spark.cli.console.frame import Page
from rmq_spark.cli.console.history import Point
from rmq_spark.cli.console.html import Child, Html, el, join
from rmq_spark.cli.console.parts import (
    Column,
    Row,
    badge,
    card,
    command_box,
    empty,
    figures,
    fill,
    live,
    number,
    rate,
    table,
    trouble,
    when,
)
from rmq_spark.cli.console.topics_page import topic_names
from rmq_spark.cli.console.visit import Visit, group_path
from rmq_spark.cli.groups.group_state import is_retry
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.names import is_system_group

_COLUMNS = (
    Column("Broker"),
    Column("State"),
    Column("In", "number"),
    Column("", "wide"),
    Column("Out", "number"),
    Column("Today", "number.wide"),
    Column("Disk", "wide"),
    Column("Up since", "wide"),
    Column("Version", "wide"),
)
_GROUPS = (Column("Group", "grow"), Column("", "wide"), Column("Behind", "number"))
_GROUPS_ASKED = 50
"""Most groups that are asked for with each look."""

_GROUPS_SHOWN = 8
_FIGURES = {
    "in": ("putTps",),
    "out": ("getTransferredTps", "getTransferedTps"),
    "disk": ("commitLogDiskRatio",),
    "held pulls": ("pullsHeld",),
    "to flush": ("remainHowManyDataToFlush",),
    "to dispatch": ("dispatchBehindBytes",),
}


def overview(visit: Visit) -> Page:
    """Return the page with the state of all brokers."""
    brokers = asked_brokers(visit.admin)
    if not brokers:
        return Page(
            "Overview",
            live(
                "overview",
                empty(
                    "No brokers",
                    "The name servers answer, and know no broker: none was started yet, or it is "
                    "away, and its log says why. This page shows it as soon as it registers. A "
                    "broker of rocketpoll's is its own name server:",
                    command=command_box("rocketpoll broker"),
                ),
            ),
        )
    points = watched_brokers(visit, brokers)
    up = [broker for broker in brokers if broker.info is not None]
    content = live(
        "overview",
        _health(visit, brokers),
        figures(
            [
                ("Messages in", rate(_sum(up, "in"))),
                ("Messages out", rate(_sum(up, "out"))),
                ("Brokers", f"{len(up)} of {len(brokers)}"),
                ("Topics", number(len(topic_names(visit.admin, with_all=False)))),
            ]
        ),
        card("Brokers", table(_COLUMNS, [_row(broker, points) for broker in brokers])),
        _groups(visit),
    )
    return Page("Overview", content)


def watched_brokers(visit: Visit, brokers: Sequence[Broker]) -> Mapping[str, Sequence[Point]]:
    """Return the figures of brokers over the last minutes, by title and name of the figure."""

    def probe() -> Mapping[str, float]:
        return _figures_of(asked_brokers(visit.admin))

    return visit.history.watch(("brokers",), probe, _figures_of(brokers))


def watched_groups(visit: Visit) -> Mapping[str, Sequence[Point]]:
    """Return how much groups are behind, over the last minutes, by name; of the first fifty."""

    def probe() -> Mapping[str, float]:
        return _behind(visit.admin)

    return visit.history.watch(("groups",), probe, probe())


def most_behind(series: Mapping[str, Sequence[Point]]) -> Sequence[str]:
    """Return the names of those of the watched groups that are behind, the worst first."""
    behind = [name for name, points in series.items() if points[-1].value]
    return sorted(behind, key=lambda name: (-series[name][-1].value, name))[:_GROUPS_SHOWN]


def groups_asked(visit: Visit, series: Mapping[str, Sequence[Point]]) -> Html | None:
    """Return a line that says how many groups were asked, where these may not be all."""
    if len(series) < _GROUPS_ASKED:
        return None
    command = visit.access.command("top")
    return el("p.hint", f"The first {_GROUPS_ASKED} groups by name. {command} shows all.")


def _behind(admin: Admin) -> Mapping[str, float]:
    names = [name for name in sorted(admin.groups()) if not is_system_group(name)]
    return {
        name: float(sum(lag.messages for lag in admin.progress(name) if not is_retry(lag.queue)))
        for name in names[:_GROUPS_ASKED]
    }


def _groups(visit: Visit) -> Html | None:
    try:
        series = watched_groups(visit)
    except ClientError:  # half a cluster does not tell of groups; what is wrong stands above
        return None
    rows = [
        Row(
            (
                el("a", name, href=group_path(name)),
                sparkline(series[name], "messages behind, of late"),
                number(series[name][-1].value),
            ),
            group_path(name),
        )
        for name in most_behind(series)
    ]
    if not series:
        return None
    found = table(_GROUPS, rows) if rows else el("p.hint", "No group is behind.")
    return card("Groups most behind", found, groups_asked(visit, series))


def _figures_of(brokers: Sequence[Broker]) -> Mapping[str, float]:
    return {
        f"{broker.title} {name}": value
        for broker in brokers
        for name in _FIGURES
        if (value := _figure(broker, name)) is not None
    }


def _figure(broker: Broker, name: str) -> float | None:
    """Return a figure that a broker tells, by whichever name its release has for it."""
    return next(
        (found for key in _FIGURES[name] if (found := broker.number(key)) is not None), None
    )


def _sum(brokers: Sequence[Broker], name: str) -> float:
    return sum(_figure(broker, name) or 0.0 for broker in brokers)


def _health(visit: Visit, brokers: Sequence[Broker]) -> Html:
    wrong = [check for broker in brokers for check in checks_of(broker) if check.remedy is not None]
    if not wrong:
        return el("p.well", badge("All is well", "good"), " Every broker answers.")
    return join(
        trouble(f"{each.what}: {each.found}", visit.access.completed(f"{each.remedy}."))
        for each in wrong
    )


def _row(broker: Broker, points: Mapping[str, Sequence[Point]]) -> Row:
    now, morning = broker.number("msgPutTotalTodayNow"), broker.number("msgPutTotalTodayMorning")
    name: Child = el("div", el("strong", broker.title), el("div.sub", broker.address))
    state = badge("answers", "good") if broker.info is not None else badge("away", "bad")
    info = broker.info or {}
    return Row(
        (
            name,
            state,
            rate(_figure(broker, "in")),
            sparkline(points.get(f"{broker.title} in", ()), "messages in, of late"),
            rate(_figure(broker, "out")),
            number(None if now is None or morning is None else now - morning),
            fill(_figure(broker, "disk")),
            when(int(broker.number("bootTimestamp") or 0)),
            info.get("brokerVersionDesc", "-"),
        )
    )
