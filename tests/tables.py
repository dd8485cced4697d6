"""Tables of the broker's state on a real directory."""

from __future__ import annotations

from rmq_spark.wire.bodies.configs import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rocketpoll.broker.state.tables.consumer_offset import ConsumerOffsetManager
from rocketpoll.broker.state.tables.kv_config import KVConfigs, KVConfigSerializeWrapper
from rocketpoll.broker.state.tables.subscription_group import SubscriptionGroupManager
from rocketpoll.broker.state.tables.topic_config import TopicConfigManager
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.json_table import JsonTable


def table_in(root, name, body_type):
    """A table in a directory, which is made."""
    root.mkdir(parents=True, exist_ok=True)
    return JsonTable(LocalDisk(), root / name, body_type)


def topics_in(root, clock, **settings):
    """The topics of a broker-a with eighteen delay levels."""
    usual = {
        "cluster_name": "DefaultCluster",
        "broker_name": "broker-a",
        "auto_create": True,
        "default_queue_nums": 8,
        "delay_levels": 18,
        "max_topics": 1_000,
        "max_queues": 20_000,
    }
    table = table_in(root, "topics.json", TopicConfigSerializeWrapper)
    return TopicConfigManager(table, now_ms=clock, **{**usual, **settings})


def groups_in(root, clock, *, auto_create=True, max_groups=1_000):
    """The groups of a broker."""
    table = table_in(root, "subscriptionGroup.json", SubscriptionGroupWrapper)
    return SubscriptionGroupManager(
        table, auto_create=auto_create, max_groups=max_groups, now_ms=clock
    )


def offsets_in(root, *, max_offsets=1_000):
    """The offsets of a broker."""
    table = table_in(root, "consumerOffset.json", ConsumerOffsetSerializeWrapper)
    return ConsumerOffsetManager(table, max_offsets=max_offsets)


def kv_in(root):
    """The key-value configurations of a name server."""
    return KVConfigs(table_in(root, "kvConfig.json", KVConfigSerializeWrapper))
