"""Seek: where a group would go on, queue by queue; and, by a form, that it does."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from rmq_spark.cli.console.frame import Page
from rmq_spark.cli.console.guard import Refused, form_fields
from rmq_spark.cli.console.html import Html, el, join
from rmq_spark.cli.console.parts import (
    Column,
    Row,
    badge,
    card,
    empty,
    hidden,
    number,
    sign_in_link,
    table,
    trouble,
)
from rmq_spark.cli.console.visit import Visit, group_path, queue_text
from rmq_spark.cli.groups.group_seek import Move, carry_out, plan
from rmq_spark.cli.shell.positions import PLACE, Kind, Place
from rmq_spark.cli.shell.queues import QUEUE, QueueName
from rmq_spark.errors import counted

_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}|\d{4}-\d{2}-|-\d+(ms|[smhdw])")
"""The beginning of a time, which may be given without the command line's @ in front."""

_PLAN: Final = (
    Column("Topic", "grow"),
    Column("Queue"),
    Column("Committed", "number"),
    Column("Goes to", "number"),
    Column("Moves", "number.wide"),
    Column("Behind then", "number.wide"),
)


class _Wish(NamedTuple):
    """A seek as a form has it: the place as it was written, and as it was understood."""

    group: str
    text: str
    place: Place
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
    wish = _wish(visit, visit.request.parameter)
    return _plan_page(visit, wish, _planned(visit, wish), None)


def seek(visit: Visit) -> Page:
    """Carry out a plan that a page has shown, and return the page that says so.

    A plan relative to offsets that have changed since is shown anew instead: a form that is sent
    twice skips one message, not two.
    """
    wish = _wish(visit, visit.request.field)
    moves = _planned(visit, wish)
    is_relative = wish.place.kind in (Kind.BACK, Kind.FORTH)
    if is_relative and visit.request.field("seen") != _digest(moves):
        changed = trouble(
            "The group has moved on since",
            "Nothing was changed. This is what the seek would do from where the group is now.",
        )
        return _plan_page(visit, wish, moves, changed)
    carry_out(visit.admin, wish.group, moves, wish.place, is_all=wish.queue is None)
    done = el(
        "div.card.notice",
        badge("moved", "good"),
        f" {wish.group} goes on there. Members that are online have been told.",
    )
    back = el("a.button", f"Back to {wish.group}", href=group_path(wish.group))
    return _page(wish, join(done, _moves(moves), el("p", back)))


def _wish(visit: Visit, given: Callable[[str], str]) -> _Wish:
    """Read a seek from a query or a form.

    Raises:
        Refused: It names no place.
        click.UsageError: The place or the queue means nothing.
    """
    text, queue = given("to"), given("queue")
    if not text:
        raise Refused(
            HTTPStatus.BAD_REQUEST, "Where should the group go on?", "Give a place, as @09:00."
        )
    if _CLOCK.match(text):
        text = f"@{text}"
    place = PLACE.convert(text, None, None)
    chosen = QUEUE.convert(queue, None, None) if queue else None
    return _Wish(visit.request.segments[1], text, place, given("topic"), chosen)


def _digest(moves: Sequence[Move]) -> str:
    """Return a mark of the offsets that a plan starts from."""
    text = "\n".join(f"{move.queue} {move.committed}" for move in moves)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plan_page(visit: Visit, wish: _Wish, moves: Sequence[Move], said: Html | None) -> Page:
    if not moves:
        return _page(wish, empty("No queues there", "The group has nothing to move there."))
    return _page(
        wish,
        join(
            said,
            el("p", badge("dry run"), " Nothing has been changed. ", el("strong", wish.group),
               " would go on so:"),
            _moves(moves),
            _confirmation(visit, wish, moves),
            card("On the command line", wish.command(visit)),
        ),
    )  # fmt: skip


def _confirmation(visit: Visit, wish: _Wish, moves: Sequence[Move]) -> Html:
    if not visit.writes:
        says = "This console only reads: start it with --writes, or use the command below."
        return el("p.hint", says)
    if visit.session is None:
        return sign_in_link(wish.path)
    fields = [
        ("to", wish.text),
        ("topic", wish.topic),
        ("queue", "" if wish.queue is None else str(wish.queue)),
        ("seen", _digest(moves)),
        *form_fields(visit.session),
    ]
    return el(
        "form.actions",
        hidden(fields),
        el("button.primary", f"Move {counted(len(moves), 'queue')}", type="submit"),
        el("a.button", "Leave it", href=group_path(wish.group)),
        action=group_path(wish.group, "seek"),
        method="post",
    )


def _planned(visit: Visit, wish: _Wish) -> list[Move]:
    return plan(visit.admin, wish.group, [wish.topic] if wish.topic else [], wish.place, wish.queue)


def _moves(moves: Sequence[Move]) -> Html:
    return table(_PLAN, [_row(move) for move in moves])


def _row(move: Move) -> Row:
    moves = "-" if move.committed is None else f"{move.to - move.committed:+,}"
    return Row(
        (
            move.queue.topic,
            queue_text(move.queue),
            number(move.committed),
            number(move.to),
            moves,
            number(move.behind),
        )
    )


def _page(wish: _Wish, content: Html) -> Page:
    trail = (("Groups", "/groups"), (wish.group, group_path(wish.group)))
    return Page(f"Seek to {wish.text}", content, "groups", trail)
