"""HoldQuota: counts the units that held pulls take, by client, and finds which to evict.

A pull with a long subscription takes several units; a large filter takes some, once for each client
that waits with it. Every operation takes constant time, however many pulls there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..common.channel import Channel
from .pull_request import HoldFilter, PullRequest


class HoldQuota:
    """The units of one kind of pulls, in the order in which they were acquired."""

    def __init__(self) -> None:
        self._count = 0
        self.used = 0
        """How many places all pulls take together."""
        self._requests: dict[Channel, dict[PullRequest, None]] = {}
        self._used_by: dict[Channel, int] = {}
        self._filter_users: dict[tuple[Channel, HoldFilter], int] = {}
        """How many pulls of a client wait with the same filter, of those that take places."""
        self._connections_by_use: dict[int, dict[Channel, None]] = {}
        """The clients by the number of their places."""
        self.used_max = 0
        """The number of places of the client that has most."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, request: PullRequest) -> bool:
        return request in self._requests.get(request.connection, ())

    def __iter__(self) -> Iterator[PullRequest]:
        return (request for requests in self._requests.values() for request in requests)

    def used_by(self, connection: Channel) -> int:
        """Return the number of units that a client uses."""
        return self._used_by.get(connection, 0)

    def oldest_of(self, connection: Channel) -> PullRequest | None:
        """Return the pull that a client has had for longest, or None if it has none."""
        return next(iter(self._requests.get(connection, ())), None)

    def oldest_of_largest(self) -> PullRequest:
        """Return the oldest pull of the client that uses most units; there must be one."""
        greediest = next(iter(self._connections_by_use[self.used_max]))
        return next(iter(self._requests[greediest]))

    def cost_of(self, request: PullRequest) -> int:
        """Return how many units a pull that is not held here would take."""
        filter_places = request.filter_quota_cost
        if filter_places and (request.connection, request.message_filter) in self._filter_users:
            filter_places = 0
        return request.quota_cost + filter_places

    def acquire(self, request: PullRequest) -> None:
        """Give a pull its units."""
        for _ in range(self.cost_of(request)):
            self._adjust(request.connection, 1)
        self._count += 1
        self._requests.setdefault(request.connection, {})[request] = None
        if request.message_filter is not None and request.filter_quota_cost:
            key = request.connection, request.message_filter
            self._filter_users[key] = self._filter_users.get(key, 0) + 1

    def release(self, request: PullRequest) -> None:
        """Release the units of a pull."""
        if request.message_filter is not None and request.filter_quota_cost:
            key = request.connection, request.message_filter
            self._filter_users[key] -= 1
            if not self._filter_users[key]:
                del self._filter_users[key]
        for _ in range(self.cost_of(request)):
            self._adjust(request.connection, -1)
        self._count -= 1
        requests = self._requests[request.connection]
        del requests[request]
        if not requests:
            del self._requests[request.connection]

    def _adjust(self, connection: Channel, by: int) -> None:
        """Let a client have one place more or less.

        In single steps, the next greediest is known at once.
        """
        before = self._used_by.get(connection, 0)
        after = before + by
        self.used += by
        if after:
            self._used_by[connection] = after
        else:
            del self._used_by[connection]
        if before:
            del self._connections_by_use[before][connection]
            if not self._connections_by_use[before]:
                del self._connections_by_use[before]
        if after:
            self._connections_by_use.setdefault(after, {})[connection] = None
        if after > self.used_max or self.used_max not in self._connections_by_use:
            self.used_max = after
