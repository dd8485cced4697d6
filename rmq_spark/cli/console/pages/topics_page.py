"""Topics page: the list of topics, filtered and in pages, and the search by name.

Each page reads only its own topics. To sort by size, all topics are read in the background, and the
largest come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.html import Child, Html, el, join, path
from rmq_spark.cli.console.server import Response, redirect
from rmq_spark.cli.console.survey import SurveyResult
from rmq_spark.cli.console.visit import Visit, group_path, message_path, topic_path
from rmq_spark.cli.messages.message_trace import find_by_offset_id, find_copies
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.admin.admin import Admin, TopicSize
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import format_count
from rmq_spark.wire.names import is_internal_topic, is_system_group

SORT_BY_SIZE: Final = "sizes"
_COLUMNS: Final = ("Topic.grow", "Queues.number.wide", "Messages.number", "Last stored.number",
                   "Waiting timers.number.wide")  # fmt: skip
_SIZE_COLUMNS: Final = ("Topic.grow", "Messages.number", "Size, about.number", "Share.wide",
                        "Last stored.number.wide")  # fmt: skip


def topics(visit: Visit) -> Page:
    """Return a page of the list of topics."""
    wanted = visit.request.parameter("q")
    with_all = visit.request.parameter("all") == "yes"
    by_size = visit.request.parameter("sort") == SORT_BY_SIZE
    names = [
        name
        for name in topic_names(visit.admin, with_all=with_all)
        if wanted.lower() in name.lower()
    ]
    number_ = visit.page_number()
    known = None
    if by_size:
        known = visit.surveys.sizes.get(sorted(visit.admin.topics()))
        sizes = known.values
        names.sort(key=lambda name: (-(sizes[name].stored_bytes if name in sizes else -1), name))
    shown = names[(number_ - 1) * ui.PAGE_ROWS : number_ * ui.PAGE_ROWS]

    def link(**changed: object) -> str:
        now = {
            "q": wanted,
            "all": "yes" if with_all else None,
            "sort": SORT_BY_SIZE if by_size else None,
        }
        return path("topics", **{**now, **changed})

    if not names:
        visit.admin.masters()  # raises if no master is registered: name servers forget their topics
        found: Html = _no_topics(visit, wanted)
    elif known is not None:
        found = _size_table(shown, known, names)
    else:
        found = _name_table(visit.admin, shown)
    foot = ui.pagination(len(names), number_, lambda page: link(page=page))
    switches = el(
        "div.switches",
        el("a.switch", "By name", href=link(sort=None), aria_current=_aria_current(not by_size)),
        el(
            "a.switch", "By size", href=link(sort=SORT_BY_SIZE), aria_current=_aria_current(by_size)
        ),
        el(
            "a.switch",
            "Include system topics",
            href=link(all=None if with_all else "yes"),
            aria_current=_aria_current(with_all),
        ),
    )
    create = el("a.button", "Create a topic", href=path("create-topic", name=wanted))
    kept = [("all", "yes")] * with_all + [("sort", SORT_BY_SIZE)] * by_size
    search = ui.name_filter("/topics", wanted, ui.hidden_fields(kept), create)
    content = join(search, switches, ui.live_region("topics", found, foot))
    return Page("Topics", content, "topics")


def topic_names(admin: Admin, *, with_all: bool) -> list[str]:
    """Return the names of the users' topics, or of all topics, from name servers only."""
    names = sorted(admin.topics())
    if with_all:
        return names
    info = admin.cluster_info()
    own = {*info.broker_addr_table, *info.cluster_addr_table}
    return [name for name in names if not is_internal_topic(name, own)]


def _name_table(admin: Admin, shown: Sequence[str]) -> Html:
    """Return the table of topics by name, with a column of timers if the cluster has any.

    All counts take one request to each broker.
    """
    timers = admin.timer_counts()
    rows = [_row(admin, name) for name in shown]
    if not timers:
        return ui.table(_COLUMNS[:-1], rows)
    return ui.table(
        _COLUMNS,
        [
            ui.HtmlTableRow((*row.cells, timers.get(name, 0)), row.href)
            for name, row in zip(shown, rows, strict=True)
        ],
    )


def _row(admin: Admin, name: str) -> ui.HtmlTableRow:
    cells: list[Child] = [el("a", name, href=topic_path(name))]
    try:
        offsets = admin.topic_offsets(name).values()
    except RouteNotFound:  # deleted meanwhile, or without a master now
        return ui.HtmlTableRow([*cells, ui.NO_VALUE, ui.NO_VALUE, "no broker"], topic_path(name))
    return ui.HtmlTableRow(
        [
            *cells,
            len(offsets),
            sum(each.max_offset - each.min_offset for each in offsets),
            ui.age(max((each.last_update_timestamp for each in offsets), default=0)),
        ],
        topic_path(name),
    )


def _size_table(
    shown: Sequence[str], known_sizes: SurveyResult[TopicSize], names: Sequence[str]
) -> Html:
    sizes = known_sizes.values
    total = sum(each.stored_bytes for each in sizes.values())
    rows = []
    for name in shown:
        found = sizes.get(name)
        rows.append(
            ui.HtmlTableRow(
                (
                    el("a", name, href=topic_path(name)),
                    None if found is None else found.messages,
                    ui.NO_VALUE if found is None else ui.size(found.stored_bytes),
                    ui.share_bar(
                        None if found is None or not total else found.stored_bytes / total
                    ),
                    ui.age(None if found is None else found.last_timestamp),
                ),
                topic_path(name),
            )
        )
    hint: Child = (
        f"{ui.size(total)} in all topics, including system topics. Sizes are estimated from the "
        "first and last messages of each queue."
    )
    if not known_sizes.is_complete:
        read_count = sum(name in sizes for name in names)
        hint = f"Reading sizes: {read_count:,} of {format_count(len(names), 'topic')} so far."
    problem = (
        None
        if known_sizes.error is None
        else ui.alert("Some sizes could not be read", str(known_sizes.error))
    )
    return join(problem, el("p.hint", hint), ui.table(_SIZE_COLUMNS, rows))


def _no_topics(visit: Visit, query: str) -> Html:
    if query:
        return ui.empty_state(
            f"No topic has {query} in its name",
            "Upper and lower case do not matter. ",
            el("a", "Show all topics", href="/topics"),
        )
    return ui.empty_state(
        "No topics yet",
        "A topic stores messages in queues. The first message sent to a topic creates it, or "
        "create one yourself:",
        command=visit.command("topic create", "orders", options=["--queues", "4"]),
    )


def _aria_current(is_current: bool) -> str | None:  # noqa: FBT001  # its only argument
    return "true" if is_current else None


# ---- The search in the frame: a topic or group by name, or a message by id.

_NAMES_SHOWN: Final = 25
_TOPICS_SEARCHED: Final = 1_000
"""The most topics in which a producer's id is looked up; of more, only broker ids are found."""


def search(visit: Visit) -> Page | Response:
    """Redirect to the page that the search finds, or return similar names."""
    wanted = visit.request.parameter("q")
    if not wanted:
        return redirect("/")
    topics, groups = visit.admin.topics(), visit.admin.groups()
    if wanted in topics:
        return redirect(topic_path(wanted))
    if wanted in groups:
        return redirect(group_path(wanted))
    like = wanted.lower()
    found_topics = [
        name for name in topic_names(visit.admin, with_all=False) if like in name.lower()
    ]
    found_groups = sorted(
        name for name in groups if like in name.lower() and not is_system_group(name)
    )
    if not found_topics and not found_groups:
        found = _find_message(visit, wanted, len(topics))
        if found is not None:
            return redirect(message_path(found.queue, found.queue_offset))
    parts = [
        ui.card(
            f"{title}: {len(names):,}",
            ui.table(
                ("Name.grow",),
                [ui.HtmlTableRow((el("a", each, href=href(each)),), href(each)) for each in names],
            ),
        )
        for title, names, href in (
            ("Topics", found_topics[:_NAMES_SHOWN], topic_path),
            ("Groups", found_groups[:_NAMES_SHOWN], group_path),
        )
        if names
    ]
    if len(found_topics) > _NAMES_SHOWN:
        parts.append(el("p", el("a", "All matching topics", href=path("topics", q=wanted))))
    nothing = ui.empty_state(
        f"Nothing found for {wanted[:80]}",
        "The search covers names of topics and groups, and message ids. To search for a key, open "
        "the page of its topic.",
    )
    return Page(f"Search: {wanted[:80]}", join(parts) if parts else nothing, "")


def _find_message(visit: Visit, message_id: str, topics: int) -> MessageExt | None:
    if topics > _TOPICS_SEARCHED:
        return find_by_offset_id(visit.admin, message_id)
    try:
        return find_copies(visit.admin, message_id, None)[0]
    except Failure:
        return None
