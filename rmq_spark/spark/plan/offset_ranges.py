"""Planning: the offsets that a batch takes, and how tasks share them. Arithmetic only.

A limit is shared in proportion to what each queue has waiting, and none of them starves: where
there are more queues than messages to be taken, those go first whose next message has waited
longest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rmq_spark.wire.message_queue import MessageQueue


class Backlog(NamedTuple):
    """The messages waiting in a queue: their number, and about when the oldest was stored."""

    messages: int
    since_ms: int = 0


class OffsetRange(NamedTuple):
    """The part of a queue that one task reads: from ``start`` to before ``end``.

    ``last_stored_ms`` is when the message before the end was stored, and ``last_mark`` its mark
    (`queues.mark_of`), if they are known.
    """

    queue: MessageQueue
    start: int
    end: int
    last_stored_ms: int | None = None
    last_mark: int | None = None

    @property
    def row_count(self) -> int:
        """The number of its rows, if all of its messages are rows."""
        return self.end - self.start


def share_rows(backlogs: Mapping[MessageQueue, Backlog], rows: int) -> dict[MessageQueue, int]:
    """Return how many messages to take of each queue: ``rows`` in all, or all that are waiting."""
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
    """Return how many messages, shared among the queues, make about ``bytes_max``; at least one.

    Args:
        backlogs: The messages waiting in each queue.
        sizes: The approximate size of a message of each queue, in bytes.
        bytes_max: The size that they may have together.
    """
    total = sum(backlog.messages for backlog in backlogs.values())
    size = sum(backlog.messages * sizes[queue] for queue, backlog in backlogs.items())
    return total if size <= bytes_max else max(int(total * bytes_max / size), 1)


def divide_ranges(
    ranges: Mapping[MessageQueue, tuple[int, int]],
    ranges_min: int | None = None,
    rows_max: int | None = None,
) -> list[OffsetRange]:
    """Divide ranges of offsets into the pieces that tasks read.

    Each queue is one piece, unless more pieces or smaller ones are wanted. Empty ranges give no
    piece. The same input gives the same pieces.
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
