"""Groups page: a list with their lag, and one group with its queues, members, and a diagnosis."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from itertools import filterfalse
from typing import Final, NamedTuple

from rmq_spark.cli.console.guard import PageError
from rmq_spark.cli.console.history import Point
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.charts import COUNT, chart, sparkline
from rmq_spark.cli.console.markup.html import NOTHING, Html, el, join, path
from rmq_spark.cli.console.survey import SurveyResult, may_be_stuck
from rmq_spark.cli.console.visit import Visit, group_path, message_path, topic_path
from rmq_spark.cli.groups.diagnosis import (
    GroupCondition,
    GroupExamination,
    current_time_ms,
    diagnose_group,
    longest_waiting_queue,
)
from rmq_spark.cli.groups.group_state import (
    OffsetMove,
    apply_seek,
    check_group_exists,
    plan_seek,
    queue_text,
    read_group,
    summarize_group,
)
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    QueueName,
    TopicPosition,
    parse_position,
    parse_queue,
)
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.lag import (
    GroupState,
    Lag,
    QueueState,
    consumed_topics,
    messages_behind,
    total_lag,
    without_retries,
)
from rmq_spark.errors import format_count
from rmq_spark.wire.bodies.operators import Connection
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import is_system_group

# ---- Seek: a preview of where a group would continue, queue by queue, and the form that does it.

_TIME_START: Final = re.compile(r"\d{1,2}:\d{2}|\d{4}-\d{2}-|-\d+(ms|[smhdw])")
"""The beginning of a time, which may be given without the command line's @ in front."""

_PLAN_COLUMNS: Final = ("Topic.grow", "Queue", "Committed.number", "New offset.number",
                        "Change.number.wide", "Behind after.number.wide")  # fmt: skip


class _SeekRequest(NamedTuple):
    group: str
    text: str
    position: TopicPosition
    topic: str
    queue: QueueName | None

    @property
    def path(self) -> str:
        queue = None if self.queue is None else str(self.queue)
        return group_path(self.group, "seek", to=self.text, topic=self.topic, queue=queue)

    def command(self, visit: Visit) -> Html:
        words = ["--to", self.text]
        words += ["--topic", self.topic] if self.topic else []
        words += ["--queue", str(self.queue)] if self.queue is not None else []
        return visit.command("group seek", self.group, options=words)


def seek_form(group: str, topics: Sequence[str]) -> Html:
    """Return the form that requests a plan, for one or all topics that a group consumes."""
    options = [el("option", "all topics", value=""), *(el("option", each) for each in topics)]
    topic = el("select", options, name="topic", id="topic")
    if not topics:
        topic = el("input", name="topic", id="topic", required=True, autocomplete="off")
    return el(
        "form.card.pad.fields",
        el(
            "div.field",
            el("label", "To", for_="to"),
            el("input", name="to", id="to", required=True, placeholder="09:00",
               autocomplete="off", data_time=True),
            el("span.hint", "start, end, an offset, a time (09:00, -1h, 2026-11-23T09:00; "
               "without a zone in", ui.zone_name(), "), +1 to skip one message, -10 to repeat ten"),
        ),
        el("div.field", el("label", "Topic", for_="topic"),
           topic),
        el("div.field", el("label", "Queue", for_="queue"),
           el("input", name="queue", id="queue", placeholder="all, or broker-a:0",
              autocomplete="off")),
        el("button.primary", "Preview", type="submit"),
        action=group_path(group, "seek"),
    )  # fmt: skip


def seek_plan(visit: Visit) -> Page:
    """Return the page with a plan, and the form that applies it. Nothing is changed."""
    request = _parse_seek(visit, visit.request.parameter)
    return _plan_page(visit, request, _plan_moves(visit, request), None)


def seek(visit: Visit) -> Page:
    """Apply a plan that a page has shown, and return the page that reports it.

    If a plan is relative to offsets that have changed since, it is shown again instead: a form that
    is submitted twice skips one message, not two.
    """
    request = _parse_seek(visit, visit.request.field)
    moves = _plan_moves(visit, request)
    is_relative = request.position.kind in (PositionKind.BACKWARD, PositionKind.FORWARD)
    if is_relative and visit.request.field("seen") != _digest(moves):
        changed = ui.alert(
            "The group's offsets have changed since the preview",
            "Nothing was changed. The table shows the seek from the present offsets.",
        )
        page = _plan_page(visit, request, moves, changed)
        return replace(page, outcome="nothing changed: the offsets differ from the preview")
    apply_seek(visit.admin, request.group, moves, request.position, is_all=request.queue is None)
    visit.surveys.groups.discard(request.group)
    done = el(
        "div.card.notice",
        ui.badge("moved", "good"),
        f" {request.group} continues from the new offsets. Online members have been notified.",
    )
    back_link = el("a.button", f"Back to {request.group}", href=group_path(request.group))
    return _page(request, join(done, _move_table(moves), el("p", back_link)))


def _parse_seek(visit: Visit, read_field: Callable[[str], str]) -> _SeekRequest:
    text, queue = read_field("to"), read_field("queue")
    if not text:
        raise PageError(
            HTTPStatus.BAD_REQUEST, "No position given.", "Enter one, for example 09:00."
        )
    if _TIME_START.match(text):
        text = f"@{text}"
    position = parse_position(text)
    chosen = parse_queue(queue) if queue else None
    return _SeekRequest(visit.request.segments[1], text, position, read_field("topic"), chosen)


def _digest(moves: Sequence[OffsetMove]) -> str:
    text = "\n".join(f"{move.queue} {move.committed}" for move in moves)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plan_page(
    visit: Visit, request: _SeekRequest, moves: Sequence[OffsetMove], notice: Html | None
) -> Page:
    if not moves:
        return _page(
            request,
            ui.empty_state(
                "Nothing to move", "The group has no committed offsets in that topic or queue."
            ),
        )
    return _page(
        request,
        join(
            notice,
            el("p", ui.badge("dry run"), " Nothing has been changed. ", el("strong", request.group),
               " would continue from these offsets:"),
            _move_table(moves),
            visit.confirmation(
                f"Move {format_count(len(moves), 'queue')}",
                [
                    ("to", request.text),
                    ("topic", request.topic),
                    ("queue", "" if request.queue is None else str(request.queue)),
                    ("seen", _digest(moves)),
                ],
                group_path(request.group, "seek"),
                request.path,
                group_path(request.group),
            ),
            ui.card("On the command line", request.command(visit)),
        ),
    )  # fmt: skip


def _plan_moves(visit: Visit, request: _SeekRequest) -> list[OffsetMove]:
    if not request.topic and not consumed_topics(visit.admin.progress(request.group)):
        check_group_exists(visit.admin, request.group)
        raise PageError(
            HTTPStatus.NOT_FOUND,
            f"{request.group} has committed no offsets.",
            "Name a topic in the form of the group's page.",
        )
    return plan_seek(
        visit.admin,
        request.group,
        [request.topic] if request.topic else [],
        request.position,
        request.queue,
    )


def _move_table(moves: Sequence[OffsetMove]) -> Html:
    rows = []
    for queue, committed, target, end in moves:
        change = None if committed is None else target - committed
        behind = messages_behind(end, target)
        rows.append(
            ui.HtmlTableRow(
                (
                    queue.topic,
                    queue_text(queue),
                    committed,
                    target,
                    f"{change:+,}" if change else change,
                    behind,
                )
            )
        )
    return ui.table(_PLAN_COLUMNS, rows)


def _page(request: _SeekRequest, content: Html) -> Page:
    trail = (("Groups", "/groups"), (request.group, group_path(request.group)))
    return Page(f"Seek to {request.text}", content, "groups", trail)


_LIST_COLUMNS: Final = ("Group.grow", "State", "Members.number.wide", "Behind.number",
                        "Last consumed.number.wide", "Topics.wide")  # fmt: skip
_QUEUE_COLUMNS: Final = ("Topic.grow", "Queue", "Committed.number.wide", "End.number.wide",
                         "Behind.number", ".wide", "Waiting since.number.wide", "Member.wide",
                         "")  # fmt: skip
_POP_QUEUE_COLUMNS: Final = (*_QUEUE_COLUMNS[:-2], "In flight.number.wide", "")
_MEMBER_COLUMNS: Final = ("Client.grow", "Address.wide", "Language.wide", "Queues.number")


def groups(visit: Visit) -> Page:
    """Return a page of the list of groups, or of the stuck ones."""
    wanted, page = visit.request.parameter("q"), visit.page_number()
    is_stuck = visit.request.parameter("state") == "stuck"

    def link(state: str | None, page: int = 1) -> str:
        return path("groups", q=wanted, state=state, page=page if page > 1 else None)

    known = examine_known_groups(visit) if is_stuck else None
    names = [
        name
        for name in (sorted(visit.admin.groups()) if known is None else stuck_groups(known))
        if wanted.lower() in name.lower() and not is_system_group(name)
    ]
    shown = names[(page - 1) * ui.PAGE_ROWS : page * ui.PAGE_ROWS]
    if names:
        examined = (known or examine_known_groups(visit, shown)).values
        rows = [_list_row(visit.admin, name, examined.get(name)) for name in shown]
        found = ui.table(_LIST_COLUMNS, rows)
    elif is_stuck or wanted:
        title = "No group is stuck" if is_stuck else f"No group has {wanted} in its name"
        found = ui.empty_state(title, el("a", "Show all", href="/groups"))
    else:
        found = ui.empty_state(
            "No groups yet",
            "A consumer group shares the queues of a topic among its members, and stores their "
            "offsets. The first start of a consumer creates its group.",
        )
    state = "stuck" if is_stuck else None
    foot = ui.pagination(len(names), page, lambda number_: link(state, number_))
    switches = el(
        "div.switches",
        el("a.switch", "All", href=link(None), aria_current=None if is_stuck else "true"),
        el("a.switch", "Stuck", href=link("stuck"), aria_current="true" if is_stuck else None),
    )
    search = ui.name_filter("/groups", wanted, ui.hidden_fields([("state", "stuck")] * is_stuck))
    hint = None if known is None else survey_hint(known)
    return Page(
        "Groups", join(search, switches, ui.live_region("groups", hint, found, foot)), "groups"
    )


def group(visit: Visit) -> Page:
    """Return the page of a group."""
    name = visit.request.segments[1]
    state = read_group(visit.admin, name)
    lags = [each.lag for each in state.queues]
    points = group_lag_history(visit, name, lags)
    visit.surveys.offsets.observe(name, lags)
    dead = el("a", f"{state.dead_letters:,}", href=path("dead-letters", name))
    content = ui.live_region(
        "group",
        ui.figures(
            [
                ("Behind", state.behind),
                *([] if state.in_flight is None else [("In flight", state.in_flight)]),
                ("Members", len(state.members)),
                ("Waiting for retry", state.waiting_for_retry),
                ("Dead letters", dead if state.dead_letters else 0),
            ]
        ),
        _diagnosis(visit, state),
        el("div.charts", chart("Messages behind", points.get("all", ()), COUNT)),
        ui.card(
            "Queues",
            ui.table(
                _POP_QUEUE_COLUMNS if state.is_popping else _QUEUE_COLUMNS,
                [_queue_row(state, each, points) for each in state.queues],
            )
            if state.queues
            else ui.empty_state(
                "Nothing consumed yet",
                "The group has committed no offsets. Its queues appear here when it does.",
            ),
        ),
        ui.card(
            "Members",
            ui.table(_MEMBER_COLUMNS, [_member_row(state, each) for each in state.members])
            if state.members
            else ui.empty_state(
                "No members",
                "Consumers that start with this group's name appear here with their queues.",
            ),
        ),
    )
    topics = sorted({each.lag.queue.topic for each in state.queues})
    seeking = ui.card("Move offsets", seek_form(name, topics))
    return Page(name, join(content, seeking), "groups", (("Groups", "/groups"),))


def examine_known_groups(visit: Visit, shown: Sequence[str] = ()) -> SurveyResult[GroupExamination]:
    """Return what is known of all groups; those that a page shows are examined first."""
    names = sorted(filterfalse(is_system_group, visit.admin.groups()))
    return visit.surveys.groups.get(names, shown)


def stuck_groups(groups: SurveyResult[GroupExamination] | None) -> list[str]:
    """Return the names of the groups that were found to be stuck."""
    found = {} if groups is None else groups.values
    return [name for name, each in found.items() if each.condition is GroupCondition.STUCK]


def survey_hint(groups: SurveyResult[GroupExamination]) -> Html | None:
    """Return a hint that groups are not examined yet, or the error that prevents it."""
    if groups.error is not None:
        return ui.alert("Some groups could not be examined", str(groups.error))
    unsettled = sum(map(may_be_stuck, groups.values.values()))
    sentences = []
    if groups.missing_count:
        count = format_count(len(groups.values) + groups.missing_count, "group")
        sentences.append(f"Examined {len(groups.values):,} of {count} so far.")
    if unsettled:
        which = format_count(unsettled, "group has", "groups have")
        sentences.append(
            f"{which} a message that has waited for over 30 s: a second look shows whether "
            "the offset moves."
        )
    return el("p.hint", " ".join(sentences)) if sentences else None


def group_state_badge(members: int, behind: int, examined: GroupExamination | None) -> Html:
    """Return a group's state in a word; "stuck" only if its last examination has found that."""
    if not members:
        return ui.badge("offline, behind", "warn") if behind else ui.badge("offline")
    if behind and examined is not None and examined.condition is GroupCondition.STUCK:
        return ui.badge("stuck", "bad")
    return ui.badge("online", "good")


def _list_row(admin: Admin, name: str, examined: GroupExamination | None) -> ui.HtmlTableRow:
    found = summarize_group(admin, name)
    topics, behind = found.topics, found.behind
    shown = ", ".join(topics[:3]) + (f" and {len(topics) - 3} more" if len(topics) > 3 else "")
    return ui.HtmlTableRow(
        (
            el("a", name, href=group_path(name)),
            group_state_badge(found.member_count, behind, examined),
            found.member_count,
            behind,
            ui.age(found.last_consumed_ms),
            ui.truncated(shown) if topics else "none yet",
        ),
        group_path(name),
    )


def group_lag_history(
    visit: Visit, name: str, lags: Sequence[Lag]
) -> Mapping[str, Sequence[Point]]:
    """Return the lag of a group over the last minutes, by queue, and under "all" for the group."""

    def probe() -> Mapping[str, float]:
        return _lag_samples(without_retries(visit.admin.progress(name)))

    return visit.history.watch(("group", name), probe, _lag_samples(lags))


def _lag_samples(lags: Sequence[Lag]) -> Mapping[str, float]:
    by_queue = {_series_name(lag.queue): float(lag.messages) for lag in lags}
    return {**by_queue, "all": float(total_lag(lags))}


def _series_name(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue_text(queue)}"


def _diagnosis(visit: Visit, state: GroupState) -> Html:
    """Return the diagnosis of a group that has lag; nothing for others."""
    oldest = longest_waiting_queue(state)
    is_moving = None
    if oldest is not None:
        is_moving = visit.surveys.offsets.is_moving(state.name, oldest.lag.queue)
    found = diagnose_group(state, current_time_ms(), is_moving=is_moving)
    is_nearly_done = found.condition is GroupCondition.BEHIND and found.queue is None
    if is_nearly_done or not (state.behind or state.waiting_for_retry):
        return NOTHING
    tone = ".bad" if found.condition is GroupCondition.STUCK else ""
    return el(
        f"div.card.notice{tone}",
        el("strong", f"{found.title}. "),
        f"{found.text} ",
        _remedies(state.name, found.queue)
        if found.queue is not None and not state.is_popping
        else None,
    )


def _remedies(group: str, queue: QueueState) -> Html:
    return join(
        _next_message(queue, "Look at the message"),
        " to see what the consumer is stuck on, or ",
        el("a", "skip it", href=_skip_path(group, queue)),
        " if it cannot be consumed.",
    )


def _queue_row(
    group: GroupState, state: QueueState, points: Mapping[str, Sequence[Point]]
) -> ui.HtmlTableRow:
    lag = state.lag
    is_behind = state.next_offset is not None
    return ui.HtmlTableRow(
        (
            el("a", lag.queue.topic, href=topic_path(lag.queue.topic)),
            queue_text(lag.queue),
            lag.consumer_offset,
            lag.broker_offset,
            lag.messages,
            sparkline(points.get(_series_name(lag.queue), ()), "recent lag in messages"),
            _next_message(state, ui.age(state.waiting_since_ms)) if is_behind else ui.NO_VALUE,
            lag.in_flight if group.is_popping else ui.truncated(state.member or "none"),
            el("a.button.small", "Skip one", href=_skip_path(group.name, state))
            if is_behind
            else None,
        )
    )


def _next_message(state: QueueState, title: Html | str) -> Html:
    href = message_path(state.lag.queue, state.next_offset or 0)
    return el("a", title, href=href, title="the next message")


def _skip_path(name: str, state: QueueState) -> str:
    queue = state.lag.queue
    return group_path(name, "seek", to="+1", topic=queue.topic, queue=queue_text(queue))


def _member_row(state: GroupState, member: Connection) -> ui.HtmlTableRow:
    queues = None if state.is_popping else state.queues_of(member.client_id)
    return ui.HtmlTableRow((member.client_id, member.client_addr, member.language, queues))
