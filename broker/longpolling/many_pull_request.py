"""ManyPullRequest: the pulls that wait for one queue, each with how far it was looked at."""

from __future__ import annotations

from typing import TypeAlias

from ..common.connection import Channel
from .pull_request import PullRequest

_Owner: TypeAlias = tuple[Channel, str]
"""A client, and the group as whose member it has asked."""


class ManyPullRequest:
    """The waiting pulls of one queue, in the order in which they came."""

    def __init__(self) -> None:
        self._scanned_to: dict[PullRequest, int] = {}
        self._by_owner: dict[_Owner, dict[PullRequest, None]] = {}

    def __len__(self) -> int:
        return len(self._scanned_to)

    def __contains__(self, request: PullRequest) -> bool:
        return request in self._scanned_to

    def of_owner(self, request: PullRequest) -> list[PullRequest]:
        """Return the waiting pulls of the same client and group as this one's."""
        return list(self._by_owner.get(_owner_of(request), ()))

    def requests(self) -> list[PullRequest]:
        """Return all pulls, in a list that is the caller's own."""
        return list(self._scanned_to)

    def scanned_to(self, request: PullRequest) -> int:
        """Return the queue offset before which no message matches a pull."""
        return self._scanned_to[request]

    def add(self, request: PullRequest) -> None:
        """Add a pull that waits."""
        self._scanned_to[request] = request.no_match_before
        self._by_owner.setdefault(_owner_of(request), {})[request] = None

    def set_scanned_to(self, request: PullRequest, queue_offset: int) -> None:
        """Note that the messages before this offset do not match a pull."""
        self._scanned_to[request] = queue_offset

    def remove(self, request: PullRequest) -> None:
        """Remove a pull that waits no longer."""
        del self._scanned_to[request]
        owner = _owner_of(request)
        of_owner = self._by_owner[owner]
        del of_owner[request]
        if not of_owner:
            del self._by_owner[owner]


def _owner_of(request: PullRequest) -> _Owner:
    return request.connection, request.header.consumer_group
