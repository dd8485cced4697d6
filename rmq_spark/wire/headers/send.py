"""Send headers: messages and the responses to them, transactions, messages sent back, replies."""

from typing import Annotated, NamedTuple

from rmq_spark.wire.headers.codec import BrokerName, Int32, Int64


class SendMessageRequestHeader(NamedTuple):
    """A message to store, whose body is the request's; 310, 320 and 325 have one-letter keys."""

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
    """The place of the stored message; of a batch, ids joined by commas and the first offset.

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
    """A message, by its physical offset, that a consumer failed to process; to be redelivered."""

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
