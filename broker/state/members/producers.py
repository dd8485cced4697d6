"""ProducerManager: the connected clients of each producer group.

The broker asks them for the state of their transactions, and pushes replies to them. Everything
comes from heartbeats and is forgotten with the connections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from types import MappingProxyType
from typing import Final

from ...common.channel import Channel
from .client_channel_info import ClientChannelInfo
from .membership_limits import MembershipLimits

_NO_GROUPS: Final[Mapping[str, None]] = MappingProxyType({})


class ProducerManager:
    """All producer groups that have clients."""

    def __init__(self, limits: MembershipLimits) -> None:
        self._limits = limits
        self._groups: dict[str, dict[Channel, ClientChannelInfo]] = {}
        self._groups_of: dict[Channel, dict[str, None]] = defaultdict(dict)
        self._by_client_id: dict[str, ClientChannelInfo] = {}
        self.groups: Mapping[str, Mapping[Channel, ClientChannelInfo]] = MappingProxyType(
            self._groups
        )

    def register(self, group: str, channel: ClientChannelInfo) -> None:
        """Record a client's heartbeat.

        Raises:
            TooMany: There is no room for the member.
        """
        if group not in self.groups_with(channel.connection):
            self._limits.reserve(channel.connection, members=1)
        channels = self._groups.setdefault(group, {})
        before = channels.get(channel.connection)
        channels[channel.connection] = channel
        self._groups_of[channel.connection][group] = None
        self._by_client_id[channel.client_id] = channel
        if before is not None and before.client_id != channel.client_id:
            self._forget_client_id(before)

    def unregister(self, group: str, connection: Channel) -> None:
        """Remove a client from a group."""
        channels = self._groups.get(group)
        channel = channels.pop(connection, None) if channels is not None else None
        if channels is None or channel is None:
            return
        self._limits.reserve(connection, members=-1)
        names = self._groups_of[connection]
        names.pop(group, None)
        if not names:
            del self._groups_of[connection]
        if not channels:
            del self._groups[group]
        self._forget_client_id(channel)

    def connection_closed(self, connection: Channel) -> Iterator[None]:
        """Remove a client from all its groups, one at each step."""
        for group in tuple(self._groups_of.get(connection, ())):
            self.unregister(group, connection)
            yield

    def expire(self, heartbeat_before_ms: int) -> Iterator[Channel | None]:
        """Remove, in steps, clients without a heartbeat since a time, and yield each."""
        for connection in tuple(self._groups_of):
            is_silent = any(
                self._groups[name][connection].last_heartbeat_ms < heartbeat_before_ms
                for name in self.groups_with(connection)
            )
            if is_silent:
                yield from self.connection_closed(connection)
            yield connection if is_silent else None

    def skip_time(self, milliseconds: int) -> None:
        """Count a time that the clock has just jumped over as no silence of any client."""
        for channels in self._groups.values():
            for connection, channel in channels.items():
                channels[connection] = channel.with_later_heartbeat(milliseconds)

    def groups_with(self, connection: Channel) -> Set[str]:
        """Return the groups that a client is in."""
        return self._groups_of.get(connection, _NO_GROUPS).keys()

    def client_id_of(self, connection: Channel) -> str | None:
        """Return the id of the client on a connection, or None if it is in no group."""
        for name in self.groups_with(connection):
            return self._groups[name][connection].client_id
        return None

    def channels(self, group: str) -> tuple[ClientChannelInfo, ...]:
        """Return the clients of a group, in the order in which they came."""
        return tuple(self._groups.get(group, {}).values())

    def find(self, client_id: str) -> ClientChannelInfo | None:
        """Return the client with an id, in any group, or None; of two connections, the latest."""
        return self._by_client_id.get(client_id)

    def _forget_client_id(self, channel: ClientChannelInfo) -> None:
        """Forget a client's id, unless another connection or another group has it."""
        client_id, connection = channel.client_id, channel.connection
        known = self._by_client_id.get(client_id)
        names = self._groups_of.get(connection, ())
        if (
            known is not None
            and known.connection is connection
            and not any(self._groups[name][connection].client_id == client_id for name in names)
        ):
            del self._by_client_id[client_id]
