"""Pull headers: a pull's request and its response."""

from typing import NamedTuple

from rmq_spark.wire.headers.codec import BrokerName, Int32, Int64


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
