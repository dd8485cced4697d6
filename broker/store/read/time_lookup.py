"""TimeLookup: finds the message of a queue stored at a given time, and the time of the first one.

    a time ── search of the consume queue, halving ──> the head of a record ──> when it was stored
                                                  └──> ...

A message that the disk does not return was stored between the first and the last one, which often
is precise enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.remoting.framing import Buffer

from ..components import StoreComponents
from ..errors import IndexLimitReached, UnreadableFile
from ..queues.consume_queue import ConsumeQueue
from ..queues.entry_check import RecordOwner, WrongEntry, matches_entry
from ..records.fields import has_key, read_store_timestamp
from ..records.store_timeline import TimeOrderedRange, best_cut
from ..results import FIRST_IN_QUEUE, PhysicalOffset, QueueOffset
from .message_reader import MessageReader, RecordRemoved, damaged_entry_error

# ---- KeyQuery: finds messages of a topic by a key or a unique id, through the index.

_CANDIDATES_PER_RESULT = 4


class KeyQuery:
    """Queries of a store; ``record_at`` returns the visible record at a log offset, or None."""

    def __init__(
        self, components: StoreComponents, record_at: Callable[[PhysicalOffset], Buffer | None]
    ) -> None:
        self._index, self._reput = components.index, components.reput
        self._dispatcher = components.dispatcher
        self._record_at = record_at

    def query_in_steps(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> Iterator[Buffer | None]:
        """Yield records with a key, newest first, or None for a step without a result.

        Records of a deleted topic of this name are omitted. Messages whose keys only share the hash
        do not hide others, within the limit of index entries.

        Raises:
            IndexLimitReached: The limit of entries was reached, and no record has the key.
        """
        if self._index is None:
            return
        while not self._reput.catch_up_index(lambda: True):
            yield None
        left = max_num
        since = self._dispatcher.deleted_topics.get(topic, 0)
        candidates_max = max_num * _CANDIDATES_PER_RESULT
        seen: dict[PhysicalOffset, None] = {}
        while left:
            lookup = self._index.query(topic, key, begin_ms, end_ms, candidates_max)
            new = dict.fromkeys(each for each in lookup.physical_offsets if each not in seen)
            for physical_offset in new:
                record = self._record_at(physical_offset) if physical_offset >= since else None
                is_match = (
                    record is not None
                    and begin_ms <= read_store_timestamp(record) <= end_ms
                    and has_key(record, topic.encode(), key.encode())
                )
                left -= is_match
                yield record if is_match else None
                if not left:
                    return
            seen |= new
            if lookup.is_cut_off and left == max_num:
                raise IndexLimitReached(key, lookup.entries)
            if lookup.is_cut_off or len(lookup.physical_offsets) < candidates_max:
                return
            candidates_max *= _CANDIDATES_PER_RESULT  # most were of other keys with this hash


_HEAD_BYTES: Final = 128
"""Bytes to read from the start of a record, which include its store timestamp."""
_ANY_OFFSET: Final = range(1 << 63)
_BEFORE_ALL: Final = -1


class TimeLookup:
    """Searches the queues of a store by time."""

    def __init__(self, components: StoreComponents, reader: MessageReader) -> None:
        self._log = components.log
        self._queues = components.queues
        self._lower_bound = components.recovered_ends.lower_bound
        self._reader = reader

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False
    ) -> QueueOffset:
        """Return the first offset stored at or after a time; upper: the last at or before it.

        For a time after the last message, the results are the queue's end and its last offset; for
        a time before the first message, both are the queue's first offset.

        Raises:
            EndUnknown: An unfinished start has found more messages, one of which may be the answer.
        """
        owner = self._reader.owner_of(topic, queue_id)
        least_end = self._lower_bound(topic, queue_id)
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            self._reader.check_end(topic, queue_id, FIRST_IN_QUEUE, least_end)
            return FIRST_IN_QUEUE
        end, last = queue.max_offset, self._log.timeline.last_ms

        def stored_at(entry: Any) -> int:
            try:
                return self._store_timestamp_of(owner, entry)
            except UnreadableFile:  # only the range of its time is known
                if 0 < timestamp < last + (not upper):
                    raise
                return 1 if timestamp <= 0 else last

        try:
            found_offset = self._search(queue, timestamp, stored_at, "right" if upper else "left")
        except WrongEntry as wrong:
            raise damaged_entry_error(queue, "found by a search by time", wrong) from None
        self._reader.check_end(topic, queue_id, end, min(found_offset + 1, least_end))
        return max(found_offset - 1, queue.min_offset) if upper else found_offset

    def _search(
        self, queue: ConsumeQueue, timestamp: int, stored_at: Callable[[Any], int], side: str
    ) -> QueueOffset:
        """Return the first offset stored at or after a time; with ``side="right"``, after it.

        If the clock was set back, each part of the queue is searched on its own.
        """
        begin, last = queue.min_offset, queue.max_offset
        parts: list[TimeOrderedRange] = []
        for position in (*self._log.timeline.steps, None):
            end = (
                last
                if position is None
                else queue.search(
                    position, lambda each: int(each["physical_offset"]), begin=begin, end=last
                )
            )
            if begin < end or position is None:
                cut = queue.search(timestamp, stored_at, side=side, begin=begin, end=end)
                parts.append(TimeOrderedRange(begin, cut, end))
            begin = end
        return best_cut(parts)

    def earliest_timestamp(self, topic: str, queue_id: int) -> int:
        """Return when the first message of a queue was stored, in ms; -1 for an empty queue.

        Raises:
            EndUnknown: The queue is empty so far, but an unfinished start has found messages.
        """
        stored_at = partial(self._store_timestamp_of, self._reader.owner_of(topic, queue_id))
        least_end = self._lower_bound(topic, queue_id)
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            self._reader.check_end(topic, queue_id, FIRST_IN_QUEUE, least_end)
            return -1
        end = queue.max_offset
        try:
            entry = queue.next_entry(queue.search(_BEFORE_ALL + 1, stored_at))
            if entry is not None:
                return stored_at(entry)
        except WrongEntry as wrong:
            raise damaged_entry_error(
                queue, "found by a search for the first message", wrong
            ) from None
        self._reader.check_end(topic, queue_id, end, least_end)
        return -1

    def _store_timestamp_of(self, owner: RecordOwner, entry: Any) -> int:
        """Return the store time of an entry's message; if expired, a time before all others."""
        position, size = PhysicalOffset(entry["physical_offset"]), int(entry["size"])
        if (
            position < max(self._queues.expired_before, owner.since)
            or size < layout.RECORD_BYTES_MIN
        ):
            raise WrongEntry(position)
        try:
            head = self._reader.read(position, min(size, _HEAD_BYTES))
            topic = owner.topic_position(head, 0)
            is_own = topic is not None and topic.at + len(topic.text) <= size
            if (
                topic is None
                or not is_own
                or self._reader.read(position + topic.at, len(topic.text)) != topic.text
            ):
                raise WrongEntry(position)
        except RecordRemoved:
            return _BEFORE_ALL
        if not matches_entry(head, 0, position, size, _ANY_OFFSET):
            raise WrongEntry(position)
        return read_store_timestamp(head)
