"""Bodies about clients: connections, the state of consumers, results of direct consumption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from rmq_spark.wire.bodies.body_codec import json_name
from rmq_spark.wire.bodies.clients import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from rmq_spark.wire.message_queue import MessageQueue


class ConsumeResult(Enum):
    """The result of a message that a client was asked to consume."""

    CR_SUCCESS = 0
    CR_LATER = 1
    CR_ROLLBACK = 2
    CR_COMMIT = 3
    CR_THROW_EXCEPTION = 4
    CR_RETURN_NULL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySubscriptionResponseBody:
    """The response to QUERY_SUBSCRIPTION_BY_CONSUMER."""

    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One client as the broker sees it."""

    client_id: str
    client_addr: str
    language: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConnection:
    """The response to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: tuple[Connection, ...] = ()
    subscription_table: Mapping[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConnection:
    """The response to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: tuple[Connection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo:
    """One producer among all of a broker's."""

    client_id: str
    remote_ip: str = json_name("remoteIP")
    language: str
    version: int
    last_update_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTableInfo:
    """The response to GET_ALL_PRODUCER_INFO, by group."""

    data: Mapping[str, tuple[ProducerInfo, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQueueInfo:
    """One queue as its consumer holds it."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mi_b: int = json_name("cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False  # spelt like this on the wire
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatus:
    """Rates of one topic in one consumer."""

    pull_rt: float = json_name("pullRT", default=0.0)
    pull_tps: float = json_name("pullTPS", default=0.0)
    consume_rt: float = json_name("consumeRT", default=0.0)
    consume_ok_tps: float = json_name("consumeOKTPS", default=0.0)
    consume_failed_tps: float = json_name("consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRunningInfo:
    """The response to GET_CONSUMER_RUNNING_INFO."""

    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: Mapping[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyResult:
    """The response to CONSUME_MESSAGE_DIRECTLY."""

    order: bool = False
    auto_commit: bool = True
    consume_result: ConsumeResult | None = None
    remark: str | None = None
    spent_time_mills: int = 0
