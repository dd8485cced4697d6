"""Operator bodies: lists of a cluster, offsets and lag, clients, users and their access lists.

A client imports this module only for operators' requests. Types, statuses, actions and decisions of
users and access lists are texts, not enums, because RocketMQ reads them without regard to case. A
response to AUTH_LIST_USER or AUTH_LIST_ACL is a JSON array, or empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rmq_spark.wire.bodies.body_codec import json_name
from rmq_spark.wire.bodies.clients import (
    BrokerData,
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from rmq_spark.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The response to GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: Mapping[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTable:
    """The response to GET_BROKER_RUNTIME_INFO, GET_KVLIST_BY_NAMESPACE: a plain table."""

    table: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentLoss:
    """A loss of the last hour, in our broker's response to GET_BROKER_RUNTIME_INFO.

    Attributes:
        kind: What was given up, such as ``delayed message``; each kind is listed once.
        is_failure: Whether messages are lost that a healthy broker would have kept.
        count: The number of losses of this kind within the hour.
        last_ms: When the last of them happened, in ms since 1970.
        text: What the last one was, and why.
    """

    kind: str = ""
    is_failure: bool = True
    count: int = 0
    last_ms: int = 0
    text: str = ""


RECENT_LOSSES: Final = tuple[RecentLoss, ...]
"""The type of ``recentLosses`` in a broker's runtime information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList:
    """A list of topics: the response to GET_ALL_TOPIC_LIST_FROM_NAMESERVER and to other requests.

    The others are GET_TOPICS_BY_CLUSTER, QUERY_TOPICS_BY_CONSUMER, the three requests for unit
    topics, GET_SYSTEM_TOPIC_LIST_FROM_BROKER and GET_SYSTEM_TOPIC_LIST_FROM_NS. Only the response
    to the last one has a ``broker_addr``.
    """

    topic_list: frozenset[str] = frozenset()
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """The response to QUERY_TOPIC_CONSUME_BY_WHO: names of consumer groups."""

    group_list: frozenset[str] = frozenset()


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
    """The progress of a group in one queue; only RocketMQ 5 sends ``pull_offset``."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int | None = None
    last_timestamp: int = 0

    @property
    def in_flight(self) -> int | None:
        """Number of messages delivered and not acknowledged; None if the broker does not say."""
        if self.pull_offset is None or self.pull_offset < 0:
            return None
        return max(self.pull_offset - self.consumer_offset, 0)


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
    """The body of RESET_CONSUMER_CLIENT_OFFSET, and INVOKE_BROKER_TO_RESET_OFFSET's response."""

    offset_table: Mapping[MessageQueue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQueueForC:
    """One queue and its offset as members of one object, as clients written in C++ read them."""

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

    It has the offsets in the memory of one member, and those of all members by client id.
    """

    message_queue_table: Mapping[MessageQueue, int] = field(default_factory=dict)
    consumer_table: Mapping[str, Mapping[MessageQueue, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCorrectionOffsetBody:
    """The response to QUERY_CORRECTION_OFFSET: offsets by queue id."""

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


class ConsumeResult(Enum):
    """The outcome for a message that a client was asked to consume."""

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
    """One of the producers that a broker knows."""

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
    """The state of one queue in the consumer that reads it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """A user: in AUTH_CREATE_USER, AUTH_UPDATE_USER and the response to AUTH_GET_USER.

    A rocketpoll broker never returns a password, so that it is None in its responses.

    Attributes:
        username: The user's name, which its client sends as the access key.
        password: The user's password, which signs requests as the secret key.
        user_type: ``Super`` or ``Normal``; None in an update leaves it as it is.
        user_status: ``enable`` or ``disable``; None in an update leaves it as it is.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        """Return a text without the password."""
        return (
            f"UserInfo(username={self.username!r}, user_type={self.user_type!r}, "
            f"user_status={self.user_status!r})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntryInfo:
    """One rule of an access list.

    Attributes:
        resource: ``Topic:name``, ``Group:prefix*``, ``Cluster:*`` or ``*``.
        actions: ``Pub``, ``Sub``, ``Create``, ``Update``, ``Delete``, ``Get``, ``List`` or ``All``.
        source_ips: Addresses and CIDR ranges that the rule applies to; all if empty or None.
        decision: ``Allow`` or ``Deny``.
    """

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    """The rules of one kind: ``Custom``, or ``Default`` where no custom rule matches."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclInfo:
    """The access list of a subject: in AUTH_CREATE_ACL and the response to AUTH_GET_ACL.

    Attributes:
        subject: ``User:name``.
        policies: The subject's rules, by kind.
    """

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] | None = None


USER_LIST: Final = tuple[UserInfo, ...]
"""The type of the response to AUTH_LIST_USER."""
ACL_LIST: Final = tuple[AclInfo, ...]
"""The type of the response to AUTH_LIST_ACL."""
