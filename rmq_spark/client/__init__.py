"""Client: connections, producer, consumers and administration, on blocking sockets and threads.

It needs neither Spark nor our broker, and works with RocketMQ's brokers and with rocketpoll's.
Exported names are imported on first use, so that a program pays only for what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.admin.group_offsets import LATEST_MS
    from rmq_spark.client.admin.lag import Lag
    from rmq_spark.client.admin.tables import read_committed, read_table
    from rmq_spark.client.api.broker_api import BrokerApi
    from rmq_spark.client.consumer.dispatch.listeners import (
        ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
    )
    from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
    from rmq_spark.client.consumer.pull.pull_task import PullLimits
    from rmq_spark.client.consumer.push_consumer import PushConsumer
    from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
    from rmq_spark.client.errors import ClientError
    from rmq_spark.client.health import ConsumerHealth, ProducerHealth
    from rmq_spark.client.instance.instance import ClientInstance
    from rmq_spark.client.message import Message, MessageExt
    from rmq_spark.client.producer.prepared_message import SendRules
    from rmq_spark.client.producer.producer import Producer
    from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules, RawChunk
    from rmq_spark.client.results import PullResult, PullStatus, SendResult, SendStatus
    from rmq_spark.client.serializers import Serializer, avro
    from rmq_spark.client.subscriptions import by_sql, by_tag
    from rmq_spark.client.transport.remoting_client import Credentials, RemotingClient
    from rmq_spark.client.transport.tls.settings import TlsSettings
    from rmq_spark.wire.message_queue import MessageQueue

_MODULES: Final = {
    "LATEST_MS": "rmq_spark.client.admin.group_offsets",
    "Admin": "rmq_spark.client.admin.admin",
    "BrokerApi": "rmq_spark.client.api.broker_api",
    "BulkPull": "rmq_spark.client.reading.bulk_pull",
    "ClientError": "rmq_spark.client.errors",
    "ClientInstance": "rmq_spark.client.instance.instance",
    "RemotingClient": "rmq_spark.client.transport.remoting_client",
    "ConsumeConcurrentlyContext": "rmq_spark.client.consumer.dispatch.listeners",
    "ConsumeConcurrentlyStatus": "rmq_spark.client.consumer.dispatch.listeners",
    "ConsumeOrderlyContext": "rmq_spark.client.consumer.dispatch.listeners",
    "ConsumeOrderlyStatus": "rmq_spark.client.consumer.dispatch.listeners",
    "ConsumerHealth": "rmq_spark.client.health",
    "Credentials": "rmq_spark.client.transport.remoting_client",
    "Lag": "rmq_spark.client.admin.lag",
    "LitePullConsumer": "rmq_spark.client.consumer.lite_pull_consumer",
    "LitePullSettings": "rmq_spark.client.consumer.settings",
    "Message": "rmq_spark.client.message",
    "MessageExt": "rmq_spark.client.message",
    "MessageQueue": "rmq_spark.wire.message_queue",
    "Producer": "rmq_spark.client.producer.producer",
    "ProducerHealth": "rmq_spark.client.health",
    "PullLimits": "rmq_spark.client.consumer.pull.pull_task",
    "PullResult": "rmq_spark.client.results",
    "PullRules": "rmq_spark.client.reading.bulk_pull",
    "PullStatus": "rmq_spark.client.results",
    "PushConsumer": "rmq_spark.client.consumer.push_consumer",
    "PushSettings": "rmq_spark.client.consumer.settings",
    "RawChunk": "rmq_spark.client.reading.bulk_pull",
    "SendResult": "rmq_spark.client.results",
    "SendRules": "rmq_spark.client.producer.prepared_message",
    "SendStatus": "rmq_spark.client.results",
    "Serializer": "rmq_spark.client.serializers",
    "TlsSettings": "rmq_spark.client.transport.tls.settings",
    "avro": "rmq_spark.client.serializers",
    "by_sql": "rmq_spark.client.subscriptions",
    "by_tag": "rmq_spark.client.subscriptions",
    "read_committed": "rmq_spark.client.admin.tables",
    "read_table": "rmq_spark.client.admin.tables",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
