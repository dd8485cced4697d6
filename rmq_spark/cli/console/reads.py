"""Reads for pages: the newest messages of a topic, one after the other.

    queues by the time of their last message ──> the newest queue is read, backwards, in small pulls
                                             ──> the next, ...

So a page costs what it shows, however long the topic and however many its queues. A message that
cannot be read has a fault: it spoils no page. This module must not know what is shown.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from rmq_spark.client.message import MessageExt, decode_pulled
from rmq_spark.client.reading.read_bounds import EARLIEST, LATEST, READER_GROUP, ReadRange, resolve_read_ranges
from rmq_spark.client.results import PullStatus
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.instance.instance import ClientInstance

_FIRST_PULL_MESSAGES: Final = 4
_PULL_MESSAGES_MAX: Final = 32
_PULL_BYTES_TARGET: Final = 256 * 1024
_UNKNOWN_TIME_MS: Final = 1 << 62
"""A time behind all others, for a queue of which no broker says when it was last written."""


def ranges_before(
    admin: Admin, topic: str, until_ms: int | None, ends: Mapping[MessageQueue, int] | None
) -> list[ReadRange]:
    """Return what each queue of a topic holds up to a time, or before given offsets.

    Args:
        admin: An administration object that has been started.
        topic: Name of the topic.
        until_ms: Milliseconds since the epoch, the last at which messages were stored; None: now.
        ends: Offsets before which to end, of some queues; the others are left out.

    Raises:
        RouteNotFound: There is no such topic.
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
    """Yield the messages of spans of a topic, the newest first; read no more than is asked for."""
    offsets = admin.topic_offsets(topic)
    queues = [
        _BackwardReader(admin.instance, span, offsets[span.queue].last_update_timestamp)
        if span.queue in offsets
        else _BackwardReader(admin.instance, span, 0)
        for span in spans
    ]
    heap = [(queue.sort_key, number) for number, queue in enumerate(queues) if not queue.is_exhausted]
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
    """One queue, read from its end in pulls that are as long as its messages are short."""

    def __init__(self, instance: ClientInstance, span: ReadRange, last_stored_ms: int) -> None:
        self._instance = instance
        self._span = span
        self._end = span.end
        self._newest_ms = last_stored_ms or _UNKNOWN_TIME_MS
        self._count = _FIRST_PULL_MESSAGES
        self.messages: list[MessageExt] = []
        """Those that are read and not handed out yet, in order."""

    @property
    def sort_key(self) -> tuple[int, int]:
        """Return what queues are sorted by: the newest message that is here, or that may be.

        Of one millisecond, a queue that is still to be read comes first: it is known then.
        """
        if not self.messages:
            return -self._newest_ms, -_UNKNOWN_TIME_MS
        newest = self.messages[-1]
        self._newest_ms = newest.store_timestamp
        return -newest.store_timestamp, -newest.commit_log_offset

    @property
    def is_exhausted(self) -> bool:
        """Return whether all messages have been handed out."""
        return not self.messages and self._end <= self._span.start

    def read_previous(self) -> None:
        """Read the last messages that have not been read."""
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
