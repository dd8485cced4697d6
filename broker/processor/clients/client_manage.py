"""ClientManageProcessor: registers clients by their heartbeats, and unregisters them.

A heartbeat creates the configuration and the retry topic of each of its groups, and registers the
client as a producer and consumer. When the members or topics of a group have changed, its members
are notified to rebalance, including the new one, because a lite consumer waits for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from rmq_spark.wire.bodies.clients import (
    TAG_EXPRESSION,
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import (
    ConsumerGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel, ResponseSteps
from ...filter.subscription import TAGS_CHARACTERS_MAX, TAGS_MAX, tag_count
from ...state.members.client_channel_info import ClientChannelInfo, client_fault
from ...state.members.consumers import ConsumerGroup
from ...state.tables.subscription_group import SubscriptionGroupManager, group_fault
from ...state.tables.table import TooMany
from ...state.tables.topic_config import retry_topic, topic_fault
from ..processor import BrokerParts, Processor, handles
from ..request import (
    RequestRejected,
    body_in_steps,
    header_of,
    one_way_command,
    success_response,
    system_error,
)

SUBSCRIPTION_CHARACTERS_MAX: Final = TAGS_CHARACTERS_MAX
"""The maximum length of all texts of a subscription, which stays as long as its client."""


class NotifyConsumerIdsChanged:
    """Notifies all members of a group to rebalance, unless the group disables that.

    One client can change hundreds of groups with thousands of members. So members are notified in
    steps, and a group that changes again before its turn is notified once.
    """

    def __init__(
        self, groups: SubscriptionGroupManager, run_steps: Callable[[Iterator[None]], None]
    ) -> None:
        """Store the groups; ``run_steps`` runs a generator of steps over one or several turns."""
        self._groups = groups
        self._run_steps = run_steps
        self._changed_groups: dict[ConsumerGroup, None] = {}
        self._is_notifying = False

    def __call__(self, group: ConsumerGroup) -> None:
        """Send NOTIFY_CONSUMER_IDS_CHANGED to each member, now or soon."""
        config = self._groups.get(group.name)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        self._changed_groups[group] = None
        if not self._is_notifying:
            self._is_notifying = True
            self._run_steps(self._notify())

    def _notify(self) -> Iterator[None]:
        try:
            while self._changed_groups:
                group = next(iter(self._changed_groups))
                del self._changed_groups[group]
                header = ConsumerGroupRequestHeader(group.name)
                frame = one_way_command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header).encode()
                for connection in tuple(group.clients):
                    connection.send_frame(frame)
                    yield
        finally:
            self._is_notifying = False


class ClientManageProcessor(Processor):
    """The responses to heartbeats, and to clients that leave."""

    def __init__(
        self, broker: BrokerParts, check_expression: Callable[[SubscriptionData], None]
    ) -> None:
        """Prepare; ``check_expression`` raises RequestRejected for an invalid filter expression."""
        super().__init__(broker)
        self._check_expression = check_expression

    @handles(RequestCode.HEART_BEAT)
    def heart_beat(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Register a client's groups; if one is refused, the others are still registered."""
        heartbeat = yield from body_in_steps(request, HeartbeatData)
        for fault in _faults_of(heartbeat):
            yield None
            if fault is not None:
                raise system_error(fault)
        self._check_number_of_groups(connection, heartbeat)
        channel = ClientChannelInfo(
            connection,
            heartbeat.client_id,
            request.language.name,
            request.version,
            self._broker.monotonic_ms(),
        )
        unknown: list[str] = []
        too_many: TooMany | None = None
        for producer in heartbeat.producer_data_set:
            yield None
            try:
                self._broker.producers.register(producer.group_name, channel)
            except TooMany as error:  # the other groups are still registered
                too_many = error
        for data in heartbeat.consumer_data_set:
            yield None
            try:
                if not self._register(
                    channel, data, keep_subscriptions=bool(heartbeat.without_sub)
                ):
                    unknown.append(data.group_name)
            except TooMany as error:
                too_many = error
        if unknown:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{', '.join(unknown)}] does not exist: create it, or "
                "set autoCreateSubscriptionGroup=true",
            )
        if too_many is not None:
            raise too_many
        return success_response(request)

    def _check_number_of_groups(self, connection: Channel, heartbeat: HeartbeatData) -> None:
        """Refuse a client with too many groups, including those of earlier heartbeats."""
        consumers = {data.group_name for data in heartbeat.consumer_data_set}
        producers = {data.group_name for data in heartbeat.producer_data_set}
        consumers |= self._broker.consumers.groups_with(connection)
        producers |= self._broker.producers.groups_with(connection)
        limit = self._broker.config.max_groups_per_connection
        if len(consumers) + len(producers) > limit:
            raise system_error(
                f"the client would be in {len(consumers) + len(producers)} groups; the "
                f"limit is {limit} (maxGroupsPerConnection)"
            )

    def _register(
        self, channel: ClientChannelInfo, data: ConsumerData, *, keep_subscriptions: bool
    ) -> bool:
        """Make a client a member of a group; return whether the group exists."""
        config = self._broker.groups.find_or_create(data.group_name)
        if config is None:
            return False
        topic = retry_topic(data.group_name)
        if topic not in self._broker.topics.deleting:  # otherwise a later heartbeat creates it
            self._broker.topics.create_in_send_back(topic, config.retry_queue_nums)
        is_new = data.group_name not in self._broker.consumers.groups_with(channel.connection)
        self._broker.consumers.register(channel, data, keep_subscriptions=keep_subscriptions)
        if is_new:
            self._broker.locks.mark_member(channel.connection, data.group_name)
        return True

    @handles(RequestCode.UNREGISTER_CLIENT)
    def unregister_client(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Remove a client from a producer group, a consumer group, or both, if it is in them."""
        header: UnregisterClientRequestHeader = header_of(request)
        if header.producer_group:
            self._broker.producers.unregister(header.producer_group, connection)
        if header.consumer_group:
            self._broker.consumers.unregister(header.consumer_group, connection)
            yield from self._broker.hold_service.release_pops(connection, header.consumer_group)
        return success_response(request)

    @handles(RequestCode.CHECK_CLIENT_CONFIG)
    def check_client_config(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer success if this broker supports a consumer's filter; otherwise refuse."""
        body = yield from body_in_steps(request, CheckClientRequestBody)
        if body.subscription_data.expression_type != TAG_EXPRESSION:
            self._check_expression(body.subscription_data)
        return success_response(request)

    def connection_closed(self, connection: Channel) -> Iterator[None]:
        """Remove a disconnected client from its groups, in steps."""
        yield from self._broker.producers.connection_closed(connection)
        yield from self._broker.consumers.connection_closed(connection)

    def expire(self, now_ms: int) -> Iterator[None]:
        """Close the connections of clients that have been silent for too long, in steps."""
        heartbeat_before_ms = now_ms - self._broker.config.client_expired_timeout_ms
        for members in (self._broker.producers, self._broker.consumers):
            for silent in members.expire(heartbeat_before_ms):
                if silent is not None:
                    silent.close(
                        f"no heartbeat for {self._broker.config.client_expired_timeout_ms} ms"
                    )
                yield


def _faults_of(heartbeat: HeartbeatData) -> Iterator[str | None]:
    """Yield for each name in a heartbeat why it is invalid, or None."""
    yield client_fault(heartbeat.client_id)
    for producer in heartbeat.producer_data_set:
        yield group_fault(producer.group_name)
    for consumer in heartbeat.consumer_data_set:
        yield group_fault(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            yield topic_fault(subscription.topic) or _fault_of_size(subscription)


def _fault_of_size(subscription: SubscriptionData) -> str | None:
    """Return why a subscription is too large, or None; its tags may be as long as its text."""
    texts = (subscription.sub_string, subscription.expression_type or "", *subscription.tags_set)
    characters = max(sum(map(len, texts)) // 2, len(subscription.code_set))
    if characters > SUBSCRIPTION_CHARACTERS_MAX:
        return (
            f"the subscription to {subscription.topic} is over {SUBSCRIPTION_CHARACTERS_MAX} "
            "characters"
        )
    if subscription.expression_type != TAG_EXPRESSION:
        return None
    tags = max(len(subscription.tags_set), tag_count(subscription.sub_string))
    if tags > TAGS_MAX:
        return f"the subscription to {subscription.topic} has {tags} tags, over {TAGS_MAX}"
    return None
