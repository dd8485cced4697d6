"""What listeners of a push consumer are called with, and what they may say.

A listener that returns nothing has succeeded; one that raises wants the messages again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from rmq_spark.client.message import MessageExt
from rmq_spark.wire.message_queue import MessageQueue


class ConsumeConcurrentlyStatus(Enum):
    """What a concurrent listener says."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class ConsumeOrderlyStatus(Enum):
    """What an orderly listener says."""

    SUCCESS = 0
    SUSPEND_CURRENT_QUEUE_A_MOMENT = 1


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """What a concurrent listener may set."""

    queue: MessageQueue
    delay_level_when_next_consume: int = 0
    """0: the broker decides, later each time; -1: to the dead letters at once; else this delay level."""

    ack_index: int | None = None
    """The last of the messages that succeeded, if not all did."""


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """What an orderly listener may set."""

    queue: MessageQueue
    suspend_current_queue_time_ms: int | None = None
    """How long the queue waits before it is tried again; None: as the consumer's settings say."""


MessageListenerConcurrently = Callable[
    [Sequence[MessageExt], ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus | None
]
MessageListenerOrderly = Callable[[Sequence[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus | None]
