"""HalfCopies: which half messages are copies of the same one, and which copy is the last.

    firsts        the first queue offset of each copy; all copies of a half message share it
    scan          the first round after a start looks for copies past the saved progress
    superseded    a half message from before the start that has a later copy: passed unchecked

Each check stores a half message again. The saved progress may be older than the last copies, so
that without a scan a restarted broker would check a half message and its copies, each on its own.
"""

from __future__ import annotations

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.record import decode_record

from ..store.results import GetMessageResult, GetMessageStatus
from .half_message import prepared_queue_offset, size_of


class HalfCopies:
    """The copies in the half queue, from the progress of the checks on."""

    def __init__(self) -> None:
        """Begin without copies and without a scan."""
        self.next_offset = 0
        """The half message to scan next."""
        self._scan_end: int | None = None
        """The end of the half queue at the start; None when all before it were passed."""
        self._firsts: dict[int, int] = {}
        """The first queue offset of each copy in the queue, by the copy's queue offset."""
        self._last_copies: dict[int, int] = {}
        """The last copy of each half message that the scan has found, by first queue offset."""
        self._superseded: dict[int, int] = {}
        """Half messages from before the start that have a later copy, and their first offsets."""
        self._ended_firsts: set[int] = set()
        """First queue offsets of the half messages that have a copy that has ended."""

    def add(self, copy_offset: int, first_offset: int) -> None:
        """Add a copy, whose half message was first stored at ``first_offset``."""
        self._firsts[copy_offset] = first_offset

    def discard(self, half_offset: int, *, has_ended: bool) -> int | None:
        """Discard a half message that is passed.

        Return its first offset if it was the last copy, so that its op message is no longer needed.
        """
        first_offset = self._firsts.pop(half_offset, None)
        superseded = self._superseded.pop(half_offset, None)
        if superseded is None:
            return first_offset
        if has_ended:
            self._ended_firsts.add(superseded)
        return None

    def discard_before(self, half_offset: int) -> None:
        """Discard the copies before an offset, because the queue has lost them."""
        self._firsts = {at: first for at, first in self._firsts.items() if at >= half_offset}

    def is_superseded(self, half_offset: int) -> bool:
        """Return whether a half message from before the start has a later copy."""
        return half_offset in self._superseded

    def has_ended(self, first_offset: int) -> bool:
        """Return whether an earlier copy of a half message from before the start has ended."""
        return first_offset in self._ended_firsts

    # ---- the scan

    def begin_scan(self, begin_offset: int, end_offset: int) -> None:
        """Scan what the half queue has at the start."""
        self.next_offset, self._scan_end = begin_offset, end_offset

    @property
    def is_scanning(self) -> bool:
        """True while half messages from before the start are not all scanned."""
        return self._scan_end is not None and self.next_offset < self._scan_end

    def scan(self, found: GetMessageResult, passed: int) -> int:
        """Add the copies among the next half messages; return the bytes that were decoded.

        Half messages before ``passed`` are not checked any more.
        """
        at, decoded_bytes = self.next_offset, 0
        self.next_offset = max(at + 1, int(found.next_begin_offset))
        if found.status is not GetMessageStatus.FOUND:
            return decoded_bytes
        self.next_offset = at + 1
        for record in found.each_record():
            try:
                message = decode_record(record)
            except RecordError:  # the check reports it when it gets there
                break
            self.next_offset = message.queue_offset + 1
            decoded_bytes += size_of(message)
            first_offset = prepared_queue_offset(message)
            if first_offset is not None:
                earlier = self._last_copies.get(first_offset, first_offset)
                if earlier >= passed:
                    self._superseded[earlier] = first_offset
                self._last_copies[first_offset] = message.queue_offset
                self.add(message.queue_offset, first_offset)
        return decoded_bytes

    def end_scan(self, passed: int) -> bool:
        """Return whether all half messages from before the start are passed; true only once."""
        if self._scan_end is None or passed < self._scan_end:
            return False
        self._scan_end = None
        self._last_copies, self._superseded, self._ended_firsts = {}, {}, set()
        return True
