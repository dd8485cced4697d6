"""Count what a store holds by topic: ``python -m rocketpoll.broker.store.tools.stat DIR``.

This shows which topic fills the disk, to the byte: it reads the whole log and counts each record.
It changes nothing and prints JSON.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from .inspection import StoreInspection, run_tool


@dataclass
class TopicCount:
    """The messages of one topic, their bytes in the log, and when the first and last were stored.

    Times are in milliseconds since the epoch.
    """

    topic: str
    messages: int = 0
    bytes: int = 0
    first_stored_ms: int = 0
    last_stored_ms: int = 0
    queues: set[int] = field(default_factory=set)

    def add(self, size: int, stored_ms: int, queue_id: int) -> None:
        """Count a record."""
        self.messages += 1
        self.bytes += size
        self.first_stored_ms = min(self.first_stored_ms or stored_ms, stored_ms)
        self.last_stored_ms = max(self.last_stored_ms, stored_ms)
        self.queues.add(queue_id)


def figures(root: Path) -> dict[str, Any]:
    """Return the content of a store: its files, and messages and bytes by topic, largest first.

    Messages of a deleted topic stay in the log until their file is deleted; they are counted
    separately.
    """
    store = StoreInspection(root)
    topics: dict[str, TopicCount] = {}
    deleted = TopicCount("")
    for position, size, message in store.records():
        is_there = position >= store.begin_of(message.topic)
        count = topics.setdefault(message.topic, TopicCount(message.topic)) if is_there else deleted
        count.add(size, message.store_timestamp, message.queue_id)
    ordered = sorted(topics.values(), key=lambda count: count.bytes, reverse=True)
    return {
        "was_stopped_in_order": store.was_stopped_in_order,
        "commit_log_bytes": _bytes_below(root / "commitlog"),
        "consume_queue_bytes": _bytes_below(root / "consumequeue"),
        "index_bytes": _bytes_below(root / "index"),
        "holes": len(store.recovered.holes),
        "deleted_messages": deleted.messages,
        "deleted_bytes": deleted.bytes,
        "topics": [{**asdict(count), "queues": len(count.queues)} for count in ordered],
    }


def _bytes_below(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    return run_tool(
        "stat",
        __doc__,
        lambda given: [orjson.dumps(figures(given.directory)).decode()],
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
