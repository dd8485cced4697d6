"""Overview page: health, each broker with its rates and its disk, the groups with the most lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rmq_spark.cli.cluster.cluster_command import BrokerStatus, check_broker, query_brokers
from rmq_spark.cli.console.history import Point
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.charts import ValueFormat, chart, sparkline
from rmq_spark.cli.console.markup.html import Child, Html, el, join
from rmq_spark.cli.console.pages.topics_page import topic_names
from rmq_spark.cli.console.visit import Visit, group_path
from rmq_spark.cli.groups.group_state import without_retries
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.lag import total_lag
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.names import is_system_group

_BROKER_COLUMNS = ("Broker", "State", "In.number", ".wide", "Out.number", "Today.number.wide",
                   "Disk.wide", "Up since.wide", "Version.wide")  # fmt: skip
_GROUP_COLUMNS = ("Group.grow", ".wide", "Behind.number")
_GROUPS_QUERIED_MAX = 50
"""Most groups that are asked for with each look."""

_GROUPS_SHOWN_MAX = 8
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
                ("Messages in", ui.rate(_sum(up, "in"))),
                ("Messages out", ui.rate(_sum(up, "out"))),
                ("Brokers", f"{len(up)} of {len(brokers)}"),
                ("Topics", ui.number_text(len(topic_names(visit.admin, with_all=False)))),
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
        return _query_lags(visit.admin)

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


def _query_lags(admin: Admin) -> Mapping[str, float]:
    names = [name for name in sorted(admin.groups()) if not is_system_group(name)]
    return {
        name: float(total_lag(without_retries(admin.progress(name))))
        for name in names[:_GROUPS_QUERIED_MAX]
    }


def _group_table(visit: Visit) -> Html | None:
    try:
        series = group_lag_history(visit)
    except ClientError:  # half a cluster does not tell of groups; what is wrong stands above
        return None
    rows = [
        ui.HtmlTableRow(
            (
                el("a", name, href=group_path(name)),
                sparkline(series[name], "recent lag in messages"),
                ui.number_text(series[name][-1].value),
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
        for name in _FIGURES
        if (value := _figure(broker, name)) is not None
    }


def _figure(broker: BrokerStatus, name: str) -> float | None:
    """Return a figure that a broker reports, by whichever name its release uses."""
    return next(
        (found for key in _FIGURES[name] if (found := broker.number(key)) is not None), None
    )


def _sum(brokers: Sequence[BrokerStatus], name: str) -> float:
    return sum(_figure(broker, name) or 0.0 for broker in brokers)


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
    now, morning = broker.number("msgPutTotalTodayNow"), broker.number("msgPutTotalTodayMorning")
    name: Child = el("div", el("strong", broker.title), el("div.sub", broker.address))
    state = ui.badge("online", "good") if broker.info is not None else ui.badge("no answer", "bad")
    info = broker.info or {}
    return ui.HtmlTableRow(
        (
            name,
            state,
            ui.rate(_figure(broker, "in")),
            sparkline(points.get(f"{broker.title} in", ()), "recent messages in"),
            ui.rate(_figure(broker, "out")),
            ui.number_text(None if now is None or morning is None else now - morning),
            ui.fill_bar(_figure(broker, "disk")),
            ui.age(int(broker.number("bootTimestamp") or 0)),
            info.get("brokerVersionDesc", "-"),
        )
    )


# ---- Charts: rates, disk and pending work of each broker, and the groups with the largest lag.

_RATIOS: Final = ("disk",)
"""Figures that are parts of a whole: their scale ends at all of it."""

_BROKER_CHARTS: Final[Mapping[str, tuple[str, ValueFormat]]] = {
    "in": ("Messages in", ui.rate),
    "out": ("Messages out", ui.rate),
    "disk": ("Disk in use", lambda part: f"{part:.0%}"),
    "held pulls": ("Waiting pulls", lambda count: f"{count:,.0f}"),
    "to flush": ("Bytes to flush", lambda count: ui.size(int(count))),
    "to dispatch": ("Bytes to dispatch", lambda count: ui.size(int(count))),
}


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
                    chart(
                        title,
                        points[f"{broker.title} {name}"],
                        showing,
                        scale_max=1.0 if name in _RATIOS else None,
                    )
                    for name, (title, showing) in _BROKER_CHARTS.items()
                    if f"{broker.title} {name}" in points
                ),
            ),
        )
        for broker in brokers
    ]
    says = el("p.hint", "The console samples every 5 seconds while a browser shows a chart, and "
              "keeps 20 minutes. For a longer history, let Prometheus scrape the broker, or run "
              f"{visit.access.command('exporter')}.")  # fmt: skip
    return Page("Charts", ui.live_region("charts", parts, _group_charts(visit), says), "charts")


def _group_charts(visit: Visit) -> Html | None:
    series = group_lag_history(visit)
    behind = most_behind(series)
    if not behind:
        return None
    cards = (chart(name, series[name], _format_count) for name in behind)
    return ui.card("Groups most behind", el("div.charts", cards), group_limit_hint(visit, series))


def _format_count(count: float) -> str:
    return f"{count:,.0f}"
