"""Member table: the headers by request code that clients exchange with brokers and name servers.

`table` adds the requests of operators, and must not be imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import ExtensionsHeader
from rmq_spark.wire.headers import consumer_groups as groups
from rmq_spark.wire.headers import pull, routes, send, staging
from rmq_spark.wire.headers.codec import HeaderCodec


class Exchange(NamedTuple):
    """The codecs of a request's and its response's header; None if there are no typed fields."""

    request: HeaderCodec[Any] | None = None
    response: HeaderCodec[Any] | None = None


@cache
def _codec_of(header_type: Any) -> HeaderCodec[Any]:
    return HeaderCodec(header_type)


def exchange_table(headers: Mapping[int, tuple[Any, ...]]) -> dict[int, Exchange]:
    """Return the exchanges by code, given the header of each request, and of its response."""
    return {
        code: Exchange(*(None if kind is None else _codec_of(kind) for kind in kinds))
        for code, kinds in headers.items()
    }


_PULL = (pull.PullMessageRequestHeader, pull.PullMessageResponseHeader)
_SEND_V2 = Exchange(
    HeaderCodec(send.SendMessageRequestHeader, send.V2_KEYS),
    _codec_of(send.SendMessageResponseHeader),
)
_OFFSET = groups.OffsetResponseHeader

_TYPES: Mapping[int, tuple[Any, ...]] = {
    # sending
    RequestCode.SEND_MESSAGE: (send.SendMessageRequestHeader, send.SendMessageResponseHeader),
    RequestCode.END_TRANSACTION: (send.EndTransactionRequestHeader,),
    RequestCode.CHECK_TRANSACTION_STATE: (send.CheckTransactionStateRequestHeader,),
    RequestCode.CONSUMER_SEND_MSG_BACK: (send.ConsumerSendMsgBackRequestHeader,),
    # pulling
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    # offsets
    RequestCode.QUERY_CONSUMER_OFFSET: (groups.QueryConsumerOffsetRequestHeader, _OFFSET),
    RequestCode.UPDATE_CONSUMER_OFFSET: (groups.UpdateConsumerOffsetRequestHeader,),
    RequestCode.GET_MAX_OFFSET: (groups.GetMaxOffsetRequestHeader, _OFFSET),
    RequestCode.GET_MIN_OFFSET: (groups.GetMinOffsetRequestHeader, _OFFSET),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (groups.SearchOffsetRequestHeader, _OFFSET),
    RequestCode.GET_EARLIEST_MSG_STORETIME: (
        groups.GetEarliestMsgStoretimeRequestHeader,
        groups.GetEarliestMsgStoretimeResponseHeader,
    ),
    # groups
    RequestCode.UNREGISTER_CLIENT: (groups.UnregisterClientRequestHeader,),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (groups.ConsumerGroupRequestHeader,),
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: (groups.ConsumerGroupRequestHeader,),
    # routes
    RequestCode.GET_ROUTEINFO_BY_TOPIC: (routes.GetRouteInfoRequestHeader,),
    # ours
    RequestCode.EXTENSIONS: (ExtensionsHeader, ExtensionsHeader),
    RequestCode.PULL_CHUNK: _PULL,
    RequestCode.PULL_PLACES: _PULL,
    RequestCode.APPEND_CHUNK: (send.AppendChunkRequestHeader, send.AppendChunkResponseHeader),
    RequestCode.STAGE_CHUNK: (staging.StageChunkRequestHeader, staging.StageChunkResponseHeader),
    RequestCode.COMMIT_BATCH: (staging.BatchRequestHeader,),
    RequestCode.ABORT_BATCH: (staging.BatchRequestHeader,),
    RequestCode.LAST_BATCH: (staging.LastBatchRequestHeader,),
    RequestCode.FORGET_SINK: (staging.ForgetSinkRequestHeader,),
}

MEMBER_HEADERS: Mapping[int, Exchange] = {
    RequestCode.SEND_MESSAGE_V2: _SEND_V2,
    RequestCode.SEND_BATCH_MESSAGE: _SEND_V2,
    **exchange_table(_TYPES),
}
