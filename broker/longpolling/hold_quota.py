"""Places: pulls that take a place each, by client; who has most, and how long each has had it.

A pull with a long subscription takes several places; a large filter takes some once for each client
that waits with it. Every operation takes constant time, however many pulls there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..common.connection import Connection
from .pull_request import HoldFilter, PullRequest


class Places:
    """The places of one kind of pulls, always in the order in which they were taken."""

    def __init__(self) -> None:
        self._count = 0
        self.taken = 0
        """How many places all pulls take together."""
        self._of: dict[Connection, dict[PullRequest, None]] = {}
        self._taken_by: dict[Connection, int] = {}
        self._waiting_with: dict[tuple[Connection, HoldFilter], int] = {}
        """How many pulls of a client wait with the same filter, of those that take places."""
        self._with: dict[int, dict[Connection, None]] = {}
        """The clients by the number of their places."""
        self.most = 0
        """The number of places of the client that has most."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, request: PullRequest) -> bool:
        return request in self._of.get(request.connection, ())

    def __iter__(self) -> Iterator[PullRequest]:
        return (request for requests in self._of.values() for request in requests)

    def count_of(self, connection: Connection) -> int:
        """Return the number of a client's places."""
        return self._taken_by.get(connection, 0)

    def oldest_of(self, connection: Connection) -> PullRequest | None:
        """Return the pull that a client has had for longest, or None if it has none."""
        return next(iter(self._of.get(connection, ())), None)

    def oldest_of_greediest(self) -> PullRequest:
        """Return the oldest pull of the client with most places; there must be one."""
        greediest = next(iter(self._with[self.most]))
        return next(iter(self._of[greediest]))

    def needed_by(self, request: PullRequest) -> int:
        """Return how many places a pull would take that is not here."""
        filter_places = request.filter_places
        if filter_places and (request.connection, request.message_filter) in self._waiting_with:
            filter_places = 0
        return request.places + filter_places

    def take(self, request: PullRequest) -> None:
        """Give a pull its places."""
        for _ in range(self.needed_by(request)):
            self._changes(request.connection, 1)
        self._count += 1
        self._of.setdefault(request.connection, {})[request] = None
        if request.message_filter is not None and request.filter_places:
            key = request.connection, request.message_filter
            self._waiting_with[key] = self._waiting_with.get(key, 0) + 1

    def free(self, request: PullRequest) -> None:
        """Take a pull's places back."""
        if request.message_filter is not None and request.filter_places:
            key = request.connection, request.message_filter
            self._waiting_with[key] -= 1
            if not self._waiting_with[key]:
                del self._waiting_with[key]
        for _ in range(self.needed_by(request)):
            self._changes(request.connection, -1)
        self._count -= 1
        requests = self._of[request.connection]
        del requests[request]
        if not requests:
            del self._of[request.connection]

    def _changes(self, connection: Connection, by: int) -> None:
        """Let a client have one place more or less.

        In single steps, the next greediest is known at once.
        """
        before = self._taken_by.get(connection, 0)
        after = before + by
        self.taken += by
        if after:
            self._taken_by[connection] = after
        else:
            del self._taken_by[connection]
        if before:
            del self._with[before][connection]
            if not self._with[before]:
                del self._with[before]
        if after:
            self._with.setdefault(after, {})[connection] = None
        if after > self.most or self.most not in self._with:
            self.most = after
