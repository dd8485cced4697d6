"""ClientPlans: what is remembered of the requests of clients, up to a number for all of them.

When that is too much, the client that came first starts over, which costs it little. What a plan is
and when it holds is not known here.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Generic, TypeVar

from ...common.connection import Channel

_Cached = TypeVar("_Plans", bound=Sized)


class PerClientCache(Generic[_Cached]):
    """The remembered plans of all clients; its length is how many these are."""

    def __init__(self, count_max: int) -> None:
        """Begin with no clients; all together may have so many plans."""
        self._clients: dict[Channel, _Cached] = {}
        self._count_max = count_max
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, connection: Channel) -> _Cached | None:
        """Return the plans of a client, or None if nothing is remembered of it."""
        return self._clients.get(connection)

    def discard(self, connection: Channel) -> None:
        """Forget the plans of a client that is gone."""
        plans = self._clients.pop(connection, None)
        if plans is not None:
            self._count -= len(plans)

    def add_count(self, change: int) -> None:
        """Note by how many the plans of a client have become more, or fewer."""
        self._count += change
        while self._count > self._count_max:
            self.discard(next(iter(self._clients)))
