"""Message search: finds messages of a topic by key, id, tag or body; by default the newest.

Keys and ids are looked up in the brokers' index. Tags and bodies are not indexed: the newest
messages are scanned in windows of 2,000, each on request.

    newest ──> 2,000 messages ──> the 2,000 before ──> ... ──> the first message

A search may be limited to a queue, and to messages that were stored before a time.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from rmq_spark.cli.console.guard import PageError
from rmq_spark.cli.console.visit import Visit, location_text, parse_location, parse_time_field
from rmq_spark.cli.messages.message_trace import find_copies
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.parameter_types import QueueName, parse_queue, store_order_key
from rmq_spark.client.message import MessageExt, decode_pulled
from rmq_spark.client.reading.read_bounds import READER_GROUP, ReadRange, resolve_read_ranges
from rmq_spark.client.results import PullStatus
from rmq_spark.client.times import EARLIEST, LATEST
from rmq_spark.errors import format_count
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.cli.console.server import Request
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

    Queues that ``ends`` does not have are left out. ``until_ms`` of None means now.
    """
    end = LATEST if until_ms is None else until_ms + 1
    ranges = resolve_read_ranges(admin.instance, topic, EARLIEST, end)
    if ends is None:
        return ranges
    return [
        bounds._replace(end=max(bounds.start, min(bounds.end, ends[bounds.queue])))
        for bounds in ranges
        if bounds.queue in ends
    ]


def read_newest_first(
    admin: Admin, topic: str, ranges: Iterable[ReadRange]
) -> Iterator[MessageExt]:
    """Yield the messages in ranges of a topic, the newest first; read as few as possible."""
    offsets = admin.topic_offsets(topic)
    queues = [
        _BackwardReader(admin.instance, bounds, offsets[bounds.queue].last_update_timestamp)
        if bounds.queue in offsets
        else _BackwardReader(admin.instance, bounds, 0)
        for bounds in ranges
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

    def __init__(self, instance: ClientInstance, bounds: ReadRange, last_stored_ms: int) -> None:
        self._instance = instance
        self._bounds = bounds
        self._end = bounds.end
        self._newest_ms = last_stored_ms or _UNKNOWN_TIME_MS
        self._count = _FIRST_PULL_MESSAGES
        self.messages: list[MessageExt] = []
        """Messages read and not returned yet, in order."""

    @property
    def sort_key(self) -> tuple[int, int]:
        """Return the sort key of the queue: the time of its newest message, or the latest possible.

        Of equal times, that of a queue without messages read comes first, so that it is read.
        """
        if not self.messages:
            return -self._newest_ms, -_UNKNOWN_TIME_MS
        newest = self.messages[-1]
        self._newest_ms = newest.store_timestamp
        return -newest.store_timestamp, -newest.commit_log_offset

    @property
    def is_exhausted(self) -> bool:
        return not self.messages and self._end <= self._bounds.start

    def read_previous(self) -> None:
        queue, address, first, _ = self._bounds
        start = max(first, self._end - self._count)
        at = start
        while at < self._end:
            pulled = self._instance.api.peek(address, READER_GROUP, queue, at, self._end - at)
            if pulled.pull_status is not PullStatus.FOUND:
                if pulled.next_begin_offset <= at:
                    break
                at = pulled.next_begin_offset  # retention has deleted messages
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


# ---- Conditions that no index can check.

Condition = Callable[[MessageExt], bool]
_PATH_STEP: Final = re.compile(r'\.?([^.\[\]"=\s]+)|\[([0-9]{1,9})\]|\["([^"]*)"\]')
_PATH_END: Final = re.compile(r"\s*==?\s*")


def json_condition(text: str) -> Condition:
    """Return a condition on a value in JSON bodies, from a text such as ``$.customer.id = 42``.

    A value in quotes is a string. Without quotes, a number also matches the string of its digits.
    """
    steps: list[str | int] = []
    at = 1 if text.startswith("$") else 0
    while (step := _PATH_STEP.match(text, at)) is not None:
        name, index, quoted = step.groups()
        steps.append(int(index) if index else name if quoted is None else quoted)
        at = step.end()
    end = _PATH_END.match(text, at)
    wanted = "" if end is None else text[end.end() :]
    if not steps or not wanted:
        raise PageError(
            HTTPStatus.BAD_REQUEST,
            f"{text[:80]} is not a condition on JSON.",
            'Write a path and a value, for example $.customer.id = 42 or items[0].name = "pen".',
        )
    try:
        value: object = orjson.loads(wanted)
    except ValueError:
        value = wanted

    def is_met(message: MessageExt) -> bool:
        try:
            found: object = orjson.loads(message.body)
        except ValueError:
            return False
        for step in steps:
            is_there = isinstance(found, dict) and step in found
            if isinstance(found, list):
                is_there = isinstance(step, int) and step < len(found)
            if not is_there:
                return False
            found = found[step]  # type: ignore[index]  # checked above
        if isinstance(found, str):
            return found in (value, wanted)
        return isinstance(found, bool) is isinstance(value, bool) and found == value

    return is_met


def _body_condition(text: str) -> Condition:
    wanted = text.encode(errors="surrogatepass")
    return lambda message: wanted in message.body


# ---- Searches.

PAGE_MESSAGES: Final = 20
"""Messages on a page."""

SCANNED_MESSAGES_MAX: Final = 2_000
"""The number of messages that a page reads to find those that meet a condition."""

_SCAN_SECONDS_MAX: Final = 2.0
_PAGE_BYTES_MAX: Final = 32 * 1024 * 1024
_CONTINUED_QUEUES_MAX: Final = 128
"""The number of queues whose positions fit into a link."""
_SCANNED_MAX: Final = 1 << 50

SEARCH_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "key": ("Key", "order-42"),
    "id": ("Id", "an id"),
    "tag": ("Tag", "paid"),
    "text": ("Body contains", "ada"),
    "json": ("JSON value", "$.customer.id = 42"),
}
"""Ways to search, each with its title and an example."""

_CONDITIONS: Final[Mapping[str, Callable[[str], Condition]]] = {
    "tag": lambda text: lambda message: message.tags == text,
    "text": _body_condition,
    "json": json_condition,
}
"""Ways to search that need to read messages, the newest first."""


class MessageQuery(NamedTuple):
    """A search as requested.

    Attributes:
        kind: One of SEARCH_KINDS; empty for all messages.
        text: What to search for.
        queue: The only queue to search; None for all.
        before: A time before which messages were stored, as typed; empty for now.
        before_ms: That time, in milliseconds since the epoch.
        ends: The offset in each queue before which to continue; empty for the newest.
        scanned: Number of messages that earlier pages of the search have read.
    """

    kind: str
    text: str
    queue: QueueName | None
    before: str
    before_ms: int | None
    ends: str
    scanned: int

    @classmethod
    def of(cls, request: Request) -> MessageQuery:
        """Return the search that a request asks for."""
        kind, text = request.parameter("by"), request.parameter("for")
        if kind not in SEARCH_KINDS or not text:
            kind = text = ""
        queue, before = request.parameter("queue"), request.parameter("before")
        scanned = request.parameter("looked")
        is_number = scanned.isascii() and scanned.isdigit() and len(scanned) < 16
        return cls(
            kind,
            text,
            parse_queue(queue) if queue else None,
            before,
            parse_time_field(before) if before else None,
            request.parameter("ends"),
            min(int(scanned), _SCANNED_MAX) if is_number else 0,
        )

    @property
    def is_plain(self) -> bool:
        """True if the search has no condition: it returns the newest messages."""
        return not (self.kind or self.queue or self.before or self.ends)

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters of the first page of this search."""
        queue = "" if self.queue is None else str(self.queue)
        return {"by": self.kind, "for": self.text, "queue": queue, "before": self.before}

    def includes(self, message: MessageExt) -> bool:
        """Return whether a message found by an index is in the requested queue and time."""
        return (self.queue is None or self.queue.matches(message.queue)) and (
            self.before_ms is None or message.store_timestamp <= self.before_ms
        )


class MessageSearchResult(NamedTuple):
    """Messages, the newest first, and how to continue.

    Attributes:
        messages: The messages.
        is_filtered: Whether there was a condition.
        note: A remark on the search; empty if there is none.
        scope: The messages that were checked for a condition, in words; empty without one.
        older: Parameters of the page with older messages; None if there is none.
        is_window: Whether a limit has ended the search before the page was full.
    """

    messages: Sequence[MessageExt]
    is_filtered: bool
    note: str = ""
    scope: str = ""
    older: Mapping[str, str] | None = None
    is_window: bool = False


def search_messages(visit: Visit, topic: str) -> MessageSearchResult:
    """Return the messages of a topic that a request selects."""
    query = MessageQuery.of(visit.request)
    if query.kind == "key":
        found = visit.admin.messages_by_key(topic, query.text, messages_max=PAGE_MESSAGES)
        newest = sorted(filter(query.includes, found), key=store_order_key, reverse=True)
        note = f"Newest {PAGE_MESSAGES} per broker." if len(found) >= PAGE_MESSAGES else ""
        return MessageSearchResult(newest[:PAGE_MESSAGES], is_filtered=True, note=note)
    if query.kind == "id":
        try:
            copies = find_copies(visit.admin, query.text, topic)
        except Failure:
            return MessageSearchResult((), is_filtered=True)
        return MessageSearchResult(list(filter(query.includes, copies)), is_filtered=True)
    return _search_newest(visit, topic, query)


def _search_newest(visit: Visit, topic: str, query: MessageQuery) -> MessageSearchResult:
    condition = _CONDITIONS[query.kind](query.text) if query.kind else None
    ends = dict(parse_location(topic, each) for each in query.ends.split(" ") if each) or None
    ranges = ranges_before(visit.admin, topic, query.before_ms if ends is None else None, ends)
    if query.queue is not None:
        ranges = [bounds for bounds in ranges if query.queue.matches(bounds.queue)]
        query.queue.require_match([bounds.queue for bounds in ranges], topic)
    range_ends = {bounds.queue: bounds.end for bounds in ranges if bounds.end > bounds.start}
    found, scanned, is_over = _scan(
        read_newest_first(visit.admin, topic, ranges), condition, range_ends
    )
    scanned += query.scanned
    result = MessageSearchResult(found, is_filtered=not query.is_plain)
    if condition is not None:
        result = result._replace(scope=_scope_text(query, scanned, is_over=is_over))
    if is_over:
        return result
    if len(range_ends) > _CONTINUED_QUEUES_MAX:
        return result._replace(note="For older ones, name a queue or a time.")
    older = " ".join(location_text(queue, at) for queue, at in sorted(range_ends.items()))
    return result._replace(
        older={**query.parameters, "ends": older, "looked": str(scanned) if condition else ""},
        is_window=len(found) < PAGE_MESSAGES and condition is not None,
    )


def _scope_text(query: MessageQuery, scanned: int, *, is_over: bool) -> str:
    """Return in words which messages a search has read."""
    count = format_count(scanned, "message")
    scope = "" if query.queue is None else f" of queue {query.queue}"
    if query.before:
        return f"{'all ' * is_over}{count}{scope} stored before {query.before}"
    return f"{'all' if is_over else 'the newest'} {count}{scope}"


def _scan(
    messages: Iterable[MessageExt],
    condition: Condition | None,
    offsets: dict[MessageQueue, int],
) -> tuple[list[MessageExt], int, bool]:
    """Return a page of messages that meet a condition, and record how far each queue was scanned.

    Returns:
        The messages, how many were scanned, and whether there are no more.
    """
    found: list[MessageExt] = []
    scanned = held_bytes = 0
    deadline = time.monotonic() + _SCAN_SECONDS_MAX
    for message in messages:
        if (
            len(found) == PAGE_MESSAGES
            or scanned == SCANNED_MESSAGES_MAX
            or held_bytes > _PAGE_BYTES_MAX
            or time.monotonic() > deadline
        ):
            return found, scanned, False
        scanned += 1
        offsets[message.queue] = message.queue_offset
        if condition is None or condition(message):
            found.append(message)
            held_bytes += len(message.body)
    return found, scanned, True
