"""Revive log: check points and acknowledgements as messages, in RocketMQ 5's form.

    waiting    topic rmq_sys_wheel_timer, as any message with a timer
    delivered  topic rmq_sys_REVIVE_LOG_<cluster>, queue as in the receipt; tag ck, ack or bAck

A check point is delivered a second before its messages become visible again, and acknowledgements
when they become visible. So the revive service reads each acknowledgement after its check point,
and before it redelivers messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.pop import AckMsg, BatchAckMsg, PopCheckPoint
from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.message.properties import TAGS, TIMER_DELIVER_MS, UNIQ_KEY, encode_properties
from rmq_spark.wire.message.record import StoredMessage, magic_of
from rmq_spark.wire.names import SYSTEM_GROUP_PREFIX

from ..schedule.timer_message import TimerRules, to_timer_topic
from ..store.message_store import MessageStore
from ..store.results import PutMessageResult

REVIVE_GROUP: Final = f"{SYSTEM_GROUP_PREFIX}REVIVE_GROUP"
"""The group whose offset in a revive queue is that of the last finished check point."""
CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
ACK_INTERVAL_MS: Final = 1_000
"""A check point is delivered this long before its messages become visible again."""

Ack: TypeAlias = "AckMsg | BatchAckMsg"


def acked_offsets(ack: Ack) -> tuple[int, ...]:
    """Return the queue offsets that an acknowledgement is for."""
    return (ack.ack_offset,) if isinstance(ack, AckMsg) else ack.ack_offset_list


CheckPointKey: TypeAlias = tuple[str | None, str | None, int, int, int, str]
"""Topic, group, queue, start offset, pop time and broker, by which RocketMQ matches
acknowledgements and check points."""


def key_of_check_point(check_point: PopCheckPoint, broker_name: str) -> CheckPointKey:
    """Return the key by which acknowledgements find a check point."""
    return (
        check_point.topic,
        check_point.group,
        check_point.queue_id,
        check_point.start_offset,
        check_point.pop_time,
        check_point.broker_name or broker_name,
    )


def key_of_ack(ack: Ack, broker_name: str) -> CheckPointKey:
    """Return the key of the check point that an acknowledgement is for."""
    return (
        ack.topic,
        ack.consumer_group,
        ack.queue_id,
        ack.start_offset,
        ack.pop_time,
        ack.broker_name or broker_name,
    )


def decode_revive_message(message: StoredMessage) -> PopCheckPoint | Ack | None:
    """Return the content of a message of the revive topic; None if it has another tag.

    Raises:
        WireError: The body cannot be read.
    """
    body_type = _BODY_TYPES.get(message.tags or "")
    if body_type is None:
        return None
    content: PopCheckPoint | Ack = decode_body(body_type, message.body)
    return content


_BODY_TYPES: Final[dict[str, type[PopCheckPoint | Ack]]] = {
    CHECK_POINT_TAG: PopCheckPoint,
    ACK_TAG: AckMsg,
    BATCH_ACK_TAG: BatchAckMsg,
}


@dataclass(frozen=True)
class ReviveLog:
    """Appends check points and acknowledgements."""

    store: MessageStore
    topic: str
    queue_nums: int
    rules: TimerRules
    now_ms: Callable[[], int]
    host: Host

    def put_check_point(self, check_point: PopCheckPoint, queue_id: int) -> PutMessageResult:
        """Append a check point, to be delivered to a revive queue."""
        c = check_point
        unique_id = _join(
            c.topic, c.queue_id, c.start_offset, c.group, c.pop_time, c.broker_name, CHECK_POINT_TAG
        )
        deliver_ms = c.pop_time + c.invisible_time - ACK_INTERVAL_MS
        return self._put(encode_body(c), queue_id, CHECK_POINT_TAG, unique_id, deliver_ms)

    def put_ack(self, ack: Ack, queue_id: int, visible_ms: int) -> PutMessageResult:
        """Append an acknowledgement of messages that would become visible at ``visible_ms``."""
        tag = ACK_TAG if isinstance(ack, AckMsg) else BATCH_ACK_TAG
        unique_id = _join(
            ack.topic,
            ack.queue_id,
            ack.ack_offset,
            ack.consumer_group,
            ack.pop_time,
            ack.broker_name,
            ACK_TAG,
        )
        return self._put(encode_body(ack), queue_id, tag, unique_id, visible_ms)

    def _put(
        self, body: bytes, queue_id: int, tag: str, unique_id: str, deliver_ms: int
    ) -> PutMessageResult:
        now_ms = self.now_ms()
        properties = {UNIQ_KEY: unique_id, TAGS: tag, TIMER_DELIVER_MS: str(deliver_ms)}
        message = StoredMessage(
            topic=self.topic,
            queue_id=queue_id,
            body=body,
            properties_text=encode_properties(properties),
            born_timestamp=now_ms,
            born_host=self.host,
            store_host=self.host,
            magic=magic_of(self.topic),
        )
        if deliver_ms > now_ms:
            message = to_timer_topic(message, deliver_ms, self.rules)
        return self.store.put_message(message)


def _join(*parts: object) -> str:
    return "@".join(map(str, parts))
