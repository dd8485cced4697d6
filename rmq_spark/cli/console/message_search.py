"""Search among the messages of a topic: by key, id, tag or time; without one, the newest.

Keys and ids are looked up in the brokers' index. A tag has none: so the newest messages are looked
through, up to a number, which is said. This module must not know what a page looks like.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rmq_spark.cli.console.reads import read_newest_first, ranges_before
from rmq_spark.cli.console.visit import Visit, parse_location, location_text, parse_time_field
from rmq_spark.cli.messages.message_trace import find_copies
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.queues import store_order_key
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import format_count
from rmq_spark.wire.message_queue import MessageQueue

PAGE_MESSAGES: Final = 20
"""Messages on a page."""

_SCANNED_MESSAGES_MAX: Final = 2_000
_SCAN_SECONDS_MAX: Final = 2.0
_PAGE_BYTES_MAX: Final = 32 * 1024 * 1024
_CONTINUED_QUEUES_MAX: Final = 128
"""Queues whose places fit into a link."""

SEARCH_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "key": ("Key", "order-42"),
    "id": ("Id", "an id"),
    "tag": ("Tag", "paid"),
    "until": ("Stored before", "09:00, -1h or 2026-11-23T09:00"),
}
"""Ways to search, each with its title and an example."""


class MessageSearchResult(NamedTuple):
    """Messages, the newest first, and how to go on.

    Attributes:
        messages: The messages.
        is_filtered: Whether something was searched for.
        note: What is to be said about the search; empty if nothing.
        older: Parameters of the page with older messages; None if there is none.
    """

    messages: Sequence[MessageExt]
    is_filtered: bool
    note: str = ""
    older: Mapping[str, str] | None = None


def search_messages(visit: Visit, topic: str) -> MessageSearchResult:
    """Return the messages of a topic that a request asks for."""
    by, text = visit.request.parameter("by"), visit.request.parameter("for")
    if by not in SEARCH_KINDS or not text:
        return _search_newest(visit, topic, None, None)
    if by == "key":
        found = visit.admin.messages_by_key(topic, text, messages_max=PAGE_MESSAGES)
        newest = sorted(found, key=store_order_key, reverse=True)
        says = f"The newest {PAGE_MESSAGES} of each broker." if len(newest) >= PAGE_MESSAGES else ""
        return MessageSearchResult(newest[:PAGE_MESSAGES], is_filtered=True, note=says)
    if by == "id":
        try:
            return MessageSearchResult(find_copies(visit.admin, text, topic), is_filtered=True)
        except Failure:
            return MessageSearchResult((), is_filtered=True)
    if by == "tag":
        return _search_newest(visit, topic, text, None)
    return _search_newest(visit, topic, None, parse_time_field(text))


def _search_newest(visit: Visit, topic: str, tag: str | None, until_ms: int | None) -> MessageSearchResult:
    text = visit.request.parameter("ends")
    ends = None if not text else dict(parse_location(topic, each) for each in text.split(" ") if each)
    spans = ranges_before(visit.admin, topic, None if ends else until_ms, ends)
    places = {span.queue: span.end for span in spans if span.end > span.start}
    found, looked, is_over = _scan(read_newest_first(visit.admin, topic, spans), tag, places)
    was_asked = tag is not None or until_ms is not None or ends is not None
    through = format_count(looked, "message was", "messages were")
    says = f"{through} looked through for the tag." if tag is not None else ""
    if is_over:
        return MessageSearchResult(found, was_asked, says)
    if len(places) > _CONTINUED_QUEUES_MAX:
        return MessageSearchResult(found, was_asked, f"{says} Search by time for older ones.")
    older = " ".join(location_text(queue, at) for queue, at in sorted(places.items()))
    by = {"by": "tag", "for": tag} if tag is not None else {}
    return MessageSearchResult(found, was_asked, says, {**by, "ends": older})


def _scan(
    messages: Iterable[MessageExt], tag: str | None, offsets: dict[MessageQueue, int]
) -> tuple[list[MessageExt], int, bool]:
    """Take a page of messages with a tag, and note in each queue's place how far that went.

    Returns:
        The messages, how many were looked through, and whether there are no more.
    """
    found: list[MessageExt] = []
    looked = held_bytes = 0
    deadline = time.monotonic() + _SCAN_SECONDS_MAX
    for message in messages:
        if (
            len(found) == PAGE_MESSAGES
            or looked == _SCANNED_MESSAGES_MAX
            or held_bytes > _PAGE_BYTES_MAX
            or time.monotonic() > deadline
        ):
            return found, looked, False
        looked += 1
        offsets[message.queue] = message.queue_offset
        if tag is None or message.tags == tag:
            found.append(message)
            held_bytes += len(message.body)
    return found, looked, True
