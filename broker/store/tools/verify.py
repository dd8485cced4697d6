"""Check the consistency of a store: ``python -m rocketpoll.broker.store.tools.verify DIR``.

It checks each record of the log, and then compares the consume queues with the log, entry by entry,
except for the delivery times of delayed messages: their delays are a setting of the broker. It
changes nothing, and exits with status 0 if it finds no fault.

RocketMQ does not record that a topic was deleted. Then its queues are missing and `topics.json`
does not have it; or, if it was recreated, its offsets appear twice in the log.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from rmq_spark.errors import format_count
from rmq_spark.wire.message.record_layout import BLANK_SIZE
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.names import SCHEDULE_TOPIC

from ..dispatch.dispatcher import Dispatcher
from ..queues.consume_queue import ENTRY_STRUCT, ConsumeQueue
from ..results import LOG_START, PhysicalOffset
from .inspection import StoreInspection, run_tool

_DELAYS_MS = (0,)
_PLACE_AND_SIZE = 2

_Entries: TypeAlias = "dict[int, tuple[int, int, int]]"
"""Entries of a queue, by offset: position, size and tags code."""


class VerifyFinding(NamedTuple):
    """A line about a store, which need not be a fault."""

    text: str
    is_fault: bool = True


class _ExpectedEntries:
    """The entries that queues must have according to the log, by offset."""

    def __init__(self, store: StoreInspection) -> None:
        self._store = store
        self._begins: dict[str, PhysicalOffset] = {}
        self._recreated_at: dict[str, PhysicalOffset] = {}
        self._ends: dict[QueueKey, PhysicalOffset] = {}
        self._queues: dict[QueueKey, _Entries] = {}
        dispatcher = Dispatcher(_DELAYS_MS)
        for position, size, _ in store.records():
            data = store.log.read(position, size)
            runs = dispatcher.exclude_deleted(dispatcher.entries_of_few(data, [size], position))
            for topic, queue_id, queue_offset, entries, _ in runs:
                if position < store.begin_of(topic):
                    continue
                held = self._queues.setdefault((topic, queue_id), {})
                if held and queue_offset <= next(reversed(held)):  # the topic was recreated
                    self._begins[topic] = self._ends[topic, queue_id]
                    self._recreated_at[topic] = position
                    held.clear()
                for number, entry in enumerate(ENTRY_STRUCT.iter_unpack(entries)):
                    held[queue_offset + number] = entry
                self._ends[topic, queue_id] = position + size

    def begin_of(self, topic: str) -> PhysicalOffset:
        """Return the log offset before which records belong to an earlier topic of that name."""
        return max(self._store.begin_of(topic), self._begins.get(topic, LOG_START))

    def pop(self, topic: str, queue_id: int) -> _Entries:
        held, begin = self._queues.pop((topic, queue_id), {}), self.begin_of(topic)
        return {number: entry for number, entry in held.items() if entry[0] >= begin}

    def remaining(self) -> Iterator[tuple[QueueKey, int]]:
        """Yield the queues that were not popped, each with its number of entries.

        Records from before the recreation of their topic need no entries.
        """
        for topic, queue_id in sorted(self._queues):
            begin = self._recreated_at.get(topic, LOG_START)
            count = sum(position >= begin for position, _, _ in self.pop(topic, queue_id).values())
            if count:
                yield (topic, queue_id), count


def findings(root: Path) -> Iterator[VerifyFinding]:
    """Yield all findings about a store, one line each."""
    store = StoreInspection(root)
    for start, end in store.recovered.holes:
        yield VerifyFinding(
            f"commit log: {end - start} bytes from {start} on are not records; records past them "
            "are intact"
        )
    if store.torn_tail_at is not None:
        position = store.torn_tail_at
        yield VerifyFinding(
            f"commit log: data that is not a record at {position}, past the end; the next start "
            "wipes it"
        )
    expected = _ExpectedEntries(store)
    present = set()
    for topic, queue_id, queue in store.queues():
        present.add(topic)
        wanted = expected.pop(topic, queue_id)
        for text in _queue_faults(topic, queue_id, queue, wanted, expected.begin_of(topic)):
            yield VerifyFinding(text)
    deleted: Counter[str] = Counter()
    for (topic, queue_id), count in expected.remaining():
        if topic not in present and not store.is_known(topic):
            deleted[topic] += count
        else:
            entries = format_count(count, "entry", "entries")
            yield VerifyFinding(
                f"queue {topic}/{queue_id}: missing, with {entries}; the next start rebuilds it"
            )
    for topic, count in deleted.items():
        held = format_count(count, "message is", "messages are")
        yield VerifyFinding(
            f"topic {topic}: deleted by RocketMQ; {held} still in the log, and served again once "
            "rocketpoll's broker has started here",
            is_fault=False,
        )


def _queue_faults(
    topic: str,
    queue_id: int,
    queue: ConsumeQueue,
    expected: _Entries,
    begin: int,
) -> Iterator[str]:
    offset = queue.min_offset
    compared = _PLACE_AND_SIZE if topic == SCHEDULE_TOPIC else None
    seen = set()
    while offset < queue.max_offset:
        entries = queue.entries(offset, queue.max_offset - offset)
        is_offered = (entries["size"] != BLANK_SIZE) & (entries["physical_offset"] >= begin)
        for number in np.flatnonzero(is_offered).tolist():
            found, wanted = entries[number].item(), expected.get(offset + number)
            seen.add(offset + number)
            if wanted is not None and found[:compared] != wanted[:compared]:
                yield (
                    f"queue {topic}/{queue_id}: entry {offset + number} is {found}, but the log "
                    f"has {wanted}"
                )
            elif wanted is None:
                yield (
                    f"queue {topic}/{queue_id}: entry {offset + number} does not point to a "
                    f"message of the queue: {found}"
                )
        offset += len(entries)
    missing = sorted(
        number for number in expected if number not in seen and number >= queue.min_offset
    )
    if missing:
        missing_text = format_count(len(missing), "entry is", "entries are")
        yield f"queue {topic}/{queue_id}: {missing_text} missing, the first {missing[0]}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    faults = 0

    def lines(given: argparse.Namespace) -> Iterator[str]:
        nonlocal faults
        for text, is_fault in findings(given.directory):
            yield text
            faults += is_fault
        yield format_count(faults, "fault") if faults else "no faults found"

    return run_tool("verify", __doc__, lines, arguments) or min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
