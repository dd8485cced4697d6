"""Timers page: lists messages of a topic that wait for their time of delivery, and recalls one.

The messages wait in the brokers' own topic, rmq_sys_wheel_timer, which is read from its newest
message. A recall is a message there as well; recalled messages are not listed.

    list, or the answer to a send ──> recall handle ──> dry run ──> recall
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from http import HTTPStatus
from itertools import islice
from typing import Final, NamedTuple

from rmq_spark.cli.console.guard import PageError
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.bodies import preview_body
from rmq_spark.cli.console.markup.html import NOTHING, Html, el, join
from rmq_spark.cli.console.pages.message_search import (
    SCANNED_MESSAGES_MAX,
    ranges_before,
    read_newest_first,
)
from rmq_spark.cli.console.visit import Visit, message_path, recall_path, topic_path
from rmq_spark.client.errors import AccessDenied, RouteNotFound, TopicNotUsable
from rmq_spark.client.message import MessageExt
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.message.message_id import RecallHandle, decode_recall_handle
from rmq_spark.wire.message.properties import REAL_TOPIC, TIMER_OUT_MS, TIMER_RECALLED_KEY, UNIQ_KEY
from rmq_spark.wire.names import TIMER_TOPIC

_SHOWN_MAX: Final = 50
_SCAN_SECONDS_MAX: Final = 2.0
_GROUP: Final = "rocketpoll-console"
_COLUMNS: Final = ("Due.stamp", "Stored.stamp.wide", "Tag.wide", "Keys.wide", "Body.grow", "")


class _Timers(NamedTuple):
    """Waiting messages, the next one first, and how many messages were read to find them."""

    messages: list[tuple[int, MessageExt]]
    read_count: int


def timers_tab(visit: Visit, topic: str) -> Html:
    """Return the waiting messages of a topic that are among the newest timers of all topics."""
    try:
        found = _read_timers(visit, topic)
    except (RouteNotFound, TopicNotUsable, AccessDenied):
        return ui.empty_state(
            "Waiting messages cannot be listed",
            "RocketMQ 4.9 has none; on other brokers the console's user may not read "
            f"{TIMER_TOPIC}.",
        )
    if not found.messages:
        hint = f"The newest {found.read_count:,} messages with a timer were read."
        return ui.empty_state("No message of this topic waits for its time", hint)
    rows = [_row(visit, due_ms, each) for due_ms, each in found.messages[:_SHOWN_MAX]]
    hint = f"Read the newest {found.read_count:,} messages with a timer"
    if len(found.messages) > _SHOWN_MAX:
        hint += f"; {len(found.messages):,} of this topic wait, the next {_SHOWN_MAX} are shown"
    return ui.live_region("timers", ui.table(_COLUMNS, rows), el("p.hint", f"{hint}."))


def _read_timers(visit: Visit, topic: str) -> _Timers:
    admin = visit.admin
    full = admin.instance.namespace.wrap(topic)
    ranges = ranges_before(admin, TIMER_TOPIC, None, None)
    newest_first = islice(read_newest_first(admin, TIMER_TOPIC, ranges), SCANNED_MESSAGES_MAX)
    deadline = time.monotonic() + _SCAN_SECONDS_MAX
    waiting: dict[str, tuple[int, MessageExt]] = {}
    recalled: set[str] = set()
    read_count = 0
    for message in newest_first:
        read_count += 1
        found = message.properties
        if found.get(REAL_TOPIC) == full:
            if TIMER_RECALLED_KEY in found:
                recalled.add(found[TIMER_RECALLED_KEY])
            elif (handle := _handle_of(message)) is not None:
                waiting.setdefault(handle.unique_id, (handle.deliver_ms, message))
        if time.monotonic() > deadline:
            break
    now_ms = time.time() * 1_000
    messages = [
        (due_ms, each)
        for unique_id, (due_ms, each) in waiting.items()
        if due_ms > now_ms and unique_id not in recalled
    ]
    return _Timers(sorted(messages, key=lambda found: found[0]), read_count)


def _handle_of(message: MessageExt) -> RecallHandle | None:
    """Return the recall handle of a waiting message, as the broker gave it to its producer."""
    found = message.properties
    slot, unique_id = found.get(TIMER_OUT_MS, ""), found.get(UNIQ_KEY, "")
    if not (slot.isascii() and slot.isdigit() and unique_id):
        return None
    broker = message.queue.broker_name
    return RecallHandle(found.get(REAL_TOPIC, ""), broker, int(slot) + 1, unique_id)


def _row(visit: Visit, due_ms: int, message: MessageExt) -> ui.HtmlTableRow:
    href = message_path(message.queue, message.queue_offset)
    handle = _handle_of(message)
    recall = NOTHING
    if visit.is_writable and handle is not None:
        recall = el("a.button", "Recall", href=recall_path(handle.encode()))
    return ui.HtmlTableRow(
        (
            el("a", ui.timestamp(due_ms), href=href),
            ui.timestamp(message.store_timestamp),
            el("code.chip", message.tags[:40]) if message.tags else None,
            [el("code.chip", key[:40]) for key in message.keys[:3]],
            el("span.preview", preview_body(message.body, message.fault)),
            recall,
        ),
        href,
    )


# ---- recall


def recall_plan(visit: Visit) -> Page:
    """Return the message that would be recalled, and the form that does so. Nothing is changed."""
    text = visit.request.parameter("handle")
    handle = _parse_handle(text)
    if not visit.is_writable:
        hint = "This console is read-only. Start it with --writes to recall messages."
        return _page(visit, handle, "Recall a message", el("p.hint", hint))
    if handle.deliver_ms <= time.time() * 1_000:
        hint = "Its time of delivery has passed: consumers have it, or get it now."
        over = join(el("p.notice.card", hint), el("div.card.pad", _facts(visit, handle)))
        return _page(visit, handle, "Recall a message", over)
    topic = _short_topic(visit, handle)
    content = join(
        el("p", ui.badge("dry run"), " Nothing has been recalled. Consumers would not get this "
           "message:"),
        el("div.card.pad", _facts(visit, handle)),
        visit.confirmation("Recall it", [("handle", text)], "/recall", recall_path(text),
                           topic_path(topic, tab="timers")),
    )  # fmt: skip
    return _page(visit, handle, "Recall a message", content)


def recall(visit: Visit) -> Page:
    """Recall a message, and return the page that reports it."""
    text = visit.request.field("handle")
    handle = _parse_handle(text)
    group = f"{_GROUP}-{secrets.token_hex(4)}"
    with Producer(group, instance=visit.admin.instance) as producer:
        message_id = producer.recall(text)
    topic = _short_topic(visit, handle)
    content = join(
        el("div.card.notice", ui.badge("recalled", "good"), " The recall is stored. Brokers do not "
           "say whether the message still waited."),
        el("p.actions", el("a.button", f"Show {topic}", href=topic_path(topic, tab="timers"))),
    )  # fmt: skip
    page = _page(visit, handle, "Recalled", content)
    return replace(page, outcome=f"recalled {message_id} of {topic}")


def _parse_handle(text: str) -> RecallHandle:
    try:
        return decode_recall_handle(text)
    except ValueError as error:
        raise PageError(
            HTTPStatus.BAD_REQUEST,
            "That is not a recall handle.",
            "Choose a message on a topic's page, under Timers.",
        ) from error


def _facts(visit: Visit, handle: RecallHandle) -> Html:
    topic = _short_topic(visit, handle)
    return ui.facts(
        [
            ("Topic", el("a", topic, href=topic_path(topic))),
            ("Broker", handle.broker_name),
            ("Due", ui.timestamp(handle.deliver_ms)),
            ("Id", ui.copied_value("id", handle.unique_id)),
        ]
    )


def _short_topic(visit: Visit, handle: RecallHandle) -> str:
    return visit.admin.instance.namespace.strip(handle.topic)


def _page(visit: Visit, handle: RecallHandle, title: str, content: Html) -> Page:
    topic = _short_topic(visit, handle)
    return Page(title, content, "topics", (("Topics", "/topics"), (topic, topic_path(topic))))
