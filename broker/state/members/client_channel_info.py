"""ClientChannelInfo: one client of a group, as its last heartbeat described it.

`ClientGroups` is the base of the tables of producers and consumers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from rmq_spark.wire.bodies.clients import SubscriptionData

from ...common.channel import Channel
from ..tables.table import TooMany, check_limit

if TYPE_CHECKING:
    from ...common.channel import Channel

# ---- MembershipLimits.

CLIENT_SHARE: Final = 16
"""One client may use 1/16 of the bytes for all clients."""
_SUBSCRIPTION_BYTES: Final = 1_024
_TAG_BYTES: Final = 256
_CODE_BYTES: Final = 192
_CHARACTER_BYTES: Final = 2


def subscription_bytes(subscriptions: Iterable[SubscriptionData]) -> int:
    """Estimate the memory of subscriptions, mostly a little too high."""
    return sum(
        _SUBSCRIPTION_BYTES
        + _TAG_BYTES * len(data.tags_set)
        + _CODE_BYTES * len(data.code_set)
        + _CHARACTER_BYTES
        * (
            len(data.topic)
            + len(data.sub_string)
            + len(data.expression_type)
            + sum(map(len, data.tags_set))
        )
        for data in subscriptions
    )


class MembershipLimits:
    """The members and subscriptions of all clients, within their limits."""

    def __init__(self, *, members_max: int, subscription_bytes_max: int) -> None:
        """Begin at zero; a client counts for ``members_max`` in each of its groups."""
        self._members_max = members_max
        self._bytes_max = subscription_bytes_max
        self._members = 0
        self._client_bytes: dict[Channel, int] = {}
        self._group_bytes = 0

    def reserve(
        self, connection: Channel, *, members: int = 0, client_bytes: int = 0, group_bytes: int = 0
    ) -> None:
        """Add to the counts of members, of a client's bytes, and of its groups' bytes; or subtract.

        Raises:
            TooMany: A limit is reached. Nothing was changed.
        """
        check_limit(
            "members of groups", self._members, self._members_max, "maxGroupMembers", more=members
        )
        client_total, group_total = (
            self._client_bytes.get(connection, 0) + client_bytes,
            self._group_bytes + group_bytes,
        )
        if client_bytes > 0:
            self._check_bytes(client_total, self._bytes_max // CLIENT_SHARE, "one client")
        if group_bytes > 0:
            self._check_bytes(group_total, self._bytes_max, "all clients")
        self._members += members
        self._group_bytes = group_total
        if client_total:
            self._client_bytes[connection] = client_total
        else:
            self._client_bytes.pop(connection, None)

    def _check_bytes(self, size: int, limit: int, owner: str) -> None:
        if size > limit:
            raise TooMany(
                f"subscriptions would take {size} bytes; those of {owner} may take {limit} "
                f"(maxSubscriptionBytes={self._bytes_max})"
            )


_Entry = TypeVar("_Entry")
_NO_GROUPS: Final[Mapping[str, None]] = MappingProxyType({})
CLIENT_ID_CHARACTERS_MAX: Final = 1_024
"""The maximum length of a client's id, for which RocketMQ has no limit."""


@dataclass(frozen=True)
class ClientChannelInfo:
    """A connection and its client. All times are monotonic."""

    connection: Channel
    client_id: str
    language: str
    version: int
    last_heartbeat_ms: int

    def with_later_heartbeat(self, milliseconds: int) -> ClientChannelInfo:
        """Return the client as if its last heartbeat had arrived ``milliseconds`` later."""
        return replace(self, last_heartbeat_ms=self.last_heartbeat_ms + milliseconds)


def client_fault(client_id: str) -> str | None:
    """Return why a client's id is invalid, or None."""
    if not client_id.strip():
        return "there is no clientID"
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        return f"the clientID has {len(client_id)} characters, over {CLIENT_ID_CHARACTERS_MAX}"
    return None


class ClientGroups(ABC, Generic[_Entry]):
    """The groups of all clients, from heartbeats; a closed connection ends its memberships."""

    def __init__(self) -> None:
        self._groups_of: dict[Channel, dict[str, _Entry]] = defaultdict(dict)
        """The groups of each client, with its entry in each."""

    @abstractmethod
    def unregister(self, group: str, connection: Channel) -> None:
        """Remove a client from a group."""

    @abstractmethod
    def _clients_of(self, group: str) -> Mapping[Channel, ClientChannelInfo]:
        """Return the clients of a group that has some."""

    def connection_closed(self, connection: Channel) -> Iterator[None]:
        """Remove a client from all its groups, one at each step."""
        for group in tuple(self._groups_of.get(connection, ())):
            self.unregister(group, connection)
            yield

    def expire(self, heartbeat_before_ms: int) -> Iterator[Channel | None]:
        """Remove clients without a heartbeat since a time; yield each, and None for others."""
        for connection in tuple(self._groups_of):
            is_silent = any(
                self._clients_of(name)[connection].last_heartbeat_ms < heartbeat_before_ms
                for name in self.groups_with(connection)
            )
            if is_silent:
                yield from self.connection_closed(connection)
            yield connection if is_silent else None

    def groups_with(self, connection: Channel) -> Set[str]:
        """Return the groups that a client is in."""
        return self._groups_of.get(connection, _NO_GROUPS).keys()

    def client_id_of(self, connection: Channel) -> str | None:
        """Return the id of the client on a connection, or None if it is in no group."""
        for name in self.groups_with(connection):
            return self._clients_of(name)[connection].client_id
        return None
