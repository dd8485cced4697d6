"""TimeSearch: finds the first message of a queue that was stored at a time or later.

Messages of a queue are in the order of their store times. The search returns the next offset to
probe; the caller looks there and reports the message found at that offset, or the next one if it is
gone.
"""

from __future__ import annotations


class TimeSearch:
    """A binary search that starts at a hint and is not misled by messages that are gone."""

    def __init__(self, timestamp_ms: int, start: int, end: int, hint: int) -> None:
        """Search the offsets from ``start`` to before ``end``; ``hint`` is the likely result."""
        self.low = start
        self._high = end
        self._timestamp_ms = timestamp_ms
        self._hint_offsets = [hint - 1, hint]
        self._probe_start: int | None = None  # of the probes that have found nothing since
        self._probe_offset = 0

    def next_probe(self) -> int | None:
        """Return the offset to probe; None when the search is over and ``low`` is its result."""
        if self._probe_start is not None:
            return self._probe_offset
        while self.low < self._high:
            middle = (
                self._hint_offsets.pop(0) if self._hint_offsets else (self.low + self._high) // 2
            )
            if self.low <= middle < self._high:
                self._probe_start = self._probe_offset = middle
                return middle
        return None

    def record_result(self, queue_offset: int, timestamp_ms: int | None) -> None:
        """Record the result of the last probe.

        Args:
            queue_offset: The offset of the message found at the probe's offset or after it; the
                offset to resume at if none was found.
            timestamp_ms: The store time of that message; None if none was found.
        """
        first_asked = self._probe_offset if self._probe_start is None else self._probe_start
        if timestamp_ms is None and max(queue_offset, self._probe_offset + 1) < self._high:
            self._probe_offset = max(queue_offset, self._probe_offset + 1)
            return
        self._probe_start = None
        is_before = timestamp_ms is not None and timestamp_ms < self._timestamp_ms
        if is_before and first_asked <= queue_offset < self._high:
            self.low = queue_offset + 1
        else:
            self._high = first_asked
