"""The one table: request code -> the headers of the request and of its answer.

Codes that are not listed carry no ext fields that rocketpoll reads, in either direction.
To add a request: its number in `codes`, its header in a sibling of this file, one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import ExtensionsHeader
from rmq_spark.wire.headers import groups, namesrv, offsets, pull, send, topics
from rmq_spark.wire.headers.codec import HeaderCodec


class Exchange(NamedTuple):
    """What goes out and what comes back; None where there are no typed fields."""

    request: HeaderCodec[Any] | None = None
    response: HeaderCodec[Any] | None = None


_BNAME = {"broker_name": "bname"}

_send = HeaderCodec(send.SendMessageRequestHeader, send.LONG_KEYS)
_send_v2 = HeaderCodec(send.SendMessageRequestHeader, send.V2_KEYS)
_sent = HeaderCodec(send.SendMessageResponseHeader, send.SENT_KEYS)
_pull = HeaderCodec(pull.PullMessageRequestHeader, _BNAME)
_pulled = HeaderCodec(pull.PullMessageResponseHeader)
_offset = HeaderCodec(offsets.OffsetResponseHeader)
_group = HeaderCodec(groups.ConsumerGroupRequestHeader)
_topic = HeaderCodec(topics.TopicRequestHeader)
_reset = HeaderCodec(offsets.ResetOffsetRequestHeader)
_status = HeaderCodec(offsets.GetConsumerStatusRequestHeader)
_kv = HeaderCodec(namesrv.KVConfigRequestHeader)
_broker_name = HeaderCodec(namesrv.BrokerNameRequestHeader)
_group_config = HeaderCodec(groups.GetSubscriptionGroupConfigRequestHeader)
_extensions = HeaderCodec(ExtensionsHeader)

HEADERS: Mapping[int, Exchange] = {
    # sending
    RequestCode.SEND_MESSAGE: Exchange(_send, _sent),
    RequestCode.SEND_MESSAGE_V2: Exchange(_send_v2, _sent),
    RequestCode.SEND_BATCH_MESSAGE: Exchange(_send_v2, _sent),
    RequestCode.SEND_REPLY_MESSAGE: Exchange(_send, _sent),
    RequestCode.SEND_REPLY_MESSAGE_V2: Exchange(_send_v2, _sent),
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: Exchange(HeaderCodec(send.ReplyMessageRequestHeader)),
    RequestCode.END_TRANSACTION: Exchange(HeaderCodec(send.EndTransactionRequestHeader, _BNAME)),
    RequestCode.CHECK_TRANSACTION_STATE: Exchange(
        HeaderCodec(send.CheckTransactionStateRequestHeader, _BNAME)
    ),
    RequestCode.CONSUMER_SEND_MSG_BACK: Exchange(HeaderCodec(send.ConsumerSendMsgBackRequestHeader, _BNAME)),
    # pulling and looking up
    RequestCode.PULL_MESSAGE: Exchange(_pull, _pulled),
    RequestCode.LITE_PULL_MESSAGE: Exchange(_pull, _pulled),
    RequestCode.QUERY_MESSAGE: Exchange(
        HeaderCodec(pull.QueryMessageRequestHeader, pull.QUERY_MESSAGE_KEYS),
        HeaderCodec(pull.QueryMessageResponseHeader),
    ),
    RequestCode.VIEW_MESSAGE_BY_ID: Exchange(HeaderCodec(pull.ViewMessageRequestHeader)),
    RequestCode.QUERY_CONSUME_QUEUE: Exchange(
        HeaderCodec(pull.QueryConsumeQueueRequestHeader, pull.QUERY_CONSUME_QUEUE_KEYS)
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Exchange(HeaderCodec(pull.ResumeCheckHalfMessageRequestHeader)),
    # offsets
    RequestCode.QUERY_CONSUMER_OFFSET: Exchange(
        HeaderCodec(offsets.QueryConsumerOffsetRequestHeader, _BNAME), _offset
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: Exchange(
        HeaderCodec(offsets.UpdateConsumerOffsetRequestHeader, _BNAME)
    ),
    RequestCode.GET_MAX_OFFSET: Exchange(HeaderCodec(offsets.GetMaxOffsetRequestHeader, _BNAME), _offset),
    RequestCode.GET_MIN_OFFSET: Exchange(HeaderCodec(offsets.GetMinOffsetRequestHeader, _BNAME), _offset),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Exchange(
        HeaderCodec(offsets.SearchOffsetRequestHeader, _BNAME), _offset
    ),
    RequestCode.GET_EARLIEST_MSG_STORETIME: Exchange(
        HeaderCodec(offsets.GetEarliestMsgStoretimeRequestHeader, _BNAME),
        HeaderCodec(offsets.GetEarliestMsgStoretimeResponseHeader),
    ),
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: Exchange(_reset),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Exchange(_reset),
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: Exchange(_status),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Exchange(_status),
    RequestCode.QUERY_CORRECTION_OFFSET: Exchange(HeaderCodec(offsets.QueryCorrectionOffsetRequestHeader)),
    RequestCode.CLONE_GROUP_OFFSET: Exchange(HeaderCodec(offsets.CloneGroupOffsetRequestHeader)),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Exchange(HeaderCodec(offsets.QueryConsumeTimeSpanRequestHeader)),
    # groups and clients
    RequestCode.UNREGISTER_CLIENT: Exchange(
        HeaderCodec(groups.UnregisterClientRequestHeader, groups.UNREGISTER_CLIENT_KEYS)
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Exchange(_group),
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Exchange(_group),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Exchange(_group),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Exchange(
        HeaderCodec(groups.GetProducerConnectionListRequestHeader)
    ),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Exchange(HeaderCodec(groups.GetConsumerRunningInfoRequestHeader)),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Exchange(
        HeaderCodec(groups.ConsumeMessageDirectlyResultRequestHeader)
    ),
    RequestCode.GET_CONSUME_STATS: Exchange(HeaderCodec(groups.GetConsumeStatsRequestHeader)),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Exchange(HeaderCodec(groups.DeleteSubscriptionGroupRequestHeader)),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Exchange(_group_config),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Exchange(_group_config),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Exchange(
        HeaderCodec(groups.QuerySubscriptionByConsumerRequestHeader)
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
    RequestCode.VIEW_BROKER_STATS_DATA: Exchange(HeaderCodec(topics.ViewBrokerStatsDataRequestHeader)),
    RequestCode.GET_BROKER_CONSUME_STATS: Exchange(HeaderCodec(topics.GetConsumeStatsInBrokerHeader)),
    RequestCode.GET_BROKER_CONFIG: Exchange(None, HeaderCodec(topics.GetBrokerConfigResponseHeader)),
    # name server
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Exchange(HeaderCodec(namesrv.GetRouteInfoRequestHeader)),
    RequestCode.PUT_KV_CONFIG: Exchange(HeaderCodec(namesrv.PutKVConfigRequestHeader)),
    RequestCode.GET_KV_CONFIG: Exchange(_kv, HeaderCodec(namesrv.GetKVConfigResponseHeader)),
    RequestCode.DELETE_KV_CONFIG: Exchange(_kv),
    RequestCode.GET_KVLIST_BY_NAMESPACE: Exchange(HeaderCodec(namesrv.GetKVListByNamespaceRequestHeader)),
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
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Exchange(HeaderCodec(namesrv.DeleteTopicFromNamesrvRequestHeader)),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: Exchange(_topic),
    RequestCode.GET_TOPICS_BY_CLUSTER: Exchange(HeaderCodec(namesrv.GetTopicsByClusterRequestHeader)),
    RequestCode.QUERY_DATA_VERSION: Exchange(
        HeaderCodec(topics.QueryDataVersionRequestHeader),
        HeaderCodec(topics.QueryDataVersionResponseHeader),
    ),
    # ours
    RequestCode.EXTENSIONS: Exchange(_extensions, _extensions),
    RequestCode.PULL_CHUNK: Exchange(_pull, _pulled),
    RequestCode.APPEND_CHUNK: Exchange(
        HeaderCodec(send.AppendChunkRequestHeader), HeaderCodec(send.AppendChunkResponseHeader)
    ),
}
