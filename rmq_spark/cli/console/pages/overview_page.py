"""Overview page: health, each broker with its rates and its disk, the groups with the most lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rmq_spark.cli.cluster.cluster_command import (
    OUT_RATE,
    BrokerStatus,
    check_broker,
    query_brokers,
)
from rmq_spark.cli.console.history import Point
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.charts import COUNT, ValueFormat, chart, sparkline
from rmq_spark.cli.console.markup.html import Child, Html, el, join
from rmq_spark.cli.console.pages.topics_page import topic_names
from rmq_spark.cli.console.visit import Visit, group_path
from rmq_spark.cli.groups.group_state import without_retries
from rmq_spark.client.admin.lag import total_lag
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.names import is_system_group

_BROKER_COLUMNS = ("Broker", "State", "In.number", ".wide", "Out.number", "Today.number.wide",
                   "Disk.wide", "Up since.wide", "Version.wide")  # fmt: skip
_GROUP_COLUMNS = ("Group.grow", ".wide", "Behind.number")
_GROUPS_QUERIED_MAX = 50
"""Most groups queried for each page view."""

_GROUPS_SHOWN_MAX = 8


class _Figure(NamedTuple):
    """A figure of a broker: the keys under which releases report it, and its chart."""

    keys: tuple[str, ...]
    title: str
    show: ValueFormat
    scale_max: float | None = None


_FIGURES: Final = {
    "in": _Figure(("putTps",), "Messages in", ui.rate),
    "out": _Figure(OUT_RATE, "Messages out", ui.rate),
    "disk": _Figure(("commitLogDiskRatio",), "Disk in use", "{:.0%}".format, scale_max=1.0),
    "held pulls": _Figure(("pullsHeld",), "Waiting pulls", COUNT),
    "to flush": _Figure(("remainHowManyDataToFlush",), "Bytes to flush", ui.size),
    "to dispatch": _Figure(("dispatchBehindBytes",), "Bytes to dispatch", ui.size),
}


def overview(visit: Visit) -> Page:
    """Return the page with the state of all brokers."""
    brokers = query_brokers(visit.admin)
    if not brokers:
        return Page(
            "Overview",
            ui.live_region(
                "overview",
                ui.empty_state(
                    "No brokers",
                    "The name servers answer, but no broker is registered. Start one, or read the "
                    "log of one that runs: this page shows it as soon as it registers. A "
                    "rocketpoll broker has a built-in name server:",
                    command=ui.command_box("rocketpoll broker"),
                ),
            ),
        )
    points = broker_history(visit, brokers)
    up = [broker for broker in brokers if broker.info is not None]
    content = ui.live_region(
        "overview",
        _health(visit, brokers),
        ui.figures(
            [
                ("Messages in", ui.rate(sum(each.number("putTps") or 0 for each in up))),
                ("Messages out", ui.rate(sum(each.number(*OUT_RATE) or 0 for each in up))),
                ("Brokers", f"{len(up)} of {len(brokers)}"),
                ("Topics", len(topic_names(visit.admin, with_all=False))),
            ]
        ),
        ui.card("Brokers", ui.table(_BROKER_COLUMNS, [_row(broker, points) for broker in brokers])),
        _group_table(visit),
    )
    return Page("Overview", content)


def broker_history(visit: Visit, brokers: Sequence[BrokerStatus]) -> Mapping[str, Sequence[Point]]:
    """Return the figures of brokers over the last minutes, by title and name of the figure."""

    def probe() -> Mapping[str, float]:
        return _figures_of(query_brokers(visit.admin))

    return visit.history.watch(("brokers",), probe, _figures_of(brokers))


def group_lag_history(visit: Visit) -> Mapping[str, Sequence[Point]]:
    """Return the lag of groups over the last minutes, by name; of the first fifty."""

    def probe() -> Mapping[str, float]:
        names = [name for name in sorted(visit.admin.groups()) if not is_system_group(name)]
        return {
            name: float(total_lag(without_retries(visit.admin.progress(name))))
            for name in names[:_GROUPS_QUERIED_MAX]
        }

    return visit.history.watch(("groups",), probe, probe())


def most_behind(series: Mapping[str, Sequence[Point]]) -> Sequence[str]:
    """Return the names of the watched groups that have lag, the largest first."""
    behind = [name for name, points in series.items() if points[-1].value]
    return sorted(behind, key=lambda name: (-series[name][-1].value, name))[:_GROUPS_SHOWN_MAX]


def group_limit_hint(visit: Visit, series: Mapping[str, Sequence[Point]]) -> Html | None:
    """Return a line that says how many groups were asked for, if these may not be all."""
    if len(series) < _GROUPS_QUERIED_MAX:
        return None
    command = visit.access.command("top")
    return el("p.hint", f"First {_GROUPS_QUERIED_MAX} groups by name. To see all, run {command}.")


def _group_table(visit: Visit) -> Html | None:
    try:
        series = group_lag_history(visit)
    except ClientError:  # a partial cluster gives no group lag; the page shows the fault above
        return None
    rows = [
        ui.HtmlTableRow(
            (
                el("a", name, href=group_path(name)),
                sparkline(series[name], "recent lag in messages"),
                series[name][-1].value,
            ),
            group_path(name),
        )
        for name in most_behind(series)
    ]
    if not series:
        return None
    found = ui.table(_GROUP_COLUMNS, rows) if rows else el("p.hint", "No group is behind.")
    return ui.card("Groups most behind", found, group_limit_hint(visit, series))


def _figures_of(brokers: Sequence[BrokerStatus]) -> Mapping[str, float]:
    return {
        f"{broker.title} {name}": value
        for broker in brokers
        for name, figure in _FIGURES.items()
        if (value := broker.number(*figure.keys)) is not None
    }


def _health(visit: Visit, brokers: Sequence[BrokerStatus]) -> Html:
    wrong = [
        check for broker in brokers for check in check_broker(broker) if check.remedy is not None
    ]
    if not wrong:
        return el("p.well", ui.badge("Brokers: ok", "good"), " Every broker answers.")
    return join(
        ui.alert(
            f"{each.subject}: {each.detail}", visit.access.complete_commands(f"{each.remedy}.")
        )
        for each in wrong
    )


def _row(broker: BrokerStatus, points: Mapping[str, Sequence[Point]]) -> ui.HtmlTableRow:
    name: Child = el("div", el("strong", broker.title), el("div.sub", broker.address))
    state = ui.badge("online", "good") if broker.info is not None else ui.badge("no answer", "bad")
    return ui.HtmlTableRow(
        (
            name,
            state,
            ui.rate(broker.number("putTps")),
            sparkline(points.get(f"{broker.title} in", ()), "recent messages in"),
            ui.rate(broker.number(*OUT_RATE)),
            broker.messages_today,
            ui.fill_bar(broker.number("commitLogDiskRatio")),
            ui.age(int(broker.number("bootTimestamp") or 0)),
            broker.version or "-",
        )
    )


def charts(visit: Visit) -> Page:
    """Return the page with charts of all brokers and of groups."""
    brokers = query_brokers(visit.admin)
    points = broker_history(visit, brokers)
    parts = [
        ui.card(
            broker.title,
            el(
                "div.charts",
                (
                    chart(title, found, show, scale_max=scale_max)
                    for name, (_, title, show, scale_max) in _FIGURES.items()
                    if (found := points.get(f"{broker.title} {name}"))
                ),
            ),
        )
        for broker in brokers
    ]
    says = el("p.hint", "The console samples every 5 seconds while a browser shows a chart, and "
              "keeps 20 minutes. For a longer history, let Prometheus scrape the broker, or run "
              f"{visit.access.command('exporter')}.")  # fmt: skip
    series = group_lag_history(visit)
    behind = most_behind(series)
    if behind:
        cards = el("div.charts", (chart(name, series[name], COUNT) for name in behind))
        parts.append(ui.card("Groups most behind", cards, group_limit_hint(visit, series)))
    return Page("Charts", ui.live_region("charts", parts, says), "charts")
