"""Header table: the header codecs by request code, for all requests.

Codes that are not listed carry no ext fields that rocketpoll reads, in either direction. To add a
request: its number in `codes`, its header in a module beside this one, one line here; or one in
`member_table`, if programs that send or consume need it.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers import namesrv, operators, send, topics
from rmq_spark.wire.headers.codec import HeaderCodec
from rmq_spark.wire.headers.member_table import MEMBER_HEADERS, Exchange

_topic = HeaderCodec(topics.TopicRequestHeader)
_reset = HeaderCodec(operators.ResetOffsetRequestHeader)
_status = HeaderCodec(operators.GetConsumerStatusRequestHeader)
_kv = HeaderCodec(namesrv.KVConfigRequestHeader)
_broker_name = HeaderCodec(namesrv.BrokerNameRequestHeader)
_group_config = HeaderCodec(operators.GetSubscriptionGroupConfigRequestHeader)

HEADERS: Mapping[int, Exchange] = {
    **MEMBER_HEADERS,
    # replies
    RequestCode.SEND_REPLY_MESSAGE: MEMBER_HEADERS[RequestCode.SEND_MESSAGE],
    RequestCode.SEND_REPLY_MESSAGE_V2: MEMBER_HEADERS[RequestCode.SEND_MESSAGE_V2],
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: Exchange(HeaderCodec(send.ReplyMessageRequestHeader)),
    # looking up
    RequestCode.QUERY_MESSAGE: Exchange(
        HeaderCodec(operators.QueryMessageRequestHeader, operators.QUERY_MESSAGE_KEYS),
        HeaderCodec(operators.QueryMessageResponseHeader),
    ),
    RequestCode.VIEW_MESSAGE_BY_ID: Exchange(HeaderCodec(operators.ViewMessageRequestHeader)),
    RequestCode.QUERY_CONSUME_QUEUE: Exchange(
        HeaderCodec(operators.QueryConsumeQueueRequestHeader, operators.QUERY_CONSUME_QUEUE_KEYS)
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Exchange(
        HeaderCodec(operators.ResumeCheckHalfMessageRequestHeader)
    ),
    # offsets
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: Exchange(_reset),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Exchange(_reset),
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: Exchange(_status),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Exchange(_status),
    RequestCode.QUERY_CORRECTION_OFFSET: Exchange(
        HeaderCodec(operators.QueryCorrectionOffsetRequestHeader)
    ),
    RequestCode.CLONE_GROUP_OFFSET: Exchange(HeaderCodec(operators.CloneGroupOffsetRequestHeader)),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Exchange(
        HeaderCodec(operators.QueryConsumeTimeSpanRequestHeader)
    ),
    # groups and clients
    RequestCode.GET_CONSUMER_CONNECTION_LIST: MEMBER_HEADERS[
        RequestCode.GET_CONSUMER_LIST_BY_GROUP
    ],
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Exchange(
        HeaderCodec(operators.GetProducerConnectionListRequestHeader)
    ),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Exchange(
        HeaderCodec(operators.GetConsumerRunningInfoRequestHeader)
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Exchange(
        HeaderCodec(operators.ConsumeMessageDirectlyResultRequestHeader)
    ),
    RequestCode.GET_CONSUME_STATS: Exchange(HeaderCodec(operators.GetConsumeStatsRequestHeader)),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Exchange(
        HeaderCodec(operators.DeleteSubscriptionGroupRequestHeader)
    ),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Exchange(_group_config),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Exchange(_group_config),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Exchange(
        HeaderCodec(operators.QuerySubscriptionByConsumerRequestHeader)
    ),
    # topics and the broker
    RequestCode.UPDATE_AND_CREATE_TOPIC: Exchange(HeaderCodec(topics.CreateTopicRequestHeader)),
    RequestCode.DELETE_TOPIC_IN_BROKER: Exchange(_topic),
    RequestCode.GET_TOPIC_STATS_INFO: Exchange(_topic),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Exchange(_topic),
    RequestCode.GET_TOPIC_CONFIG: Exchange(_topic),
    RequestCode.GET_ALL_TOPIC_CONFIG: Exchange(HeaderCodec(topics.GetAllTopicConfigRequestHeader)),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Exchange(
        HeaderCodec(topics.GetAllSubscriptionGroupRequestHeader)
    ),
    RequestCode.VIEW_BROKER_STATS_DATA: Exchange(
        HeaderCodec(topics.ViewBrokerStatsDataRequestHeader)
    ),
    RequestCode.GET_BROKER_CONSUME_STATS: Exchange(
        HeaderCodec(topics.GetConsumeStatsInBrokerHeader)
    ),
    RequestCode.GET_BROKER_CONFIG: Exchange(
        None, HeaderCodec(topics.GetBrokerConfigResponseHeader)
    ),
    # name server
    RequestCode.PUT_KV_CONFIG: Exchange(HeaderCodec(namesrv.PutKVConfigRequestHeader)),
    RequestCode.GET_KV_CONFIG: Exchange(_kv, HeaderCodec(namesrv.GetKVConfigResponseHeader)),
    RequestCode.DELETE_KV_CONFIG: Exchange(_kv),
    RequestCode.GET_KVLIST_BY_NAMESPACE: Exchange(
        HeaderCodec(namesrv.GetKVListByNamespaceRequestHeader)
    ),
    RequestCode.REGISTER_BROKER: Exchange(
        HeaderCodec(namesrv.RegisterBrokerRequestHeader),
        HeaderCodec(namesrv.RegisterBrokerResponseHeader),
    ),
    RequestCode.UNREGISTER_BROKER: Exchange(HeaderCodec(namesrv.UnRegisterBrokerRequestHeader)),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: Exchange(
        _broker_name, HeaderCodec(namesrv.WipeWritePermOfBrokerResponseHeader)
    ),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: Exchange(
        _broker_name, HeaderCodec(namesrv.AddWritePermOfBrokerResponseHeader)
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Exchange(
        HeaderCodec(namesrv.DeleteTopicFromNamesrvRequestHeader)
    ),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: Exchange(_topic),
    RequestCode.GET_TOPICS_BY_CLUSTER: Exchange(
        HeaderCodec(namesrv.GetTopicsByClusterRequestHeader)
    ),
    RequestCode.QUERY_DATA_VERSION: Exchange(
        HeaderCodec(topics.QueryDataVersionRequestHeader),
        HeaderCodec(topics.QueryDataVersionResponseHeader),
    ),
}
