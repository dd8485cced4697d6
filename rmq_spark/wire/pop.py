"""Pop: the receipts, topics and offset lists of messages that a consumer pops (RocketMQ 5).

A popped message is invisible to the other members of its group until its receipt is acknowledged
or its invisible time has passed. The receipt is the property POP_CK:

    startOffset popTime invisibleTime reviveQueueId retry brokerName queueId queueOffset

A response to POP_MESSAGE has only the parts of receipts: its header states the times and, by topic
and queue, the first offset that was read and the offsets of the messages.

    startOffsetInfo  retry queueId startOffset;...
    msgOffsetInfo    retry queueId queueOffset,queueOffset,...;...
    orderCountInfo   retry qo<queueId>%<queueOffset> deliveries;...  and  retry queueId deliveries

RocketMQ's proxy appends the physical offset of the message to receipts.

``retry`` is 0 for the topic itself, and 1 or 2 for the group's pop retry topic of that version.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rmq_spark.errors import HeaderError
from rmq_spark.wire.names import RETRY_PREFIX

POP_CK: Final = "POP_CK"
"""The property with the receipt; a broker sets it in messages of retry topics."""
FIRST_POP_TIME: Final = "1ST_POP_TIME"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue in receipts of messages that were popped in order."""
POP_MESSAGES_MAX: Final = 32
"""The most messages of one pop; a check point has one bit for each."""
ANY_QUEUE: Final = -1
"""The queue id of a pop from all queues of a topic."""

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
_SEPARATOR = " "
_V1, _V2 = "_", "+"


# ---- topics


def pop_retry_topic(topic: str, group: str, *, is_v2: bool = False) -> str:
    """Return the topic from which a group pops failed messages of a topic again."""
    return f"{RETRY_PREFIX}{group}{_V2 if is_v2 else _V1}{topic}"


def normal_topic(topic: str, group: str) -> str:
    """Return the original topic of a group's pop retry topic; other topics are returned as is."""
    for separator in (_V2, _V1):
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


def retry_mark(topic: str) -> str:
    """Return the mark of a topic in receipts and in lists of offsets."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if _V2 in topic else RETRY_V1


def real_topic(topic: str, group: str, mark: str) -> str:
    """Return the topic in which a message lies, given the mark in its receipt."""
    if mark == NORMAL:
        return topic
    if mark not in (RETRY_V1, RETRY_V2):
        raise HeaderError("pop receipt", at="retry", needed="0, 1 or 2", found=mark)
    return pop_retry_topic(topic, group, is_v2=mark == RETRY_V2)


# ---- receipts


class PopReceipt(NamedTuple):
    """The receipt of a popped message; its text is the property POP_CK."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    retry: str
    broker_name: str
    queue_id: int
    queue_offset: int

    @property
    def is_in_order(self) -> bool:
        """True if the message was popped in order."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    def encode(self) -> str:
        """Return the receipt as text."""
        return _SEPARATOR.join(map(str, self))

    @classmethod
    def decode(cls, text: str) -> PopReceipt:
        """Return the receipt in a text, or raise HeaderError."""
        parts = text.split(_SEPARATOR)[: len(cls._fields)]
        if len(parts) < len(cls._fields):
            raise HeaderError(
                "pop receipt", at="extraInfo", needed=f"{len(cls._fields)} parts", found=text
            )
        numbers = [
            _number(name, part) if name not in ("retry", "broker_name") else part
            for name, part in zip(cls._fields, parts, strict=True)
        ]
        return cls(*numbers)  # type: ignore[arg-type]  # numbers and texts in the order of the fields


def _number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise HeaderError("pop receipt", at=name, needed="a number", found=text)
    return int(text)


# ---- lists of offsets in the header of a response


def encode_start_offsets(starts: Iterable[tuple[str, int, int]]) -> str:
    """Return startOffsetInfo, given topics, queue ids and the first offsets that were read."""
    return ";".join(f"{retry_mark(topic)} {queue_id} {start}" for topic, queue_id, start in starts)


def encode_message_offsets(queues: Iterable[tuple[str, int, Sequence[int]]]) -> str:
    """Return msgOffsetInfo, given topics, queue ids and the offsets of their messages."""
    return ";".join(
        f"{retry_mark(topic)} {queue_id} {','.join(map(str, offsets))}"
        for topic, queue_id, offsets in queues
    )


def encode_order_counts(
    topic: str, queue_id: int, counts: Mapping[int, int], count_of_queue: int
) -> str:
    """Return orderCountInfo of one queue: how often its messages were delivered before."""
    mark = retry_mark(topic)
    pieces = [f"{mark} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    return ";".join((*pieces, f"{mark} {queue_id} {count_of_queue}"))


def decode_offsets(text: str | None) -> dict[tuple[str, str], str]:
    """Return the entries of one of the three lists, by mark and queue; or raise HeaderError."""
    entries: dict[tuple[str, str], str] = {}
    for piece in text.split(";") if text else ():
        parts = piece.split(_SEPARATOR)
        if len(parts) != 3 or (parts[0], parts[1]) in entries:
            raise HeaderError(
                "pop response", at="a list of offsets", needed="retry queue offsets", found=text
            )
        entries[parts[0], parts[1]] = parts[2]
    return entries


# ---- the bits of a batch of acknowledgements


def encode_bits(offsets: Iterable[int]) -> str:
    """Return Java's BitSet of these indexes, as RocketMQ writes it into JSON."""
    bits = 0
    for offset in offsets:
        bits |= 1 << offset
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def decode_bits(text: str, bytes_max: int) -> list[int]:
    """Return the indexes in a BitSet, in ascending order; refuse one of more than ``bytes_max``."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise HeaderError("batch of acks", at="b", needed="base64", found=text[:60]) from None
    if len(data) > bytes_max:
        raise HeaderError(
            "batch of acks", at="b", needed=f"at most {bytes_max} bytes", found=len(data)
        )
    bits = int.from_bytes(data, "little")
    return [index for index in range(bits.bit_length()) if bits >> index & 1]
