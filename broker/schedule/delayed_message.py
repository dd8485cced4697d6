"""Delayed message: converts between the form that waits and the form that is delivered.

    waiting     topic SCHEDULE_TOPIC_XXXX, queue level - 1; properties + DELAY, REAL_TOPIC, REAL_QID
    delivered   topic and queue from REAL_TOPIC, REAL_QID; properties without these three and WAIT

RocketMQ leaves the three properties in the delivered message. Here they are removed: nothing reads
them there, and a message that its consumer sends back must not keep the old ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rmq_spark.wire.message.properties import DELAY, REAL_TOPIC, WAIT, change_properties
from rmq_spark.wire.message.record import StoredMessage, magic_of
from rmq_spark.wire.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

REAL_QUEUE_ID: Final = "REAL_QID"

WITHOUT_DELAY: Final = dict.fromkeys((DELAY, REAL_TOPIC, REAL_QUEUE_ID, WAIT))
"""The properties that a message loses when it is delivered."""

_UNDELIVERABLE_TOPICS: Final = frozenset([SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC])
_QUEUE_ID_MAX: Final = (1 << 31) - 1
_DIGITS_MAX: Final = len(str(_QUEUE_ID_MAX))


class UndeliverableMessage(Exception):
    """A waiting message names no topic to which it can be delivered."""


def to_schedule_topic(message: StoredMessage, level: int) -> StoredMessage:
    """Return a message in the form in which it waits for a delay level, counted from 1."""
    named = {DELAY: str(level), REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
    return replace(
        message,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties_text=change_properties(message.properties_text, {**named, WAIT: None}),
        magic=magic_of(SCHEDULE_TOPIC),
    )


def to_real_topic(message: StoredMessage) -> StoredMessage:
    """Return a waiting message in the form that is delivered to consumers."""
    return to_named_topic(message, WITHOUT_DELAY)


def to_named_topic(message: StoredMessage, changes: Mapping[str, str | None]) -> StoredMessage:
    """Return a waiting message for the topic and queue that it names, with changed properties.

    Raises:
        UndeliverableMessage: The message names no topic, or one that only the broker writes to.
    """
    properties = message.properties
    topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE_ID, "")
    if topic is None or not (queue_id.isascii() and queue_id.isdigit()):
        raise UndeliverableMessage(f"it has no {REAL_TOPIC}, or no {REAL_QUEUE_ID}")
    if (
        topic in _UNDELIVERABLE_TOPICS
        or len(queue_id) > _DIGITS_MAX
        or int(queue_id) > _QUEUE_ID_MAX
    ):
        raise UndeliverableMessage(
            f"it cannot be put into queue {queue_id[:20]} of topic {topic[:60]}"
        )
    return replace(
        message,
        topic=topic,
        queue_id=int(queue_id),
        properties_text=change_properties(message.properties_text, changes),
        magic=magic_of(topic),
    )
