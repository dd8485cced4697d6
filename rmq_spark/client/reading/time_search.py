"""Search: where a queue's messages begin that were stored at a time or later, one probe at a time.

Messages of a queue are in the order of their storing. A probe says which message was found at an
offset, or behind it where there is none any more; the search says where to look next. It asks
nobody.
"""

from __future__ import annotations


class Search:
    """A binary search that starts at a hint and is not misled by messages that are gone."""

    def __init__(self, timestamp_ms: int, start: int, end: int, hint: int) -> None:
        """Search the offsets from ``start`` to before ``end``; ``hint`` is the likely result."""
        self.low = start
        self._high = end
        self._timestamp_ms = timestamp_ms
        self._hints = [hint - 1, hint]
        self._first_asked: int | None = None  # of the probes that have found nothing since
        self._asked = 0

    def probe(self) -> int | None:
        """Return the offset to look at; None when the search is over and ``low`` is its result."""
        if self._first_asked is not None:
            return self._asked
        while self.low < self._high:
            middle = self._hints.pop(0) if self._hints else (self.low + self._high) // 2
            if self.low <= middle < self._high:
                self._first_asked = self._asked = middle
                return middle
        return None

    def found(self, queue_offset: int, timestamp_ms: int | None) -> None:
        """Take the result of the last probe.

        Args:
            queue_offset: The offset of the message found at the probe's offset or after it; the
                offset to go on from if none was found.
            timestamp_ms: The store time of that message; None if none was found.
        """
        first_asked = self._asked if self._first_asked is None else self._first_asked
        if timestamp_ms is None and max(queue_offset, self._asked + 1) < self._high:
            self._asked = max(queue_offset, self._asked + 1)
            return
        self._first_asked = None
        is_before = timestamp_ms is not None and timestamp_ms < self._timestamp_ms
        if is_before and first_asked <= queue_offset < self._high:
            self.low = queue_offset + 1
        else:
            self._high = first_asked
