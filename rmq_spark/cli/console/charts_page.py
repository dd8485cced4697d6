"""Charts: rates, disk and waiting work of each broker, and the groups that are most behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_spark.cli.cluster.cluster_command import asked_brokers
from rmq_spark.cli.console.charts import Showing, chart
from rmq_spark.cli.console.frame import Page
from rmq_spark.cli.console.html import Html, el
from rmq_spark.cli.console.overview_page import (
    groups_asked,
    most_behind,
    watched_brokers,
    watched_groups,
)
from rmq_spark.cli.console.parts import card, live, rate, size
from rmq_spark.cli.console.visit import Visit

_PARTS: Final = ("disk",)
"""Figures that are parts of a whole: their scale ends at all of it."""

_KINDS: Final[Mapping[str, tuple[str, Showing]]] = {
    "in": ("Messages in", rate),
    "out": ("Messages out", rate),
    "disk": ("Disk in use", lambda part: f"{part:.0%}"),
    "held pulls": ("Pulls that wait", lambda count: f"{count:,.0f}"),
    "to flush": ("Bytes to flush", lambda count: size(int(count))),
    "to dispatch": ("Bytes to dispatch", lambda count: size(int(count))),
}


def charts(visit: Visit) -> Page:
    """Return the page with charts of all brokers and of groups."""
    brokers = asked_brokers(visit.admin)
    points = watched_brokers(visit, brokers)
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
                        full=1.0 if name in _PARTS else None,
                    )
                    for name, (title, showing) in _KINDS.items()
                    if f"{broker.title} {name}" in points
                ),
            ),
        )
        for broker in brokers
    ]
    says = el("p.hint", "A point every 5 seconds while a browser shows a chart, 20 minutes in all. "
              "For more than that, have Prometheus read the broker, or run "
              f"{visit.access.command('exporter')}.")  # fmt: skip
    return Page("Charts", live("charts", parts, _groups(visit), says), "charts")


def _groups(visit: Visit) -> Html | None:
    series = watched_groups(visit)
    behind = most_behind(series)
    if not behind:
        return None
    cards = (chart(name, series[name], _whole) for name in behind)
    return card("Groups most behind", el("div.charts", cards), groups_asked(visit, series))


def _whole(count: float) -> str:
    return f"{count:,.0f}"
