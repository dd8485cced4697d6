"""Message page: the position and content of a message, and its trace: sent, stored, consumed."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.bodies import render_body
from rmq_spark.cli.console.markup.html import Child, Html, el, join, path
from rmq_spark.cli.console.server import Response
from rmq_spark.cli.console.visit import (
    Visit,
    group_path,
    message_path,
    topic_path,
)
from rmq_spark.cli.groups.group_state import queue_text
from rmq_spark.cli.messages.message_text import user_properties
from rmq_spark.cli.messages.message_trace import (
    Delivery,
    DeliveryState,
    TracedEvent,
    trace_deliveries,
    traced_events,
    transaction_of,
)
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import format_count
from rmq_spark.wire.message.properties import RESERVED_NAMES
from rmq_spark.wire.names import DLQ_PREFIX

_STATE_BADGES: Final = {
    DeliveryState.CONSUMED: ("consumed", "good"),
    DeliveryState.WAITING: ("waiting", "warn"),
    DeliveryState.NOT_STARTED: ("not started", "plain"),
    DeliveryState.DEAD_LETTER: ("dead letter", "bad"),
}


def message(visit: Visit) -> Page:
    """Return the page of the message at a position."""
    found = visit.message()
    queue, queue_offset = found.queue, found.queue_offset
    body = render_body(found.body, found.fault)
    cut = "" if body.shown_bytes is None else f", first {ui.size(body.shown_bytes)} shown"
    aside = el(
        "span.hint",
        f"{body.kind}, {ui.size(len(found.body))}{cut}  ",
        el("a", "Download", href=message_path(queue, queue_offset, "body"), download=True),
    )
    own = user_properties(found)
    system = {name: text for name, text in found.properties.items() if name in RESERVED_NAMES}
    content = el(
        "div.two",
        el(
            "div",
            ui.card("Body", el("div.card.scroll", body.element), header_content=aside),
            ui.card(
                "Properties",
                _properties(own)
                if own
                else ui.empty_state(
                    "No user properties",
                    "Producers can add properties, by which consumers can select messages with "
                    "SQL92.",
                ),
            ),
            el("details", el("summary", "System properties"), _properties(system)),
        ),
        el("div", ui.card("Location", _location(found)), ui.card("Trace", _trace(visit, found))),
    )
    trail = (("Topics", "/topics"), (found.topic, topic_path(found.topic)))
    title = f"{queue_text(queue)} @ {queue_offset}"
    previous = message_path(queue, queue_offset - 1)
    neighbours = el(
        "div.switches",
        el("a.switch", "Previous message", href=previous) if queue_offset else None,
        el("a.switch", "Next message", href=message_path(queue, queue_offset + 1)),
        el("a.switch", "Send a copy", href=message_path(queue, queue_offset, "copy")),
        el("a.switch", "Edit and send", href=message_path(queue, queue_offset, "edit")),
    )
    return Page(title, join(neighbours, content), "topics", trail)


def download_body(visit: Visit) -> Response:
    """Return a message's body unchanged, as a file that browsers save and do not show."""
    found = visit.message()
    name = f"{found.queue.queue_id}-{found.queue_offset}.bin"
    disposition = ("Content-Disposition", f'attachment; filename="message-{name}"')
    return Response(HTTPStatus.OK, found.body, "application/octet-stream", (disposition,))


def _location(message: MessageExt) -> Html:
    pairs: list[tuple[str, Child]] = [
        ("Topic", el("a", message.topic, href=topic_path(message.topic))),
        ("Queue", queue_text(message.queue)),
        ("Offset", message.queue_offset),
        ("Age", ui.age(message.store_timestamp)),
        ("Id", ui.copied_value("id", message.message_id)),
        ("Broker's id", ui.copied_value("broker's id", message.offset_message_id)),
        ("Tag", el("code", message.tags) if message.tags else "none"),
        ("Keys", [el("code.chip", key) for key in message.keys] or "none"),
    ]
    if message.delay_level:
        pairs.append(("Delay level", str(message.delay_level)))
    if message.flag:
        pairs.append(("Flag", str(message.flag)))
    return el("div.card.pad", ui.facts(pairs))


def _trace(visit: Visit, message: MessageExt) -> Html:
    deliveries = trace_deliveries(visit.admin, message)
    steps = [
        _step("plain", "Sent", ui.timestamp(message.born_timestamp), f"from {message.born_host}"),
        _step("good", "Stored", ui.timestamp(message.store_timestamp),
              f"{queue_text(message.queue)} at {message.queue_offset:,}"),
    ]  # fmt: skip
    if message.topic.startswith(DLQ_PREFIX):
        group = message.topic.removeprefix(DLQ_PREFIX)
        link = el("a", "all dead letters", href=path("dead-letters", group))
        steps.append(_step("bad", f"Dead letter of {group}", link, ""))
    steps += [_delivery_step(each) for each in deliveries]
    transaction = transaction_of(visit.admin, message)
    if transaction is not None:
        to = f"to {transaction.topic} by {transaction.producer_group}, {transaction.checks} checks"
        steps.append(_step("plain", f"Transaction: {transaction.state}", None, to))
    elif not deliveries:
        steps.append(_step("plain", "No group consumes this topic", None, ""))
    steps += [_traced_step(each) for each in traced_events(visit.admin, message.message_id)]
    return el("div.card.pad", el("ol.way", steps))


def _traced_step(event: TracedEvent) -> Html:
    tone = {True: "good", False: "bad", None: "warn"}[event.is_success]
    when = ui.timestamp(event.timestamp_ms) if event.timestamp_ms else None
    return _step(tone, f"{event.action.capitalize()} by {event.group}", when, event.detail)


def _delivery_step(delivery: Delivery) -> Html:
    text, tone = _STATE_BADGES[delivery.state]
    description = ""
    if delivery.state is DeliveryState.WAITING:
        description = (
            f"{delivery.messages_before:,} before it; the group is at {delivery.committed:,}"
        )
    elif delivery.state is DeliveryState.NOT_STARTED:
        description = "the group has no committed offset in this queue"
    elif delivery.state is DeliveryState.CONSUMED and delivery.retries:
        description = f"redelivered {format_count(delivery.retries, 'time')}"
    elif delivery.state is DeliveryState.DEAD_LETTER:
        description = "the group failed to consume it too often"
    name = el("a", delivery.group, href=group_path(delivery.group))
    letters = None
    if delivery.state is DeliveryState.DEAD_LETTER:
        letters = el("a", "resend", href=path("dead-letters", delivery.group))
    return _step(tone, name, join(ui.badge(text, tone), " ", letters), description)


def _step(tone: str, title: Child, mark: Child, detail: str) -> Html:
    return el(f"li.{tone}", el("div", el("strong", title), " ", mark), el("div.sub", detail))


def _properties(properties: dict[str, str]) -> Html:
    rows = [
        ui.HtmlTableRow((el("code", name), el("span.text", text)))
        for name, text in sorted(properties.items())
    ]
    return ui.table(("Name", "Value.grow"), rows)
