"""Offset headers: the offsets of groups and queues, and leaving a group."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from rmq_spark.wire.headers.codec import BrokerName, Int32, Int64


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
