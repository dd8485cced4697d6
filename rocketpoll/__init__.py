"""rocketpoll: the public names for programs, notebooks and tests: producers, consumers, a broker.

    from rocketpoll import EmbeddedBroker, Message, Producer

    with EmbeddedBroker() as broker, Producer("shop", broker.address) as producer:
        producer.send(Message("orders", b'{"id": 1, "total": 9.5}', tags="created"))

Each name is imported on first use, so that ``import rocketpoll`` costs next to nothing and a
program pays only for what it uses. ``rocketpoll.broker`` is the broker,
``rocketpoll.pytest_plugin`` the pytest plugin, ``rocketpoll.errors`` has the exceptions. The client
is implemented in `rmq_spark.client`; this module maps names to the modules that define them.

It also sets ``PYSPARK_PYTHON`` to this Python if that is not set, because the ``python3`` that
Spark would start for its workers often has no rocketpoll.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rmq_spark import __version__
    from rmq_spark.client.admin.access_lists import AclPolicy, ClusterUser
    from rmq_spark.client.admin.admin import Admin, read_committed, read_table
    from rmq_spark.client.admin.group_offsets import LATEST_MS
    from rmq_spark.client.admin.lag import GroupState, Lag
    from rmq_spark.client.consumer.dispatch.listeners import (
        ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
    )
    from rmq_spark.client.consumer.lite_pull_consumer import Consumer, LitePullConsumer
    from rmq_spark.client.consumer.pull.pull_task import PullLimits
    from rmq_spark.client.consumer.push_consumer import PushConsumer
    from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
    from rmq_spark.client.consumer.simple_consumer import SimpleConsumer
    from rmq_spark.client.errors import ClientError
    from rmq_spark.client.instance.instance import ClientInstance
    from rmq_spark.client.message import Message, MessageExt
    from rmq_spark.client.producer.prepared_message import SendRules
    from rmq_spark.client.producer.producer import Producer
    from rmq_spark.client.producer.transaction_producer import (
        TransactionProducer,
        TransactionResult,
        TransactionState,
    )
    from rmq_spark.client.results import ConsumerHealth, ProducerHealth, SendResult, SendStatus
    from rmq_spark.client.schema_registry import SchemaRegistry
    from rmq_spark.client.serializers import Serializer, avro, protobuf
    from rmq_spark.client.subscriptions import by_sql, by_tag
    from rmq_spark.client.transport.remoting_client import Credentials
    from rmq_spark.client.transport.tls.settings import TlsSettings
    from rmq_spark.errors import RocketPollError
    from rmq_spark.wire.bodies.clients import ConsumeFromWhere, MessageModel
    from rmq_spark.wire.message_queue import MessageQueue
    from rmq_spark.wire.trace import MessageTrace, TraceType
    from rocketpoll.broker.embedded import (
        ConfigError,
        EmbeddedBroker,
        EmbeddedBrokerError,
        NotInTime,
    )
    from rocketpoll.broker.stream_testing import StreamTestError, stream_test
    from rocketpoll.broker.testing import collect_stream, stream_rows, wait_until

_WORKER_PYTHON: Final = "PYSPARK_PYTHON"
# spark-submit sets PYSPARK_GATEWAY_PORT for its programs, and has chosen a Python for them
_HAS_SET_WORKER_PYTHON: Final = bool(sys.executable) and os.environ.keys().isdisjoint(
    (_WORKER_PYTHON, "PYSPARK_GATEWAY_PORT")
)
if _HAS_SET_WORKER_PYTHON:
    os.environ[_WORKER_PYTHON] = sys.executable

_NAMES: Final = {
    "rmq_spark": "__version__",
    "rmq_spark.client.admin.access_lists": "AclPolicy ClusterUser",
    "rmq_spark.client.admin.admin": "Admin read_committed read_table",
    "rmq_spark.client.admin.group_offsets": "LATEST_MS",
    "rmq_spark.client.admin.lag": "GroupState Lag",
    "rmq_spark.client.consumer.dispatch.listeners": (
        "ConsumeConcurrentlyContext ConsumeConcurrentlyStatus ConsumeOrderlyContext "
        "ConsumeOrderlyStatus"
    ),
    "rmq_spark.client.consumer.lite_pull_consumer": "Consumer LitePullConsumer",
    "rmq_spark.client.consumer.pull.pull_task": "PullLimits",
    "rmq_spark.client.consumer.push_consumer": "PushConsumer",
    "rmq_spark.client.consumer.settings": "LitePullSettings PushSettings",
    "rmq_spark.client.consumer.simple_consumer": "SimpleConsumer",
    "rmq_spark.client.errors": "ClientError",
    "rmq_spark.client.instance.instance": "ClientInstance",
    "rmq_spark.client.message": "Message MessageExt",
    "rmq_spark.client.producer.prepared_message": "SendRules",
    "rmq_spark.client.producer.producer": "Producer",
    "rmq_spark.client.producer.transaction_producer": (
        "TransactionProducer TransactionResult TransactionState"
    ),
    "rmq_spark.client.results": "ConsumerHealth ProducerHealth SendResult SendStatus",
    "rmq_spark.client.schema_registry": "SchemaRegistry",
    "rmq_spark.client.serializers": "Serializer avro protobuf",
    "rmq_spark.client.subscriptions": "by_sql by_tag",
    "rmq_spark.client.transport.remoting_client": "Credentials",
    "rmq_spark.client.transport.tls.settings": "TlsSettings",
    "rmq_spark.errors": "RocketPollError",
    "rmq_spark.wire.bodies.clients": "ConsumeFromWhere MessageModel",
    "rmq_spark.wire.message_queue": "MessageQueue",
    "rmq_spark.wire.trace": "MessageTrace TraceType",
    "rocketpoll.broker.embedded": "ConfigError EmbeddedBroker EmbeddedBrokerError NotInTime",
    "rocketpoll.broker.stream_testing": "StreamTestError stream_test",
    "rocketpoll.broker.testing": "collect_stream stream_rows wait_until",
}
"""The names that each module defines."""

_SUBMODULES: Final = frozenset({"aio", "errors", "spark"})
"""Modules that a program may use as attributes without importing them, as in an ``except``."""

_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "LATEST_MS",
    "AclPolicy",
    "Admin",
    "ClientError",
    "ClientInstance",
    "ClusterUser",
    "ConfigError",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "Consumer",
    "ConsumerHealth",
    "Credentials",
    "EmbeddedBroker",
    "EmbeddedBrokerError",
    "GroupState",
    "Lag",
    "LitePullConsumer",
    "LitePullSettings",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "MessageTrace",
    "NotInTime",
    "Producer",
    "ProducerHealth",
    "PullLimits",
    "PushConsumer",
    "PushSettings",
    "RocketPollError",
    "SchemaRegistry",
    "SendResult",
    "SendRules",
    "SendStatus",
    "Serializer",
    "SimpleConsumer",
    "StreamTestError",
    "TlsSettings",
    "TraceType",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "__version__",
    "avro",
    "by_sql",
    "by_tag",
    "collect_stream",
    "protobuf",
    "read_committed",
    "read_table",
    "stream_rows",
    "stream_test",
    "wait_until",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def restore_worker_python() -> None:
    """Unset PYSPARK_PYTHON if the import has set it: `doctor` examines the user's own choice."""
    if _HAS_SET_WORKER_PYTHON:
        os.environ.pop(_WORKER_PYTHON, None)


def __dir__() -> list[str]:
    return sorted(__all__)
