"""ProducerManager: the connected clients of each producer group.

The broker asks them for the state of their transactions, and pushes replies to them. All of it
comes from heartbeats and ends with the connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...common.channel import Channel
from .client_channel_info import ClientChannelInfo, ClientGroups, MembershipLimits


class ProducerManager(ClientGroups[None]):
    """All producer groups that have clients."""

    def __init__(self, limits: MembershipLimits) -> None:
        super().__init__()
        self._limits = limits
        self._groups: dict[str, dict[Channel, ClientChannelInfo]] = {}
        self._by_client_id: dict[str, dict[str | None, ClientChannelInfo]] = {}
        """The latest client of each id, by user; without authentication, the user is None."""
        self.groups: Mapping[str, Mapping[Channel, ClientChannelInfo]] = MappingProxyType(
            self._groups
        )

    def register(self, group: str, channel: ClientChannelInfo) -> None:
        """Record a client's heartbeat."""
        if group not in self.groups_with(channel.connection):
            self._limits.reserve(channel.connection, members=1)
        channels = self._groups.setdefault(group, {})
        before = channels.get(channel.connection)
        channels[channel.connection] = channel
        self._groups_of[channel.connection][group] = None
        self._by_client_id.setdefault(channel.client_id, {})[_user_of(channel)] = channel
        if before is not None and before.client_id != channel.client_id:
            self._discard_client_id(before)

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
        self._discard_client_id(channel)

    def skip_time(self, milliseconds: int) -> None:
        """Ignore a jump of the clock, so that no client counts as silent during it."""
        for channels in self._groups.values():
            for connection, channel in channels.items():
                channels[connection] = channel.with_later_heartbeat(milliseconds)

    def _clients_of(self, group: str) -> Mapping[Channel, ClientChannelInfo]:
        return self._groups[group]

    def channels(self, group: str) -> tuple[ClientChannelInfo, ...]:
        """Return the clients of a group, in the order in which they came."""
        return tuple(self._groups.get(group, {}).values())

    def find(self, client_id: str) -> ClientChannelInfo | None:
        """Return the client with an id, in any group, or None; of two connections, the latest.

        If clients of two users have the id, return None: what is sent to one of them must not reach
        the other.
        """
        known = self._by_client_id.get(client_id, {}).values()
        connected = [channel for channel in known if not channel.connection.is_closed]
        return connected[0] if len(connected) == 1 else None

    def _discard_client_id(self, channel: ClientChannelInfo) -> None:
        """Remove a client's id, unless another connection or another group has it."""
        client_id, connection = channel.client_id, channel.connection
        known = self._by_client_id.get(client_id, {})
        user = _user_of(channel)
        names = self._groups_of.get(connection, ())
        if (
            user in known
            and known[user].connection is connection
            and not any(self._groups[name][connection].client_id == client_id for name in names)
        ):
            del known[user]
            if not known:
                del self._by_client_id[client_id]


def _user_of(channel: ClientChannelInfo) -> str | None:
    identity = channel.connection.identity
    return None if identity is None else identity.name
