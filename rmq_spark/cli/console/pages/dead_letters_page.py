"""Dead letters page: the groups that have dead letters, the letters, and resending them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

from rmq_spark.cli.console.guard import PageError
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.bodies import preview_body
from rmq_spark.cli.console.markup.html import Child, Html, el, join, path
from rmq_spark.cli.console.pages.message_search import MessageSearchResult, search_messages
from rmq_spark.cli.console.visit import (
    Visit,
    group_path,
    location_text,
    message_path,
    parse_location,
    topic_path,
)
from rmq_spark.cli.messages.dead_letters import (
    ResendResult,
    groups_with_dead_letters,
    original_message,
    resend_dead_letters,
)
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import format_count
from rmq_spark.wire.names import dlq_topic

_GROUP_COLUMNS: Final = ("Group.grow", "Dead letters.number", "Last stored.number")
_DEAD_LETTER_COLUMNS: Final = (
    *(".tick", "Stored.stamp", "From topic", "Failures.number"),
    *("Keys.wide", "Body.grow"),
)
_RESEND_COLUMNS: Final = ("Dead letter.stamp", "To topic", "Keys.wide", "Body.grow")
_RESEND_MAX: Final = 100
"""Most dead letters to send at once; a page shows fewer."""


def dead_letters(visit: Visit) -> Page:
    """Return the groups that have dead letters."""
    found = groups_with_dead_letters(visit.admin)
    rows = [
        ui.HtmlTableRow(
            (
                el("a", each.source.name, href=_dead_letters_path(each.source.name)),
                each.messages,
                ui.age(each.last_stored_ms),
            ),
            _dead_letters_path(each.source.name),
        )
        for each in found
    ]
    content = (
        ui.live_region("letters", ui.table(_GROUP_COLUMNS, rows))
        if rows
        else ui.empty_state(
            "No dead letters",
            "A message becomes a dead letter when a group has failed to consume it too often "
            "(after 16 retries, unless its consumers are configured otherwise). It appears here, "
            "and can be resent once the cause is fixed.",
        )
    )
    return Page("Dead letters", content, "dead-letters")


def letters(visit: Visit) -> Page:
    """Return a page of a group's dead letters, the newest first."""
    group = visit.request.segments[1]
    try:
        found = search_messages(visit, dlq_topic(group))
    except RouteNotFound:
        found = MessageSearchResult((), is_filtered=False)
    if not found.messages:
        nothing = ui.empty_state(
            f"{group} has no dead letters",
            "The group has not given up on any message. ",
            el("a", "Show the group", href=group_path(group)),
        )
        return _page(group, nothing)
    rows = [_row(each) for each in found.messages]
    older = None
    if found.older is not None:
        older = el("a.button", "Older", href=_dead_letters_path(group, **found.older))
    content = el(
        "form",
        el("p.hint", "Fix the cause of the failures first. Resending a dead letter sends a new "
           "message to its original topic: all groups of that topic receive it. The dead letter "
           "stays."),
        el("div.switches", el("label.switch", el("input", type="checkbox", data_all=True),
                              " All on this page"),
           el("button.primary", "Preview resend", type="submit"), older),
        ui.table(_DEAD_LETTER_COLUMNS, rows),
        action=path("dead-letters", group, "resend"),
    )  # fmt: skip
    return _page(group, content)


def resend_plan(visit: Visit) -> Page:
    """Return the letters that would be resent, and the form that does so. Nothing is sent."""
    group = visit.request.segments[1]
    chosen = _selected_dead_letters(visit, group, visit.request.query)
    count = format_count(len(chosen), "message")
    locations = [("at", location_text(letter.queue, letter.queue_offset)) for letter in chosen]
    action, back_path = path("dead-letters", group, "resend"), _dead_letters_path(group)
    query = urlencode(locations)
    content = join(
        el("p", ui.badge("dry run"), " Nothing has been sent. These messages would be:"),
        ui.table(_RESEND_COLUMNS, [_plan_row(letter) for letter in chosen]),
        visit.confirmation(f"Resend {count}", locations, action, f"{action}?{query}", back_path),
        ui.card(
            "On the command line",
            visit.command("dlq resend", group, *(each.offset_message_id for each in chosen)),
        ),
    )
    return _page(group, content, f"Resend {count}")


def resend(visit: Visit) -> Page:
    """Resend dead letters to their original topics, and return the page with the results."""
    group = visit.request.segments[1]
    chosen = _selected_dead_letters(visit, group, visit.request.form)
    done = list(resend_dead_letters(visit.admin, chosen))
    sent = sum(each.result is not None for each in done)
    state = ui.badge("sent", "good") if sent == len(chosen) else ui.badge("not all", "bad")
    content = join(
        el(
            "div.card.notice", state, f" {sent} of {format_count(len(chosen), 'was', 'were')} sent."
        ),
        ui.table(_RESEND_COLUMNS, [_resent_row(visit, each) for each in done]),
        el("p", el("a.button", "Back to the dead letters", href=_dead_letters_path(group))),
    )
    page = _page(group, content, "Resent")
    return replace(page, outcome=f"{sent} of {len(chosen)} sent")


def _selected_dead_letters(
    visit: Visit, group: str, parameters: Sequence[tuple[str, str]]
) -> list[MessageExt]:
    topic = dlq_topic(group)
    locations = list(
        dict.fromkeys(parse_location(topic, text) for name, text in parameters if name == "at")
    )
    if not locations or len(locations) > _RESEND_MAX:
        raise PageError(
            HTTPStatus.BAD_REQUEST,
            "No dead letters are selected." if not locations else "Too many are selected.",
            f"Select 1 to {_RESEND_MAX} dead letters.",
        )
    chosen = []
    for queue, queue_offset in locations:
        letter = visit.admin.message_at(queue, queue_offset)
        if letter is None:
            raise PageError(
                HTTPStatus.NOT_FOUND,
                f"There is no dead letter at {location_text(queue, queue_offset)}.",
                "It may have been deleted. Reload the list.",
            )
        chosen.append(letter)
    return chosen


def _row(letter: MessageExt) -> ui.HtmlTableRow:
    location = location_text(letter.queue, letter.queue_offset)
    href = message_path(letter.queue, letter.queue_offset)
    origin = letter.properties.get("DLQ_ORIGIN_TOPIC") or letter.real_topic
    return ui.HtmlTableRow(
        (
            el(
                "input", type="checkbox", name="at", value=location, aria_label=f"Select {location}"
            ),
            el("a", ui.timestamp(letter.store_timestamp), href=href),
            el("a", origin, href=topic_path(origin)),
            letter.reconsume_times,
            [el("code.chip", key[:40]) for key in letter.keys[:3]],
            el("span.preview", preview_body(letter.body, letter.fault)),
        ),
        href,
    )


def _resent_row(visit: Visit, outcome: ResendResult) -> ui.HtmlTableRow:
    letter, result, fault = outcome
    if result is None:
        return _resend_row(letter, visit.sentence(fault or ""))
    href = message_path(result.queue, result.queue_offset)
    return _resend_row(letter, el("a", result.queue.topic, href=href), href)


def _plan_row(letter: MessageExt) -> ui.HtmlTableRow:
    try:
        return _resend_row(letter, original_message(letter).topic)
    except Failure as error:
        return _resend_row(letter, error.message)


def _resend_row(letter: MessageExt, target: Child, href: str | None = None) -> ui.HtmlTableRow:
    body = el("span.preview", preview_body(letter.body, letter.fault))
    stored = ui.timestamp(letter.store_timestamp)
    return ui.HtmlTableRow((stored, target, " ".join(letter.keys), body), href)


def _dead_letters_path(group: str, **query: str) -> str:
    return path("dead-letters", group, **query)


def _page(group: str, content: Html, title: str | None = None) -> Page:
    trail = [("Dead letters", "/dead-letters")]
    if title is not None:
        trail.append((group, _dead_letters_path(group)))
    return Page(title or group, content, "dead-letters", trail)
