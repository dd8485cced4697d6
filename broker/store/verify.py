"""Check that a store is as it should be: ``python -m rocketpoll.broker.store.verify DIR``.

The log is followed and each record checked; then the consume queues are compared with what the log
says they must hold, entry by entry, but for the times at which delayed messages are due: their
delays are a setting of the broker. It changes nothing, and ends with status 0 if all is well.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.names import SCHEDULE_TOPIC
from rocketpoll.broker.store.consume_queue import BLANK_SIZE, ENTRY_STRUCT, ConsumeQueue
from rocketpoll.broker.store.dispatch import Dispatcher
from rocketpoll.broker.store.errors import StoreError
from rocketpoll.broker.store.inspection import StoreInspection

_DELAYS_MS = (0,)
_PLACE_AND_SIZE = 2


def faults(root: Path) -> Iterator[str]:
    """Yield all that is wrong in a store, one line each."""
    store = StoreInspection(root)
    for start, end in store.recovered.holes:
        yield (
            f"commit log: {end - start} bytes from {start} on are no records; those behind are kept"
        )
    if store.torn_tail_at is not None:
        place = store.torn_tail_at
        yield (
            f"commit log: something that is no record at {place}, behind the end; a start wipes it"
        )
    expected = _expected_entries(store)
    for topic, queue_id, queue in store.queues():
        wanted = expected.pop((topic, queue_id), {})
        yield from _queue_faults(topic, queue_id, queue, wanted, store.begin_of(topic))
    for (topic, queue_id), entries in sorted(expected.items()):
        yield (
            f"queue {topic}/{queue_id}: missing, with {len(entries)} entries; a start makes it "
            "again"
        )


def _expected_entries(
    store: StoreInspection,
) -> dict[QueueKey, dict[int, tuple[int, int, int]]]:
    """Return what each queue must hold, by offset."""
    dispatcher = Dispatcher(_DELAYS_MS)
    expected: dict[QueueKey, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    for place, size, _ in store.records():
        data = store.log.read(place, size)
        for run in dispatcher.entries_of_few(data, [size], place):
            if place < store.begin_of(run.topic):
                continue
            for number, entry in enumerate(ENTRY_STRUCT.iter_unpack(run.entries)):
                expected[run.topic, run.queue_id][run.queue_offset + number] = entry
    return expected


def _queue_faults(
    topic: str,
    queue_id: int,
    queue: ConsumeQueue,
    expected: dict[int, tuple[int, int, int]],
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
                    f"queue {topic}/{queue_id}: entry {offset + number} is {found}, the log says "
                    f"{wanted}"
                )
            elif wanted is None:
                yield (
                    f"queue {topic}/{queue_id}: entry {offset + number} leads to no message of it: "
                    f"{found}"
                )
        offset += len(entries)
    missing = sorted(
        number for number in expected if number not in seen and number >= queue.min_offset
    )
    if missing:
        yield (
            f"queue {topic}/{queue_id}: {len(missing)} entries are missing, the first {missing[0]}"
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m rocketpoll.broker.store.verify", description=__doc__
    )
    parser.add_argument("directory", type=Path, help="storePathRootDir of the store")
    given = parser.parse_args(arguments)
    count = 0
    try:
        for fault in faults(given.directory):
            print(fault)
            count += 1
    except StoreError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{count} faults" if count else "all is well")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
