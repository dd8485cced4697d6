"""Offset ranges: how a batch's limit is shared among queues, and ranges among tasks.

A limit is shared in proportion to each queue's backlog, and no queue starves: if there are more
queues than messages to read, the queues whose next message has waited longest go first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rmq_spark.wire.message_queue import MessageQueue


class Backlog(NamedTuple):
    """The unread messages of a queue: their number, and about when the oldest was stored."""

    messages: int
    since_ms: int = 0


class OffsetRange(NamedTuple):
    """The offsets of one queue that one task reads: from ``start`` to before ``end``.

    ``last_stored_ms`` is the store time of the message before the end, and ``last_mark`` its mark
    (`mark_of`), if they are known.
    """

    queue: MessageQueue
    start: int
    end: int
    last_stored_ms: int | None = None
    last_mark: int | None = None

    @property
    def row_count(self) -> int:
        """The number of rows, if every message becomes a row."""
        return self.end - self.start


def share_rows(backlogs: Mapping[MessageQueue, Backlog], rows: int) -> dict[MessageQueue, int]:
    """Return how many messages to read from each queue: ``rows`` in all, or the whole backlog."""
    waiting = {
        queue: backlog.messages for queue, backlog in backlogs.items() if backlog.messages > 0
    }
    total = sum(waiting.values())
    if total <= rows:
        return waiting
    in_order = sorted(waiting, key=lambda queue: (backlogs[queue].since_ms, queue))
    if rows <= len(in_order):
        return dict.fromkeys(in_order[:rows], 1)
    # One for each, the rest in proportion to what then remains, rounded down; leftovers go by age.
    rest, remaining = rows - len(in_order), total - len(in_order)
    taken = {queue: 1 + (waiting[queue] - 1) * rest // remaining for queue in in_order}
    left = rows - sum(taken.values())
    for queue in in_order:
        if not left:
            break
        more = min(left, waiting[queue] - taken[queue])
        taken[queue] += more
        left -= more
    return taken


def rows_within_bytes(
    backlogs: Mapping[MessageQueue, Backlog], sizes: Mapping[MessageQueue, float], bytes_max: int
) -> int:
    """Return how many messages, shared among the queues, have about ``bytes_max``; at least one."""
    total = sum(backlog.messages for backlog in backlogs.values())
    size = sum(backlog.messages * sizes[queue] for queue, backlog in backlogs.items())
    return total if size <= bytes_max else max(int(total * bytes_max / size), 1)


def divide_ranges(
    ranges: Mapping[MessageQueue, tuple[int, int]],
    ranges_min: int | None = None,
    rows_max: int | None = None,
) -> list[OffsetRange]:
    """Divide ranges of offsets into the ranges that tasks read.

    Each queue stays one range, unless more or smaller ones are requested. Empty ranges are left
    out. The same input gives the same ranges.
    """
    sizes = {queue: end - start for queue, (start, end) in ranges.items() if end > start}
    counts = {queue: -(-size // rows_max) if rows_max else 1 for queue, size in sizes.items()}
    short = (ranges_min or 0) - sum(counts.values())
    if short > 0:
        total = sum(sizes.values())
        for queue, size in sizes.items():
            wanted = max(round((ranges_min or 0) * size / total), 1)
            counts[queue] = min(max(counts[queue], wanted), size)
        # Rounding may have left some missing: the largest pieces are cut again.
        while sum(counts.values()) < min(ranges_min or 0, total):
            largest = max(counts, key=lambda queue: (sizes[queue] / counts[queue], queue))
            counts[largest] += 1
    found = []
    for queue in sorted(sizes):
        start, end = ranges[queue]
        cuts = [start + sizes[queue] * i // counts[queue] for i in range(counts[queue])] + [end]
        found += [OffsetRange(queue, cuts[i], cuts[i + 1]) for i in range(counts[queue])]
    return found
