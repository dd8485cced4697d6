"""Bodies with offsets and lag: of topics, of groups, of single queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.wire.bodies.clients import SubscriptionData
from rmq_spark.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffset:
    """The first and the next offset of one queue, and when its last message was stored."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatsTable:
    """The response to GET_TOPIC_STATS_INFO."""

    offset_table: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWrapper:
    """The progress of a group in one queue; ``pull_offset`` is RocketMQ 5's."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int | None = None
    last_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStats:
    """The response to GET_CONSUME_STATS."""

    offset_table: Mapping[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatsList:
    """The response to GET_BROKER_CONSUME_STATS, by group."""

    consume_stats_list: tuple[Mapping[str, tuple[ConsumeStats, ...]], ...] = ()
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetBody:
    """The body of RESET_CONSUMER_CLIENT_OFFSET, the response to INVOKE_BROKER_TO_RESET_OFFSET."""

    offset_table: Mapping[MessageQueue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQueueForC:
    """One queue and its offset, flat."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetBodyForC:
    """The body of RESET_CONSUMER_CLIENT_OFFSET in the form that clients written in C++ read."""

    offset_table: tuple[MessageQueueForC, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatusBody:
    """The response to GET_CONSUMER_STATUS_FROM_CLIENT and INVOKE_BROKER_TO_GET_CONSUMER_STATUS.

    It has the offsets in the members' memory: of one member, and of all by client id.
    """

    message_queue_table: Mapping[MessageQueue, int] = field(default_factory=dict)
    consumer_table: Mapping[str, Mapping[MessageQueue, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCorrectionOffsetBody:
    """The response to QUERY_CORRECTION_OFFSET, by queue."""

    correction_offsets: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTimeSpan:
    """The store times of a queue's messages, and of those that a group has consumed from it."""

    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeTimeSpanBody:
    """The response to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatsItem:
    """One counter over one time window."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatsData:
    """The response to VIEW_BROKER_STATS_DATA."""

    stats_minute: BrokerStatsItem = BrokerStatsItem()
    stats_hour: BrokerStatsItem = BrokerStatsItem()
    stats_day: BrokerStatsItem = BrokerStatsItem()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeQueueData:
    """One entry of a consume queue, for operators."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueueResponseBody:
    """The response to QUERY_CONSUME_QUEUE."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: tuple[ConsumeQueueData, ...] = ()
    max_queue_index: int = 0
    min_queue_index: int = 0
