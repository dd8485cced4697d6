"""ConsumerManager: the connected members of each consumer group, and their subscriptions.

All of it comes from heartbeats and ends with the connections. `subscription_group` has the
configuration of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from rmq_spark.wire.bodies.clients import ConsumerData, SubscriptionData

from ...common.channel import Channel
from .client_channel_info import (
    ClientChannelInfo,
    ClientGroups,
    MembershipLimits,
    subscription_bytes,
)


class ConsumerGroup:
    """One group, while it has members. Only `ConsumerManager` changes it."""

    def __init__(self, data: ConsumerData) -> None:
        self.name = data.group_name
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._subscribers: dict[str, Channel] = {}
        self.subscription_bytes = 0
        """The estimated size of the subscriptions, in bytes."""
        self.resets: dict[tuple[str, int], int] = {}
        """The offsets, by topic and queue id, at which the group continues.

        The next pull of a queue is answered with its offset, which is then removed. Until then,
        commits of members are ignored, because they are from before the reset.
        """
        self._clients: dict[Channel, ClientChannelInfo] = {}
        self.subscriptions: Mapping[str, SubscriptionData] = MappingProxyType(self._subscriptions)
        self.clients: Mapping[Channel, ClientChannelInfo] = MappingProxyType(self._clients)

    @property
    def client_ids(self) -> tuple[str, ...]:
        """The distinct ids of the members, sorted."""
        return tuple(sorted({channel.client_id for channel in self._clients.values()}))

    def join(self, channel: ClientChannelInfo, data: ConsumerData) -> bool:
        """Record a member's heartbeat; return whether it is a new member."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        before = self._clients.get(channel.connection)
        self._clients[channel.connection] = channel
        return before is None or before.client_id != channel.client_id

    def leave(self, connection: Channel) -> bool:
        """Remove a member; return whether it was one."""
        return self._clients.pop(connection, None) is not None

    def skip_time(self, milliseconds: int) -> None:
        """Ignore a jump of the clock, so that no member counts as silent during it."""
        for connection, channel in self._clients.items():
            self._clients[connection] = channel.with_later_heartbeat(milliseconds)

    def resolve_subscriptions(
        self, connection: Channel, subscriptions: Iterable[SubscriptionData]
    ) -> Mapping[str, SubscriptionData]:
        """Return the subscriptions, by topic, that result from a member's heartbeat.

        The newer of two versions of a subscription wins. But a member may replace its own, and that
        of a client that has left, by an older one, because its clock may have been set back.
        """
        wanted = {data.topic: data for data in subscriptions}
        for topic, data in wanted.items():
            known, subscriber = self._subscriptions.get(topic), self._subscribers.get(topic)
            if known is not None and not (
                data.sub_version > known.sub_version
                or subscriber is connection
                or subscriber not in self._clients
            ):
                wanted[topic] = known
        return wanted

    def subscribe(
        self, connection: Channel, subscriptions: Mapping[str, SubscriptionData], size: int
    ) -> bool:
        """Set the subscriptions, and their size; return whether topics were added or removed."""
        changed = subscriptions.keys() != self._subscriptions.keys()
        for topic in self._subscriptions.keys() - subscriptions.keys():
            del self._subscriptions[topic], self._subscribers[topic]
        for topic, data in subscriptions.items():
            if data is not self._subscriptions.get(topic):
                self._subscriptions[topic] = data
                self._subscribers[topic] = connection
        self.subscription_bytes = size
        return changed


class ConsumerManager(ClientGroups[int]):
    """All consumer groups that have members, with the size of each client's subscriptions there."""

    def __init__(
        self, on_members_changed: Callable[[ConsumerGroup], None], limits: MembershipLimits
    ) -> None:
        """Start without groups; ``on_members_changed`` is called with a group to rebalance."""
        super().__init__()
        self._limits = limits
        self._on_members_changed = on_members_changed
        self._groups: dict[str, ConsumerGroup] = {}

    def register(
        self,
        channel: ClientChannelInfo,
        data: ConsumerData,
        *,
        notify: bool = True,
        keep_subscriptions: bool = False,
    ) -> bool:
        """Record a member's heartbeat; return whether the group has a new member or changed topics.

        With ``keep_subscriptions`` the heartbeat has no subscriptions, and the known ones stay.

        Raises:
            TooMany: The limit of members or subscriptions is reached; nothing has changed.
        """
        connection, name = channel.connection, data.group_name
        group = self._groups.get(name) or ConsumerGroup(data)
        chosen, size = group.subscriptions, group.subscription_bytes
        if not keep_subscriptions:
            chosen = group.resolve_subscriptions(connection, data.subscription_data_set)
            size = subscription_bytes(chosen.values())
        bytes_before = self._groups_of[connection][name] if connection in group.clients else 0
        self._limits.reserve(
            connection,
            members=connection not in group.clients,
            client_bytes=size - bytes_before,
            group_bytes=size - group.subscription_bytes,
        )
        self._groups[name] = group
        self._groups_of[connection][name] = size
        changed = group.join(channel, data)
        if not keep_subscriptions:
            changed |= group.subscribe(connection, chosen, size)
        if changed and notify:
            self._on_members_changed(group)
        return changed

    def unregister(self, group: str, connection: Channel) -> None:
        """Remove a member from a group."""
        members = self._groups.get(group)
        if members is None or not members.leave(connection):
            return
        names = self._groups_of[connection]
        client_bytes = names.pop(group)
        if not names:
            del self._groups_of[connection]
        group_bytes = 0 if members.clients else members.subscription_bytes
        self._limits.reserve(
            connection, members=-1, client_bytes=-client_bytes, group_bytes=-group_bytes
        )
        if members.clients:
            self._on_members_changed(members)
        else:
            del self._groups[group]

    def skip_time(self, milliseconds: int) -> None:
        """Ignore a jump of the clock, so that no member counts as silent during it."""
        for group in self._groups.values():
            group.skip_time(milliseconds)

    @property
    def names(self) -> Iterable[str]:
        """The groups that have members."""
        return self._groups.keys()

    def group(self, name: str) -> ConsumerGroup | None:
        """Return a group, or None if it has no members."""
        return self._groups.get(name)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the subscription of a group's members to a topic, or None."""
        members = self._groups.get(group)
        return members.subscriptions.get(topic) if members is not None else None

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group's offset in a queue was reset, and no member has pulled since."""
        members = self._groups.get(group)
        return members is not None and (topic, queue_id) in members.resets

    def _clients_of(self, group: str) -> Mapping[Channel, ClientChannelInfo]:
        return self._groups[group].clients

    def groups_of(self, topic: str) -> frozenset[str]:
        """Return the groups whose members subscribe to a topic."""
        return frozenset(
            name for name, group in self._groups.items() if topic in group.subscriptions
        )

    def find(self, group: str, client_id: str) -> ClientChannelInfo | None:
        """Return the member with an id, or None; of two connections, the most recently active."""
        members = self._groups.get(group)
        if members is None:
            return None
        channels = [
            channel for channel in members.clients.values() if channel.client_id == client_id
        ]
        return max(channels, key=lambda channel: channel.last_heartbeat_ms, default=None)
