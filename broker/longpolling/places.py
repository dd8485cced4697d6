"""Places: pulls that take a place each, by client; who has most, and how long each has had it.

Every operation takes constant time, however many pulls there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from rocketpoll.broker.connection import Connection
from rocketpoll.broker.longpolling.pull_request import PullRequest


class Places:
    """The places of one kind of pulls, always in the order in which they were taken."""

    def __init__(self) -> None:
        self._count = 0
        self._of: dict[Connection, dict[PullRequest, None]] = {}
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
        return len(self._of.get(connection, ()))

    def oldest_of(self, connection: Connection) -> PullRequest | None:
        """Return the pull that a client has had for longest, or None if it has none."""
        return next(iter(self._of.get(connection, ())), None)

    def oldest_of_greediest(self) -> PullRequest:
        """Return the oldest pull of the client with most places; there must be one."""
        greediest = next(iter(self._with[self.most]))
        return next(iter(self._of[greediest]))

    def take(self, request: PullRequest) -> None:
        """Take a place for a pull."""
        requests = self._of.setdefault(request.connection, {})
        self._changes(request.connection, len(requests), len(requests) + 1)
        requests[request] = None

    def free(self, request: PullRequest) -> None:
        """Free the place of a pull."""
        requests = self._of[request.connection]
        self._changes(request.connection, len(requests), len(requests) - 1)
        del requests[request]
        if not requests:
            del self._of[request.connection]

    def _changes(self, connection: Connection, before: int, after: int) -> None:
        self._count += after - before
        if before:
            del self._with[before][connection]
            if not self._with[before]:
                del self._with[before]
        if after:
            self._with.setdefault(after, {})[connection] = None
        if after > self.most or self.most not in self._with:
            self.most = after
