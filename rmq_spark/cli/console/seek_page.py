"""Seek: where a group would go on, queue by queue; and, by a form, that it does."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from rmq_spark.cli.console.frame import Page
from rmq_spark.cli.console.guard import PageError, form_fields
from rmq_spark.cli.console.html import Html, el, join
from rmq_spark.cli.console.parts import (
    HtmlTableColumn,
    HtmlTableRow,
    badge,
    card,
    empty_state,
    hidden_fields,
    number_text,
    sign_in_link,
    table,
    alert,
)
from rmq_spark.cli.console.visit import Visit, group_path, queue_text
from rmq_spark.cli.groups.group_seek import OffsetMove, apply_seek, plan_seek
from rmq_spark.cli.shell.positions import POSITION, PositionKind, TopicPosition
from rmq_spark.cli.shell.queues import QUEUE, QueueName
from rmq_spark.errors import format_count

_TIME_START: Final = re.compile(r"\d{1,2}:\d{2}|\d{4}-\d{2}-|-\d+(ms|[smhdw])")
"""The beginning of a time, which may be given without the command line's @ in front."""

_PLAN_COLUMNS: Final = (
    HtmlTableColumn("Topic", "grow"),
    HtmlTableColumn("Queue"),
    HtmlTableColumn("Committed", "number"),
    HtmlTableColumn("Goes to", "number"),
    HtmlTableColumn("Moves", "number.wide"),
    HtmlTableColumn("Behind then", "number.wide"),
)


class _SeekRequest(NamedTuple):
    """A seek as a form has it: the place as it was written, and as it was understood."""

    group: str
    text: str
    position: TopicPosition
    topic: str
    queue: QueueName | None

    @property
    def path(self) -> str:
        """Path of the page with the plan."""
        queue = None if self.queue is None else str(self.queue)
        return group_path(self.group, "seek", to=self.text, topic=self.topic, queue=queue)

    def command(self, visit: Visit) -> Html:
        """Return the command that does the same."""
        words = ["--to", self.text]
        words += ["--topic", self.topic] if self.topic else []
        words += ["--queue", str(self.queue)] if self.queue is not None else []
        return visit.command("group seek", self.group, options=words)


def seek_form(group: str, topics: Sequence[str]) -> Html:
    """Return the form that asks for a plan."""
    options = [el("option", "all topics", value=""), *(el("option", each) for each in topics)]
    return el(
        "form.card.pad.fields",
        el(
            "div.field",
            el("label", "To", for_="to"),
            el("input", name="to", id="to", required=True, placeholder="@09:00",
               autocomplete="off"),
            el("span.hint", "start, end, an offset, a time (@09:00, @-1h, @2026-11-23T09:00), +1 "
               "to skip a message, -10 to repeat ten"),
        ),
        el("div.field", el("label", "Topic", for_="topic"),
           el("select", options, name="topic", id="topic")),
        el("div.field", el("label", "Queue", for_="queue"),
           el("input", name="queue", id="queue", placeholder="all, or broker-a:0",
              autocomplete="off")),
        el("button.primary", "Show what it would do", type="submit"),
        action=group_path(group, "seek"),
    )  # fmt: skip


def seek_plan(visit: Visit) -> Page:
    """Return the page with a plan, and the form that carries it out. Nothing is changed."""
    wish = _parse_seek(visit, visit.request.parameter)
    return _plan_page(visit, wish, _plan_moves(visit, wish), None)


def seek(visit: Visit) -> Page:
    """Carry out a plan that a page has shown, and return the page that says so.

    A plan relative to offsets that have changed since is shown anew instead: a form that is sent
    twice skips one message, not two.
    """
    wish = _parse_seek(visit, visit.request.field)
    moves = _plan_moves(visit, wish)
    is_relative = wish.position.kind in (PositionKind.BACKWARD, PositionKind.FORWARD)
    if is_relative and visit.request.field("seen") != _digest(moves):
        changed = alert(
            "The group has moved on since",
            "Nothing was changed. This is what the seek would do from where the group is now.",
        )
        return _plan_page(visit, wish, moves, changed)
    apply_seek(visit.admin, wish.group, moves, wish.position, is_all=wish.queue is None)
    done = el(
        "div.card.notice",
        badge("moved", "good"),
        f" {wish.group} goes on there. Members that are online have been told.",
    )
    back = el("a.button", f"Back to {wish.group}", href=group_path(wish.group))
    return _page(wish, join(done, _move_table(moves), el("p", back)))


def _parse_seek(visit: Visit, read_field: Callable[[str], str]) -> _SeekRequest:
    """Read a seek from a query or a form.

    Raises:
        Refused: It names no place.
        click.UsageError: The place or the queue means nothing.
    """
    text, queue = read_field("to"), read_field("queue")
    if not text:
        raise PageError(
            HTTPStatus.BAD_REQUEST, "Where should the group go on?", "Give a place, as @09:00."
        )
    if _TIME_START.match(text):
        text = f"@{text}"
    place = POSITION.convert(text, None, None)
    chosen = QUEUE.convert(queue, None, None) if queue else None
    return _SeekRequest(visit.request.segments[1], text, place, read_field("topic"), chosen)


def _digest(moves: Sequence[OffsetMove]) -> str:
    """Return a mark of the offsets that a plan starts from."""
    text = "\n".join(f"{move.queue} {move.committed}" for move in moves)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plan_page(visit: Visit, request: _SeekRequest, moves: Sequence[OffsetMove], notice: Html | None) -> Page:
    if not moves:
        return _page(request, empty_state("No queues there", "The group has nothing to move there."))
    return _page(
        request,
        join(
            notice,
            el("p", badge("dry run"), " Nothing has been changed. ", el("strong", request.group),
               " would go on so:"),
            _move_table(moves),
            _confirmation(visit, request, moves),
            card("On the command line", request.command(visit)),
        ),
    )  # fmt: skip


def _confirmation(visit: Visit, request: _SeekRequest, moves: Sequence[OffsetMove]) -> Html:
    if not visit.is_writable:
        says = "This console only reads: start it with --writes, or use the command below."
        return el("p.hint", says)
    if visit.session is None:
        return sign_in_link(request.path)
    fields = [
        ("to", request.text),
        ("topic", request.topic),
        ("queue", "" if request.queue is None else str(request.queue)),
        ("seen", _digest(moves)),
        *form_fields(visit.session),
    ]
    return el(
        "form.actions",
        hidden_fields(fields),
        el("button.primary", f"Move {format_count(len(moves), 'queue')}", type="submit"),
        el("a.button", "Leave it", href=group_path(request.group)),
        action=group_path(request.group, "seek"),
        method="post",
    )


def _plan_moves(visit: Visit, request: _SeekRequest) -> list[OffsetMove]:
    return plan_seek(visit.admin, request.group, [request.topic] if request.topic else [], request.position, request.queue)


def _move_table(moves: Sequence[OffsetMove]) -> Html:
    return table(_PLAN_COLUMNS, [_row(move) for move in moves])


def _row(move: OffsetMove) -> HtmlTableRow:
    moves = "-" if move.committed is None else f"{move.target_offset - move.committed:+,}"
    return HtmlTableRow(
        (
            move.queue.topic,
            queue_text(move.queue),
            number_text(move.committed),
            number_text(move.target_offset),
            moves,
            number_text(move.behind),
        )
    )


def _page(request: _SeekRequest, content: Html) -> Page:
    trail = (("Groups", "/groups"), (request.group, group_path(request.group)))
    return Page(f"Seek to {request.text}", content, "groups", trail)
