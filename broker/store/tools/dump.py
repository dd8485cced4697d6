"""Print a store's files, records and entries: ``python -m rocketpoll.broker.store.tools.dump DIR``.

It changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rmq_spark.errors import excerpt
from rmq_spark.wire.message.record import StoredMessage
from rmq_spark.wire.message.record_layout import BLANK_SIZE, ROLLED_BACK

from .inspection import StoreInspection, run_tool


def dump_lines(root: Path, limit: int) -> Iterator[str]:
    """Yield the lines of the dump, with the last ``limit`` records and entries of each queue."""
    store = StoreInspection(root)
    recovered = store.recovered
    end = "in order" if store.was_stopped_in_order else "by a crash, or still running"
    yield f"store {root}: stopped {end}"
    if store.checkpoint:
        yield f"checkpoint: safe up to {store.checkpoint.safe_offset}"
    yield f"commit log: {store.log.first_offset} to {recovered.end_offset}"
    for mapped in store.log.files:
        yield f"  file {mapped.file.path.name}, {store.log.file_size} bytes"
    for start, stop in recovered.holes:
        yield f"  HOLE {start} to {stop}"
    if store.torn_tail_at is not None:
        yield f"  TORN TAIL at {store.torn_tail_at}"
    records = list(store.records())
    yield f"records: {len(records)}"
    for physical_offset, size, message in records[-limit:] if limit else []:
        yield f"  {physical_offset:>12} {size:>6} B  {_described(message)}"
    for topic, queue_id, queue in store.queues():
        yield f"queue {topic}/{queue_id}: {queue.min_offset} to {queue.max_offset}"
        first = max(queue.max_offset - limit, queue.min_offset)
        offset = first
        while offset < queue.max_offset:
            for entry in queue.entries(offset, queue.max_offset - offset):
                position = _blank(entry) or f"{entry['physical_offset']:>12}"
                yield f"  {offset:>8} {position} {entry['size']:>6} B  code {entry['tags_code']}"
                offset += 1


def _blank(entry: Any) -> str:
    """Return why an entry is blank; empty if it is not."""
    if entry["size"] != BLANK_SIZE:
        return ""
    return "rolled back" if entry["tags_code"] == ROLLED_BACK else "lost"


def _described(message: StoredMessage) -> str:
    stored_at = datetime.fromtimestamp(message.store_timestamp / 1000, timezone.utc)
    return (
        f"{message.topic}/{message.queue_id}@{message.queue_offset} {stored_at:%Y-%m-%d %H:%M:%S} "
        f"tags={message.tags} keys={message.keys} {excerpt(message.body)}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    limit = {"type": int, "default": 20, "help": "records, and entries of a queue (default: 20)"}
    return run_tool(
        "dump",
        __doc__,
        lambda given: dump_lines(given.directory, given.limit),
        arguments,
        {"--limit": limit},
    )


if __name__ == "__main__":
    sys.exit(main())
