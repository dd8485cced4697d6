"""Search among the messages of a topic: by key, id, tag or time; without one, the newest.

Keys and ids are looked up in the brokers' index. A tag has none: so the newest messages are looked
through, up to a number, which is said. This module must not know what a page looks like.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rmq_spark.cli.console.reads import newest_first, spans_before
from rmq_spark.cli.console.visit import Visit, place_of, place_text, time_of_text
from rmq_spark.cli.messages.message_trace import copies_of
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.queues import stored_order
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import counted
from rmq_spark.wire.message_queue import MessageQueue

SHOWN: Final = 20
"""Messages on a page."""

_LOOKED_THROUGH: Final = 2_000
_LOOK_SECONDS: Final = 2.0
_PAGE_BYTES: Final = 32 * 1024 * 1024
_QUEUES_TO_GO_ON: Final = 128
"""Queues whose places fit into a link."""

BY: Final[Mapping[str, tuple[str, str]]] = {
    "key": ("Key", "order-42"),
    "id": ("Id", "an id"),
    "tag": ("Tag", "paid"),
    "until": ("Stored before", "09:00, -1h or 2026-11-23T09:00"),
}
"""Ways to search, each with its title and an example."""


class Found(NamedTuple):
    """Messages, the newest first, and how to go on.

    Attributes:
        messages: The messages.
        was_asked: Whether something was searched for.
        says: What is to be said about the search; empty if nothing.
        older: Parameters of the page with older messages; None if there is none.
    """

    messages: Sequence[MessageExt]
    was_asked: bool
    says: str = ""
    older: Mapping[str, str] | None = None


def found_in(visit: Visit, topic: str) -> Found:
    """Return the messages of a topic that a request asks for."""
    by, text = visit.request.parameter("by"), visit.request.parameter("for")
    if by not in BY or not text:
        return _newest(visit, topic, None, None)
    if by == "key":
        found = visit.admin.messages_by_key(topic, text, messages_max=SHOWN)
        newest = sorted(found, key=stored_order, reverse=True)
        says = f"The newest {SHOWN} of each broker." if len(newest) >= SHOWN else ""
        return Found(newest[:SHOWN], was_asked=True, says=says)
    if by == "id":
        try:
            return Found(copies_of(visit.admin, text, topic), was_asked=True)
        except Failure:
            return Found((), was_asked=True)
    if by == "tag":
        return _newest(visit, topic, text, None)
    return _newest(visit, topic, None, time_of_text(text))


def _newest(visit: Visit, topic: str, tag: str | None, until_ms: int | None) -> Found:
    text = visit.request.parameter("ends")
    ends = None if not text else dict(place_of(topic, each) for each in text.split(" ") if each)
    spans = spans_before(visit.admin, topic, None if ends else until_ms, ends)
    places = {span.queue: span.end for span in spans if span.end > span.start}
    found, looked, is_over = _taken(newest_first(visit.admin, topic, spans), tag, places)
    was_asked = tag is not None or until_ms is not None or ends is not None
    through = counted(looked, "message was", "messages were")
    says = f"{through} looked through for the tag." if tag is not None else ""
    if is_over:
        return Found(found, was_asked, says)
    if len(places) > _QUEUES_TO_GO_ON:
        return Found(found, was_asked, f"{says} Search by time for older ones.")
    older = " ".join(place_text(queue, at) for queue, at in sorted(places.items()))
    by = {"by": "tag", "for": tag} if tag is not None else {}
    return Found(found, was_asked, says, {**by, "ends": older})


def _taken(
    messages: Iterable[MessageExt], tag: str | None, places: dict[MessageQueue, int]
) -> tuple[list[MessageExt], int, bool]:
    """Take a page of messages with a tag, and note in each queue's place how far that went.

    Returns:
        The messages, how many were looked through, and whether there are no more.
    """
    found: list[MessageExt] = []
    looked = held_bytes = 0
    deadline = time.monotonic() + _LOOK_SECONDS
    for message in messages:
        if (
            len(found) == SHOWN
            or looked == _LOOKED_THROUGH
            or held_bytes > _PAGE_BYTES
            or time.monotonic() > deadline
        ):
            return found, looked, False
        looked += 1
        places[message.queue] = message.queue_offset
        if tag is None or message.tags == tag:
            found.append(message)
            held_bytes += len(message.body)
    return found, looked, True
