"""Topic page: one topic: its last messages and a search, its queues, groups and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import filterfalse
from typing import Final

import click

from rmq_spark.cli.cluster.topic_settings import perm_text
from rmq_spark.cli.console.forms.topic_forms import alter_card
from rmq_spark.cli.console.guard import problem_sentence, status_of
from rmq_spark.cli.console.history import Point, per_second
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.bodies import preview_body
from rmq_spark.cli.console.markup.charts import chart
from rmq_spark.cli.console.markup.html import NOTHING, Html, el, join, path
from rmq_spark.cli.console.pages.groups_page import examine_known_groups, group_state_badge
from rmq_spark.cli.console.pages.message_search import (
    SCANNED_MESSAGES_MAX,
    SEARCH_KINDS,
    MessageQuery,
    MessageSearchResult,
    search_messages,
)
from rmq_spark.cli.console.pages.timers_page import timers_tab
from rmq_spark.cli.console.visit import Visit, group_path, message_path, topic_path
from rmq_spark.cli.groups.group_state import queue_text
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.admin.lag import total_lag
from rmq_spark.client.errors import MessageRejected, TopicNotUsable
from rmq_spark.client.message import MessageExt
from rmq_spark.wire.bodies.operators import TopicOffset
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import is_system_group

Offsets = Mapping[MessageQueue, TopicOffset]

_MESSAGE_COLUMNS: Final = ("Stored.stamp", "Queue.wide", "Offset.number.wide", "Tag", "Keys.wide",
                           "Body.grow", "Size.number.wide")  # fmt: skip
_QUEUE_COLUMNS: Final = ("Queue.grow", "First.number.wide", "End.number", "Messages.number",
                         "Last stored.number")  # fmt: skip
_GROUP_COLUMNS: Final = ("Group.grow", "Members.number.wide", "Behind.number", "State")


def topic(visit: Visit) -> Page:
    """Return the page of a topic."""
    name = visit.request.segments[1]
    offsets = visit.admin.topic_offsets(name)
    title, content_of = _TABS.get(visit.request.parameter("tab"), _TABS["messages"])
    held = sum(each.max_offset - each.min_offset for each in offsets.values())
    last = max((each.last_update_timestamp for each in offsets.values()), default=0)
    waiting = visit.admin.timer_count(name)
    timers = [] if waiting is None else [("Waiting timers", waiting)]
    head = ui.live_region(
        "figures",
        ui.figures(
            [
                ("Messages", held),
                ("Queues", len(offsets)),
                ("Last stored", ui.age(last)),
                ("Ever stored", _total_end_offset(offsets)),
                *timers,
            ]
        ),
        el(
            "div.charts",
            chart("Messages in", per_second(_end_offset_history(visit, name, offsets)), ui.rate),
        ),
    )
    links = [(each, topic_path(name, tab=key)) for key, (each, _) in _TABS.items()]
    send = el("p.actions", el("a.button", "Send a message", href=path("produce", topic=name)))
    status = HTTPStatus.OK
    try:
        tab = content_of(visit, name, offsets)
    except (click.ClickException, MessageRejected) as error:  # the search form stays
        refused = error if isinstance(error, Failure) else Failure(str(error))
        problem = problem_sentence(refused.problem, visit.request)
        tab = join(_search(visit, name), ui.alert(*filter(None, (problem, refused.remedy))))
        status = HTTPStatus.BAD_REQUEST
        if isinstance(error, click.ClickException):
            status = status_of(error, visit.request)
    content = join(head, send, ui.tabs(links, title), tab)
    return Page(name, content, "topics", (("Topics", "/topics"),), status)


def _total_end_offset(offsets: Offsets) -> int:
    return sum(each.max_offset for each in offsets.values())


def _end_offset_history(visit: Visit, name: str, offsets: Offsets) -> Sequence[Point]:
    def probe() -> Mapping[str, float]:
        return {"end": _total_end_offset(visit.admin.topic_offsets(name))}

    return visit.history.watch(("topic", name), probe, {"end": _total_end_offset(offsets)}).get(
        "end", ()
    )


def _messages(visit: Visit, name: str, offsets: Offsets) -> Html:
    searched = _search(visit, name)
    try:
        found = search_messages(visit, name)
    except TopicNotUsable as error:
        return join(searched, ui.alert("The messages of this topic cannot be read", str(error)))
    if not found.messages:
        return join(searched, _no_messages(visit, name, found, offsets))
    rows = ui.table(_MESSAGE_COLUMNS, [_message_row(each) for each in found.messages])
    hint = " ".join(filter(None, (found.scope and f"Searched {found.scope}.", found.note)))
    foot = NOTHING
    if hint or found.older is not None:
        foot = el("nav.pages", el("span", hint), _older(name, found), aria_label="Pages")
    if MessageQuery.of(visit.request).is_plain:
        return join(searched, ui.live_region("messages", rows, foot))
    return join(searched, rows, foot)


def _older(name: str, result: MessageSearchResult) -> Html | None:
    if result.older is None:
        return None
    title = f"Look at the {SCANNED_MESSAGES_MAX:,} before" if result.is_window else "Older"
    return el("a.button", title, href=topic_path(name, **result.older))


def _search(visit: Visit, name: str) -> Html:
    chosen = visit.request.parameter("by")
    options = [
        el("option", title, value=key, selected=key == chosen)
        for key, (title, _) in SEARCH_KINDS.items()
    ]
    return el(
        "form.filter",
        el("select", options, name="by", aria_label="Search by"),
        _search_field(visit, "for", "Search for",
                      "; ".join(hint for _, hint in SEARCH_KINDS.values())),
        _search_field(visit, "queue", "Queue", "queue: all, or broker-a:0"),
        _search_field(visit, "before", "Stored before", "before: now, 09:00, -1h",
                      is_time=True),
        el("button", "Search", type="submit"),
        ui.hidden_fields([("tab", "messages")]),
        action=topic_path(name),
    )  # fmt: skip


def _search_field(visit: Visit, name: str, label: str, hint: str, *, is_time: bool = False) -> Html:
    return el(
        f"input.{name}",
        type="search",
        name=name,
        value=visit.request.parameter(name),
        placeholder=hint,
        aria_label=label,
        autocomplete="off",
        data_time=is_time,
    )


def _no_messages(visit: Visit, name: str, result: MessageSearchResult, offsets: Offsets) -> Html:
    if result.is_filtered:
        newest = el("a", "Show the newest messages", href=topic_path(name))
        title = f"None among {result.scope}" if result.scope else "No message found"
        if result.older is not None:
            return ui.empty_state(title, result.note, _older(name, result))
        hint = "Keys, ids and tags must match completely, including upper and lower case. "
        return ui.empty_state(title, result.note or hint, newest)
    if _total_end_offset(offsets):
        return ui.empty_state(
            "No messages left",
            "They expired (fileReservedTime), or were deleted to free disk space.",
        )
    return ui.empty_state(
        "No messages yet",
        "Messages that producers send to this topic appear here, the newest first. Send one:",
        command=visit.command("produce", name, stdin="echo 'hello' | "),
    )


def _message_row(message: MessageExt) -> ui.HtmlTableRow:
    href = message_path(message.queue, message.queue_offset)
    return ui.HtmlTableRow(
        (
            el("a", ui.timestamp(message.store_timestamp), href=href),
            queue_text(message.queue),
            message.queue_offset,
            el("code.chip", message.tags[:40]) if message.tags else None,
            [el("code.chip", key[:40]) for key in message.keys[:3]],
            el("span.preview", preview_body(message.body, message.fault)),
            ui.size(len(message.body)),
        ),
        href,
    )


def _queues(visit: Visit, name: str, offsets: Offsets) -> Html:
    rows = [
        ui.HtmlTableRow(
            (
                queue_text(queue),
                held.min_offset,
                held.max_offset,
                held.max_offset - held.min_offset,
                ui.age(held.last_update_timestamp),
            )
        )
        for queue, held in offsets.items()
    ]
    about = visit.admin.topic_size(name)
    hint = (
        f"About {ui.size(about.stored_bytes)} in the log, estimated from the first and last "
        "messages of each queue. Offsets count from 0; End is the offset after the last message."
    )
    return ui.live_region("queues", ui.table(_QUEUE_COLUMNS, rows), el("p.hint", hint))


def _groups(visit: Visit, name: str, offsets: Offsets) -> Html:  # noqa: ARG001  # the signature of all tabs
    rows = []
    names = sorted(filterfalse(is_system_group, visit.admin.groups_of_topic(name)))
    examined = examine_known_groups(visit, names).values
    for group in names:
        behind = total_lag(visit.admin.lag(group, name))
        members = len(visit.admin.members(group))
        link = el("a", group, href=group_path(group))
        badge = group_state_badge(members, behind, examined.get(group))
        cells = (link, members, behind, badge)
        rows.append(ui.HtmlTableRow(cells, group_path(group)))
    if not rows:
        return ui.empty_state(
            "No group consumes this topic",
            "A consumer group appears here once it has committed an offset in this topic.",
        )
    return ui.live_region("groups", ui.table(_GROUP_COLUMNS, rows))


def _settings(visit: Visit, name: str, offsets: Offsets) -> Html:  # noqa: ARG001  # the signature of all tabs
    configs = visit.admin.topic_configs(name)
    cards = [
        el(
            "div.card.pad",
            el("h3", broker),
            ui.facts(
                [
                    ("Read queues", config.read_queue_nums),
                    ("Write queues", config.write_queue_nums),
                    ("Permission", perm_text(config.perm)),
                    ("Ordered", "yes" if config.order else "no"),
                    *((key, text) for key, text in sorted((config.attributes or {}).items())),
                ]
            ),
        )
        for broker, config in configs.items()
    ]
    return join(el("div.cards", cards), alter_card(name, configs))


_TABS: Final = {
    "messages": ("Messages", _messages),
    "timers": ("Timers", lambda visit, name, _: timers_tab(visit, name)),
    "queues": ("Queues", _queues),
    "groups": ("Groups", _groups),
    "settings": ("Settings", _settings),
}
