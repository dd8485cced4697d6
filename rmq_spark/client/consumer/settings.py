"""Settings of consumers, with RocketMQ's names, defaults and units."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING, TypeVar

from rmq_spark.client.arguments import (
    check_flag,
    check_kind,
    check_period_ms,
    check_range,
    check_time_ms,
    check_timestamp_ms,
    explain_all_keywords,
    wrong_kind,
)
from rmq_spark.client.consumer.pull.pull_task import PullLimits
from rmq_spark.client.consumer.rebalance.strategies import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueStrategy,
)
from rmq_spark.client.producer.trace_dispatcher import check_trace
from rmq_spark.client.times import EARLIEST, LATEST, Start, normalize_start
from rmq_spark.errors import excerpt
from rmq_spark.wire.bodies.clients import ConsumeFromWhere, MessageModel
from rmq_spark.wire.names import TRACE_TOPIC
from rmq_spark.wire.remoting.java_numbers import INT32_MAX

if TYPE_CHECKING:
    from pathlib import Path

_HALF_AN_HOUR_MS = 30 * 60 * 1000
PULL_BATCH_SIZE_MAX = 1024
AUTO_COMMIT_INTERVAL_MS_MIN = 1_000
SUSPEND_MS_MIN = 10
AWAIT_TERMINATION_MS_MAX = 1_500  # so that there is time left to persist offsets


_FROM_WHERE = {
    EARLIEST: ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    LATEST: ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}


def half_an_hour_ago() -> int:
    """Return the default of ``consume_timestamp_ms``: half an hour ago, in ms since the epoch."""
    return time.time_ns() // 1_000_000 - _HALF_AN_HOUR_MS


_Settings = TypeVar("_Settings", bound="ConsumerSettings")


def effective_settings(
    kind: type[_Settings], settings: _Settings | None, start: Start | None
) -> _Settings:
    """Return the given settings of a consumer, or the defaults, with its ``start`` applied.

    Raises:
        MessageRejected: The start is not one of `rmq_spark.client.times.START_FORMS`.
        TypeError: The settings are of another kind.
    """
    name = kind.__name__
    check_kind("settings", settings, (kind, NoneType), name, f"{name}(pull_batch_size=16)")
    settings = settings or kind()
    if start is None:
        return settings
    at = normalize_start("start", start)
    if isinstance(at, int):
        where = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        return replace(settings, consume_from_where=where, consume_timestamp_ms=at)
    return replace(settings, consume_from_where=_FROM_WHERE[at])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings that both kinds of consumers have.

    `LitePullSettings` and `PushSettings` document each one, because `help` shows a class's own
    docstring.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp_ms: int = field(default_factory=half_an_hour_ago)
    allocate_message_queue_strategy: AllocateMessageQueueStrategy = field(
        default_factory=AllocateMessageQueueAveragely
    )
    persist_consumer_offset_interval_ms: int = 5_000
    rebalance_interval_ms: int = 20_000
    pull_time_delay_ms_when_exception: int = 1_000
    local_offset_directory: Path | None = None
    limits: PullLimits = field(default_factory=PullLimits)
    enable_trace: bool = False
    trace_topic: str = TRACE_TOPIC

    @property
    def persist_interval_ms(self) -> int:
        """Milliseconds between two times that a consumer stores the offsets of its queues."""
        return self.persist_consumer_offset_interval_ms

    def check(self) -> None:
        """Raise MessageRejected or TypeError for an invalid setting; the error names it."""
        for name, kinds, needed, example in _TYPE_CHECKS:
            check_kind(name, getattr(self, name), kinds, needed, example)
        allocate = getattr(self.allocate_message_queue_strategy, "allocate", None)
        if not callable(allocate) or isinstance(self.allocate_message_queue_strategy, type):
            raise wrong_kind(
                "allocate_message_queue_strategy",
                "an object that allocates queues",
                excerpt(self.allocate_message_queue_strategy),
                "AllocateMessageQueueAveragely()",
            )
        check_timestamp_ms("consume_timestamp_ms", self.consume_timestamp_ms)
        self._check_periods("persist_consumer_offset_interval_ms", "rebalance_interval_ms")
        self._check_periods("pull_time_delay_ms_when_exception", minimum=0)
        check_trace(self.enable_trace, self.trace_topic)
        for name in PullLimits.__dataclass_fields__:
            check_range(name, getattr(self.limits, name))

    def _check_periods(self, *names: str, minimum: int = 1) -> None:
        for name in names:
            check_period_ms(name, getattr(self, name), minimum)


@explain_all_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullSettings(ConsumerSettings):
    """Settings of a `Consumer`: all are passed by name, and checked by the consumer.

    Names are RocketMQ's in another spelling (``pullBatchSize``), and defaults are RocketMQ's unless
    stated otherwise.

    Attributes:
        message_model: CLUSTERING, by default, shares the queues among the group; BROADCASTING gives
            each member all of them.
        consume_from_where: Where the group begins in a queue without a committed offset: at the end
            by default, CONSUME_FROM_LAST_OFFSET.
        consume_timestamp_ms: Milliseconds since the epoch at which CONSUME_FROM_TIMESTAMP begins;
            half an hour ago by default. RocketMQ's consumeTimestamp is a text, as
            ``20251127093000``.
        allocate_message_queue_strategy: Rule by which queues are allocated, the same in all members
            of a group: an object with a method ``allocate``; by default each member gets an equal
            number of consecutive queues (AllocateMessageQueueAveragely).
        persist_consumer_offset_interval_ms: Milliseconds between two times that offsets are stored;
            5,000 by default.
        rebalance_interval_ms: Milliseconds between two rebalances, besides those that a change of
            the group causes; 20,000 by default. RocketMQ has it as the property
            ``rocketmq.client.rebalance.waitInterval``.
        pull_time_delay_ms_when_exception: Milliseconds to wait after a pull that failed; 1,000 by
            default.
        local_offset_directory: Directory (a path) of the offsets in BROADCASTING;
            ``~/.rocketmq_offsets`` by default. Processes of one machine that share it resume, when
            restarted, at the offsets of the one that wrote last: give a process that must not do so
            a directory of its own.
        limits: Limits of the messages that are pulled ahead, `PullLimits()` by default.
        enable_trace: Whether deliveries are recorded in the topic of traces, in the background,
            for ``rocketpoll message``, the console and RocketMQ's tools; False by default.
        trace_topic: The topic of traces; RocketMQ's, RMQ_SYS_TRACE_TOPIC, by default.
        pull_batch_size: Most messages of one pull, up to 1,024; 10 by default. RocketMQ's brokers
            give at most 32.
        broker_suspend_max_time_ms: Milliseconds for which a broker may hold a pull that finds
            nothing; 20,000 by default.
        consumer_timeout_ms_when_suspend: Milliseconds to wait for the response to a pull; 30,000 by
            default. Must exceed ``broker_suspend_max_time_ms``.
        auto_commit: True, by default, if `poll` commits what it returned before; if False, `commit`
            has to be called.
        auto_commit_interval_ms: Milliseconds between two automatic commits, at least 1,000; 5,000
            by default. With ``auto_commit``, offsets are stored at brokers every
            ``auto_commit_interval_ms`` or ``persist_consumer_offset_interval_ms``, whichever is
            shorter.
        poll_timeout_ms: Milliseconds that `poll` waits for messages, unless it is given a time;
            5,000 by default.
        topic_metadata_check_interval_ms: Milliseconds between two checks of the queues of topics
            that have a change listener; 30,000 by default.
    """

    pull_batch_size: int = 10
    broker_suspend_max_time_ms: int = 20_000
    consumer_timeout_ms_when_suspend: int = 30_000
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    poll_timeout_ms: int = 5_000
    topic_metadata_check_interval_ms: int = 30_000

    @property
    def persist_interval_ms(self) -> int:
        """Milliseconds between two times that a consumer stores the offsets of its queues.

        One timer serves both settings: if one timer committed offsets and another stored them, a
        message could wait for the sum of both.
        """
        if not self.auto_commit:
            return self.persist_consumer_offset_interval_ms
        return min(self.auto_commit_interval_ms, self.persist_consumer_offset_interval_ms)

    def check(self) -> None:
        """Raise MessageRejected or TypeError for an invalid setting; the error names it."""
        ConsumerSettings.check(self)
        self._check_periods("auto_commit_interval_ms", minimum=AUTO_COMMIT_INTERVAL_MS_MIN)
        self._check_periods("topic_metadata_check_interval_ms")
        check_time_ms("poll_timeout_ms", self.poll_timeout_ms)
        check_flag("auto_commit", self.auto_commit)
        _check_pulls(self)


@explain_all_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings(ConsumerSettings):
    """Settings of a `PushConsumer`: all are passed by name, and checked by the consumer.

    Names are RocketMQ's in another spelling (``consumeThreadMax``), and defaults are RocketMQ's
    unless stated otherwise.

    Attributes:
        message_model: CLUSTERING, by default, shares the queues among the group; BROADCASTING gives
            each member all of them.
        consume_from_where: Where the group begins in a queue without a committed offset: at the end
            by default, CONSUME_FROM_LAST_OFFSET.
        consume_timestamp_ms: Milliseconds since the epoch at which CONSUME_FROM_TIMESTAMP begins;
            half an hour ago by default. RocketMQ's consumeTimestamp is a text, as
            ``20251127093000``.
        allocate_message_queue_strategy: Rule by which queues are allocated, the same in all members
            of a group: an object with a method ``allocate``; by default each member gets an equal
            number of consecutive queues (AllocateMessageQueueAveragely).
        persist_consumer_offset_interval_ms: Milliseconds between two times that offsets are stored;
            5,000 by default.
        rebalance_interval_ms: Milliseconds between two rebalances, besides those that a change of
            the group causes; 20,000 by default. RocketMQ has it as the property
            ``rocketmq.client.rebalance.waitInterval``.
        pull_time_delay_ms_when_exception: Milliseconds to wait after a pull that failed; 1,000 by
            default.
        local_offset_directory: Directory (a path) of the offsets in BROADCASTING;
            ``~/.rocketmq_offsets`` by default. Processes of one machine that share it resume, when
            restarted, at the offsets of the one that wrote last: give a process that must not do so
            a directory of its own.
        limits: Limits of the messages that are pulled ahead, `PullLimits()` by default.
        enable_trace: Whether deliveries are recorded in the topic of traces, in the background,
            for ``rocketpoll message``, the console and RocketMQ's tools; False by default.
        trace_topic: The topic of traces; RocketMQ's, RMQ_SYS_TRACE_TOPIC, by default.
        pull_batch_size: Most messages of one pull, up to 1,024; 32 by default. RocketMQ's brokers
            give at most 32.
        pull_interval_ms: Milliseconds between a pull that found messages and the next; 0 by
            default.
        consume_thread_max: Most threads that call the listener, up to 1,000; 20 by default.
        consume_message_batch_max_size: Most messages that the listener is called with at once, up
            to 1,024; 1 by default.
        max_reconsume_times: Times that a message is retried before it becomes a dead letter. -1,
            the default, stands for 16 with a concurrent listener, and for no limit with an orderly
            one.
        consume_timeout_ms: Milliseconds after which messages that a concurrent listener still has
            are sent back; 900,000, a quarter of an hour, by default. After `shutdown` the queue of
            an orderly listener that is still busy stays locked for as long. RocketMQ's
            consumeTimeout is in minutes.
        suspend_current_queue_time_ms: Milliseconds before an orderly listener gets failed messages
            again, 10 to 30,000; 1,000 by default.
        await_termination_ms: Milliseconds that `shutdown` waits for listeners, up to 1,500; 1,000
            by default, where RocketMQ's awaitTerminationMillisWhenShutdown is 0. In all, `shutdown`
            takes two seconds at most.
        broker_suspend_max_time_ms: Milliseconds for which a broker may hold a pull that finds
            nothing; 15,000 by default.
        consumer_timeout_ms_when_suspend: Milliseconds to wait for the response to a pull; 30,000 by
            default. Must exceed ``broker_suspend_max_time_ms``.
    """

    pull_batch_size: int = 32
    pull_interval_ms: int = 0
    consume_thread_max: int = 20
    consume_message_batch_max_size: int = 1
    max_reconsume_times: int = -1
    consume_timeout_ms: int = 15 * 60 * 1000
    suspend_current_queue_time_ms: int = 1_000
    await_termination_ms: int = 1_000
    broker_suspend_max_time_ms: int = 15_000
    consumer_timeout_ms_when_suspend: int = 30_000

    def check(self) -> None:
        """Raise MessageRejected or TypeError for an invalid setting; the error names it."""
        ConsumerSettings.check(self)
        self._check_periods("consume_timeout_ms")
        self._check_periods("pull_interval_ms", minimum=0)
        for name, minimum, maximum in _RANGES:
            check_range(name, getattr(self, name), minimum, maximum)
        _check_pulls(self)


_RANGES = (
    ("consume_thread_max", 1, 1_000),
    ("consume_message_batch_max_size", 1, 1_024),
    ("max_reconsume_times", -1, INT32_MAX),
    ("await_termination_ms", 0, AWAIT_TERMINATION_MS_MAX),
    ("suspend_current_queue_time_ms", SUSPEND_MS_MIN, 30_000),
)
"""Numbers of `PushSettings`: name, minimum and maximum."""

_TYPE_CHECKS = (
    ("message_model", MessageModel, "a MessageModel", "MessageModel.CLUSTERING"),
    (
        "consume_from_where",
        ConsumeFromWhere,
        "a ConsumeFromWhere",
        "ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET",
    ),
    ("limits", PullLimits, "PullLimits", "PullLimits(pull_threshold_for_queue=100)"),
    ("local_offset_directory", (os.PathLike, NoneType), "a path", "Path('/var/lib/shop/offsets')"),
)
"""Settings that are not numbers: name, types, what is needed in words, and an example."""


def _check_pulls(settings: LitePullSettings | PushSettings) -> None:
    suspend_ms = settings.broker_suspend_max_time_ms
    check_range("pull_batch_size", settings.pull_batch_size, 1, PULL_BATCH_SIZE_MAX)
    check_period_ms("broker_suspend_max_time_ms", suspend_ms)
    # Otherwise each pull that finds nothing would count as a broker's failure.
    timeout_ms = settings.consumer_timeout_ms_when_suspend
    check_period_ms("consumer_timeout_ms_when_suspend", timeout_ms, suspend_ms + 1)
