"""Charts: rates, disk and waiting work of each broker, and the groups that are most behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_spark.cli.cluster.cluster_command import query_brokers
from rmq_spark.cli.console.charts import ValueFormat, chart
from rmq_spark.cli.console.frame import Page
from rmq_spark.cli.console.html import Html, el
from rmq_spark.cli.console.overview_page import (
    group_limit_hint,
    most_behind,
    broker_history,
    group_lag_history,
)
from rmq_spark.cli.console.parts import card, live_region, rate, size
from rmq_spark.cli.console.visit import Visit

_RATIOS: Final = ("disk",)
"""Figures that are parts of a whole: their scale ends at all of it."""

_BROKER_CHARTS: Final[Mapping[str, tuple[str, ValueFormat]]] = {
    "in": ("Messages in", rate),
    "out": ("Messages out", rate),
    "disk": ("Disk in use", lambda part: f"{part:.0%}"),
    "held pulls": ("Pulls that wait", lambda count: f"{count:,.0f}"),
    "to flush": ("Bytes to flush", lambda count: size(int(count))),
    "to dispatch": ("Bytes to dispatch", lambda count: size(int(count))),
}


def charts(visit: Visit) -> Page:
    """Return the page with charts of all brokers and of groups."""
    brokers = query_brokers(visit.admin)
    points = broker_history(visit, brokers)
    parts = [
        card(
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
    says = el("p.hint", "A point every 5 seconds while a browser shows a chart, 20 minutes in all. "
              "For more than that, have Prometheus read the broker, or run "
              f"{visit.access.command('exporter')}.")  # fmt: skip
    return Page("Charts", live_region("charts", parts, _group_charts(visit), says), "charts")


def _group_charts(visit: Visit) -> Html | None:
    series = group_lag_history(visit)
    behind = most_behind(series)
    if not behind:
        return None
    cards = (chart(name, series[name], _format_count) for name in behind)
    return card("Groups most behind", el("div.charts", cards), group_limit_hint(visit, series))


def _format_count(count: float) -> str:
    return f"{count:,.0f}"
