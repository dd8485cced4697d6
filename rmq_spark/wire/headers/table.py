"""Header table: the header codecs by request code, for all requests.

Codes that are not listed carry no ext fields that rocketpoll reads, in either direction. To add a
request: its number in `codes`, its header in a module beside this one, one line here; or one in
`member_table`, if programs that send or consume need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers import (
    access_lists,
    consumer_groups,
    namesrv,
    operators,
    send,
    topics,
)
from rmq_spark.wire.headers.member_table import MEMBER_HEADERS, Exchange, exchange_table

_TYPES: Mapping[int, tuple[Any, ...]] = {
    # replies
    RequestCode.SEND_REPLY_MESSAGE: (send.SendMessageRequestHeader, send.SendMessageResponseHeader),
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: (send.ReplyMessageRequestHeader,),
    # looking up
    RequestCode.QUERY_MESSAGE: (
        operators.QueryMessageRequestHeader,
        operators.QueryMessageResponseHeader,
    ),
    RequestCode.VIEW_MESSAGE_BY_ID: (operators.ViewMessageRequestHeader,),
    RequestCode.QUERY_CONSUME_QUEUE: (operators.QueryConsumeQueueRequestHeader,),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: (operators.ResumeCheckHalfMessageRequestHeader,),
    # offsets
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: (operators.ResetOffsetRequestHeader,),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (operators.ResetOffsetRequestHeader,),
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: (operators.GetConsumerStatusRequestHeader,),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (operators.GetConsumerStatusRequestHeader,),
    RequestCode.QUERY_CORRECTION_OFFSET: (operators.QueryCorrectionOffsetRequestHeader,),
    RequestCode.CLONE_GROUP_OFFSET: (operators.CloneGroupOffsetRequestHeader,),
    RequestCode.QUERY_CONSUME_TIME_SPAN: (operators.QueryConsumeTimeSpanRequestHeader,),
    # groups and clients
    RequestCode.GET_CONSUMER_CONNECTION_LIST: (consumer_groups.ConsumerGroupRequestHeader,),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: (operators.GetProducerConnectionListRequestHeader,),
    RequestCode.GET_CONSUMER_RUNNING_INFO: (operators.GetConsumerRunningInfoRequestHeader,),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: (operators.ConsumeMessageDirectlyResultRequestHeader,),
    RequestCode.GET_CONSUME_STATS: (operators.GetConsumeStatsRequestHeader,),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (operators.DeleteSubscriptionGroupRequestHeader,),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: (operators.GetSubscriptionGroupConfigRequestHeader,),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: (operators.GetSubscriptionGroupConfigRequestHeader,),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: (
        operators.QuerySubscriptionByConsumerRequestHeader,
    ),
    # topics and the broker
    RequestCode.UPDATE_AND_CREATE_TOPIC: (topics.CreateTopicRequestHeader,),
    RequestCode.DELETE_TOPIC_IN_BROKER: (topics.TopicRequestHeader,),
    RequestCode.GET_TOPIC_STATS_INFO: (topics.TopicRequestHeader,),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: (topics.TopicRequestHeader,),
    RequestCode.GET_TOPIC_CONFIG: (topics.TopicRequestHeader,),
    RequestCode.GET_ALL_TOPIC_CONFIG: (topics.GetAllTopicConfigRequestHeader,),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (topics.GetAllSubscriptionGroupRequestHeader,),
    RequestCode.VIEW_BROKER_STATS_DATA: (topics.ViewBrokerStatsDataRequestHeader,),
    RequestCode.GET_BROKER_CONSUME_STATS: (topics.GetConsumeStatsInBrokerHeader,),
    RequestCode.GET_BROKER_CONFIG: (None, topics.GetBrokerConfigResponseHeader),
    # users and access lists
    RequestCode.AUTH_CREATE_USER: (access_lists.UserRequestHeader,),
    RequestCode.AUTH_UPDATE_USER: (access_lists.UserRequestHeader,),
    RequestCode.AUTH_DELETE_USER: (access_lists.UserRequestHeader,),
    RequestCode.AUTH_GET_USER: (access_lists.UserRequestHeader,),
    RequestCode.AUTH_LIST_USER: (access_lists.ListUsersRequestHeader,),
    RequestCode.AUTH_CREATE_ACL: (access_lists.AclRequestHeader,),
    RequestCode.AUTH_UPDATE_ACL: (access_lists.AclRequestHeader,),
    RequestCode.AUTH_DELETE_ACL: (access_lists.DeleteAclRequestHeader,),
    RequestCode.AUTH_GET_ACL: (access_lists.AclRequestHeader,),
    RequestCode.AUTH_LIST_ACL: (access_lists.ListAclsRequestHeader,),
    # name server
    RequestCode.PUT_KV_CONFIG: (namesrv.PutKVConfigRequestHeader,),
    RequestCode.GET_KV_CONFIG: (namesrv.KVConfigRequestHeader, namesrv.GetKVConfigResponseHeader),
    RequestCode.DELETE_KV_CONFIG: (namesrv.KVConfigRequestHeader,),
    RequestCode.GET_KVLIST_BY_NAMESPACE: (namesrv.GetKVListByNamespaceRequestHeader,),
    RequestCode.REGISTER_BROKER: (
        namesrv.RegisterBrokerRequestHeader,
        namesrv.RegisterBrokerResponseHeader,
    ),
    RequestCode.UNREGISTER_BROKER: (namesrv.UnRegisterBrokerRequestHeader,),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: (
        namesrv.BrokerNameRequestHeader,
        namesrv.WipeWritePermOfBrokerResponseHeader,
    ),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: (
        namesrv.BrokerNameRequestHeader,
        namesrv.AddWritePermOfBrokerResponseHeader,
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: (namesrv.DeleteTopicFromNamesrvRequestHeader,),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: (topics.TopicRequestHeader,),
    RequestCode.GET_TOPICS_BY_CLUSTER: (namesrv.GetTopicsByClusterRequestHeader,),
    RequestCode.QUERY_DATA_VERSION: (
        topics.QueryDataVersionRequestHeader,
        topics.QueryDataVersionResponseHeader,
    ),
}

HEADERS: Mapping[int, Exchange] = {
    **MEMBER_HEADERS,
    RequestCode.SEND_REPLY_MESSAGE_V2: MEMBER_HEADERS[RequestCode.SEND_MESSAGE_V2],
    **exchange_table(_TYPES),
}
