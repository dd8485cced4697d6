"""Members of groups, entered as their heartbeats would enter them."""

from __future__ import annotations

from broker_connections import FakeConnection

from rmq_spark.wire.bodies.clients import ConsumerData, SubscriptionData
from rmq_spark.wire.codes import LanguageCode
from rocketpoll.broker.state.members.client_channel_info import ClientChannelInfo
from rocketpoll.broker.state.members.membership_limits import MembershipLimits


def room(members_max=10_000, subscription_bytes_max=1 << 30):
    """Room for members and what they subscribe to."""
    return MembershipLimits(members_max=members_max, subscription_bytes_max=subscription_bytes_max)


def join(consumers, group, client_id, *topics, version=409, language=LanguageCode.JAVA, now_ms=0):
    """The connection of a new member."""
    connection = FakeConnection(client_id, version=version, language=language)
    channel = ClientChannelInfo(connection, client_id, language.name, version, now_ms)
    subscriptions = tuple(SubscriptionData(topic=topic, sub_version=1) for topic in topics)
    consumers.register(channel, ConsumerData(group_name=group, subscription_data_set=subscriptions))
    return connection


def produce(producers, group, client_id, now_ms=0):
    """The connection of a new producer."""
    connection = FakeConnection(client_id)
    producers.register(group, ClientChannelInfo(connection, client_id, "JAVA", 409, now_ms))
    return connection


def expelled(members, heartbeat_before_ms):
    """Who has not been heard of since then, and is out of all groups of a kind now."""
    return [
        connection for connection in members.expire(heartbeat_before_ms) if connection is not None
    ]
