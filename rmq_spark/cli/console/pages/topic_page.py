"""Topic page: one topic: its last messages and a search, its queues, groups and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import filterfalse
from typing import Final

from rmq_spark.cli.cluster.topic_settings import perm_text
from rmq_spark.cli.console.forms.topic_forms import alter_card
from rmq_spark.cli.console.history import Point, per_second
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.bodies import preview_body
from rmq_spark.cli.console.markup.charts import chart
from rmq_spark.cli.console.markup.html import Html, el, join, path
from rmq_spark.cli.console.pages.groups_page import examine_known_groups, group_state_badge
from rmq_spark.cli.console.pages.message_search import (
    SEARCH_KINDS,
    MessageSearchResult,
    search_messages,
)
from rmq_spark.cli.console.visit import Visit, group_path, message_path, topic_path
from rmq_spark.cli.groups.group_state import queue_text
from rmq_spark.client.admin.lag import total_lag
from rmq_spark.client.errors import TopicNotUsable
from rmq_spark.client.message import MessageExt
from rmq_spark.wire.bodies.operators import TopicOffset
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import is_system_group

Offsets = Mapping[MessageQueue, TopicOffset]

_MESSAGE_COLUMNS: Final = ("Stored.stamp", "Queue.wide", "Offset.number.wide", "Tag", "Keys.wide",
                           "Body.grow", "Size.number.wide")  # fmt: skip
_QUEUE_COLUMNS: Final = ("Queue.grow", "First.number.wide", "End.number", "Messages.number",
                         "Last stored.number")  # fmt: skip
_GROUP_COLUMNS: Final = ("Group.grow", "Members.number", "Behind.number", "State")


def topic(visit: Visit) -> Page:
    """Return the page of a topic."""
    name = visit.request.segments[1]
    offsets = visit.admin.topic_offsets(name)
    title, content_of = _TABS.get(visit.request.parameter("tab"), _TABS["messages"])
    held = sum(each.max_offset - each.min_offset for each in offsets.values())
    last = max((each.last_update_timestamp for each in offsets.values()), default=0)
    head = ui.live_region(
        "figures",
        ui.figures(
            [
                ("Messages", held),
                ("Queues", len(offsets)),
                ("Last stored", ui.age(last)),
                ("Ever stored", _total_end_offset(offsets)),
            ]
        ),
        el(
            "div.charts",
            chart("Messages in", per_second(_end_offset_history(visit, name, offsets)), ui.rate),
        ),
    )
    links = [(each, topic_path(name, tab=key)) for key, (each, _) in _TABS.items()]
    send = el("p.actions", el("a.button", "Send a message", href=path("produce", topic=name)))
    content = join(head, send, ui.tabs(links, title), content_of(visit, name, offsets))
    return Page(name, content, "topics", (("Topics", "/topics"),))


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
    older = None
    if found.older is not None:
        older = el(
            "nav.pages",
            el("span", found.note),
            el("a.button", "Older", href=topic_path(name, **found.older)),
        )
    elif found.note:
        older = el("p.hint", found.note)
    is_plain = not visit.request.parameter("by") and not visit.request.parameter("ends")
    return join(searched, ui.live_region("messages", rows, older) if is_plain else (rows, older))


def _search(visit: Visit, name: str) -> Html:
    chosen = visit.request.parameter("by")
    options = [
        el("option", title, value=key, selected=key == chosen)
        for key, (title, _) in SEARCH_KINDS.items()
    ]
    return el(
        "form.filter",
        el("select", options, name="by", aria_label="Search by"),
        el(
            "input",
            type="search",
            name="for",
            value=visit.request.parameter("for"),
            placeholder="; ".join(hint for _, hint in SEARCH_KINDS.values()),
            aria_label="Search for",
            autocomplete="off",
            data_time="by",
        ),
        el("button", "Search", type="submit"),
        ui.hidden_fields([("tab", "messages")]),
        action=topic_path(name),
    )


def _no_messages(visit: Visit, name: str, result: MessageSearchResult, offsets: Offsets) -> Html:
    if result.is_filtered:
        return ui.empty_state(
            "No message found",
            result.note or "Keys and ids must match completely, including upper and lower case. ",
            el("a", "Search older messages", href=topic_path(name, **result.older))
            if result.older is not None
            else el("a", "Show the newest messages", href=topic_path(name)),
        )
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
    says = (
        f"About {ui.size(about.stored_bytes)} in the log, estimated from the first and last "
        "messages of each queue. Offsets count from 0; End is the offset after the last message."
    )
    return ui.live_region("queues", ui.table(_QUEUE_COLUMNS, rows), el("p.hint", says))


def _groups(visit: Visit, name: str, offsets: Offsets) -> Html:  # noqa: ARG001  # as each tab
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


def _settings(visit: Visit, name: str, offsets: Offsets) -> Html:  # noqa: ARG001  # as each tab
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
    "queues": ("Queues", _queues),
    "groups": ("Groups", _groups),
    "settings": ("Settings", _settings),
}
