"""State tables of a broker in a real directory, and members registered as by heartbeats."""

from support.brokers.connections import FakeConnection

from rmq_spark.wire.bodies.clients import ConsumerData, SubscriptionData
from rmq_spark.wire.bodies.configs import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rmq_spark.wire.bodies.pop import ConsumerOrderInfoWrapper, MessageRequestModeWrapper
from rmq_spark.wire.codes import LanguageCode
from rocketpoll.broker.state.members.client_channel_info import ClientChannelInfo, MembershipLimits
from rocketpoll.broker.state.tables.consumer_offset import ConsumerOffsetManager
from rocketpoll.broker.state.tables.consumer_order_info import ConsumerOrderInfoManager
from rocketpoll.broker.state.tables.kv_config import KVConfigs, KVConfigSerializeWrapper
from rocketpoll.broker.state.tables.message_request_mode import MessageRequestModes
from rocketpoll.broker.state.tables.subscription_group import SubscriptionGroupManager
from rocketpoll.broker.state.tables.topic_config import SystemTopics, TopicConfigManager
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.json_table import JsonTable


def table_in(root, name, body_type):
    """Create a directory and return a table in it."""
    root.mkdir(parents=True, exist_ok=True)
    return JsonTable(LocalDisk(), root / name, body_type)


def modes_in(root):
    """Return the message request modes of groups."""
    table = table_in(root, "messageRequestMode.json", MessageRequestModeWrapper)
    return MessageRequestModes(table)


def topic_settings(**settings):
    """Return the arguments for the topics of broker-a, with eighteen delay levels."""
    usual = {
        "cluster_name": "DefaultCluster",
        "broker_name": "broker-a",
        "default_queue_nums": 8,
        "delay_levels": 18,
        "revive_queues": 8,
    }
    system = SystemTopics(*(settings.pop(name, value) for name, value in usual.items()))
    limits = {"auto_create": True, "max_topics": 1_000, "max_queues": 20_000}
    return {"system": system, **limits, **settings}


def topics_in(root, clock, **settings):
    """Return the topics of broker-a."""
    table = table_in(root, "topics.json", TopicConfigSerializeWrapper)
    recent = table_in(root, "recentTopics.json", TopicConfigSerializeWrapper)
    return TopicConfigManager(table, recent, now_ms=clock, **topic_settings(**settings))


def groups_in(root, clock, *, auto_create=True, max_groups=1_000):
    table = table_in(root, "subscriptionGroup.json", SubscriptionGroupWrapper)
    return SubscriptionGroupManager(
        table, auto_create=auto_create, max_groups=max_groups, now_ms=clock
    )


def offsets_in(root, *, max_offsets=1_000):
    table = table_in(root, "consumerOffset.json", ConsumerOffsetSerializeWrapper)
    return ConsumerOffsetManager(table, max_offsets=max_offsets)


def order_info_in(root, clock, topics, groups):
    """Return the table of orderly pops."""
    return ConsumerOrderInfoManager(
        table_in(root, "consumerOrderInfo.json", ConsumerOrderInfoWrapper),
        now_ms=clock,
        queue_nums=topics.read_queue_nums,
        has_group=groups.groups.__contains__,
    )


def kv_in(root):
    """Return the key-value configurations of a name server."""
    return KVConfigs(table_in(root, "kvConfig.json", KVConfigSerializeWrapper))


def room(members_max=10_000, subscription_bytes_max=1 << 30):
    """Return the limits of members and their subscriptions."""
    return MembershipLimits(members_max=members_max, subscription_bytes_max=subscription_bytes_max)


def join(consumers, group, client_id, *topics, version=409, language=LanguageCode.JAVA, now_ms=0):
    """Register a member; return its connection."""
    connection = FakeConnection(client_id, version=version, language=language)
    channel = ClientChannelInfo(connection, client_id, language.name, version, now_ms)
    subscriptions = tuple(SubscriptionData(topic=topic, sub_version=1) for topic in topics)
    consumers.register(channel, ConsumerData(group_name=group, subscription_data_set=subscriptions))
    return connection


def produce(producers, group, client_id, now_ms=0):
    """Register a producer; return its connection."""
    connection = FakeConnection(client_id)
    producers.register(group, ClientChannelInfo(connection, client_id, "JAVA", 409, now_ms))
    return connection


def expelled(members, heartbeat_before_ms):
    """Expire members with an older heartbeat; return them."""
    return [
        connection for connection in members.expire(heartbeat_before_ms) if connection is not None
    ]
