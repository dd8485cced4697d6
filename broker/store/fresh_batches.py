"""FreshBatches: even batches that were carried to their queues and are yet to come to the index.

    the log    [batch][batch][batch] other messages [batch][batch][batch][batch] ...
               |---- stretch -----|                 |-------- stretch ---------|
    the index  keys from memory      read in the log   keys from memory

Where batches lie back to back and have enough messages together, their keys are hashed from what
was known of them when they were written (`even_keys`). A few among others are read with these, as a
step of the index costs as much as a hundred of its messages. As with `Fresh`, this is a hint: what
is not here is read, which says the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from rocketpoll.broker.store.fresh_records import FreshRows, FreshRun
from rocketpoll.broker.store.offsets import PhysicalOffset

_BATCHES_MAX: Final = 512
_FEW: Final = 128
_ENOUGH: Final = 1_024
"""Messages of a stretch that come to the index in one step."""


class FreshBatches:
    """The last batches, in the order of the log."""

    def __init__(self) -> None:
        self._batches: deque[FreshRows] = deque(maxlen=_BATCHES_MAX)

    def keep(self, carried: Iterable[FreshRun | FreshRows]) -> None:
        """Keep the batches of what was just carried."""
        self._batches += [each for each in carried if isinstance(each, FreshRows)]

    def next_stretch(self, start: PhysicalOffset, limit: PhysicalOffset) -> Sequence[FreshRows]:
        """Return the first batches from a place on that lie back to back and are worth a step.

        Fewer are worth it as well if they end at the limit, beyond which nothing is returned. What
        lies before the stretch is forgotten.
        """
        batches = self._batches
        while batches and batches[0].end_offset <= limit:
            stretch = self._first_stretch(limit)
            rows = sum(each.rows for each in stretch)
            is_enough = rows > _FEW or stretch[-1].end_offset == limit
            if batches[0].start_offset >= start and is_enough:
                return stretch
            batches.popleft()
        return ()

    def forget(self, stretch: Sequence[FreshRows]) -> None:
        """Forget the first batches, of whose keys nothing can be told from memory."""
        for _ in stretch:
            self._batches.popleft()

    def _first_stretch(self, limit: PhysicalOffset) -> list[FreshRows]:
        stretch: list[FreshRows] = []
        rows = 0
        for each in self._batches:
            is_next = not stretch or each.start_offset == stretch[-1].end_offset
            if not is_next or each.end_offset > limit or rows >= _ENOUGH:
                break
            stretch.append(each)
            rows += each.rows
        return stretch
