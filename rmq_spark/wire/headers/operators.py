"""Operator headers, and the table of the header codecs by request code, for all requests.

Programs that only send or consume do not import them. Codes that are not listed carry no ext fields
that rocketpoll reads, in either direction. To add a request: its number in `codes`, its header here
and a line in the table below; or both in `members`, if programs that send or consume need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.codec import Int32, Int64
from rmq_spark.wire.headers.members import (
    MEMBER_HEADERS,
    ConsumerGroupRequestHeader,
    Exchange,
    PopMessageResponseHeader,
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    exchange_table,
)


class QueryMessageRequestHeader(NamedTuple):
    """A search for messages by key, within a time span."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: Annotated[bool | None, "_UNIQUE_KEY_QUERY"] = None
    index_type: str | None = None
    last_key: str | None = None


class QueryMessageResponseHeader(NamedTuple):
    """The progress of the index; the body has the records found."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageRequestHeader(NamedTuple):
    """The commit log offset of the requested message."""

    offset: Int64
    topic: str | None = None


class QueryConsumeQueueRequestHeader(NamedTuple):
    """The entries of a consume queue that are requested."""

    topic: str | None = None
    queue_id: Int32 = 0
    from_index: Annotated[Int64, "index"] = 0
    entry_count: Annotated[Int32, "count"] = 0
    consumer_group: str | None = None


class PeekMessageRequestHeader(NamedTuple):
    """The next messages of a group in a queue, which stay visible to its members."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class PollingInfoRequestHeader(NamedTuple):
    """The queue whose waiting pops are counted."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(NamedTuple):
    """The number of pops of a group that wait for messages."""

    polling_num: Int32


class ResumeCheckHalfMessageRequestHeader(NamedTuple):
    """A half message whose checks ran out, to be checked again."""

    msg_id: str | None = None
    topic: str | None = None


class ResetOffsetRequestHeader(NamedTuple):
    """A group to reset to a time; its members do it, or the broker itself (5.x)."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class GetConsumerStatusRequestHeader(NamedTuple):
    """The group whose members' offsets in memory are requested."""

    topic: str
    group: str
    client_addr: str | None = None


class QueryCorrectionOffsetRequestHeader(NamedTuple):
    """The groups among which the smallest offsets are requested."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class CloneGroupOffsetRequestHeader(NamedTuple):
    """The groups from which, and to which, offsets are copied."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryConsumeTimeSpanRequestHeader(NamedTuple):
    """The topic and group whose unconsumed messages' ages are requested."""

    topic: str
    group: str


class GetProducerConnectionListRequestHeader(NamedTuple):
    """The group whose producers are requested."""

    producer_group: str


class GetConsumerRunningInfoRequestHeader(NamedTuple):
    """The consumer whose state is requested; the broker relays the request to it."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(NamedTuple):
    """A consumer, and the message that it is to process immediately and report on."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class GetConsumeStatsRequestHeader(NamedTuple):
    """The group whose lag is requested, in all its topics, one, or (5.x) several."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class DeleteSubscriptionGroupRequestHeader(NamedTuple):
    """A group to delete, and whether to delete its offsets: 4.9 and 5.x use different fields."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


class GetSubscriptionGroupConfigRequestHeader(NamedTuple):
    """The group whose configuration is requested."""

    group: str


class QuerySubscriptionByConsumerRequestHeader(NamedTuple):
    """The group and topic whose subscription is requested."""

    group: str
    topic: str


class CreateTopicRequestHeader(NamedTuple):
    """A topic to create or to change."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class TopicRequestHeader(NamedTuple):
    """The header of requests that name a topic and nothing else."""

    topic: str


class ViewBrokerStatsDataRequestHeader(NamedTuple):
    """The counter of the broker's statistics that is requested."""

    stats_name: str
    stats_key: str


class GetConsumeStatsInBrokerHeader(NamedTuple):
    """A request for the lag of every group."""

    is_order: bool


class GetAllTopicConfigRequestHeader(NamedTuple):
    """A request for all topics; 5.5 may ask for them in pages."""

    topic_seq: Int32 | None = None
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class GetAllSubscriptionGroupRequestHeader(NamedTuple):
    """A request for all consumer groups; 5.5 may ask for them in pages."""

    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


class GetBrokerConfigResponseHeader(NamedTuple):
    """The data version of the configuration that the body lists."""

    version: str


class QueryDataVersionRequestHeader(NamedTuple):
    """A broker that asks whether its topics are known; the body is its data version."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(NamedTuple):
    """The header of the response that says whether the topics have changed."""

    changed: bool


class PutKVConfigRequestHeader(NamedTuple):
    """A value to set in a namespace."""

    namespace: str
    key: str
    value: str


class KVConfigRequestHeader(NamedTuple):
    """A value to get or to delete in a namespace."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(NamedTuple):
    """The value, if there is one."""

    value: str | None = None


class GetKVListByNamespaceRequestHeader(NamedTuple):
    """The namespace whose values are requested."""

    namespace: str


class RegisterBrokerRequestHeader(NamedTuple):
    """The broker that registers; the body lists its topics."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None


class RegisterBrokerResponseHeader(NamedTuple):
    """The addresses at which a slave finds its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(NamedTuple):
    """The broker that unregisters from a name server."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class BrokerNameRequestHeader(NamedTuple):
    """The broker whose topics lose, or regain, the write permission."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(NamedTuple):
    """The number of topics that lost the permission."""

    wipe_topic_count: Int32


class AddWritePermOfBrokerResponseHeader(NamedTuple):
    """The number of topics that regained the permission."""

    add_topic_count: Int32


class GetTopicsByClusterRequestHeader(NamedTuple):
    """The cluster whose topics are requested."""

    cluster: str


class DeleteTopicFromNamesrvRequestHeader(NamedTuple):
    """The topic to remove from the routes."""

    topic: str
    cluster_name: str | None = None


class UserRequestHeader(NamedTuple):
    """The user to create, change, delete or return."""

    username: str | None = None


class ListUsersRequestHeader(NamedTuple):
    """A text that the names of the requested users contain; None for all users."""

    filter: str | None = None


class AclRequestHeader(NamedTuple):
    """The subject, ``User:name``, whose access list is created, changed or returned."""

    subject: str | None = None


class DeleteAclRequestHeader(NamedTuple):
    """A rule to delete from a subject's access list; without a resource, the whole list."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequestHeader(NamedTuple):
    """Texts that the subjects and resources of the requested rules contain; None for all."""

    subject_filter: str | None = None
    resource_filter: str | None = None


_TYPES: Mapping[int, tuple[Any, ...]] = {
    # replies
    RequestCode.SEND_REPLY_MESSAGE: (SendMessageRequestHeader, SendMessageResponseHeader),
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: (ReplyMessageRequestHeader,),
    # looking up
    RequestCode.QUERY_MESSAGE: (
        QueryMessageRequestHeader,
        QueryMessageResponseHeader,
    ),
    RequestCode.VIEW_MESSAGE_BY_ID: (ViewMessageRequestHeader,),
    RequestCode.PEEK_MESSAGE: (PeekMessageRequestHeader, PopMessageResponseHeader),
    RequestCode.POLLING_INFO: (PollingInfoRequestHeader, PollingInfoResponseHeader),
    RequestCode.QUERY_CONSUME_QUEUE: (QueryConsumeQueueRequestHeader,),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: (ResumeCheckHalfMessageRequestHeader,),
    # offsets
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: (ResetOffsetRequestHeader,),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (ResetOffsetRequestHeader,),
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: (GetConsumerStatusRequestHeader,),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (GetConsumerStatusRequestHeader,),
    RequestCode.QUERY_CORRECTION_OFFSET: (QueryCorrectionOffsetRequestHeader,),
    RequestCode.CLONE_GROUP_OFFSET: (CloneGroupOffsetRequestHeader,),
    RequestCode.QUERY_CONSUME_TIME_SPAN: (QueryConsumeTimeSpanRequestHeader,),
    # groups and clients
    RequestCode.GET_CONSUMER_CONNECTION_LIST: (ConsumerGroupRequestHeader,),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: (GetProducerConnectionListRequestHeader,),
    RequestCode.GET_CONSUMER_RUNNING_INFO: (GetConsumerRunningInfoRequestHeader,),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: (ConsumeMessageDirectlyResultRequestHeader,),
    RequestCode.GET_CONSUME_STATS: (GetConsumeStatsRequestHeader,),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (DeleteSubscriptionGroupRequestHeader,),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: (GetSubscriptionGroupConfigRequestHeader,),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: (GetSubscriptionGroupConfigRequestHeader,),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: (QuerySubscriptionByConsumerRequestHeader,),
    # topics and the broker
    RequestCode.UPDATE_AND_CREATE_TOPIC: (CreateTopicRequestHeader,),
    RequestCode.DELETE_TOPIC_IN_BROKER: (TopicRequestHeader,),
    RequestCode.GET_TOPIC_STATS_INFO: (TopicRequestHeader,),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: (TopicRequestHeader,),
    RequestCode.GET_TOPIC_CONFIG: (TopicRequestHeader,),
    RequestCode.GET_ALL_TOPIC_CONFIG: (GetAllTopicConfigRequestHeader,),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (GetAllSubscriptionGroupRequestHeader,),
    RequestCode.VIEW_BROKER_STATS_DATA: (ViewBrokerStatsDataRequestHeader,),
    RequestCode.GET_BROKER_CONSUME_STATS: (GetConsumeStatsInBrokerHeader,),
    RequestCode.GET_BROKER_CONFIG: (None, GetBrokerConfigResponseHeader),
    # users and access lists
    RequestCode.AUTH_CREATE_USER: (UserRequestHeader,),
    RequestCode.AUTH_UPDATE_USER: (UserRequestHeader,),
    RequestCode.AUTH_DELETE_USER: (UserRequestHeader,),
    RequestCode.AUTH_GET_USER: (UserRequestHeader,),
    RequestCode.AUTH_LIST_USER: (ListUsersRequestHeader,),
    RequestCode.AUTH_CREATE_ACL: (AclRequestHeader,),
    RequestCode.AUTH_UPDATE_ACL: (AclRequestHeader,),
    RequestCode.AUTH_DELETE_ACL: (DeleteAclRequestHeader,),
    RequestCode.AUTH_GET_ACL: (AclRequestHeader,),
    RequestCode.AUTH_LIST_ACL: (ListAclsRequestHeader,),
    # name server
    RequestCode.PUT_KV_CONFIG: (PutKVConfigRequestHeader,),
    RequestCode.GET_KV_CONFIG: (KVConfigRequestHeader, GetKVConfigResponseHeader),
    RequestCode.DELETE_KV_CONFIG: (KVConfigRequestHeader,),
    RequestCode.GET_KVLIST_BY_NAMESPACE: (GetKVListByNamespaceRequestHeader,),
    RequestCode.REGISTER_BROKER: (
        RegisterBrokerRequestHeader,
        RegisterBrokerResponseHeader,
    ),
    RequestCode.UNREGISTER_BROKER: (UnRegisterBrokerRequestHeader,),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: (
        BrokerNameRequestHeader,
        WipeWritePermOfBrokerResponseHeader,
    ),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: (
        BrokerNameRequestHeader,
        AddWritePermOfBrokerResponseHeader,
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: (DeleteTopicFromNamesrvRequestHeader,),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: (TopicRequestHeader,),
    RequestCode.GET_TOPICS_BY_CLUSTER: (GetTopicsByClusterRequestHeader,),
    RequestCode.QUERY_DATA_VERSION: (
        QueryDataVersionRequestHeader,
        QueryDataVersionResponseHeader,
    ),
}

HEADERS: Mapping[int, Exchange] = {
    **MEMBER_HEADERS,
    RequestCode.SEND_REPLY_MESSAGE_V2: MEMBER_HEADERS[RequestCode.SEND_MESSAGE_V2],
    **exchange_table(_TYPES),
}
