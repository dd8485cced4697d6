"""rocketpoll: the public names for programs, notebooks and tests: producers, consumers, a broker.

    from rocketpoll import EmbeddedBroker, Message, Producer

    with EmbeddedBroker() as broker, Producer("shop", broker.address) as producer:
        producer.send(Message("orders", b'{"id": 1, "total": 9.5}', tags="created"))

Each name is imported on first use, so that ``import rocketpoll`` costs next to nothing and a
program pays only for what it uses. ``rocketpoll.broker`` is the broker,
``rocketpoll.pytest_plugin`` the pytest plugin, ``rocketpoll.errors`` has the exceptions. The client
is implemented in `rmq_spark.client`; this module only maps names to the modules that define them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rmq_spark import __version__
    from rmq_spark.client import (
        LATEST_MS,
        Admin,
        ClientError,
        ClientInstance,
        ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
        ConsumerHealth,
        Credentials,
        Lag,
        LitePullConsumer,
        LitePullSettings,
        Message,
        MessageExt,
        MessageQueue,
        Producer,
        ProducerHealth,
        PullLimits,
        PushConsumer,
        PushSettings,
        SendResult,
        SendRules,
        SendStatus,
        Serializer,
        TlsSettings,
        avro,
        by_sql,
        by_tag,
        read_committed,
        read_table,
    )
    from rmq_spark.errors import RocketPollError
    from rmq_spark.wire.bodies.clients import ConsumeFromWhere, MessageModel
    from rocketpoll.broker.embedded import EmbeddedBroker, EmbeddedBrokerError, NotInTime
    from rocketpoll.broker.stream_testing import StreamTestError, stream_test
    from rocketpoll.broker.testing import collect_stream, stream_rows, wait_until

_CLIENT: Final = "rmq_spark.client"
_EMBEDDED: Final = "rocketpoll.broker.embedded"
_STREAM_TESTING: Final = "rocketpoll.broker.stream_testing"
_TESTING: Final = "rocketpoll.broker.testing"
_MODULES: Final = {
    "LATEST_MS": _CLIENT,
    "Admin": _CLIENT,
    "ClientError": _CLIENT,
    "ClientInstance": _CLIENT,
    "ConsumeConcurrentlyContext": _CLIENT,
    "ConsumeConcurrentlyStatus": _CLIENT,
    "ConsumeFromWhere": "rmq_spark.wire.bodies.clients",
    "ConsumeOrderlyContext": _CLIENT,
    "ConsumeOrderlyStatus": _CLIENT,
    "ConsumerHealth": _CLIENT,
    "Credentials": _CLIENT,
    "EmbeddedBroker": _EMBEDDED,
    "EmbeddedBrokerError": _EMBEDDED,
    "Lag": _CLIENT,
    "LitePullConsumer": _CLIENT,
    "LitePullSettings": _CLIENT,
    "Message": _CLIENT,
    "MessageExt": _CLIENT,
    "MessageModel": "rmq_spark.wire.bodies.clients",
    "MessageQueue": _CLIENT,
    "NotInTime": _EMBEDDED,
    "Producer": _CLIENT,
    "ProducerHealth": _CLIENT,
    "PullLimits": _CLIENT,
    "PushConsumer": _CLIENT,
    "PushSettings": _CLIENT,
    "RocketPollError": "rmq_spark.errors",
    "SendResult": _CLIENT,
    "SendRules": _CLIENT,
    "SendStatus": _CLIENT,
    "StreamTestError": _STREAM_TESTING,
    "Serializer": _CLIENT,
    "TlsSettings": _CLIENT,
    "__version__": "rmq_spark",
    "avro": _CLIENT,
    "by_sql": _CLIENT,
    "by_tag": _CLIENT,
    "collect_stream": _TESTING,
    "read_committed": _CLIENT,
    "read_table": _CLIENT,
    "stream_rows": _TESTING,
    "stream_test": _STREAM_TESTING,
    "wait_until": _TESTING,
}

__all__ = [
    "LATEST_MS",
    "Admin",
    "ClientError",
    "ClientInstance",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumerHealth",
    "Credentials",
    "EmbeddedBroker",
    "EmbeddedBrokerError",
    "Lag",
    "LitePullConsumer",
    "LitePullSettings",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "NotInTime",
    "Producer",
    "ProducerHealth",
    "PullLimits",
    "PushConsumer",
    "PushSettings",
    "RocketPollError",
    "SendResult",
    "SendRules",
    "SendStatus",
    "Serializer",
    "StreamTestError",
    "TlsSettings",
    "__version__",
    "avro",
    "by_sql",
    "by_tag",
    "collect_stream",
    "read_committed",
    "read_table",
    "stream_rows",
    "stream_test",
    "wait_until",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
