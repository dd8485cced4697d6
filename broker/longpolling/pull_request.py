"""PullRequest: one held pull, with the minimum that its replay needs.

The request's ext fields are dropped, because the typed header has the same content in a fraction of
the memory.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

from rmq_spark.wire.headers.members import PullMessageRequestHeader
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.remoting.command import RemotingCommand

from ..common.channel import Channel

QUOTA_UNIT_BYTES: Final = 1_400
"""Bytes of a usual pull in memory, with a short subscription and a filter of a few tags."""


class HoldFilter(Protocol):
    """The filter that a held pull applies to arriving messages."""

    @property
    def needs_messages(self) -> bool:
        """True if messages must be read, because a matching code is not enough."""

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the filter, in bytes."""

    def matches_code(self, code: int) -> bool:
        """Return whether a message with this tags code may match."""


@dataclass(frozen=True, slots=True, eq=False)
class PullRequest:
    """A pull that found nothing. All times are from a monotonic clock."""

    connection: Channel
    request: RemotingCommand
    header: PullMessageRequestHeader
    suspend_timestamp_ms: int
    timeout_ms: int
    message_filter: HoldFilter | None
    no_match_before: int
    """The queue offset before which no message matches."""

    is_pop: ClassVar[bool] = False
    """True if an arrival wakes only one of the requests that wait for it."""

    @property
    def queue(self) -> QueueKey:
        """The topic and the number of the queue."""
        return self.header.topic, self.header.queue_id

    @property
    def topic(self) -> str:
        """The topic for whose messages the pull waits."""
        return self.header.topic

    @property
    def texts(self) -> tuple[object, ...]:
        """The texts of unlimited length, which count for the quota."""
        return self.header.subscription, self.header.expression_type

    @property
    def quota_cost(self) -> int:
        """The units that the pull uses without its filter; a long subscription uses several."""
        return 1 + sum(map(sys.getsizeof, self.texts)) // QUOTA_UNIT_BYTES

    @property
    def filter_quota_cost(self) -> int:
        """The units of the filter, which one client's pulls with this filter share."""
        return (
            0 if self.message_filter is None else self.message_filter.size_bytes // QUOTA_UNIT_BYTES
        )

    @property
    def pull_from_this_offset(self) -> int:
        """The queue offset that the pull requested."""
        return self.header.queue_offset

    @property
    def deadline_ms(self) -> int:
        """The monotonic time, in milliseconds, by which the pull is answered."""
        return self.suspend_timestamp_ms + self.timeout_ms

    def may_match(self, tags_codes: Iterable[int] | None) -> bool:
        """Return whether any message with these codes may match; True if the codes are unknown."""
        if self.message_filter is None or tags_codes is None:
            return True
        return any(map(self.message_filter.matches_code, tags_codes))


# ---- ManyPullRequest: the pulls that wait for one queue.

_Owner: TypeAlias = tuple[Channel, str]
"""A client, and the group for which it pulls."""


class ManyPullRequest:
    """The held pulls of one queue, those of each client in the order of arrival.

    Each has an offset before which no message matches it.
    """

    def __init__(self) -> None:
        self._scanned_to: dict[PullRequest, int] = {}
        self._by_owner: dict[_Owner, dict[PullRequest, None]] = {}

    def __len__(self) -> int:
        return len(self._scanned_to)

    def __contains__(self, request: PullRequest) -> bool:
        return request in self._scanned_to

    @property
    def is_of_pops(self) -> bool:
        """True if an arrival wakes only one of the requests."""
        return next(iter(self._scanned_to)).is_pop

    def of_owner(self, request: PullRequest) -> list[PullRequest]:
        """Return the held pulls of the client and group of a pull."""
        return list(self._by_owner.get(_owner_of(request), ()))

    def by_turns(self) -> Iterator[PullRequest]:
        """Yield the current pulls: the first of each client, then the second of each, and so on.

        Pulls may be added and removed meanwhile.
        """
        if len(self._scanned_to) == 1:
            yield next(iter(self._scanned_to))
            return
        by_client: dict[Channel, list[PullRequest]] = {}
        for (connection, _), requests in self._by_owner.items():
            by_client.setdefault(connection, []).extend(requests)
        turns = list(map(iter, by_client.values()))
        while turns:
            others, turns = turns, []
            for iterator in others:
                request = next(iterator, None)
                if request is not None:
                    turns.append(iterator)
                    yield request

    def scanned_to(self, request: PullRequest) -> int:
        """Return the queue offset before which no message matches a pull."""
        return self._scanned_to[request]

    def add(self, request: PullRequest) -> None:
        """Add a pull."""
        self._scanned_to[request] = request.no_match_before
        self._by_owner.setdefault(_owner_of(request), {})[request] = None

    def set_scanned_to(self, request: PullRequest, queue_offset: int) -> None:
        """Record that the messages before this offset do not match a pull."""
        self._scanned_to[request] = queue_offset

    def remove(self, request: PullRequest) -> None:
        """Remove a pull."""
        del self._scanned_to[request]
        owner = _owner_of(request)
        of_owner = self._by_owner[owner]
        del of_owner[request]
        if not of_owner:
            del self._by_owner[owner]


def _owner_of(request: PullRequest) -> _Owner:
    return request.connection, request.header.consumer_group


# ---- FairTurns: items of clients, served by turns of their addresses and connections.


_Item = TypeVar("_Item")


class FairTurns(Generic[_Item]):
    """A queue in which addresses take turns, and within an address its connections.

        10.0.0.1  a: 1 2 3 4    b: 5 6     ─> 1, 7, 5, 2, 6, 3, 4
        10.0.0.2  c: 7

    A client that queues many items has them served in order, but only one in each turn of its
    address. Every operation takes constant time.
    """

    def __init__(self) -> None:
        self._count = 0
        self._networks: dict[bytes, dict[Channel, deque[_Item]]] = {}

    def __len__(self) -> int:
        return self._count

    def append(self, client: Channel, item: _Item) -> None:
        """Add an item after all others of its client."""
        self._count += 1
        connections = self._networks.setdefault(client.remote_host.network, {})
        connections.setdefault(client, deque()).append(item)

    def popleft(self) -> _Item:
        """Remove and return the next item; its address and its connection go to the end."""
        if not self._count:
            raise IndexError("no item is queued")
        self._count -= 1
        network = next(iter(self._networks))
        connections = self._networks.pop(network)
        client = next(iter(connections))
        items = connections.pop(client)
        item = items.popleft()
        if items:
            connections[client] = items
        if connections:
            self._networks[network] = connections
        return item
