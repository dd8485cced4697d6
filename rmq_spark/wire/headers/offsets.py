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
    """When the oldest message of a queue was stored."""

    topic: str
    queue_id: Int32
    broker_name: str | None = None


class GetEarliestMsgStoretimeResponseHeader(NamedTuple):
    """In milliseconds, or -1."""

    timestamp: Int64


class ResetOffsetRequestHeader(NamedTuple):
    """Move a group to a time; the broker asks its members to do so, or does it itself (5.x)."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class GetConsumerStatusRequestHeader(NamedTuple):
    """The offsets that the members of a group hold in memory."""

    topic: str
    group: str
    client_addr: str | None = None


class QueryCorrectionOffsetRequestHeader(NamedTuple):
    """The smallest offsets among several groups."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class CloneGroupOffsetRequestHeader(NamedTuple):
    """Copy one group's offsets to another."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryConsumeTimeSpanRequestHeader(NamedTuple):
    """How old the messages are that a group has yet to consume."""

    topic: str
    group: str
