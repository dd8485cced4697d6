"""Consumers: those that are asked for messages (lite pull) and those that call a listener (push).

Names are imported when they are first used, so that a program pays only for what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmq_spark.client.consumer.listeners import (
        ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
    )
    from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
    from rmq_spark.client.consumer.pull_task import PullLimits
    from rmq_spark.client.consumer.push_consumer import PushConsumer
    from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
    from rmq_spark.client.consumer.subscriptions import by_sql, by_tag

__all__ = [
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "LitePullConsumer",
    "LitePullSettings",
    "PullLimits",
    "PushConsumer",
    "PushSettings",
    "by_sql",
    "by_tag",
]

_MODULES = {
    "ConsumeConcurrentlyContext": "listeners",
    "ConsumeConcurrentlyStatus": "listeners",
    "ConsumeOrderlyContext": "listeners",
    "ConsumeOrderlyStatus": "listeners",
    "LitePullConsumer": "lite_pull_consumer",
    "LitePullSettings": "settings",
    "PullLimits": "pull_task",
    "PushConsumer": "push_consumer",
    "PushSettings": "settings",
    "by_sql": "subscriptions",
    "by_tag": "subscriptions",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{module}"), name)
