"""Message search: finds messages of a topic by key, id, tag or time; by default the newest.

Keys and ids are looked up in the brokers' index. Tags are not indexed: the newest messages are
scanned, up to a limit that the page states.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.cli.console.visit import Visit, location_text, parse_location, parse_time_field
from rmq_spark.cli.messages.message_trace import find_copies
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.parameter_types import store_order_key
from rmq_spark.client.message import MessageExt, decode_pulled
from rmq_spark.client.reading.read_bounds import READER_GROUP, ReadRange, resolve_read_ranges
from rmq_spark.client.results import PullStatus
from rmq_spark.client.times import EARLIEST, LATEST
from rmq_spark.errors import format_count
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.instance.instance import ClientInstance


# ---- Reads for pages: the newest messages of a topic, one after the other.

_FIRST_PULL_MESSAGES: Final = 4
_PULL_MESSAGES_MAX: Final = 32
_PULL_BYTES_TARGET: Final = 256 * 1024
_UNKNOWN_TIME_MS: Final = 1 << 62
"""A time after all others, for a queue whose last write time is unknown."""


def ranges_before(
    admin: Admin, topic: str, until_ms: int | None, ends: Mapping[MessageQueue, int] | None
) -> list[ReadRange]:
    """Return the offset range of each queue of a topic up to a time, or before given offsets.

    Queues without such an offset are left out; a time of None is now.
    """
    end = LATEST if until_ms is None else until_ms + 1
    spans = resolve_read_ranges(admin.instance, topic, EARLIEST, end)
    if ends is None:
        return spans
    return [
        span._replace(end=max(span.start, min(span.end, ends[span.queue])))
        for span in spans
        if span.queue in ends
    ]


def read_newest_first(admin: Admin, topic: str, spans: Iterable[ReadRange]) -> Iterator[MessageExt]:
    """Yield the messages in ranges of a topic, the newest first; read no more than is requested."""
    offsets = admin.topic_offsets(topic)
    queues = [
        _BackwardReader(admin.instance, span, offsets[span.queue].last_update_timestamp)
        if span.queue in offsets
        else _BackwardReader(admin.instance, span, 0)
        for span in spans
    ]
    heap = [
        (queue.sort_key, number) for number, queue in enumerate(queues) if not queue.is_exhausted
    ]
    heapq.heapify(heap)
    while heap:
        _, number = heapq.heappop(heap)
        queue = queues[number]
        if queue.messages:
            yield queue.messages.pop()
        else:
            queue.read_previous()
        if not queue.is_exhausted:
            heapq.heappush(heap, (queue.sort_key, number))


class _BackwardReader:
    """Reads one queue backwards, in pulls sized by the length of its messages."""

    def __init__(self, instance: ClientInstance, span: ReadRange, last_stored_ms: int) -> None:
        self._instance = instance
        self._span = span
        self._end = span.end
        self._newest_ms = last_stored_ms or _UNKNOWN_TIME_MS
        self._count = _FIRST_PULL_MESSAGES
        self.messages: list[MessageExt] = []
        """Messages read and not returned yet, in order."""

    @property
    def sort_key(self) -> tuple[int, int]:
        """Return the sort key of the queue: its newest message, or the newest that it may have.

        Within a millisecond, a queue that was not read yet comes first, so that it is read.
        """
        if not self.messages:
            return -self._newest_ms, -_UNKNOWN_TIME_MS
        newest = self.messages[-1]
        self._newest_ms = newest.store_timestamp
        return -newest.store_timestamp, -newest.commit_log_offset

    @property
    def is_exhausted(self) -> bool:
        return not self.messages and self._end <= self._span.start

    def read_previous(self) -> None:
        queue, address, first, _ = self._span
        start = max(first, self._end - self._count)
        at = start
        while at < self._end:
            pulled = self._instance.api.peek(address, READER_GROUP, queue, at, self._end - at)
            if pulled.pull_status is not PullStatus.FOUND:
                if pulled.next_begin_offset <= at:
                    break
                at = pulled.next_begin_offset  # retention has taken them meanwhile
                continue
            for message in decode_pulled(
                pulled.records,
                queue,
                max_body_bytes=self._instance.api.max_body_bytes,
                with_faults=True,
            ):
                if at <= message.queue_offset < self._end:
                    self.messages.append(message)
                at = max(at, message.queue_offset + 1)
        self._end = start
        size = sum(len(each.body) for each in self.messages) // max(len(self.messages), 1)
        self._count = min(max(_PULL_BYTES_TARGET // max(size, 1), 1), _PULL_MESSAGES_MAX)


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
    """Messages, the newest first, and how to continue.

    Attributes:
        messages: The messages.
        is_filtered: Whether there was a condition.
        note: A remark on the search; empty if there is none.
        older: Parameters of the page with older messages; None if there is none.
    """

    messages: Sequence[MessageExt]
    is_filtered: bool
    note: str = ""
    older: Mapping[str, str] | None = None


def search_messages(visit: Visit, topic: str) -> MessageSearchResult:
    """Return the messages of a topic that a request selects."""
    by, text = visit.request.parameter("by"), visit.request.parameter("for")
    if by not in SEARCH_KINDS or not text:
        return _search_newest(visit, topic, None, None)
    if by == "key":
        found = visit.admin.messages_by_key(topic, text, messages_max=PAGE_MESSAGES)
        newest = sorted(found, key=store_order_key, reverse=True)
        says = f"Newest {PAGE_MESSAGES} per broker." if len(newest) >= PAGE_MESSAGES else ""
        return MessageSearchResult(newest[:PAGE_MESSAGES], is_filtered=True, note=says)
    if by == "id":
        try:
            return MessageSearchResult(find_copies(visit.admin, text, topic), is_filtered=True)
        except Failure:
            return MessageSearchResult((), is_filtered=True)
    if by == "tag":
        return _search_newest(visit, topic, text, None)
    return _search_newest(visit, topic, None, parse_time_field(text))


def _search_newest(
    visit: Visit, topic: str, tag: str | None, until_ms: int | None
) -> MessageSearchResult:
    text = visit.request.parameter("ends")
    ends = (
        None if not text else dict(parse_location(topic, each) for each in text.split(" ") if each)
    )
    spans = ranges_before(visit.admin, topic, None if ends else until_ms, ends)
    places = {span.queue: span.end for span in spans if span.end > span.start}
    found, looked, is_over = _scan(read_newest_first(visit.admin, topic, spans), tag, places)
    was_asked = tag is not None or until_ms is not None or ends is not None
    says = f"Searched {format_count(looked, 'message')} for the tag. " if tag is not None else ""
    if is_over:
        return MessageSearchResult(found, was_asked, says)
    if len(places) > _CONTINUED_QUEUES_MAX:
        return MessageSearchResult(found, was_asked, f"{says}For older ones, search by time.")
    older = " ".join(location_text(queue, at) for queue, at in sorted(places.items()))
    by = {"by": "tag", "for": tag} if tag is not None else {}
    return MessageSearchResult(found, was_asked, says, {**by, "ends": older})


def _scan(
    messages: Iterable[MessageExt], tag: str | None, offsets: dict[MessageQueue, int]
) -> tuple[list[MessageExt], int, bool]:
    """Return a page of messages with a tag, and record how far each queue was scanned.

    Returns:
        The messages, how many were scanned, and whether there are no more.
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
