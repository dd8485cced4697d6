"""DelayLevel: the time at which each message of one delay level is due.

    stored since the start    its delay after it was known to be stored, by a monotonic clock
    there at the start        when it is due by the time of day, at most its delay after the start

The times at which messages were known to be stored are kept as marks: all up to this queue offset
were stored by that time. Messages that arrive within a grain share a mark, with the time of the
last. So no message is early, whatever the clock is set to, and none is late by more than a grain.

The time and the end of the queue are passed in.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

GRAIN_MS_MIN: Final = 10
GRAINS_PER_DELAY: Final = 1_000
"""The maximum number of marks; one or two beyond it are possible."""

_ROUNDED_MS = 1
"""Clocks show whole milliseconds: the time may be nearly one millisecond later than shown."""


class StartTime(NamedTuple):
    """The time at which the broker was started, by both clocks."""

    wall_ms: int
    monotonic_ms: int


class _ArrivalMark(NamedTuple):
    end_queue_offset: int
    first_ms: int
    last_ms: int


class DelayLevel:
    """The due times of the messages of one delay level. Offsets and times never go back."""

    def __init__(self, delay_ms: int, start: StartTime, end_queue_offset: int) -> None:
        """Begin a level; ``end_queue_offset`` is where its queue ended at the start."""
        self.delay_ms = delay_ms
        self._start = start
        self._end_at_start = self._end = end_queue_offset
        self._grain_ms = max(GRAIN_MS_MIN, -(-delay_ms // GRAINS_PER_DELAY))
        self._marks: deque[_ArrivalMark] = deque()

    def record_arrival(self, end_queue_offset: int, now_ms: int) -> None:
        """Note that all messages before a queue offset are stored now."""
        if end_queue_offset <= self._end:
            return
        self._end = end_queue_offset
        marks = self._marks
        begun_ms = now_ms
        if marks and now_ms < marks[-1].first_ms + self._grain_ms:
            begun_ms = marks.pop().first_ms
        marks.append(_ArrivalMark(end_queue_offset, begun_ms, now_ms))
        while len(marks) > 1 and self._due_ms(marks[1]) <= now_ms:  # then those of both are
            marks.popleft()

    def due_ms(self, queue_offset: int, store_timestamp: int) -> int:
        """Return when a message that has arrived is due, by the monotonic clock.

        After a message, no earlier one can be queried.
        """
        if queue_offset < self._end_at_start:
            left_ms = store_timestamp + self.delay_ms - self._start.wall_ms + 2 * _ROUNDED_MS
            return self._start.monotonic_ms + min(max(left_ms, 0), self.delay_ms + _ROUNDED_MS)
        while self._marks[0].end_queue_offset <= queue_offset:
            self._marks.popleft()
        return self._due_ms(self._marks[0])

    def _due_ms(self, mark: _ArrivalMark) -> int:
        return mark.last_ms + _ROUNDED_MS + self.delay_ms
