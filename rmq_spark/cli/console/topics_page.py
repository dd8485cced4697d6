"""The list of topics: filtered and in pages, of which each asks for its own topics alone.

With sizes, all topics are asked for in the background, and the greatest come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmq_spark.cli.cluster.topic_command import is_rocketmqs
from rmq_spark.cli.console.frame import Page
from rmq_spark.cli.console.html import Child, Html, el, join, path
from rmq_spark.cli.console.parts import (
    NOTHING_YET,
    PAGE,
    Column,
    Row,
    empty,
    hidden,
    live,
    name_filter,
    number,
    pages,
    share,
    size,
    table,
    trouble,
    when,
)
from rmq_spark.cli.console.sizes import Known
from rmq_spark.cli.console.visit import Visit, topic_path
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.errors import counted

SIZES: Final = "sizes"
_COLUMNS: Final = (
    Column("Topic", "grow"),
    Column("Queues", "number.wide"),
    Column("Messages", "number"),
    Column("Last stored", "number"),
)
_SIZE_COLUMNS: Final = (
    Column("Topic", "grow"),
    Column("Messages", "number"),
    Column("Bytes, about", "number"),
    Column("Part of all", "wide"),
    Column("Last stored", "number.wide"),
)


def topics(visit: Visit) -> Page:
    """Return a page of the list of topics."""
    wanted = visit.request.parameter("q")
    with_all = visit.request.parameter("all") == "yes"
    by_size = visit.request.parameter("sort") == SIZES
    names = [
        name
        for name in topic_names(visit.admin, with_all=with_all)
        if wanted.lower() in name.lower()
    ]
    number_ = visit.page()
    known = None
    if by_size:
        known = visit.sizes.of(sorted(visit.admin.topics()))
        sizes = known.sizes
        names.sort(key=lambda name: (-(sizes[name].stored_bytes if name in sizes else -1), name))
    shown = names[(number_ - 1) * PAGE : number_ * PAGE]

    def link(**changed: object) -> str:
        now = {
            "q": wanted,
            "all": "yes" if with_all else None,
            "sort": SIZES if by_size else None,
        }
        return path("topics", **{**now, **changed})

    if not names:
        visit.admin.masters()  # an error where there are none: name servers forget their topics
        found: Html = _nothing(visit, wanted)
    elif known is not None:
        found = _with_sizes(shown, known, names)
    else:
        found = table(_COLUMNS, [_row(visit.admin, name) for name in shown])
    foot = pages(len(names), number_, lambda page: link(page=page))
    switches = el(
        "div.switches",
        el("a.switch", "By name", href=link(sort=None), aria_current=_chosen(not by_size)),
        el("a.switch", "By size", href=link(sort=SIZES), aria_current=_chosen(by_size)),
        el(
            "a.switch",
            "With RocketMQ's own",
            href=link(all=None if with_all else "yes"),
            aria_current=_chosen(with_all),
        ),
    )
    kept = [("all", "yes")] * with_all + [("sort", SIZES)] * by_size
    search = name_filter("/topics", wanted, hidden(kept))
    content = join(search, switches, live("topics", found, foot))
    return Page("Topics", content, "topics")


def topic_names(admin: Admin, *, with_all: bool) -> list[str]:
    """Return the names of the users' topics, or of all; of the name servers alone."""
    names = sorted(admin.topics())
    if with_all:
        return names
    info = admin.cluster_info()
    own = {*info.broker_addr_table, *info.cluster_addr_table}
    return [name for name in names if not is_rocketmqs(name, own)]


def _row(admin: Admin, name: str) -> Row:
    cells: list[Child] = [el("a", name, href=topic_path(name))]
    try:
        offsets = admin.topic_offsets(name).values()
    except RouteNotFound:  # deleted since, or it has no master now
        return Row([*cells, NOTHING_YET, NOTHING_YET, "no broker"], topic_path(name))
    return Row(
        [
            *cells,
            number(len(offsets)),
            number(sum(each.max_offset - each.min_offset for each in offsets)),
            when(max((each.last_update_timestamp for each in offsets), default=0)),
        ],
        topic_path(name),
    )


def _with_sizes(shown: Sequence[str], known: Known, names: Sequence[str]) -> Html:
    sizes = known.sizes
    total = sum(each.stored_bytes for each in sizes.values())
    rows = []
    for name in shown:
        found = sizes.get(name)
        rows.append(
            Row(
                (
                    el("a", name, href=topic_path(name)),
                    number(None if found is None else found.messages),
                    NOTHING_YET if found is None else size(found.stored_bytes),
                    share(None if found is None or not total else found.stored_bytes / total),
                    when(None if found is None else found.last_timestamp),
                ),
                topic_path(name),
            )
        )
    says: Child = (
        f"{size(total)} in all topics, RocketMQ's own among them. Bytes are estimated by the first "
        "and last messages of each queue."
    )
    if not known.is_whole:
        asked = sum(name in sizes for name in names)
        says = f"Looking: {asked:,} of {counted(len(names), 'topic')} so far."
    problem = None if known.error is None else trouble("Not all could be asked", str(known.error))
    return join(problem, el("p.hint", says), table(_SIZE_COLUMNS, rows))


def _nothing(visit: Visit, wanted: str) -> Html:
    if wanted:
        return empty(
            f"No topic has {wanted} in its name",
            "Capitals do not matter. ",
            el("a", "Show all topics", href="/topics"),
        )
    return empty(
        "No topics yet",
        "A topic holds messages in queues. The first message that is sent to one makes it, or "
        "make it yourself:",
        command=visit.command("topic create", "orders", options=["--queues", "4"]),
    )


def _chosen(is_so: bool) -> str | None:  # noqa: FBT001  # its only argument
    return "true" if is_so else None
