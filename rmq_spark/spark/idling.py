"""Idling: how long a source that has nothing new waits before it says so.

    alone           as long as brokers hold its pulls: nobody else waits for its answer
    not alone       a moment: Spark asks the sources of a query one after the other, and those that
                    have news wait for those that have none; what brokers hold goes on being held
                    meanwhile
    behind a batch  next to nothing, where it is not alone: while others are busy, each batch would
                    be as much later

A source learns that it is not alone from batches that end without a row of its own. A single one
tells nothing: Spark runs it by itself where a watermark has moved. It asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BESIDE_OTHERS_MS: Final = 50
BEHIND_A_BATCH_MS: Final = 1
_BATCHES_OF_OTHERS: Final = 2


class Idling:
    """The knowledge whether a source is alone in its query; for use by one thread."""

    def __init__(self, suspend_ms: int, clock: Callable[[], float]) -> None:
        """Take how long brokers hold pulls, and a clock that gives seconds."""
        self._suspend_ms = suspend_ms
        self._clock = clock
        self._batches_of_others = 0
        self._is_alone = True
        self._is_behind_a_batch = False
        self._looked_at = clock()

    @property
    def hold_ms(self) -> int:
        """The milliseconds to wait for new messages."""
        if self._is_alone:
            return self._suspend_ms
        moment = BEHIND_A_BATCH_MS if self._is_behind_a_batch else BESIDE_OTHERS_MS
        return min(self._suspend_ms, moment)

    @property
    def is_time_to_look(self) -> bool:
        """True if the ends of queues should be asked for although no held pull has brought news."""
        return self._is_alone or self._clock() - self._looked_at >= self._suspend_ms / 1000

    def waited(self) -> None:
        """Note that new messages have been waited for, since the last batch that ended."""
        self._is_behind_a_batch = False

    def looked(self) -> None:
        """Note that brokers have been asked where queues end."""
        self._looked_at = self._clock()

    def batch_ended(self, *, is_ours: bool) -> None:
        """Note a batch of the query, and whether this source had a part in it."""
        self._is_behind_a_batch = True
        self._batches_of_others = 0 if is_ours else self._batches_of_others + 1
        if self._batches_of_others >= _BATCHES_OF_OTHERS:
            self._is_alone = False
