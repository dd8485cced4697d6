"""StoreTimeline: the log offsets where store timestamps go back, because the clock was corrected.

    log       t=10 11 12  | 3652 days later: one message |  13 14 15 ...
                          ^ the clock was ahead          ^ a step: times continue at 13

Store timestamps do not go back between two steps, so a search by time searches each of these parts
on its own. A message stored while the clock was ahead keeps its wrong time, and `best_cut` skips
it: it cuts a queue where the fewest messages are on the wrong side.

A clock that goes back may also be wrong itself. The log accepts it only after a gap at least as
long as the step, in which the clock may have been set ahead. Otherwise store timestamps stand still
until the clock has caught up, as they do for steps below `STEP_MS`, which are common.

A step at an offset where times do not go back does no harm: it only cuts a part in two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ..results import PhysicalOffset, QueueOffset

STEP_MS: Final = 60_000
STEPS_MAX: Final = 64
"""The maximum number of steps of a log; past it, times stand still when the clock goes back."""
PLAUSIBLE_SINCE_MS: Final = 1_577_836_800_000
"""The start of 2020: a clock that shows an earlier time was never set."""


class StoreTimeline(NamedTuple):
    """Facts about the store timestamps of a log up to an offset."""

    last_ms: int = 0
    """The time of the last record."""
    gap_ms: int = 0
    """The longest time between two successive records."""
    steps: tuple[PhysicalOffset, ...] = ()
    """The positions of records stored earlier than their predecessors, by a minute or more."""

    def next_ms(self, now_ms: int) -> int:
        """Return the time of a record that is stored now."""
        if now_ms >= self.last_ms:
            return now_ms
        back_ms = self.last_ms - now_ms
        is_right = STEP_MS < back_ms <= self.gap_ms and now_ms >= PLAUSIBLE_SINCE_MS
        return now_ms if is_right and len(self.steps) < STEPS_MAX else self.last_ms

    def since(self, first: PhysicalOffset) -> StoreTimeline:
        """Return the timeline without the steps before ``first``, which have expired."""
        return self._replace(steps=tuple(position for position in self.steps if position > first))

    def with_record(self, time_ms: int, position: PhysicalOffset) -> StoreTimeline:
        """Return the timeline extended by a record with this time, past all others."""
        gap_ms = max(self.gap_ms, time_ms - self.last_ms) if self.last_ms else 0
        steps = self.steps
        if time_ms < self.last_ms - STEP_MS:
            steps = tuple(sorted({*steps, position}))[-STEPS_MAX:]
        return StoreTimeline(time_ms, gap_ms, steps)


class TimeOrderedRange(NamedTuple):
    """A part of a queue in which times do not go back, and the offset at which a time cuts it."""

    begin: QueueOffset
    cut: QueueOffset
    """The first offset of the part past the searched time; the part's end if there is none."""
    end: QueueOffset


def best_cut(parts: Sequence[TimeOrderedRange]) -> QueueOffset:
    """Return the cut with the fewest messages on the wrong side; the first of several."""
    wrong = sum(part.cut - part.begin for part in parts[1:])
    best, fewest = parts[0].cut, wrong
    for before, part in pairwise(parts):
        wrong += (before.end - before.cut) - (part.cut - part.begin)
        if wrong < fewest:
            best, fewest = part.cut, wrong
    return best
