"""ClientPlans: what is remembered of the requests of clients, up to a number for all of them.

When that is too much, the client that came first starts over, which costs it little. What a plan is
and when it holds is not known here.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Generic, TypeVar

from ...common.connection import Connection

_Plans = TypeVar("_Plans", bound=Sized)


class ClientPlans(Generic[_Plans]):
    """The remembered plans of all clients; its length is how many these are."""

    def __init__(self, count_max: int) -> None:
        """Begin with no clients; all together may have so many plans."""
        self._clients: dict[Connection, _Plans] = {}
        self._count_max = count_max
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def known_of(self, connection: Connection) -> _Plans | None:
        """Return the plans of a client, or None if nothing is remembered of it."""
        return self._clients.get(connection)

    def forget(self, connection: Connection) -> None:
        """Forget the plans of a client that is gone."""
        plans = self._clients.pop(connection, None)
        if plans is not None:
            self._count -= len(plans)

    def count(self, more: int) -> None:
        """Note by how many the plans of a client have become more, or fewer."""
        self._count += more
        while self._count > self._count_max:
            self.forget(next(iter(self._clients)))
