"""WrongEntries: which entry of a consume queue is the wrong one, and what is served before it.

An entry that overlaps the one before is wrong, unless that one is: their records tell. Whoever
begins at an entry has to know of the one before it, or the wrong one would be passed over where
another get had stopped. What the disk does not give is approached in the same way.
"""

from __future__ import annotations

import errno
from pathlib import Path

from rmq_spark.wire.blank_entries import BLANK_SIZE
from rmq_spark.wire.framing import Buffer
from rocketpoll.broker.store.commit_log import CommitLog
from rocketpoll.broker.store.consume_queue import ENTRY_STRUCT, ConsumeQueue
from rocketpoll.broker.store.entry_check import HEAD_BYTES, WrongEntry, is_of_entry
from rocketpoll.broker.store.errors import UnreadableFile
from rocketpoll.broker.store.offsets import LOG_START, PhysicalOffset, QueueOffset
from rocketpoll.broker.store.picking import Limits

_HOW_TO_GO_ON = (
    "To have what cannot be read passed over, start the broker once with checkWholeLogBytes above "
    "the size of the log, which finds and names it"
)


class WrongEntries:
    """A search for wrong entries of the queues of one log."""

    def __init__(self, log: CommitLog) -> None:
        """Take the log, in which records tell whose they are."""
        self._log = log

    def limits_before(
        self, wrong: WrongEntry, queue: ConsumeQueue, queue_offset: QueueOffset, limits: Limits
    ) -> Limits:
        """Return limits that end before a wrong entry; while it is not known which, half is tried.

        Raises:
            UnreadableFile: There is nothing before it.
        """
        fewer = min(limits.scan_max, queue.max_offset - queue_offset) // 2
        if wrong.number:
            return limits._replace(count_max=wrong.number)
        if wrong.overlapped is not None:
            fewer = wrong.overlapped
            if fewer and not self.is_right(queue, queue_offset + fewer - 1):
                fewer -= 1
        if not fewer:
            raise damaged(queue, f"that of offset {queue_offset}", wrong) from None
        return limits._replace(scan_max=fewer)

    def is_right(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> bool:
        """Return whether an entry is blank or leads to its record."""
        entry = queue.read(queue_offset, 1)
        if not len(entry):
            return False
        place, size, _ = ENTRY_STRUCT.unpack(entry)
        if size == BLANK_SIZE or place < self._log.min_offset:
            return True
        head = self._log.files.read(place, HEAD_BYTES)
        return len(head) == HEAD_BYTES and is_of_entry(
            head, 0, place, size, range(queue_offset, queue_offset + 1)
        )

    def end_before(
        self, queue: ConsumeQueue, queue_offset: QueueOffset, entries: Buffer
    ) -> PhysicalOffset:
        """Return the end of the record before; 0 unless the entries overlap it, and it is right."""
        if queue_offset <= queue.min_offset:
            return LOG_START
        before = queue.read(queue_offset - 1, 1)
        if not len(before):
            return LOG_START
        place, size, _ = ENTRY_STRUCT.unpack(before)
        next_place, next_size, _ = ENTRY_STRUCT.unpack_from(entries)
        if BLANK_SIZE in (size, next_size) or next_place >= place + size:
            return LOG_START
        return PhysicalOffset(place + size if self.is_right(queue, queue_offset - 1) else 0)


def fewer_than(
    looked_at: int, queue: ConsumeQueue, limits: Limits, error: UnreadableFile
) -> Limits:
    """Return limits of half the entries of a queue that led to what the disk does not give.

    Raises:
        UnreadableFile: The error itself, if there was one entry; with how to go on, where it lasts.
    """
    if looked_at <= 1:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.EIO:
            is_of_queue = Path(str(cause.filename)).parent == queue.directory
            advice = _how_to_make_again(queue) if is_of_queue else _HOW_TO_GO_ON
            raise UnreadableFile(f"{error}. {advice}") from cause
        raise error
    return limits._replace(scan_max=looked_at // 2)


def damaged(queue: ConsumeQueue, which: str, wrong: WrongEntry) -> UnreadableFile:
    """Return the error for an entry that does not lead to its message, with how to go on."""
    return UnreadableFile(
        f"an entry of {queue.directory}, {which}, does not lead to its message, but to "
        f"{wrong.place} of the commit log: it is damaged, or the record there. "
        f"{_how_to_make_again(queue)}, which names a damaged record and passes over it"
    )


def _how_to_make_again(queue: ConsumeQueue) -> str:
    return (
        f"To have the queue made again, stop the broker, delete {queue.directory}, and start the "
        "broker"
    )
