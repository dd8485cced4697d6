"""Request rights: one table of what every request needs, by its code.

A row is a function from a request to its needs. A request of a code without a row is refused. A row
without needs means that a proven identity is enough, for one of three reasons:

    lists      the answer has only what the client may list or get: the handler filters it
    lookups    the need depends on what is stored, such as a message at an offset: the handler
               asks `AccessControl.allows` when it knows
    sessions   what every client does, such as a negotiation of extensions

The rows follow RocketMQ 5's `DefaultAuthorizationContextBuilder` and the annotations of its header
classes. They differ where RocketMQ checks nothing, or checks another name than the one that is
processed: `RETRY` in a send names the group, not the producer group that the client also states;
every topic of a batch of configurations is checked; requests without a registered header need
rights on the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final, TypeAlias

from rmq_spark.wire.bodies.clients import (
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
)
from rmq_spark.wire.bodies.configs import (
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from rmq_spark.wire.bodies.pop import BatchAckMessageRequestBody
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.names import DEFAULT_TOPIC, RETRY_PREFIX, reply_topic
from rmq_spark.wire.pop import normal_topic
from rmq_spark.wire.remoting.command import RemotingCommand

from ..common.request_content import body_in_steps, body_of, header_of
from .rights import Action, Need, ResourceType, group_need, topic_need

Needs: TypeAlias = tuple[Need, ...]
NeedsOf: TypeAlias = Callable[[RemotingCommand, str], Needs]
"""Returns what a request needs; the second argument is the name of the broker's cluster."""


class BodyRow:
    """A row whose needs are in the body, which may name thousands of resources."""

    def __init__(self, body_type: type[Any], needs: Callable[[Any], Iterator[Need]]) -> None:
        self._body_type = body_type
        self._needs = needs

    def __call__(self, request: RemotingCommand, _: str) -> Needs:
        """Return the needs of a request, decoded from its body."""
        return tuple(self._needs(body_of(request, self._body_type)))

    def in_steps(self, request: RemotingCommand) -> Generator[None, None, Iterator[Need]]:
        """Return the same needs; a large body is decoded in steps."""
        body = yield from body_in_steps(request, self._body_type)
        return self._needs(body)


_PUB, _SUB, _GET = Action.PUB, Action.SUB, Action.GET
_CREATE, _UPDATE, _DELETE = Action.CREATE, Action.UPDATE, Action.DELETE


def _identity(_: RemotingCommand, __: str) -> Needs:
    return ()


def _cluster(*actions: Action) -> NeedsOf:
    def needs(_: RemotingCommand, cluster: str) -> Needs:
        return (Need(ResourceType.CLUSTER, cluster, actions),)

    return needs


def _topic(*actions: Action) -> NeedsOf:
    def needs(request: RemotingCommand, _: str) -> Needs:
        return (topic_need(header_of(request).topic, *actions),)

    return needs


def _topic_if_named(*actions: Action) -> NeedsOf:
    """Need a right on the topic of the header, if it has one; the handler checks other topics."""

    def needs(request: RemotingCommand, _: str) -> Needs:
        topic = header_of(request).topic
        return (topic_need(topic, *actions),) if topic else ()

    return needs


def _group(field: str, *actions: Action) -> NeedsOf:
    def needs(request: RemotingCommand, _: str) -> Needs:
        return (group_need(getattr(header_of(request), field), *actions),)

    return needs


def _topic_and_group(field: str, *actions: Action) -> NeedsOf:
    """Need a right on both the topic, if the header has one, and the group in this field."""

    def needs(request: RemotingCommand, _: str) -> Needs:
        header = header_of(request)
        group: str | None = getattr(header, field)
        found = [group_need(group, *actions)] if group else []
        if header.topic and not header.topic.startswith(RETRY_PREFIX):
            found.insert(0, topic_need(header.topic, *actions))
        elif header.topic:
            found.append(topic_need(header.topic, *actions))
        return tuple(dict.fromkeys(found))

    return needs


def _group_and_topic(field: str, *actions: Action) -> NeedsOf:
    """Need rights on group and topic in this order, in which RocketMQ refuses them."""
    topic_first = _topic_and_group(field, *actions)

    def needs(request: RemotingCommand, cluster: str) -> Needs:
        return topic_first(request, cluster)[::-1]

    return needs


def _pop(*actions: Action) -> NeedsOf:
    """Need a right on the group and the topic; a pop retry topic counts as its original topic."""

    def needs(request: RemotingCommand, _: str) -> Needs:
        header = header_of(request)
        topic = normal_topic(header.topic, header.consumer_group)
        return topic_need(topic, *actions), group_need(header.consumer_group, *actions)

    return needs


def _batch_ack(body: BatchAckMessageRequestBody) -> Iterator[Need]:
    for ack in body.acks:
        yield topic_need(normal_topic(ack.topic, ack.consumer_group), _SUB)
        yield group_need(ack.consumer_group, _SUB)


def _send(request: RemotingCommand, _: str) -> Needs:
    """Need Pub on the topic, or Sub on the group of a retry topic."""
    topic: str = header_of(request).topic
    return (topic_need(topic, _SUB if topic.startswith(RETRY_PREFIX) else _PUB),)


def _reply(request: RemotingCommand, cluster: str) -> Needs:
    """Need what a send needs; every consumer may send to the cluster's topic of replies.

    A reply reaches only the producer whose request it answers, by a random id.
    """
    return () if header_of(request).topic == reply_topic(cluster) else _send(request, cluster)


def _route(request: RemotingCommand, cluster: str) -> Needs:
    """Need Pub, Sub or Get; everybody may have the routes of the default and reply topics."""
    topic: str = header_of(request).topic
    if topic in (DEFAULT_TOPIC, reply_topic(cluster)):
        return ()
    if topic.startswith(RETRY_PREFIX):
        return (group_need(topic, _SUB, _GET),)
    return (topic_need(topic, _PUB, _SUB, _GET),)


def _send_back(request: RemotingCommand, _: str) -> Needs:
    """Need Sub on the group; the handler asks for the topic of the message that it finds."""
    header = header_of(request)
    found = [group_need(header.group, _SUB)]
    if header.origin_topic:
        found.append(topic_need(header.origin_topic, _SUB))
    return tuple(dict.fromkeys(found))


def _heartbeat(heartbeat: HeartbeatData) -> Iterator[Need]:
    """Need Sub on each consumer group and each topic that it subscribes to."""
    for consumer in heartbeat.consumer_data_set:
        yield group_need(consumer.group_name, _SUB)
        for subscription in consumer.subscription_data_set:
            yield topic_need(subscription.topic, _SUB)


def _unregister(request: RemotingCommand, _: str) -> Needs:
    """Need Sub on the consumer group; producer groups are not resources."""
    group = header_of(request).consumer_group
    return (group_need(group, _SUB),) if group else ()


def _lock(body: LockBatchRequestBody) -> Iterator[Need]:
    yield group_need(body.consumer_group, _SUB)
    for topic in sorted({mq.topic for mq in body.mq_set}):
        yield topic_need(topic, _SUB)


def _check_client(body: CheckClientRequestBody) -> Iterator[Need]:
    yield topic_need(body.subscription_data.topic, _SUB)
    yield group_need(body.group, _SUB)


def _assignment(body: QueryAssignmentRequestBody) -> Iterator[Need]:
    yield topic_need(body.topic, _SUB)
    yield group_need(body.consumer_group, _SUB)


def _create_topics(body: CreateTopicListRequestBody) -> Iterator[Need]:
    for config in body.topic_config_list:
        yield topic_need(config.topic_name, _CREATE)


def _create_group(config: SubscriptionGroupConfig) -> Iterator[Need]:
    yield group_need(config.group_name, _CREATE)


def _create_groups(body: SubscriptionGroupList) -> Iterator[Need]:
    for config in body.group_config_list:
        yield group_need(config.group_name, _CREATE)


def _consume_stats(request: RemotingCommand, _: str) -> Needs:
    header = header_of(request)
    named = [header.topic, *(header.topic_list or "").split(";")]
    topics = [topic_need(topic, _GET) for topic in named if topic and topic.strip()]
    return tuple(dict.fromkeys((group_need(header.consumer_group, _GET), *topics)))


def _clone_offsets(request: RemotingCommand, _: str) -> Needs:
    header = header_of(request)
    found = [group_need(header.dest_group, _UPDATE)]
    if header.topic:
        found.append(topic_need(header.topic, _UPDATE))
    return (*found, group_need(header.src_group, _GET))


def _correction_offset(request: RemotingCommand, _: str) -> Needs:
    header = header_of(request)
    groups = [header.compare_group, *(header.filter_groups or "").split(",")]
    named = [group_need(group, _GET) for group in groups if group and group.strip()]
    return tuple(dict.fromkeys((*named, topic_need(header.topic, _GET))))


_C = RequestCode
_TABLE: Mapping[RequestCode, NeedsOf] = {
    # ---- sending
    _C.SEND_MESSAGE: _send,
    _C.SEND_MESSAGE_V2: _send,
    _C.SEND_BATCH_MESSAGE: _send,
    _C.RECALL_MESSAGE: _topic(_PUB),
    _C.END_TRANSACTION: _topic_if_named(_PUB),
    _C.CONSUMER_SEND_MSG_BACK: _send_back,
    _C.SEND_REPLY_MESSAGE: _reply,
    _C.SEND_REPLY_MESSAGE_V2: _reply,
    # ---- receiving
    _C.PULL_MESSAGE: _topic_and_group("consumer_group", _SUB),
    _C.LITE_PULL_MESSAGE: _topic_and_group("consumer_group", _SUB),
    _C.POP_MESSAGE: _pop(_SUB),
    _C.ACK_MESSAGE: _pop(_SUB),
    _C.BATCH_ACK_MESSAGE: BodyRow(BatchAckMessageRequestBody, _batch_ack),
    _C.CHANGE_MESSAGE_INVISIBLETIME: _pop(_SUB),
    _C.NOTIFICATION: _pop(_SUB),
    _C.POLLING_INFO: _pop(_GET),
    _C.PEEK_MESSAGE: _pop(_SUB),
    _C.QUERY_MESSAGE: _topic(_SUB, _GET),
    _C.VIEW_MESSAGE_BY_ID: _topic_if_named(_SUB, _GET),  # lookups: the topic of the message
    _C.QUERY_CONSUME_QUEUE: _topic_and_group("consumer_group", _GET),
    _C.QUERY_CONSUMER_OFFSET: _topic_and_group("consumer_group", _SUB, _GET),
    _C.UPDATE_CONSUMER_OFFSET: _topic_and_group("consumer_group", _SUB, _UPDATE),
    _C.SEARCH_OFFSET_BY_TIMESTAMP: _topic(_SUB, _GET),
    _C.GET_MAX_OFFSET: _topic(_SUB, _GET),
    _C.GET_MIN_OFFSET: _topic(_SUB, _GET),
    _C.GET_EARLIEST_MSG_STORETIME: _topic(_SUB, _GET),
    # ---- members of groups
    _C.HEART_BEAT: BodyRow(HeartbeatData, _heartbeat),
    _C.UNREGISTER_CLIENT: _unregister,
    _C.GET_CONSUMER_LIST_BY_GROUP: _group("consumer_group", _SUB, _GET),
    _C.LOCK_BATCH_MQ: BodyRow(LockBatchRequestBody, _lock),
    _C.UNLOCK_BATCH_MQ: BodyRow(LockBatchRequestBody, _lock),
    _C.CHECK_CLIENT_CONFIG: BodyRow(CheckClientRequestBody, _check_client),
    _C.QUERY_ASSIGNMENT: BodyRow(QueryAssignmentRequestBody, _assignment),
    _C.SET_MESSAGE_REQUEST_MODE: _cluster(_UPDATE),
    # ---- operators: topics
    _C.UPDATE_AND_CREATE_TOPIC: _topic(_CREATE),
    _C.UPDATE_AND_CREATE_TOPIC_LIST: BodyRow(CreateTopicListRequestBody, _create_topics),
    _C.DELETE_TOPIC_IN_BROKER: _topic(_DELETE),
    _C.DELETE_TOPIC_IN_NAMESRV: _topic(_DELETE),
    _C.REGISTER_TOPIC_IN_NAMESRV: _topic(_CREATE),
    _C.GET_TOPIC_CONFIG: _topic(_GET),
    _C.GET_TOPIC_STATS_INFO: _topic(_GET),
    _C.QUERY_TOPIC_CONSUME_BY_WHO: _topic(_GET),
    _C.RESUME_CHECK_HALF_MESSAGE: _cluster(_UPDATE),
    # lists
    _C.GET_ALL_TOPIC_CONFIG: _identity,
    _C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _identity,
    _C.GET_TOPICS_BY_CLUSTER: _identity,
    _C.GET_SYSTEM_TOPIC_LIST_FROM_NS: _identity,
    _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _identity,
    _C.GET_UNIT_TOPIC_LIST: _identity,
    _C.GET_HAS_UNIT_SUB_TOPIC_LIST: _identity,
    _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _identity,
    # ---- operators: groups and their clients
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: BodyRow(SubscriptionGroupConfig, _create_group),
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: BodyRow(SubscriptionGroupList, _create_groups),
    _C.DELETE_SUBSCRIPTIONGROUP: _group("group_name", _DELETE),
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: _group("group", _GET),
    _C.QUERY_TOPICS_BY_CONSUMER: _group("group", _GET),
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: _group_and_topic("group", _GET),
    _C.GET_CONSUMER_CONNECTION_LIST: _group("consumer_group", _GET),
    _C.GET_PRODUCER_CONNECTION_LIST: _cluster(_GET),
    _C.GET_ALL_PRODUCER_INFO: _cluster(_GET),
    _C.GET_CONSUME_STATS: _consume_stats,
    _C.QUERY_CONSUME_TIME_SPAN: _topic_and_group("group", _GET),
    _C.QUERY_CORRECTION_OFFSET: _correction_offset,
    _C.CLONE_GROUP_OFFSET: _clone_offsets,
    _C.INVOKE_BROKER_TO_RESET_OFFSET: _group_and_topic("group", _UPDATE),
    _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _topic_and_group("group", _GET),
    _C.GET_CONSUMER_RUNNING_INFO: _group("consumer_group", _GET),
    _C.CONSUME_MESSAGE_DIRECTLY: _group_and_topic("consumer_group", _SUB),  # lookups: the topic
    # lists
    _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _identity,
    _C.GET_ALL_CONSUMER_OFFSET: _cluster(_GET),
    _C.GET_BROKER_CONSUME_STATS: _cluster(_GET),
    # ---- operators: the broker
    _C.GET_TIMER_METRICS: _cluster(_GET),
    _C.GET_ALL_DELAY_OFFSET: _cluster(_GET),
    _C.UPDATE_BROKER_CONFIG: _cluster(_UPDATE),
    _C.GET_BROKER_CONFIG: _cluster(_GET),
    _C.GET_BROKER_RUNTIME_INFO: _cluster(_GET),
    _C.VIEW_BROKER_STATS_DATA: _cluster(_GET),
    _C.CLEAN_EXPIRED_CONSUMEQUEUE: _cluster(_UPDATE),
    _C.CLEAN_UNUSED_TOPIC: _cluster(_UPDATE),
    _C.DELETE_EXPIRED_COMMITLOG: _cluster(_UPDATE),
    # ---- users and access lists
    _C.AUTH_CREATE_USER: _cluster(_UPDATE),
    _C.AUTH_UPDATE_USER: _cluster(_UPDATE),
    _C.AUTH_DELETE_USER: _cluster(_UPDATE),
    _C.AUTH_GET_USER: _cluster(_GET),
    _C.AUTH_LIST_USER: _cluster(_GET),
    _C.AUTH_CREATE_ACL: _cluster(_UPDATE),
    _C.AUTH_UPDATE_ACL: _cluster(_UPDATE),
    _C.AUTH_DELETE_ACL: _cluster(_UPDATE),
    _C.AUTH_GET_ACL: _cluster(_GET),
    _C.AUTH_LIST_ACL: _cluster(_GET),
    # ---- the name server
    _C.GET_ROUTEINFO_BY_TOPIC: _route,
    _C.GET_BROKER_CLUSTER_INFO: _identity,  # sessions: the address that the client has dialled
    _C.PUT_KV_CONFIG: _cluster(_UPDATE),
    _C.GET_KV_CONFIG: _cluster(_GET),
    _C.DELETE_KV_CONFIG: _cluster(_UPDATE),
    _C.GET_KVLIST_BY_NAMESPACE: _cluster(_GET),
    _C.REGISTER_BROKER: _cluster(_UPDATE),
    _C.UNREGISTER_BROKER: _cluster(_UPDATE),
    _C.QUERY_DATA_VERSION: _cluster(_GET),
    _C.WIPE_WRITE_PERM_OF_BROKER: _cluster(_UPDATE),
    _C.ADD_WRITE_PERM_OF_BROKER: _cluster(_UPDATE),
    _C.UPDATE_NAMESRV_CONFIG: _cluster(_UPDATE),
    _C.GET_NAMESRV_CONFIG: _cluster(_GET),
    # ---- ours
    _C.EXTENSIONS: _identity,  # sessions; READ_FILES needs Sub on every topic: lookups
    _C.PULL_CHUNK: _topic_and_group("consumer_group", _SUB),
    _C.PULL_PLACES: _topic_and_group("consumer_group", _SUB),
    _C.APPEND_CHUNK: _send,
    _C.STAGE_CHUNK: _send,
    # lookups: Pub on each topic of the batch, and the sink belongs to the user who began it
    _C.COMMIT_BATCH: _identity,
    _C.ABORT_BATCH: _identity,
    _C.LAST_BATCH: _identity,
    _C.FORGET_SINK: _cluster(_UPDATE),
    _C.ALL_SINKS: _cluster(_GET),
}
RIGHTS: Final[Mapping[int, NeedsOf]] = {int(code): needs for code, needs in _TABLE.items()}
"""The needs of each request, by its code; the functions raise WireError or RequestRejected."""

TO_CLIENTS: Final = frozenset(
    [
        _C.CHECK_TRANSACTION_STATE,
        _C.NOTIFY_CONSUMER_IDS_CHANGED,
        _C.RESET_CONSUMER_CLIENT_OFFSET,
        _C.GET_CONSUMER_STATUS_FROM_CLIENT,
        _C.PUSH_REPLY_MESSAGE_TO_CLIENT,
    ]
)
"""Requests that only brokers send: a broker that receives one refuses it, because it has no row."""
