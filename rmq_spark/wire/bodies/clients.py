"""Client bodies: heartbeats, subscriptions, queue locks and routes of producers and consumers.

`operators` has the bodies by which operators see these clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rmq_spark.wire.bodies.body_codec import json_name
from rmq_spark.wire.message_queue import MessageQueue


class ConsumeType(Enum):
    """The way in which a consumer gets its messages: by pulling, by push, or by pop."""

    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1
    CONSUME_POP = 2


class MessageModel(Enum):
    """The division of a group's messages: shared among its members, or all of them to each.

    Attributes:
        BROADCASTING: Each member gets all messages, and keeps its own offsets.
        CLUSTERING: Each message goes to one of the members; brokers keep the group's offsets.
        LITE_SELECTIVE: RocketMQ 5's model of lite topics, known so that such members can be listed.
    """

    BROADCASTING = 0
    CLUSTERING = 1
    LITE_SELECTIVE = 2


class ConsumeFromWhere(Enum):
    """The start of a group in a queue for which it has no offset.

    A queue whose first message is still there and in the broker's memory is read from that message,
    whatever is chosen. The members are in Java's order, because some clients send their
    ordinals. The last three are deprecated in RocketMQ, and still sent.

    Attributes:
        CONSUME_FROM_LAST_OFFSET: At the end of the queue: only messages that come from now on.
        CONSUME_FROM_FIRST_OFFSET: At the first message that the queue still holds.
        CONSUME_FROM_TIMESTAMP: At the first message stored at the setting ``consume_timestamp_ms``
            or later.
        CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST: The same as CONSUME_FROM_LAST_OFFSET.
        CONSUME_FROM_MIN_OFFSET: The same as CONSUME_FROM_FIRST_OFFSET.
        CONSUME_FROM_MAX_OFFSET: The same as CONSUME_FROM_LAST_OFFSET.
    """

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


TAG_EXPRESSION = "TAG"
SQL92_EXPRESSION = "SQL92"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData:
    """The subscription of a group to one topic."""

    topic: str
    sub_string: str = "*"
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = TAG_EXPRESSION
    class_filter_mode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerData:
    """One consumer group of a client."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerData:
    """One producer group of a client."""

    group_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatData:
    """The body of HEART_BEAT; in 5.x the last two fields let it refer to an earlier heartbeat."""

    client_id: str = json_name("clientID")
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int | None = None
    without_sub: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckClientRequestBody:
    """The body of CHECK_CLIENT_CONFIG, which asks whether a broker can filter by an expression."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class MessageRequestMode(Enum):
    """The requests by which a consumer gets messages of a queue that is assigned to it."""

    PULL = 0
    POP = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAssignmentRequestBody:
    """The body of QUERY_ASSIGNMENT: a member asks which queues of a topic are its own."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: MessageModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQueueAssignment:
    """A queue that is assigned to a member, and how the member gets its messages."""

    message_queue: MessageQueue
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAssignmentResponseBody:
    """The response to QUERY_ASSIGNMENT."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListByGroupResponseBody:
    """The response to GET_CONSUMER_LIST_BY_GROUP: the client ids of a group's members."""

    consumer_id_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchRequestBody:
    """The body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    mq_set: frozenset[MessageQueue] = frozenset()
    only_this_broker: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchResponseBody:
    """The response to LOCK_BATCH_MQ: which of the queues the client holds now."""

    lock_ok_mq_set: frozenset[MessageQueue] = json_name("lockOKMQSet", default=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData:
    """The numbers of queues that one broker has for a topic, and the permissions for them."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerData:
    """The addresses of one broker: the master has number 0, its slaves the others."""

    cluster: str | None = None
    broker_name: str
    broker_addrs: Mapping[int, str]
    enable_acting_master: bool | None = None
    zone_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouteData:
    """The response to GET_ROUTEINFO_BY_TOPIC."""

    order_topic_conf: str | None = None
    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# ---- Labels of a client in RocketMQ 5's metrics. The version numbers in headers count the snapshot
# and the final release of each possible version from 4.0.0 on; the parts of a version end at 9:
#
#     212 V4_0_0_SNAPSHOT   213 V4_0_0   214 V4_0_1_SNAPSHOT ... 409 V4_9_8 ... 513 V5_5_0

CLIENT_LABELS: Final = ("language", "version", "protocol_type")
"""Names of the labels whose values `client_labels` returns."""

_V4_0_0_SNAPSHOT: Final = 212
_OLDER: Final = "V3"
_PROTOCOL: Final = "remoting"
_MODES: Final[Mapping[ConsumeType | None, str]] = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}


def version_desc(version: int) -> str:
    """Return RocketMQ's name for the number of a release, such as V4_9_8 for 409.

    All releases before 4.0.0, for which there is no rule, are V3.
    """
    if version < _V4_0_0_SNAPSHOT:
        return _OLDER
    releases, is_final = divmod(version - _V4_0_0_SNAPSHOT, 2)
    name = f"V{4 + releases // 100}_{releases // 10 % 10}_{releases % 10}"
    return name if is_final else f"{name}_SNAPSHOT"


def client_labels(language: str, version: int) -> tuple[str, str, str]:
    """Return the values of `CLIENT_LABELS` for a client, from its headers."""
    return language.lower(), version_desc(version).lower(), _PROTOCOL


def consume_mode(consume_type: ConsumeType | None) -> str:
    """Return the value of the label ``consume_mode``; empty if unknown."""
    return _MODES.get(consume_type, "")
