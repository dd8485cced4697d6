"""Search page: finds a topic or group by name, or a message by id, for the search in the frame."""

from __future__ import annotations

from typing import Final

from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.html import el, join, path
from rmq_spark.cli.console.pages.topics_page import topic_names
from rmq_spark.cli.console.server import Response, redirect
from rmq_spark.cli.console.visit import Visit, group_path, message_path, topic_path
from rmq_spark.cli.messages.message_trace import find_by_offset_id, find_copies
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.message import MessageExt
from rmq_spark.wire.names import is_system_group

_NAMES_SHOWN: Final = 25
_TOPICS_SEARCHED: Final = 1_000
"""Most topics whose index is asked for an id; beyond, the topic's own page searches."""


def search(visit: Visit) -> Page | Response:
    """Redirect to what is searched for, or return similar names."""
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
