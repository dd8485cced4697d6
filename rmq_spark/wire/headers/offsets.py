"""Headers of offsets: what a group has consumed, what a queue holds, and setting a group back."""

from typing import NamedTuple

from rmq_spark.wire.headers.codec import Int32, Int64


class QueryConsumerOffsetRequestHeader(NamedTuple):
    """A group's stored offset in one queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = None


class UpdateConsumerOffsetRequestHeader(NamedTuple):
    """Store a group's offset in one queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    broker_name: str | None = None


class GetMaxOffsetRequestHeader(NamedTuple):
    """The offset that the next message of a queue will get."""

    topic: str
    queue_id: Int32
    committed: bool | None = None
    broker_name: str | None = None


class GetMinOffsetRequestHeader(NamedTuple):
    """The first offset that a queue still holds."""

    topic: str
    queue_id: Int32
    broker_name: str | None = None


class SearchOffsetRequestHeader(NamedTuple):
    """The offset at a store time; ``boundary_type`` is LOWER or UPPER."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    broker_name: str | None = None


class OffsetResponseHeader(NamedTuple):
    """The one number that five requests about offsets ask for."""

    offset: Int64


class GetEarliestMsgStoretimeRequestHeader(NamedTuple):
    """The queue whose oldest message's store time is asked for."""

    topic: str
    queue_id: Int32
    broker_name: str | None = None


class GetEarliestMsgStoretimeResponseHeader(NamedTuple):
    """In milliseconds, or -1."""

    timestamp: Int64
