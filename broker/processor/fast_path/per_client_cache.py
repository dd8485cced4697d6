"""PerClientCache: caches what was learned from the requests of clients, up to a total number.

When the total is too large, the cache of the client that connected first is emptied, which costs it
little.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Generic, TypeVar

from ...common.channel import Channel

# ---- LearningBudget: how much time a client may cost that sends headers of ever new forms.


class LearningBudget:
    """The number of requests of one client that may still be learned from."""

    __slots__ = ("_cost", "_debt", "_debt_max")

    def __init__(self, cost: int, count_max: int) -> None:
        """Create the budget: ``cost`` requests per learned entry, credit for ``count_max``."""
        self._cost = cost
        self._debt_max = cost * count_max
        self._debt = 0

    def spend(self) -> bool:
        """Return whether the budget permits one more entry, and charge it."""
        if self._debt >= self._debt_max:
            return False
        self._debt += self._cost
        return True

    def earn(self, requests: int) -> None:
        """Record requests that used cached entries, which increases the budget."""
        self._debt = max(self._debt - requests, 0)


_Cached = TypeVar("_Cached", bound=Sized)


class PerClientCache(Generic[_Cached]):
    """The cached entries of all clients; its length is their number."""

    def __init__(self, count_max: int) -> None:
        self._clients: dict[Channel, _Cached] = {}
        self._count_max = count_max
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, connection: Channel) -> _Cached | None:
        """Return the cached entries of a client, or None if there are none."""
        return self._clients.get(connection)

    def discard(self, connection: Channel) -> None:
        """Discard the entries of a disconnected client."""
        plans = self._clients.pop(connection, None)
        if plans is not None:
            self._count -= len(plans)

    def add_count(self, change: int) -> None:
        """Note by how many a client's entries have become more, or fewer."""
        self._count += change
        while self._count > self._count_max:
            self.discard(next(iter(self._clients)))
