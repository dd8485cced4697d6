"""Operator headers: looking up messages, resetting offsets, groups and their clients.

Programs that only send or consume do not import them.
"""

from typing import Annotated, NamedTuple

from rmq_spark.wire.headers.codec import Int32, Int64


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
