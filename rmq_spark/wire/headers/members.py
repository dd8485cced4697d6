"""Member headers: those that producers and consumers exchange with brokers and name servers.

In order: sending, pulling, popping, offsets and groups, routes, staged batches, and the table of
the request codes. `operators` adds the requests of operators, and must not be imported here. Rows
are staged, then committed or aborted as one batch; a sink is a writer of batches with increasing
numbers, whose name the client chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import ExtensionsHeader
from rmq_spark.wire.headers.codec import BrokerName, HeaderCodec, Int32, Int64


class SendMessageRequestHeader(NamedTuple):
    """A message to store; the request's body is its body. 310, 320 and 325 use one-letter keys."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    broker_name: BrokerName = None


V2_KEYS = dict(zip(SendMessageRequestHeader._fields, "abcdefghijklmn", strict=True))


class SendMessageResponseHeader(NamedTuple):
    """The place of the stored message; for a batch, all ids with commas, and the first offset.

    Java's class does not have the last two fields: its broker adds them to each response, and its
    client reads them.
    """

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: Annotated[str | None, "MSG_REGION"] = None
    trace_on: Annotated[bool | None, "TRACE_ON"] = None


class RecallMessageRequestHeader(NamedTuple):
    """A message that waits for its timer and shall not be delivered."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: BrokerName = None


class RecallMessageResponseHeader(NamedTuple):
    """The unique id of the recalled message.

    Java's class does not have the last field: its broker adds it, and its client traces no recall
    without it.
    """

    msg_id: str
    msg_region: Annotated[str | None, "MSG_REGION"] = None


class EndTransactionRequestHeader(NamedTuple):
    """The end of a half message: commit (8), roll back (12) or leave open (0)."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: BrokerName = None


class CheckTransactionStateRequestHeader(NamedTuple):
    """A broker's request for the state of a half message; the body is its record."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: BrokerName = None


class ConsumerSendMsgBackRequestHeader(NamedTuple):
    """A message to redeliver, by its physical offset, because a consumer failed to process it."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: BrokerName = None


class ReplyMessageRequestHeader(NamedTuple):
    """A reply on its way from the broker to the producer that sent the request."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False


class AppendChunkRequestHeader(NamedTuple):
    """The queue of the records in the body; topic and queue in the records must be the same."""

    producer_group: str
    topic: str
    queue_id: Int32
    default_topic: str | None = None
    default_topic_queue_nums: Int32 = 4


class AppendChunkResponseHeader(NamedTuple):
    """The place of the stored messages, at consecutive offsets.

    Fewer messages than were sent are stored only if the disk fills up in between.
    """

    queue_id: Int32
    queue_offset: Int64
    message_count: Int32
    store_timestamp: Int64


class PullMessageRequestHeader(NamedTuple):
    """A pull from an offset of one queue; ``sys_flag`` is a `PullSysFlag`."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None  # spelt like this on the wire
    broker_name: BrokerName = None


class PullMessageResponseHeader(NamedTuple):
    """The result of a pull, and the offset to continue from.

    Java clients need the four numbers with the response codes 0, 19, 20 and 21.
    """

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class PopMessageRequestHeader(NamedTuple):
    """A pop from one queue or all of a topic; ``init_mode`` 0 starts at the first message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    broker_name: BrokerName = None


class PopMessageResponseHeader(NamedTuple):
    """The parts of the receipts of popped messages; `pop` draws the three lists."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(NamedTuple):
    """A popped message that a consumer has processed, with its receipt."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None
    broker_name: BrokerName = None


class ChangeInvisibleTimeRequestHeader(NamedTuple):
    """A popped message, and the time from now after which it becomes visible again."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool = False
    broker_name: BrokerName = None


class ChangeInvisibleTimeResponseHeader(NamedTuple):
    """The parts of a message's receipt that have changed."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class NotificationRequestHeader(NamedTuple):
    """A request that is held until there are messages to pop, and pops none."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None
    broker_name: BrokerName = None


class NotificationResponseHeader(NamedTuple):
    """The response: there are messages to pop, or not, or too many requests wait for them."""

    has_msg: bool
    polling_full: bool = False


class UnregisterClientRequestHeader(NamedTuple):
    """The groups that a client leaves: a producer group, a consumer group, or both."""

    client_id: Annotated[str, "clientID"]
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupRequestHeader(NamedTuple):
    """The header of requests that name a group and nothing else."""

    consumer_group: str


class QueryConsumerOffsetRequestHeader(NamedTuple):
    """The group and queue whose committed offset is requested."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    broker_name: BrokerName = None


class UpdateConsumerOffsetRequestHeader(NamedTuple):
    """An offset of a group in one queue, to be stored."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    broker_name: BrokerName = None


class GetMaxOffsetRequestHeader(NamedTuple):
    """The queue whose next message's offset is requested."""

    topic: str
    queue_id: Int32
    committed: bool | None = None
    broker_name: BrokerName = None


class GetMinOffsetRequestHeader(NamedTuple):
    """The queue whose first offset is requested."""

    topic: str
    queue_id: Int32
    broker_name: BrokerName = None


class SearchOffsetRequestHeader(NamedTuple):
    """A queue and a store time whose offset is requested; ``boundary_type`` is LOWER or UPPER."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    broker_name: BrokerName = None


class OffsetResponseHeader(NamedTuple):
    """The one number that five requests for offsets return."""

    offset: Int64


class GetEarliestMsgStoretimeRequestHeader(NamedTuple):
    """The queue whose oldest message's store time is requested."""

    topic: str
    queue_id: Int32
    broker_name: BrokerName = None


class GetEarliestMsgStoretimeResponseHeader(NamedTuple):
    """The store time in milliseconds, or -1."""

    timestamp: Int64


class GetRouteInfoRequestHeader(NamedTuple):
    """The topic whose brokers and queues are requested."""

    topic: str
    accept_standard_json_only: bool | None = None


class StageChunkRequestHeader(NamedTuple):
    """The place of a chunk among those of its attempt, and the queue of the records in the body."""

    sink: str
    batch_id: Int64
    owner: str
    attempt: str
    number: Int32
    topic: str
    queue_id: Int32
    default_topic: str | None = None
    default_topic_queue_nums: Int32 = 4


class StageChunkResponseHeader(NamedTuple):
    """The response to a chunk; the broker ignores chunks of a batch that is committed already."""

    is_committed: bool


class BatchRequestHeader(NamedTuple):
    """The batch to be committed or aborted; the owner is the query that writes it."""

    sink: str
    batch_id: Int64
    owner: str


class LastBatchRequestHeader(NamedTuple):
    """The sink whose last committed batch is requested."""

    sink: str


class ForgetSinkRequestHeader(NamedTuple):
    """The sink whose last batch and staged rows are deleted."""

    sink: str


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


_PULL = (PullMessageRequestHeader, PullMessageResponseHeader)
_SEND_V2 = Exchange(
    HeaderCodec(SendMessageRequestHeader, V2_KEYS),
    _codec_of(SendMessageResponseHeader),
)
_OFFSET = OffsetResponseHeader

_TYPES: Mapping[int, tuple[Any, ...]] = {
    # sending
    RequestCode.SEND_MESSAGE: (SendMessageRequestHeader, SendMessageResponseHeader),
    RequestCode.RECALL_MESSAGE: (RecallMessageRequestHeader, RecallMessageResponseHeader),
    RequestCode.END_TRANSACTION: (EndTransactionRequestHeader,),
    RequestCode.CHECK_TRANSACTION_STATE: (CheckTransactionStateRequestHeader,),
    RequestCode.CONSUMER_SEND_MSG_BACK: (ConsumerSendMsgBackRequestHeader,),
    # pulling
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    # popping
    RequestCode.POP_MESSAGE: (PopMessageRequestHeader, PopMessageResponseHeader),
    RequestCode.ACK_MESSAGE: (AckMessageRequestHeader,),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: (
        ChangeInvisibleTimeRequestHeader,
        ChangeInvisibleTimeResponseHeader,
    ),
    RequestCode.NOTIFICATION: (NotificationRequestHeader, NotificationResponseHeader),
    # offsets
    RequestCode.QUERY_CONSUMER_OFFSET: (QueryConsumerOffsetRequestHeader, _OFFSET),
    RequestCode.UPDATE_CONSUMER_OFFSET: (UpdateConsumerOffsetRequestHeader,),
    RequestCode.GET_MAX_OFFSET: (GetMaxOffsetRequestHeader, _OFFSET),
    RequestCode.GET_MIN_OFFSET: (GetMinOffsetRequestHeader, _OFFSET),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (SearchOffsetRequestHeader, _OFFSET),
    RequestCode.GET_EARLIEST_MSG_STORETIME: (
        GetEarliestMsgStoretimeRequestHeader,
        GetEarliestMsgStoretimeResponseHeader,
    ),
    # groups
    RequestCode.UNREGISTER_CLIENT: (UnregisterClientRequestHeader,),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (ConsumerGroupRequestHeader,),
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: (ConsumerGroupRequestHeader,),
    # routes
    RequestCode.GET_ROUTEINFO_BY_TOPIC: (GetRouteInfoRequestHeader,),
    # ours
    RequestCode.EXTENSIONS: (ExtensionsHeader, ExtensionsHeader),
    RequestCode.PULL_CHUNK: _PULL,
    RequestCode.PULL_PLACES: _PULL,
    RequestCode.APPEND_CHUNK: (AppendChunkRequestHeader, AppendChunkResponseHeader),
    RequestCode.STAGE_CHUNK: (StageChunkRequestHeader, StageChunkResponseHeader),
    RequestCode.COMMIT_BATCH: (BatchRequestHeader,),
    RequestCode.ABORT_BATCH: (BatchRequestHeader,),
    RequestCode.LAST_BATCH: (LastBatchRequestHeader,),
    RequestCode.FORGET_SINK: (ForgetSinkRequestHeader,),
}

MEMBER_HEADERS: Mapping[int, Exchange] = {
    RequestCode.SEND_MESSAGE_V2: _SEND_V2,
    RequestCode.SEND_BATCH_MESSAGE: _SEND_V2,
    **exchange_table(_TYPES),
}
