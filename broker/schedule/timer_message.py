"""Timer message: converts between the form that waits for its timer and the form that is delivered.

    waiting     topic rmq_sys_wheel_timer, queue 0; properties + TIMER_OUT_MS, REAL_TOPIC, REAL_QID
    rolled      the same, stored again because it is due much later; + TIMER_ROLL_TIMES
    delivered   topic and queue from REAL_TOPIC, REAL_QID; properties without these two, and with
                TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS

TIMER_OUT_MS is the slot of RocketMQ's timer wheel, up to timerPrecisionMs before the delivery. The
exact time is TIMER_DELIVER_MS; a message with a delay gets this property as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from rmq_spark.wire.message.properties import (
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_RECALLED_KEY,
    UNIQ_KEY,
    WAIT,
    change_properties,
)
from rmq_spark.wire.message.record import StoredMessage, magic_of
from rmq_spark.wire.names import TIMER_TOPIC
from rmq_spark.wire.remoting.java_numbers import parse_int64

from .delayed_message import REAL_QUEUE_ID, to_named_topic

TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_QUEUE_ID: Final = 0
_RECALL_TAG: Final = "_RECALL_TAG_"
_SECOND_MS: Final = 1_000
_PRECISIONS_MS: Final = (100, 200, 500, 1_000)


class IllegalTimer(ValueError):
    """A message requests a delivery time that is not a number, or too far in the future."""


@dataclass(frozen=True, slots=True)
class TimerRules:
    """The delivery times that a broker accepts."""

    precision_ms: int
    delay_max_ms: int

    def deliver_ms(self, properties: Mapping[str, str], now_ms: int) -> int | None:
        """Return when a message is due, by the time of day; None if it is due already.

        Raises:
            IllegalTimer: The time is not a number, or too far in the future.
        """
        text = next((properties[name] for name in _REQUESTS if name in properties), "")
        try:
            value = parse_int64(text)
        except ValueError:
            raise IllegalTimer(self._fault(f"{text[:20]!r} is not a number")) from None
        if TIMER_DELAY_SEC in properties:
            value = now_ms + value * _SECOND_MS
        elif TIMER_DELAY_MS in properties:
            value += now_ms
        if value - now_ms > self.delay_max_ms:
            raise IllegalTimer(self._fault(f"{value - now_ms} ms are too many"))
        return value if value > now_ms else None

    def slot_ms(self, deliver_ms: int) -> int:
        """Return the slot of a time, which begins before it: RocketMQ's TIMER_OUT_MS."""
        return (deliver_ms - 1) // self.precision_ms * self.precision_ms

    def _fault(self, why: str) -> str:
        return (
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self.delay_max_ms}ms (timerMaxDelaySec): {why}"
        )


_REQUESTS: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""The properties that request a timer; the first of them counts."""


def rounded_precision(precision_ms: int) -> int:
    """Return the precision that RocketMQ uses for a timerPrecisionMs: one of four, rounded down."""
    return max((each for each in _PRECISIONS_MS if each <= precision_ms), default=100)


def to_timer_topic(message: StoredMessage, deliver_ms: int, rules: TimerRules) -> StoredMessage:
    """Return a message in the form in which it waits until a time of day."""
    named = {
        TIMER_DELIVER_MS: str(deliver_ms),
        TIMER_OUT_MS: str(rules.slot_ms(deliver_ms)),
        REAL_TOPIC: message.topic,
        REAL_QUEUE_ID: str(message.queue_id),
    }
    return replace(
        message,
        topic=TIMER_TOPIC,
        queue_id=TIMER_QUEUE_ID,
        properties_text=change_properties(message.properties_text, {**named, WAIT: None}),
        magic=magic_of(TIMER_TOPIC),
    )


def recall_message(
    recalled: StoredMessage, unique_key: str, deliver_ms: int, rules: TimerRules
) -> StoredMessage:
    """Return the message that recalls the one with a unique id, due at about ``deliver_ms``.

    ``recalled`` has the topic of the message, and the hosts and times of the recall.
    """
    properties = {
        "TAGS": _RECALL_TAG,
        TIMER_RECALLED_KEY: unique_key,
        UNIQ_KEY: unique_key,
        "BORN_TIMESTAMP": str(recalled.born_timestamp),
    }
    text = change_properties(recalled.properties_text, properties)
    return to_timer_topic(replace(recalled, body=b"0", properties_text=text), deliver_ms, rules)


def due_of_waiting(properties: Mapping[str, str], precision_ms: int) -> int:
    """Return when a waiting message is due, by the time of day; ValueError without a valid time."""
    slot_ms = parse_int64(properties.get(TIMER_OUT_MS, ""))
    try:
        exact_ms = parse_int64(properties.get(TIMER_DELIVER_MS, ""))
    except ValueError:
        exact_ms = -1
    if slot_ms < exact_ms <= slot_ms + precision_ms:
        return exact_ms
    return slot_ms + precision_ms  # RocketMQ stored a delay: the end of its slot is never early


def delay_of(properties: Mapping[str, str]) -> int | None:
    """Return the delay that a producer requested, in milliseconds; None if it named a time."""
    for name, unit_ms in ((TIMER_DELAY_SEC, _SECOND_MS), (TIMER_DELAY_MS, 1)):
        if name in properties:
            try:
                return max(parse_int64(properties[name]) * unit_ms, 0)
            except ValueError:
                return None
    return None


def to_real_topic(message: StoredMessage, enqueue_ms: int, dequeue_ms: int) -> StoredMessage:
    """Return a waiting message in the form that is delivered to consumers."""
    changes = {
        REAL_TOPIC: None,
        REAL_QUEUE_ID: None,
        TIMER_ENQUEUE_MS: str(enqueue_ms),
        TIMER_DEQUEUE_MS: str(dequeue_ms),
    }
    return to_named_topic(message, changes)


def to_next_roll(
    message: StoredMessage, deliver_ms: int, enqueue_ms: int, now_ms: int, rules: TimerRules
) -> StoredMessage:
    """Return a waiting message as it is stored again, because it is due much later."""
    times = message.properties.get(TIMER_ROLL_TIMES, "0")
    changes = {
        TIMER_ENQUEUE_MS: str(enqueue_ms),
        TIMER_ROLL_TIMES: str(int(times) + 1 if times.isdecimal() else 1),
        TIMER_DEQUEUE_MS: str(now_ms),
    }
    if due_of_waiting(message.properties, rules.precision_ms) != deliver_ms:  # the clock was set
        changes[TIMER_DELIVER_MS] = str(deliver_ms)
        changes[TIMER_OUT_MS] = str(rules.slot_ms(deliver_ms))
    return replace(message, properties_text=change_properties(message.properties_text, changes))
