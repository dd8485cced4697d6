"""Forwarding: stored messages that are sent on as they are stored, to another topic or broker.

    `ForwardedMessage`    body, properties, id and time of birth of a stored message
    `dead_letter_of`      a record that cannot be read, for a dead-letter topic
    `message_of_dead_letter`   the original message of a dead letter, of a group or of Spark

RocketMQ's own properties describe where a message is stored, its transaction or its delay: of
these, only keys, tag and sharding key are forwarded.

A dead letter says where its message is stored and why it could not be read:

    DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_BROKER, DLQ_ORIGIN_QUEUE_ID, DLQ_ORIGIN_QUEUE_OFFSET
    DLQ_ORIGIN_MESSAGE_ID    its id
    DLQ_ERROR                the reason
    DLQ_BODY                 `DeadLetterBody`: what the letter's body is
    DLQ_SYS_FLAG             the flags of a body that is damaged or cannot be decompressed
    DLQ_TOPICS               all topics that it was in, separated by commas

The letter's id (UNIQ_KEY) is made from topic, broker, queue and queue offset, so that a letter that
is sent again has the same id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any, Final

from rmq_spark.client.arguments import check_send_topic
from rmq_spark.client.damaged_records import BadRecord, decode_damaged_record
from rmq_spark.client.errors import MessageRejected, NotResendable
from rmq_spark.client.message import BODY_BYTES_MAX, Message, MessageExt, to_message
from rmq_spark.errors import BodyError, RecordError, escape_surrogates, sanitize
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.message_id import UniqueId
from rmq_spark.wire.message.properties import KEYS, RESERVED_NAMES, SHARDING_KEY, TAGS
from rmq_spark.wire.message.record import StoredMessage, body_crc_of
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX

ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
DEAD_LETTER_ERROR: Final = "DLQ_ERROR"
DEAD_LETTER_BODY: Final = "DLQ_BODY"
DEAD_LETTER_TOPICS: Final = "DLQ_TOPICS"
DEAD_LETTER_SYS_FLAG: Final = "DLQ_SYS_FLAG"
_ORIGIN_NAMES: Final = ("TOPIC", "BROKER", "QUEUE_ID", "QUEUE_OFFSET")
DEAD_LETTER_NAMES: Final = frozenset(
    [
        *(f"DLQ_ORIGIN_{name}" for name in _ORIGIN_NAMES),
        ORIGIN_MESSAGE_ID,
        DEAD_LETTER_ERROR,
        DEAD_LETTER_BODY,
        DEAD_LETTER_TOPICS,
        DEAD_LETTER_SYS_FLAG,
    ]
)
"""The properties of dead letters that their messages do not have."""

COMPRESSION_FLAGS: Final = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK
_FORWARDED_NAMES: Final = frozenset([KEYS, TAGS, SHARDING_KEY])
_ERROR_CHARACTERS_MAX: Final = 1_000
_SEPARATORS: Final = re.compile("[\x01\x02]")
_TIMES_MS: Final = range(1, 1 << 42)
"""Times up to the year 2109; others come from a flipped bit, or from careless producers."""
_UNIQUE_ID_PARTS: Final = (slice(0, 4), slice(4, 6), slice(6, 10), slice(10, 12))


class DeadLetterBody(Enum):
    """The kinds of bodies of dead letters."""

    BODY = "body"
    """The message's body, compressed if it was."""
    DAMAGED = "damaged"
    """The message's body as the broker returned it, which is not the one that was stored: its CRC
    differs."""
    STORED = "stored"
    """The message's body as stored, which cannot be decompressed."""
    RECORD = "record"
    """The whole record of the broker's log: the parts of the message cannot be told apart, or its
    properties leave no room for those of the letter."""
    EMPTY = "empty"
    """The error, in place of the message's empty body, which brokers refuse."""
    NONE = "none"
    """The error, because it is unknown where the bytes of the message end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedMessage(Message):
    """A message that is sent on as it is stored.

    Attributes:
        message_id: Its id, which becomes the property UNIQ_KEY; None for a new one.
        sys_flag: The flags that say how its body is compressed.
        born_timestamp: When it was born, in ms since 1970; 0 for now.
    """

    message_id: str | None = None
    sys_flag: int = 0
    born_timestamp: int = 0

    def check(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        """Raise an error if no broker would accept it; what a broker has stored is not refused."""
        check_send_topic(self.topic)
        if len(self.body) > body_bytes_max:
            raise MessageRejected(
                "body", f"at most {body_bytes_max} bytes", f"{len(self.body)} bytes"
            )


def forwarded_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a stored message that are forwarded with it."""
    return {
        name: value
        for name, value in properties.items()
        if name not in RESERVED_NAMES or name in _FORWARDED_NAMES
    }


def origin_properties(prefix: str, queue: MessageQueue, queue_offset: int) -> dict[str, str]:
    """Return the properties that say where a message was stored; their names have a prefix."""
    values = (queue.topic, queue.broker_name, str(queue.queue_id), str(queue_offset))
    return {
        f"{prefix}_ORIGIN_{name}": text for name, text in zip(_ORIGIN_NAMES, values, strict=True)
    }


class DeadLetterLoop(Exception):
    """A record that cannot be read has come from the topic to which it would be sent."""


def dead_letter_of(
    bad: BadRecord, topic: str, max_body_bytes: int = PLAIN_BYTES_MAX
) -> ForwardedMessage:
    """Return the dead letter of a record that cannot be read.

    Raises:
        DeadLetterLoop: The message has been a dead letter in this topic before.
    """
    stored = _stored_message(bad.record)
    properties = {} if stored is None else stored.properties
    topics = [each for each in properties.get(DEAD_LETTER_TOPICS, "").split(",") if each]
    if topic in topics:
        raise DeadLetterLoop(
            f"it was a dead letter in {topic} before (property {DEAD_LETTER_TOPICS}: "
            f"{', '.join(topics)}), and would go there again and again"
        )
    about = {
        **origin_properties("DLQ", bad.queue, bad.queue_offset),
        DEAD_LETTER_ERROR: _property_value(bad.problem),
        DEAD_LETTER_TOPICS: ",".join(dict.fromkeys((*topics, bad.queue.topic))),
    }
    born_ms = 0
    if stored is not None and stored.topic:
        born_ms = stored.born_timestamp if stored.born_timestamp in _TIMES_MS else 0
        with suppress(RecordError):  # the id contains the host, which may be damaged as well
            about[ORIGIN_MESSAGE_ID] = _property_value(stored.message_id)
    message_id = _dead_letter_id(bad, born_ms)

    def forward(kind: DeadLetterBody, body: bytes, **more: Any) -> ForwardedMessage:
        kept = more.pop("properties", {})
        return ForwardedMessage(
            topic,
            body,
            properties={**kept, **about, DEAD_LETTER_BODY: kind.value},
            message_id=message_id,
            born_timestamp=born_ms,
            **more,
        )

    problem = str(bad.problem).encode(errors="backslashreplace")
    if bad.record is None or stored is None:
        return forward(DeadLetterBody.NONE, problem)
    whole = forward(DeadLetterBody.RECORD, bad.record)
    if not stored.topic:
        return whole
    kind, body, flags = _dead_letter_body(stored, max_body_bytes)
    own: dict[str, str] = forwarded_properties(properties)
    if kind in (DeadLetterBody.STORED, DeadLetterBody.DAMAGED):
        own[DEAD_LETTER_SYS_FLAG] = str(stored.sys_flag & COMPRESSION_FLAGS)
    found = forward(kind, body or problem, properties=own, flag=stored.flag, sys_flag=flags)
    try:
        found.properties_text(message_id)
    except MessageRejected:
        return whole
    return found


def _dead_letter_body(
    stored: StoredMessage, max_body_bytes: int
) -> tuple[DeadLetterBody, bytes, int]:
    """Return the kind of a letter's body, the body, and the flags of its compression."""
    flags = stored.sys_flag & COMPRESSION_FLAGS
    if not stored.body:
        return DeadLetterBody.EMPTY, b"", 0
    kind = DeadLetterBody.BODY
    if stored.body_crc not in (None, body_crc_of(stored.body)):
        kind = DeadLetterBody.DAMAGED
    try:
        stored.plain_body(max_body_bytes)
    except BodyError:
        return (DeadLetterBody.STORED if kind is DeadLetterBody.BODY else kind), stored.body, 0
    return kind, stored.body, flags


def _stored_message(record: bytes | None) -> StoredMessage | None:
    if record is None or len(record) < layout.RECORD_BYTES_MIN:
        return None
    return decode_damaged_record(record)


def _property_value(text: object) -> str:
    found = _SEPARATORS.sub(" ", escape_surrogates(str(text)))
    return found[:_ERROR_CHARACTERS_MAX] or "?"


def _dead_letter_id(bad: BadRecord, born_ms: int) -> str:
    """Return the id of a dead letter, in RocketMQ's form.

    It contains the message's born time, because RocketMQ's tools take the time of an id for the
    earliest time at which the message may have been stored.
    """
    from hashlib import sha256  # noqa: PLC0415  # brings OpenSSL, which no send needs

    origin = f"{bad.queue.topic}\n{bad.queue.broker_name}\n{bad.queue.queue_id}\n{bad.queue_offset}"
    address, process, loader, counter = map(
        sha256(origin.encode()).digest().__getitem__, _UNIQUE_ID_PARTS
    )
    month_ms = 0
    if born_ms:
        born = datetime.fromtimestamp(born_ms / 1000, timezone.utc)
        month = born.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        month_ms = int((born - month).total_seconds() * 1000)
    process_id = int.from_bytes(process, "big") | 1  # an id with 0 would look like a broker's
    return UniqueId(
        *(address, process_id, int.from_bytes(loader, "big"), month_ms),
        int.from_bytes(counter, "big"),
    ).encode()


# ---- Resending: the original message of a dead letter.

_UNSENDABLE: Final[Mapping[str | None, str]] = {
    DeadLetterBody.DAMAGED.value: "has a damaged body",
    DeadLetterBody.EMPTY.value: "has an empty body",
    DeadLetterBody.NONE.value: "has no body",
}


def message_of_dead_letter(letter: MessageExt, to: str | None = None) -> Message:
    """Return the original message of a dead letter, to be sent to its topic or to another.

    Raises:
        NotResendable: The letter does not name its original topic, or its body is damaged.
    """
    kind = letter.properties.get(DEAD_LETTER_BODY)
    topic = to or letter.properties.get(ORIGIN_TOPIC) or letter.real_topic
    if kind == DeadLetterBody.RECORD.value:
        letter = _message_in_record(letter)
    if letter.fault is not None:
        raise NotResendable(_describe(letter), f"cannot be read: {sanitize(str(letter.fault))}")
    if kind in _UNSENDABLE:
        error = letter.properties.get(DEAD_LETTER_ERROR)
        raise NotResendable(_describe(letter), f"{_UNSENDABLE[kind]}: {error}")
    if to is None and (topic == letter.queue.topic or topic.startswith(RETRY_PREFIX)):
        raise NotResendable(_describe(letter), "does not name its original topic", lacks_topic=True)
    own = {
        name: value
        for name, value in letter.properties.items()
        if name not in RESERVED_NAMES and (kind is None or name not in DEAD_LETTER_NAMES)
    }
    if kind == DeadLetterBody.STORED.value:  # unchanged: another reader may inflate it
        reserved = {
            name: text for name, text in letter.properties.items() if name in RESERVED_NAMES
        }
        flags = letter.properties.get(DEAD_LETTER_SYS_FLAG, "0")
        return ForwardedMessage(
            topic,
            letter.body,
            properties={**own, **forwarded_properties(reserved)},
            flag=letter.flag,
            sys_flag=int(flags) & COMPRESSION_FLAGS if flags.isdigit() else 0,
        )
    return Message(
        topic,
        letter.body,
        tags=letter.tags,
        keys=list(letter.keys) or None,
        properties=own,
        flag=letter.flag,
        sharding_key=letter.properties.get(SHARDING_KEY),
    )


def _message_in_record(letter: MessageExt) -> MessageExt:
    stored = decode_damaged_record(letter.body.ljust(layout.RECORD_BYTES_MIN, b"\0"))
    if not stored.topic:
        what = "has a damaged record, whose parts cannot be told apart"
        raise NotResendable(_describe(letter), what)
    found = to_message(stored, letter.queue.broker_name, with_fault=True)
    return replace(found, topic=letter.topic, message_id=letter.message_id, queue=letter.queue)


def _describe(letter: MessageExt) -> str:
    queue = letter.queue
    return (
        f"the dead letter {letter.message_id} of {queue.topic.removeprefix(DLQ_PREFIX)} at "
        f"{queue.broker_name}:{queue.queue_id}@{letter.queue_offset}"
    )
