"""Member table: the headers by request code that clients exchange with brokers and name servers.

`table` adds the requests of operators, and must not be imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import ExtensionsHeader
from rmq_spark.wire.headers import consumer_groups, pull, routes, send, staging
from rmq_spark.wire.headers.codec import HeaderCodec


class Exchange(NamedTuple):
    """The codecs of a request's and its response's header; None if there are no typed fields."""

    request: HeaderCodec[Any] | None = None
    response: HeaderCodec[Any] | None = None


_BNAME = {"broker_name": "bname"}

_send_response = HeaderCodec(send.SendMessageResponseHeader, send.SENT_KEYS)
_send_v2 = HeaderCodec(send.SendMessageRequestHeader, send.V2_KEYS)
_pull = HeaderCodec(pull.PullMessageRequestHeader, _BNAME)
_pull_response = HeaderCodec(pull.PullMessageResponseHeader)
_offset = HeaderCodec(consumer_groups.OffsetResponseHeader)
_group = HeaderCodec(consumer_groups.ConsumerGroupRequestHeader)
_extensions = HeaderCodec(ExtensionsHeader)
_batch = HeaderCodec(staging.BatchRequestHeader)

MEMBER_HEADERS: Mapping[int, Exchange] = {
    # sending
    RequestCode.SEND_MESSAGE: Exchange(
        HeaderCodec(send.SendMessageRequestHeader, send.LONG_KEYS), _send_response
    ),
    RequestCode.SEND_MESSAGE_V2: Exchange(_send_v2, _send_response),
    RequestCode.SEND_BATCH_MESSAGE: Exchange(_send_v2, _send_response),
    RequestCode.END_TRANSACTION: Exchange(HeaderCodec(send.EndTransactionRequestHeader, _BNAME)),
    RequestCode.CHECK_TRANSACTION_STATE: Exchange(
        HeaderCodec(send.CheckTransactionStateRequestHeader, _BNAME)
    ),
    RequestCode.CONSUMER_SEND_MSG_BACK: Exchange(
        HeaderCodec(send.ConsumerSendMsgBackRequestHeader, _BNAME)
    ),
    # pulling
    RequestCode.PULL_MESSAGE: Exchange(_pull, _pull_response),
    RequestCode.LITE_PULL_MESSAGE: Exchange(_pull, _pull_response),
    # offsets
    RequestCode.QUERY_CONSUMER_OFFSET: Exchange(
        HeaderCodec(consumer_groups.QueryConsumerOffsetRequestHeader, _BNAME), _offset
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: Exchange(
        HeaderCodec(consumer_groups.UpdateConsumerOffsetRequestHeader, _BNAME)
    ),
    RequestCode.GET_MAX_OFFSET: Exchange(
        HeaderCodec(consumer_groups.GetMaxOffsetRequestHeader, _BNAME), _offset
    ),
    RequestCode.GET_MIN_OFFSET: Exchange(
        HeaderCodec(consumer_groups.GetMinOffsetRequestHeader, _BNAME), _offset
    ),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Exchange(
        HeaderCodec(consumer_groups.SearchOffsetRequestHeader, _BNAME), _offset
    ),
    RequestCode.GET_EARLIEST_MSG_STORETIME: Exchange(
        HeaderCodec(consumer_groups.GetEarliestMsgStoretimeRequestHeader, _BNAME),
        HeaderCodec(consumer_groups.GetEarliestMsgStoretimeResponseHeader),
    ),
    # groups
    RequestCode.UNREGISTER_CLIENT: Exchange(
        HeaderCodec(
            consumer_groups.UnregisterClientRequestHeader, consumer_groups.UNREGISTER_CLIENT_KEYS
        )
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Exchange(_group),
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Exchange(_group),
    # routes
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Exchange(HeaderCodec(routes.GetRouteInfoRequestHeader)),
    # ours
    RequestCode.EXTENSIONS: Exchange(_extensions, _extensions),
    RequestCode.PULL_CHUNK: Exchange(_pull, _pull_response),
    RequestCode.PULL_PLACES: Exchange(_pull, _pull_response),
    RequestCode.APPEND_CHUNK: Exchange(
        HeaderCodec(send.AppendChunkRequestHeader), HeaderCodec(send.AppendChunkResponseHeader)
    ),
    RequestCode.STAGE_CHUNK: Exchange(
        HeaderCodec(staging.StageChunkRequestHeader), HeaderCodec(staging.StageChunkResponseHeader)
    ),
    RequestCode.COMMIT_BATCH: Exchange(_batch),
    RequestCode.ABORT_BATCH: Exchange(_batch),
    RequestCode.LAST_BATCH: Exchange(HeaderCodec(staging.LastBatchRequestHeader)),
    RequestCode.FORGET_SINK: Exchange(HeaderCodec(staging.ForgetSinkRequestHeader)),
}
