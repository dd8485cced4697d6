"""ManyPullRequest: the pulls that wait for one queue, each with how far its messages were looked at."""

from __future__ import annotations

from broker.connection import Connection
from broker.longpolling.pull_request import PullRequest


class ManyPullRequest:
    """In the order in which they came."""

    def __init__(self) -> None:
        self._looked_at: dict[PullRequest, int] = {}
        self._by_connection: dict[Connection, int] = {}

    def __len__(self) -> int:
        return len(self._looked_at)

    def __contains__(self, request: PullRequest) -> bool:
        return request in self._looked_at

    def count_of(self, connection: Connection) -> int:
        """How many of them are this client's."""
        return self._by_connection.get(connection, 0)

    def requests(self) -> list[PullRequest]:
        """All of them; the list is the caller's own."""
        return list(self._looked_at)

    def looked_at(self, request: PullRequest) -> int:
        """No message before this queue offset matches it."""
        return self._looked_at[request]

    def add(self, request: PullRequest) -> None:
        """One more."""
        self._looked_at[request] = request.nothing_before
        self._by_connection[request.connection] = self.count_of(request.connection) + 1

    def note(self, request: PullRequest, queue_offset: int) -> None:
        """The messages before this offset have been looked at, and do not match."""
        self._looked_at[request] = queue_offset

    def remove(self, request: PullRequest) -> None:
        """It waits no longer."""
        del self._looked_at[request]
        left = self._by_connection[request.connection] - 1
        if left:
            self._by_connection[request.connection] = left
        else:
            del self._by_connection[request.connection]
