"""Overview page: health, each broker with its rates and its disk, the groups with the most lag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rmq_spark.cli.cluster.cluster_command import (
    LOSS_REMEDY,
    OUT_RATE,
    BrokerStatus,
    check_state,
    query_brokers,
)
from rmq_spark.cli.console.history import Point
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.charts import COUNT, ValueFormat, chart, sparkline
from rmq_spark.cli.console.markup.html import Child, Html, el, join, path
from rmq_spark.cli.console.pages.groups_page import (
    examine_known_groups,
    group_lag_history,
    group_state_badge,
    stuck_groups,
    survey_hint,
)
from rmq_spark.cli.console.pages.topics_page import topic_names
from rmq_spark.cli.console.survey import SurveyResult
from rmq_spark.cli.console.visit import Visit, group_path
from rmq_spark.cli.groups.diagnosis import GroupExamination
from rmq_spark.client.admin.lag import without_retries
from rmq_spark.client.errors import ClientError
from rmq_spark.errors import format_count
from rmq_spark.wire.names import DLQ_PREFIX

_BROKER_COLUMNS = ("Broker", "State", "In.number", ".wide", "Out.number.wide", "Today.number.wide",
                   "Disk", "Up since.wide", "Version.wide")  # fmt: skip
_GROUP_COLUMNS = ("Group.grow", "State", ".wide", "Waiting since.number.wide", "Behind.number")
_LOSS_COLUMNS = ("Kind, and the last one.grow", "Within an hour.number")
_GROUPS_SHOWN_MAX = 8
"""The number of groups on the page; only their present lag is requested."""


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
    "timers": _Figure(("timersWaiting",), "Waiting timers", COUNT),
    "half messages": _Figure(("halfMessages",), "Half messages", COUNT),
    "pops": _Figure(("popsInFlight",), "Pops in flight", COUNT),
    "to dispatch": _Figure(("dispatchBehindBytes",), "Bytes to dispatch", ui.size),
}


_COUNTERS: Final = {
    "requestsRefused": "Refused requests",
    "clientsRefused": "Refused clients",
    "connectionsCut": "Closed connections",
    "pullsPutOff": "Pulls answered early",
    "putMessageFailedTimes": "Failed sends",
    "damagedRanges": "Damaged ranges",
}
"""Counts since the start of a broker, by the keys under which it reports them."""


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
    groups = _examined_groups(visit)
    dead = _dead_letters(visit)
    content = ui.live_region(
        "overview",
        _health(visit, brokers, groups, dead),
        _recent_losses(brokers),
        ui.figures(
            [
                ("Messages in", ui.rate(sum(each.number("putTps") or 0 for each in up))),
                ("Messages out", ui.rate(sum(each.number(*OUT_RATE) or 0 for each in up))),
                ("Brokers", f"{len(up)} of {len(brokers)}"),
                ("Topics", len(topic_names(visit.admin, with_all=False))),
                ("Stuck groups", _count_so_far(groups, len(stuck_groups(groups)))),
                ("Dead letters", _count_so_far(dead, _dead_letter_count(dead))),
                *_waiting_figures(up),
            ]
        ),
        ui.card("Brokers", ui.table(_BROKER_COLUMNS, [_row(broker, points) for broker in brokers])),
        None if groups is None else _group_table(visit, groups),
    )
    return Page("Overview", content)


def _waiting_figures(brokers: Sequence[BrokerStatus]) -> Iterator[tuple[str, Child]]:
    for name in ("timers", "half messages", "pops"):
        figure = _FIGURES[name]
        counts = [found for each in brokers if (found := each.number(*figure.keys)) is not None]
        if counts:
            yield figure.title, sum(counts)
    due = [found for each in brokers if (found := each.number("timersNextDue") or -1) > 0]
    if due:
        yield "Next timer", ui.time_until(int(min(due)))


def _examined_groups(visit: Visit) -> SurveyResult[GroupExamination] | None:
    """Return what is known of all groups; None if a broker does not answer."""
    try:
        return examine_known_groups(visit)
    except ClientError:
        return None


def _dead_letters(visit: Visit) -> SurveyResult[int] | None:
    try:
        topics = sorted(each for each in visit.admin.topics() if each.startswith(DLQ_PREFIX))
        return visit.surveys.dead_letters.get(topics)
    except ClientError:
        return None


def _count_so_far(known: SurveyResult[Any] | None, count: int) -> str | None:
    """Return a count of what a survey has found, with "so far" until it is complete."""
    if known is None:
        return None
    return f"{count:,}" if known.is_complete else f"{count:,} so far"


def _dead_letter_count(dead: SurveyResult[int] | None) -> int:
    return 0 if dead is None else sum(dead.values.values())


def broker_history(visit: Visit, brokers: Sequence[BrokerStatus]) -> Mapping[str, Sequence[Point]]:
    """Return the figures of brokers over the last minutes, by title and name of the figure."""

    def probe() -> Mapping[str, float]:
        return _figures_of(query_brokers(visit.admin))

    return visit.history.watch(("brokers",), probe, _figures_of(brokers))


def _worst_groups(groups: SurveyResult[GroupExamination]) -> list[str]:
    """Return the groups to show: those that are stuck, then those with the most lag or retries."""
    found = {name: each.summary for name, each in groups.values.items()}
    behind = [name for name, each in found.items() if each.behind or each.waiting_for_retry]
    stuck = set(stuck_groups(groups))

    def order(name: str) -> tuple[bool, int, int, str]:
        each = found[name]
        return name not in stuck, -each.behind, -each.waiting_for_retry, name

    behind.sort(key=order)
    return behind[:_GROUPS_SHOWN_MAX]


def _lag_histories(visit: Visit, names: Iterable[str]) -> Mapping[str, Sequence[Point]]:
    found: dict[str, Sequence[Point]] = {}
    for name in names:
        lags = without_retries(visit.admin.progress(name))
        found[name] = group_lag_history(visit, name, lags)["all"]
    return found


def _group_table(visit: Visit, groups: SurveyResult[GroupExamination]) -> Html | None:
    names = _worst_groups(groups)
    try:
        series = _lag_histories(visit, names)
    except ClientError:  # an alert of the page shows the fault
        return None
    rows = [_group_row(name, groups.values[name], series[name]) for name in names]
    hint = survey_hint(groups)
    if not rows and hint is None and not groups.values:
        return None
    found = ui.table(_GROUP_COLUMNS, rows) if rows else el("p.hint", "No group is behind.")
    return ui.card("Groups most behind", found, hint)


def _group_row(name: str, examined: GroupExamination, points: Sequence[Point]) -> ui.HtmlTableRow:
    behind = points[-1].value
    summary = examined.summary
    retries: Child = None
    if summary.waiting_for_retry:
        due = format_count(summary.waiting_for_retry, "failed message")
        retries = el("div.sub", f"{due} due for another try")
    return ui.HtmlTableRow(
        (
            el("a", name, href=group_path(name)),
            join(group_state_badge(summary.member_count, int(behind), examined), retries),
            sparkline(points, "recent lag in messages"),
            ui.age(examined.waiting_since_ms),
            behind,
        ),
        group_path(name),
    )


def _figures_of(brokers: Sequence[BrokerStatus]) -> Mapping[str, float]:
    return {
        f"{broker.title} {name}": value
        for broker in brokers
        for name, figure in _FIGURES.items()
        if (value := broker.number(*figure.keys)) is not None
    }


def _health(
    visit: Visit,
    brokers: Sequence[BrokerStatus],
    groups: SurveyResult[GroupExamination] | None,
    dead: SurveyResult[int] | None,
) -> Html:
    wrong = [
        (check, check.remedy)
        for broker in brokers
        for check in check_state(broker)
        if check.remedy is not None
    ]
    has_lost = any(loss.is_failure for broker in brokers for loss in broker.losses or ())
    alerts = [
        ui.alert(
            f"{check.subject}: {check.detail}",
            visit.sentence(f"{remedy[:1].upper()}{remedy[1:]}."),
        )
        for check, remedy in wrong
    ]
    badges: list[Child] = []
    if not wrong and not has_lost:
        badges.append(join(ui.badge("Brokers: ok", "good"), " Every broker answers. "))
    stuck = stuck_groups(groups)
    if stuck:
        text = format_count(len(stuck), "group is stuck", "groups are stuck")
        badges.append(join(el("a.badge.bad", text, href=path("groups", state="stuck")), " "))
    count = _dead_letter_count(dead)
    if count:
        text = format_count(count, "dead letter")
        badges.append(el("a.badge.warn", text, href="/dead-letters"))
    return join(alerts, el("p.well", badges) if badges else None)


def _recent_losses(brokers: Sequence[BrokerStatus]) -> Html | None:
    """Return the table of brokers' losses in the last hour, failures first; None if none."""
    found = [(broker, loss) for broker in brokers for loss in broker.losses or ()]
    if not found:
        return None
    found.sort(key=lambda each: (not each[1].is_failure, -each[1].last_ms))
    rows = [
        ui.HtmlTableRow(
            (
                join(
                    ui.badge(loss.kind, "bad" if loss.is_failure else "warn"),
                    el("span.sub", f" {broker.title}, ", ui.age(loss.last_ms)),
                    el("div.text", loss.text),
                ),
                loss.count,
            )
        )
        for broker, loss in found
    ]
    hint = el("p.hint", f"{LOSS_REMEDY[:1].upper()}{LOSS_REMEDY[1:]}.")
    return ui.card("Recent losses", ui.table(_LOSS_COLUMNS, rows), hint)


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
            _version(broker.version),
        )
    )


def _version(text: str | None) -> Child:
    """Return the RocketMQ release of a broker, above the rocketpoll release if it has one."""
    name, _, own = (text or "-").partition(" (")
    return join(name, el("div.sub", own.removesuffix(")"))) if own else name


def _refusals(broker: BrokerStatus) -> Html | None:
    """Return what a broker has refused since its start; None if it reports no such counts."""
    counts = [
        (title, count)
        for key, title in _COUNTERS.items()
        if (count := broker.number(key)) is not None
    ]
    return join(el("p.hint", "Since its start:"), ui.figures(counts)) if counts else None


def charts(visit: Visit) -> Page:
    """Return the page with charts of all brokers and of groups."""
    brokers = query_brokers(visit.admin)
    points = broker_history(visit, brokers)
    parts = [
        ui.card(
            broker.title,
            _refusals(broker),
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
    hint = el("p.hint", "The console samples every 5 seconds while a browser shows a chart, and "
              "keeps 20 minutes. For a longer history, let Prometheus scrape the broker, or run ",
              visit.sentence("rocketpoll exporter."))  # fmt: skip
    groups = _examined_groups(visit)
    names = [] if groups is None else _worst_groups(groups)
    if groups is not None and names:
        series = _lag_histories(visit, names)
        cards = el("div.charts", (chart(name, series[name], COUNT) for name in names))
        parts.append(ui.card("Groups most behind", cards, survey_hint(groups)))
    return Page("Charts", ui.live_region("charts", parts, hint), "charts")
