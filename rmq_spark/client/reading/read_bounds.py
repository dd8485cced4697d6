"""Read bounds: resolves the start and end of a read of a topic to offsets of its queues.

    "earliest", "latest", a time, {queue: offset}  ──>  one range of offsets for each queue

Brokers are asked once, when the read begins, so that it ends even if producers keep sending.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from rmq_spark.client.arguments import check_number, check_queue, check_topic
from rmq_spark.client.errors import BrokerRefused, MessageRejected, OffsetOutOfRange
from rmq_spark.client.instance.instance import ClientInstance, suggest_similar_topics
from rmq_spark.client.times import EARLIEST, START_FORMS, Start, iso_text, normalize_start
from rmq_spark.wire.message_queue import MessageQueue

READER_GROUP: Final = "TOOLS_CONSUMER"
"""RocketMQ's own group for programs that read without consuming: every broker has it."""

_FORMS: Final = f"{START_FORMS}, or {{queue: offset}}"

Bound: TypeAlias = "Start | Mapping[MessageQueue, int]"


class ReadRange(NamedTuple):
    """Offsets of one queue, from ``start`` to before ``end``, and the address to read them from."""

    queue: MessageQueue
    address: str
    start: int
    end: int


def normalize_bound(name: str, bound: Bound) -> Bound:
    """Return a start or an end; a time becomes milliseconds since 1970."""
    if isinstance(bound, Mapping):
        for queue, queue_offset in bound.items():
            check_queue(f"a key of {name}", queue)
            check_number(f"the offset of {name}", queue_offset, 42)
        return bound
    return normalize_start(name, bound, _FORMS)


def resolve_read_ranges(
    instance: ClientInstance, topic: str, start: Bound, end: Bound
) -> list[ReadRange]:
    """Ask a topic's brokers where a read begins and ends in each queue, in order.

    Raises:
        MessageRejected: A start or an end is not valid, or names queues that the topic does not
            have.
        OffsetOutOfRange: A queue does not hold an offset that is given for it.
        RouteNotFound: There is no such topic, or it may not be read; the error suggests a similar
            one.
    """
    names = instance.namespace
    topic = names.wrap(check_topic(topic))
    start, end = (
        {names.wrap_queue(queue): at for queue, at in bound.items()}
        if isinstance(bound, Mapping)
        else bound
        for bound in (normalize_bound("start", start), normalize_bound("end", end))
    )
    if isinstance(start, int) and isinstance(end, int) and start > end:
        raise MessageRejected(
            "end",
            f"a time that is not before the start, {iso_text(start)}",
            iso_text(end),
        )
    with suggest_similar_topics(instance.name_servers):
        instance.routes.refresh(topic)
    queues = instance.routes.subscribe_queues(topic)
    api = instance.api
    ranges = []
    for queue in _select_queues(topic, sorted(queues), start, end):
        address = instance.routes.address_for_read(queue.broker_name)
        high = api.max_offset(address, queue)
        held = ReadRange(queue, address, min(api.min_offset(address, queue), high), high)
        first, last = _resolve_offset(instance, held, start), _resolve_offset(instance, held, end)
        ranges.append(held._replace(start=first, end=max(first, last)))
    return ranges


def _select_queues(
    topic: str, queues: list[MessageQueue], start: Bound, end: Bound
) -> list[MessageQueue]:
    """Return the queues to read: all, unless a mapping names them."""
    named = [frozenset(bound) for bound in (start, end) if isinstance(bound, Mapping)]
    if not named:
        return queues
    if named[0] != named[-1]:
        only_one = ", ".join(map(str, sorted(named[0] ^ named[-1])))
        raise MessageRejected(
            "end", "the same queues as start", f"queues in only one of the two: {only_one}"
        )
    unknown = sorted(named[0].difference(queues))
    if unknown:
        needed = f"queues of {topic}, {queues[0]} to {queues[-1]}"
        raise MessageRejected("start or end", needed, ", ".join(map(str, unknown)))
    return [queue for queue in queues if queue in named[0]]


def _resolve_offset(instance: ClientInstance, available: ReadRange, bound: Bound) -> int:
    if isinstance(bound, Mapping):
        queue_offset = bound[available.queue]
        if not available.start <= queue_offset <= available.end:
            raise OffsetOutOfRange(available.queue, queue_offset, available.start, available.end)
        return queue_offset
    if isinstance(bound, int):
        return _offset_at_time(instance, available, bound)
    return available.start if bound == EARLIEST else available.end


def _offset_at_time(instance: ClientInstance, available: ReadRange, timestamp_ms: int) -> int:
    """Return the offset of the first message stored at a time or later; the end if there is none.

    RocketMQ's releases differ where times are equal, or where the time is later than the last
    message's. So the search only begins at the broker's response.
    """
    api, queue = instance.api, available.queue
    try:
        hint = api.search_offset(available.address, queue, timestamp_ms)
    except BrokerRefused:
        hint = available.start
    search = TimeSearch(timestamp_ms, available.start, available.end, hint)
    while (probe := search.next_probe()) is not None:
        pulled = api.peek(available.address, READER_GROUP, queue, probe)
        message = pulled.first_message(queue)
        if message is None:
            search.record_result(pulled.next_begin_offset, None)
        else:
            search.record_result(message.queue_offset, message.store_timestamp)
    return search.low


class TimeSearch:
    """Finds the first message of a queue that was stored at a time or later, by its store times.

    A binary search that starts at a hint and tolerates deleted messages. The caller pulls at each
    offset to probe, and reports the message found there, or the next one if it is gone.
    """

    def __init__(self, timestamp_ms: int, start: int, end: int, hint: int) -> None:
        """Search the offsets from ``start`` to before ``end``; ``hint`` is the likely result."""
        self.low = start
        self._high = end
        self._timestamp_ms = timestamp_ms
        self._hint_offsets = [hint - 1, hint]
        self._probe_start: int | None = None  # the first of the probes that have found nothing
        self._probe_offset = 0

    def next_probe(self) -> int | None:
        """Return the offset to probe; None when the search is over and ``low`` is its result."""
        if self._probe_start is not None:
            return self._probe_offset
        while self.low < self._high:
            middle = (
                self._hint_offsets.pop(0) if self._hint_offsets else (self.low + self._high) // 2
            )
            if self.low <= middle < self._high:
                self._probe_start = self._probe_offset = middle
                return middle
        return None

    def record_result(self, queue_offset: int, timestamp_ms: int | None) -> None:
        """Record the result of the last probe.

        Args:
            queue_offset: The offset of the message found at the probe's offset or after it; the
                offset to resume at if none was found.
            timestamp_ms: The store time of that message; None if none was found.
        """
        probed_offset = self._probe_offset if self._probe_start is None else self._probe_start
        if timestamp_ms is None and max(queue_offset, self._probe_offset + 1) < self._high:
            self._probe_offset = max(queue_offset, self._probe_offset + 1)
            return
        self._probe_start = None
        is_before = timestamp_ms is not None and timestamp_ms < self._timestamp_ms
        if is_before and probed_offset <= queue_offset < self._high:
            self.low = queue_offset + 1
        else:
            self._high = probed_offset
