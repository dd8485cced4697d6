"""RolledBackOffsets: offsets of rolled-back rows, from when reput reads them until it marks them.

After a rollback the next messages get the offsets of the rows; but if other messages had followed
the rows by then, the queue has a gap. Reput finds the rows before it reaches the gap, and marks the
blank entries there, so that the rows do not count as lost messages. A checkpoint between the two
saves the rows.

    log      row 5   row 6   message 7       5 and 6 are not lost
    log      row 5   row 6   message 5       offsets are reused: the rows no longer matter
    log      row 5   row 6   hole    message 7

In the last case messages 5 and 6 may have been in the hole, if it is long enough for them: then
they count as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from rmq_spark.wire.message.record_layout import RECORD_BYTES_MIN
from rmq_spark.wire.message_queue import QueueKey

from ..results import Hole, PhysicalOffset, QueueOffset

NUMBERS_PER_RANGE: Final = 5
"""The numbers per range of rows in a manifest."""


class RolledBackRange(NamedTuple):
    """Successive rows of one queue, and the positions of the first and the last."""

    offsets: range
    first: PhysicalOffset
    last: PhysicalOffset


class RolledBackOffsets:
    """Rolled-back rows by queue, in log order."""

    def __init__(self) -> None:
        self._rows: dict[QueueKey, list[RolledBackRange]] = {}

    def add(self, key: QueueKey, rows: RolledBackRange) -> None:
        """Add rows that follow the known ones; rows that are known already are ignored."""
        known = self._rows.setdefault(key, [])
        before = known[-1] if known else None
        if before is None:
            known.append(rows)
        elif rows.last > before.last:
            is_overlapping = rows.first <= before.last
            if is_overlapping or rows.offsets.start == before.offsets.stop:
                offsets = range(before.offsets.start, rows.offsets.stop)
                known[-1] = RolledBackRange(offsets, before.first, rows.last)
            else:
                known.append(rows)

    def gaps_before(
        self,
        key: QueueKey,
        queue_offset: QueueOffset,
        position: PhysicalOffset,
        holes: Iterable[Hole],
    ) -> list[range]:
        """Return the ranges of rolled-back offsets, in order, before a message of their queue.

        Rows count if they lie before the message in the log, and if no holes past them can have
        held messages with their offsets.
        """
        found: list[range] = []
        for offsets, first, _ in self._rows.get(key, ()):
            lost_bytes = sum(end - start for start, end in holes if first < start < position)
            lost_records_max = lost_bytes // RECORD_BYTES_MIN
            if first < position and lost_records_max < queue_offset - offsets.start:
                found.append(offsets)
        return sorted(found, key=lambda each: each.start)

    def discard(self, key: QueueKey, end: QueueOffset, position: PhysicalOffset) -> None:
        """Discard the rows before the last message of a queue; the queue ends at ``end``."""
        if self._rows:
            rows = self._rows.pop(key, ())
            kept = [_from_offset(each, end) if each.first < position else each for each in rows]
            self._set_rows(key, [each for each in kept if each.last > position and each.offsets])

    def discard_topic(self, topic: str, position: PhysicalOffset) -> None:
        """Discard the rows of a topic that begin before a log offset, at which it was deleted."""
        for key in [key for key in self._rows if key[0] == topic]:
            self._set_rows(key, [each for each in self._rows.pop(key) if each.first >= position])

    def _set_rows(self, key: QueueKey, rows: list[RolledBackRange]) -> None:
        if rows:
            self._rows[key] = rows

    def to_manifest(self, position: PhysicalOffset) -> Mapping[str, tuple[int, ...]]:
        """Return rows before a log offset for a manifest, as `NUMBERS_PER_RANGE` numbers each."""
        found: dict[str, list[int]] = {}
        for (topic, queue_id), rows in self._rows.items():
            for offsets, first, last in rows:
                if last < position:
                    found.setdefault(topic, []).extend(
                        (queue_id, offsets.start, offsets.stop, first, last)
                    )
        return {topic: tuple(numbers) for topic, numbers in found.items()}

    def restore(self, saved: Mapping[str, tuple[int, ...]], position: PhysicalOffset) -> None:
        """Restore the rows from a manifest that lie before a log offset."""
        self._rows.clear()
        for topic, numbers in saved.items():
            for queue_id, rows in _rows_of(numbers):
                if rows.last < position:
                    self.add((topic, queue_id), rows)


def _rows_of(numbers: tuple[int, ...]) -> Iterator[tuple[int, RolledBackRange]]:
    for at in range(0, len(numbers), NUMBERS_PER_RANGE):
        queue_id, start, stop, first, last = numbers[at : at + NUMBERS_PER_RANGE]
        positions = PhysicalOffset(first), PhysicalOffset(last)
        yield queue_id, RolledBackRange(range(start, stop), *positions)


def _from_offset(rows: RolledBackRange, end: QueueOffset) -> RolledBackRange:
    start, stop = rows.offsets.start, rows.offsets.stop
    return rows._replace(offsets=range(min(max(start, end), stop), stop))
