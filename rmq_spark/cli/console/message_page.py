"""One message: where it is, what it holds, its way: sent, stored, and what groups made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Final

from rmq_spark.cli.console.bodies import view
from rmq_spark.cli.console.frame import Page
from rmq_spark.cli.console.guard import Refused
from rmq_spark.cli.console.html import Child, Html, el, join, path
from rmq_spark.cli.console.http_port import Response
from rmq_spark.cli.console.parts import (
    Column,
    Row,
    badge,
    card,
    empty,
    facts,
    moment,
    number,
    size,
    table,
    when,
)
from rmq_spark.cli.console.visit import (
    Visit,
    group_path,
    message_path,
    place_in,
    queue_text,
    topic_path,
)
from rmq_spark.cli.messages.message_text import user_properties
from rmq_spark.cli.messages.message_trace import Delivery, Fate, deliveries
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import counted
from rmq_spark.wire.names import DLQ_PREFIX
from rmq_spark.wire.properties import RESERVED_NAMES

_PROPERTIES: Final = (Column("Name"), Column("Value", "grow"))
_TONES: Final = {
    Fate.CONSUMED: ("consumed", "good"),
    Fate.WAITING: ("waiting", "warn"),
    Fate.UNTOUCHED: ("not begun", "plain"),
    Fate.DEAD: ("dead letter", "bad"),
}


def message(visit: Visit) -> Page:
    """Return the page of the message at a place."""
    found = _found(visit)
    queue, queue_offset = found.queue, found.queue_offset
    body = view(found.body, found.fault)
    cut = "" if body.shown_bytes is None else f", of which the first {size(body.shown_bytes)} stand"
    aside = el(
        "span.hint",
        f"{body.kind}, {size(len(found.body))}{cut}  ",
        el("a", "Download", href=message_path(queue, queue_offset, "body"), download=True),
    )
    own = user_properties(found)
    system = {name: text for name, text in found.properties.items() if name in RESERVED_NAMES}
    content = el(
        "div.two",
        el(
            "div",
            card("Body", el("div.card.scroll", body.element), aside=aside),
            card("Properties", _properties(own) if own else _no_properties()),
            el("details", el("summary", "RocketMQ's own properties"), _properties(system)),
        ),
        el("div", card("Place", _place(found)), card("Way", _way(visit, found))),
    )
    trail = (("Topics", "/topics"), (found.topic, topic_path(found.topic)))
    title = f"{queue_text(queue)} @ {queue_offset}"
    return Page(title, join(_neighbours(found), content), "topics", trail)


def body_of(visit: Visit) -> Response:
    """Return a message's body as it is, as a file that no browser shows."""
    found = _found(visit)
    name = f"{found.queue.queue_id}-{found.queue_offset}.bin"
    disposition = ("Content-Disposition", f'attachment; filename="message-{name}"')
    return Response(HTTPStatus.OK, found.body, "application/octet-stream", (disposition,))


def _found(visit: Visit) -> MessageExt:
    _, topic, broker, queue, queue_offset, *_ = visit.request.segments
    place = place_in(topic, broker, queue, queue_offset)
    found = visit.admin.message_at(*place)
    if found is None:
        raise Refused(
            HTTPStatus.NOT_FOUND,
            f"{topic} holds no message in {queue_text(place[0])} at {queue_offset}.",
            "It was deleted since, or is still to come: the topic's queues show what they hold.",
        )
    return found


def _place(found: MessageExt) -> Html:
    pairs: list[tuple[str, Child]] = [
        ("Topic", el("a", found.topic, href=topic_path(found.topic))),
        ("Queue", queue_text(found.queue)),
        ("Offset", number(found.queue_offset)),
        ("Age", when(found.store_timestamp)),
        ("Id", el("code", found.message_id)),
        ("Broker's id", el("code", found.offset_message_id)),
        ("Tag", el("code", found.tags) if found.tags else "none"),
        ("Keys", [el("code.chip", key) for key in found.keys] or "none"),
    ]
    if found.delay_level:
        pairs.append(("Delay level", str(found.delay_level)))
    if found.flag:
        pairs.append(("Flag", str(found.flag)))
    return el("div.card.pad", facts(pairs))


def _way(visit: Visit, found: MessageExt) -> Html:
    made = deliveries(visit.admin, found)
    steps = [
        _step("plain", "Sent", moment(found.born_timestamp), f"from {found.born_host}"),
        _step("good", "Stored", moment(found.store_timestamp),
              f"{queue_text(found.queue)} at {found.queue_offset:,}"),
    ]  # fmt: skip
    if found.topic.startswith(DLQ_PREFIX):
        group = found.topic.removeprefix(DLQ_PREFIX)
        link = el("a", "Its dead letters", href=path("dead-letters", group))
        steps.append(_step("bad", f"Given up by {group}", link, ""))
    steps += [_delivered(each) for each in made]
    if not made:
        steps.append(_step("plain", "No group consumes this topic", None, ""))
    return el("div.card.pad", el("ol.way", steps))


def _delivered(delivery: Delivery) -> Html:
    text, tone = _TONES[delivery.fate]
    says = ""
    if delivery.fate is Fate.WAITING:
        says = f"{delivery.before:,} before it; the group is at {delivery.committed:,}"
    elif delivery.fate is Fate.UNTOUCHED:
        says = "the group has committed nothing in this queue"
    elif delivery.fate is Fate.CONSUMED and delivery.retries:
        says = f"given back {counted(delivery.retries, 'time')} for another try"
    elif delivery.fate is Fate.DEAD:
        says = "the group has failed it too often"
    name = el("a", delivery.group, href=group_path(delivery.group))
    letters = None
    if delivery.fate is Fate.DEAD:
        letters = el("a", "resend", href=path("dead-letters", delivery.group))
    return _step(tone, name, join(badge(text, tone), " ", letters), says)


def _step(tone: str, title: Child, mark: Child, says: str) -> Html:
    return el(f"li.{tone}", el("div", el("strong", title), " ", mark), el("div.sub", says))


def _neighbours(found: MessageExt) -> Html:
    before = found.queue_offset - 1
    return el(
        "div.switches",
        el("a.switch", "Message before", href=message_path(found.queue, before))
        if before >= 0
        else None,
        el("a.switch", "Next message", href=message_path(found.queue, found.queue_offset + 1)),
    )


def _properties(properties: dict[str, str]) -> Html:
    return table(_PROPERTIES, _property_rows(sorted(properties.items())))


def _property_rows(pairs: Iterable[tuple[str, str]]) -> Iterator[Row]:
    for name, text in pairs:
        yield Row((el("code", name), el("span.text", text)))


def _no_properties() -> Html:
    return empty(
        "No properties of its own",
        "A sender may add names with values, by which consumers can select in SQL.",
    )
