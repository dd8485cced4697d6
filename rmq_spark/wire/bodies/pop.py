"""Pop bodies: check points and acknowledgements as the revive topic stores them, and requests.

In the revive topic and in files, members have RocketMQ 5's names of one to three letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.wire.bodies.body_codec import json_name
from rmq_spark.wire.bodies.clients import MessageRequestMode


@dataclass(frozen=True, slots=True, kw_only=True)
class PopCheckPoint:
    """A check point: the messages of one queue that one pop has made invisible.

    The body of a message with the tag ``ck`` in the revive topic.

    Attributes:
        diffs: The offsets of the messages, each minus ``start_offset``; empty in check points of
            5.0, whose messages are the ``count`` from ``start_offset`` on.
        reput_times: How often the check point was written again because its messages could not be
            redelivered.
        is_suspended: True if the redelivery does not count as an attempt.
    """

    start_offset: int = json_name("so", default=0)
    pop_time: int = json_name("pt", default=0)
    invisible_time: int = json_name("it", default=0)
    bit_map: int = json_name("bm", default=0)
    count: int = json_name("n", default=0)
    queue_id: int = json_name("q", default=0)
    topic: str | None = json_name("t", default=None)
    group: str | None = json_name("c", default=None)
    revive_offset: int = json_name("ro", default=0)
    diffs: tuple[int, ...] | None = json_name("d", default=None)
    broker_name: str | None = json_name("bn", default=None)
    reput_times: str | None = json_name("rp", default=None)
    is_suspended: bool = json_name("sp", default=False)

    @property
    def queue_offsets(self) -> tuple[int, ...]:
        """The queue offsets of the messages."""
        diffs = self.diffs or range(self.count)
        return tuple(self.start_offset + diff for diff in diffs)


@dataclass(frozen=True, slots=True, kw_only=True)
class AckMsg:
    """An acknowledgement of one message: the body of a message with the tag ``ack``."""

    ack_offset: int = json_name("ao", default=0)
    start_offset: int = json_name("so", default=0)
    consumer_group: str | None = json_name("c", default=None)
    topic: str | None = json_name("t", default=None)
    queue_id: int = json_name("q", default=0)
    pop_time: int = json_name("pt", default=0)
    broker_name: str | None = json_name("bn", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAckMsg:
    """An acknowledgement of several messages: the body of a message with the tag ``bAck``."""

    ack_offset: int = json_name("ao", default=-1)
    ack_offset_list: tuple[int, ...] = json_name("aol", default=())
    start_offset: int = json_name("so", default=0)
    consumer_group: str | None = json_name("c", default=None)
    topic: str | None = json_name("t", default=None)
    queue_id: int = json_name("q", default=0)
    pop_time: int = json_name("pt", default=0)
    broker_name: str | None = json_name("bn", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAck:
    """The acknowledged messages of one check point."""

    consumer_group: str = json_name("c")
    topic: str = json_name("t")
    retry: str = json_name("r", default="0")
    start_offset: int = json_name("so", default=0)
    queue_id: int = json_name("q", default=0)
    revive_queue_id: int = json_name("rq", default=0)
    pop_time: int = json_name("pt", default=0)
    invisible_time: int = json_name("it", default=0)
    bit_set: str | None = json_name("b", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAckMessageRequestBody:
    """The body of BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: tuple[BatchAck, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMessageRequestModeRequestBody:
    """The body of SET_MESSAGE_REQUEST_MODE: how the members of a group get a topic's messages."""

    topic: str
    consumer_group: str
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequestModeWrapper:
    """The content of the file messageRequestMode.json: modes by topic and group."""

    message_request_mode_map: Mapping[str, Mapping[str, SetMessageRequestModeRequestBody]] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderInfo:
    """The messages that a group has popped from a queue in order, until all are acknowledged.

    Attributes:
        offset_list: The first queue offset, then the other offsets minus the first.
        next_visible_times: When single messages become visible again, if that was changed.
        consumed_counts: How often messages were delivered before; first deliveries are left out.
        committed_bits: One bit for each acknowledged message.
    """

    pop_time: int = 0
    invisible_time: int | None = json_name("i", default=None)
    offset_list: tuple[int, ...] = json_name("o", default=())
    next_visible_times: Mapping[int, int] | None = json_name("ot", default=None)
    consumed_counts: Mapping[int, int] | None = json_name("oc", default=None)
    last_consume_timestamp: int = json_name("l", default=0)
    committed_bits: int = json_name("cm", default=0)
    attempt_id: str | None = json_name("a", default=None)

    @property
    def queue_offsets(self) -> tuple[int, ...]:
        """The queue offsets of the messages."""
        return self.offset_list[:1] + tuple(
            self.offset_list[0] + each for each in self.offset_list[1:]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOrderInfoWrapper:
    """The content of the file consumerOrderInfo.json: by ``topic@group``, then queue."""

    table: Mapping[str, Mapping[int, OrderInfo]] = field(default_factory=dict)
