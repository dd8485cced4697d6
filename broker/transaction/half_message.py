"""Half message: converts between the forms that the message of a transaction has in the log.

    half        topic RMQ_SYS_TRANS_HALF_TOPIC, queue 0; properties + REAL_TOPIC, REAL_QID and
                __transactionId__; no transaction bits in sysFlag, so that it gets a queue entry
    checked     the half message again, at the end of that queue; + TRANSACTION_CHECK_TIMES, and
                TRAN_PREPARED_QUEUE_OFFSET, the queue offset by which the producer knows it
    immune      the same without TRANSACTION_CHECK_TIMES, while CHECK_IMMUNITY_TIME_IN_SECONDS is
                not over
    committed   topic and queue from REAL_TOPIC, REAL_QID; sysFlag + commit; the physical offset of
                the half message as preparedTransactionOffset
    op          topic RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, tag d: the half message at the queue
                offset in the body has ended

The body of an op message is the offset in decimal, as RocketMQ 4.9 writes it and both versions read
it. RocketMQ 5 writes several offsets, each followed by a comma; 4.9 does not understand these.

RocketMQ leaves TRAN_MSG, REAL_TOPIC and REAL_QID in the committed message. Here they are removed: a
copy of the message that has them would be a half message again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.properties import (
    IMMUNITY_SECONDS,
    REAL_TOPIC,
    TAGS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    change_properties,
    encode_properties,
)
from rmq_spark.wire.message.record import StoredMessage, magic_of
from rmq_spark.wire.message.record_layout import RECORD_BYTES_MIN
from rmq_spark.wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from rmq_spark.wire.remoting.java_numbers import INT64_MAX

from ..schedule.delayed_message import REAL_QUEUE_ID, to_real_topic

CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
_TRANSACTION_ID: Final = "__transactionId__"

QUEUE_ID: Final = 0
"""The only queue of each topic of transactions."""
OP_TAG: Final = "d"
_OFFSET_SEPARATOR: Final = ","
_INT64_DIGITS: Final = 19

_TRANSACTION_MASK: Final = MessageSysFlag.TRANSACTION_MASK.value
_COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT.value
_BORN_V6: Final = MessageSysFlag.BORN_HOST_V6.value
_STORE_V6: Final = MessageSysFlag.STORE_HOST_V6.value


def to_half_topic(message: StoredMessage) -> StoredMessage:
    """Return a producer's message in the form in which it waits for its transaction to end."""
    unique_id = message.properties.get(UNIQ_KEY)
    # A message that was received from a transaction, and is sent on, has properties of its checks.
    changes: dict[str, str | None] = dict.fromkeys((WAIT, CHECK_TIMES, PREPARED_QUEUE_OFFSET))
    changes |= {REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
    if unique_id:
        changes[_TRANSACTION_ID] = unique_id
    return replace(
        message,
        topic=HALF_TOPIC,
        queue_id=QUEUE_ID,
        sys_flag=message.sys_flag & ~_TRANSACTION_MASK,
        properties_text=change_properties(message.properties_text, changes),
        magic=magic_of(HALF_TOPIC),
    )


def to_committed(half: StoredMessage) -> StoredMessage:
    """Return a half message in the form that consumers get."""
    message = to_real_topic(half)
    return replace(
        message,
        sys_flag=half.sys_flag & ~_TRANSACTION_MASK | _COMMIT,
        prepared_transaction_offset=half.physical_offset,
        properties_text=change_properties(message.properties_text, {TRAN_MSG: None}),
    )


def to_checked(half: StoredMessage, times: int) -> StoredMessage:
    """Return the copy of a half message that is stored for the check number ``times``."""
    return _renewed(half, {CHECK_TIMES: str(times), **_prepared_offset_property(half)})


def to_immune(half: StoredMessage) -> StoredMessage:
    """Return the copy of a half message that is stored while it must not be checked yet."""
    return _renewed(half, _prepared_offset_property(half))


def _prepared_offset_property(half: StoredMessage) -> dict[str, str]:
    """Return the property with the queue offset by which the producer ends the transaction."""
    known_offset = prepared_queue_offset(half)
    at = half.queue_offset if known_offset is None else known_offset
    return {PREPARED_QUEUE_OFFSET: str(at)}


def to_resumed(half: StoredMessage) -> StoredMessage:
    """Return a half message that was given up, in the form of one that was never checked."""
    return replace(
        _renewed(half, {CHECK_TIMES: "0"}),
        topic=HALF_TOPIC,
        queue_id=QUEUE_ID,
        magic=magic_of(HALF_TOPIC),
    )


def to_check_max_time_topic(half: StoredMessage) -> StoredMessage:
    """Return the copy of a half message that is stored when the broker gives it up."""
    return replace(
        half,
        topic=CHECK_MAX_TIME_TOPIC,
        queue_id=QUEUE_ID,
        magic=magic_of(CHECK_MAX_TIME_TOPIC),
    )


def _renewed(half: StoredMessage, changes: dict[str, str | None] | dict[str, str]) -> StoredMessage:
    return replace(half, properties_text=change_properties(half.properties_text, {**changes}))


def check_times(half: StoredMessage) -> int:
    """Return how often a half message was checked; 0 if its property is not a number."""
    return _number(half.properties.get(CHECK_TIMES)) or 0


def immunity_seconds(half: StoredMessage) -> int | None:
    """Return for how long a producer wants no checks of a half message; None for the default."""
    return _number(half.properties.get(IMMUNITY_SECONDS))


def prepared_queue_offset(half: StoredMessage) -> int | None:
    """Return the first queue offset of a half message that was stored again; None otherwise."""
    return _number(half.properties.get(PREPARED_QUEUE_OFFSET))


def size_of(message: StoredMessage) -> int:
    """Return about how many bytes a message takes in the log, for the budget of a round."""
    return RECORD_BYTES_MIN + len(message.body) + len(message.properties_text)


def op_message(half: StoredMessage, now_ms: int) -> StoredMessage:
    """Return the message that records that a half message has ended."""
    is_v6 = half.store_host.is_v6
    return StoredMessage(
        topic=OP_HALF_TOPIC,
        body=encode_op_body(half.queue_offset),
        properties_text=encode_properties({TAGS: OP_TAG}),
        queue_id=QUEUE_ID,
        sys_flag=_BORN_V6 | _STORE_V6 if is_v6 else 0,
        born_timestamp=now_ms,
        born_host=half.store_host,
        store_host=half.store_host,
    )


def encode_op_body(queue_offset: int) -> bytes:
    """Return the body of the op message of one half message."""
    return str(queue_offset).encode()


def decode_op(op: StoredMessage) -> list[int]:
    """Return the queue offsets of the half messages that an op message ends."""
    if op.tags != OP_TAG:
        return []
    offsets = map(_number, op.body.decode("latin-1").split(_OFFSET_SEPARATOR))
    return [offset for offset in offsets if offset is not None]


def _number(text: str | None) -> int | None:
    """Return an unsigned number of 64 bits, or None for any other text."""
    if not text or len(text) > _INT64_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number <= INT64_MAX else None
