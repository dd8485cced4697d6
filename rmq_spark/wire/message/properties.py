r"""Properties: a message's properties as one string, in records and in the headers of sends.

    name \x01 value \x02 name \x01 value \x02 ...

Read as RocketMQ reads it: the last \x02 may be missing (4.9 omits it), the first \x01 of a piece
divides it, a piece without a name or a value is ignored, and of two pieces with one name the later
counts. Written with the last \x02, as RocketMQ 5 does, so that strings can be joined.
"""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Mapping
from functools import lru_cache
from sys import byteorder
from typing import Final

from rmq_spark.errors import RecordError

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
PROPERTIES_BYTES_MAX = 32_767
"""The most bytes of properties, whose length is a signed 16-bit field."""
PROPERTIES_BYTES_SENT_MAX = PROPERTIES_BYTES_MAX - 512
"""The maximum size of the properties of a sent message, because brokers add to them.

They add the cluster's name, and perhaps a checksum. To a message that is delayed or sent back they
add its actual topic, its queue, and its original id.
"""

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
WAIT = "WAIT"
DELAY = "DELAY"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_PROPERTIES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""Properties of RocketMQ 5 that give a delivery time, to the second or millisecond."""
REAL_TOPIC = "REAL_TOPIC"
"""The topic of a message that waits for its delay, its timer or its transaction."""
RETRY_TOPIC = "RETRY_TOPIC"
"""The topic that a message had before it failed."""
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""The offset message id that a message had before it failed."""
TIMER_OUT_MS = "TIMER_OUT_MS"
"""The delivery time that a broker adds to a message with a timer."""
TIMER_RECALLED_KEY = "TIMER_DEL_UNIQKEY"
"""The property of a recall: the unique id of the message that is recalled."""
TRAN_MSG = "TRAN_MSG"
"""The property that makes a half message: ``true``."""
PRODUCER_GROUP = "PGROUP"
"""The producer group of a transaction, or of a message with a timer."""
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""The time, in seconds, during which a half message is not checked."""
SHARDING_KEY = "__SHARDINGKEY"
MSG_REGION = "MSG_REGION"
"""The region of a message's broker, for traces; brokers of 5.x add it."""
TRACE_ON = "TRACE_ON"
"""The property with which a broker forbids (``false``) traces of a message."""
CLUSTER = "CLUSTER"
"""The cluster in which a message is stored; its brokers add it."""
CORRELATION_ID = "CORRELATION_ID"
"""The id that a request and its reply share."""
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
"""The client that waits for the reply to a request."""
TTL = "TTL"
"""The time that a client waits for a reply, in ms."""
ARRIVE_TIME = "ARRIVE_TIME"
"""The time at which a reply reached the client that waited, in ms since 1970."""
MSG_TYPE = "MSG_TYPE"
REPLY = "reply"
"""The value of MSG_TYPE that marks a message as a reply."""
KEY_SEPARATOR = " "

RESERVED_NAMES = frozenset(
    [
        "KEYS",
        "TAGS",
        "UNIQ_KEY",
        "WAIT",
        "DELAY",
        "BUYER_ID",
        "INSTANCE_ID",
        "TRAN_MSG",
        "PGROUP",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "REAL_TOPIC",
        "REAL_QID",
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "CONSUME_START_TIME",
        "TRANSACTION_CHECK_TIMES",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "MSG_TYPE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "EXTEND_UNIQ_INFO",
        "INNER_NUM",
        "INNER_BASE",
        "DUP_INFO",
        "__transactionId__",
        "POP_CK",
        "1ST_POP_TIME",
        "__SHARDINGKEY",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_OUT_MS",
        "__CRC32#",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "TRACE_CONTEXT",
        "ORIGIN_GROUP",
        "TRANS_OFFSET",
        "_SYS_MSG_PRIORITY_",
        "__LITE_TOPIC",
        "E_T",
    ]
)
"""Names with a meaning to RocketMQ 4.9 or 5: not for a user's own properties."""


def decode_properties(text: str) -> dict[str, str]:
    """Return the properties in a string."""
    properties: dict[str, str] = {}
    for piece in text.split(PROPERTY_SEPARATOR):
        name, _, value = piece.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return properties as a string; reject those that would be read back differently."""
    pieces: list[str] = []
    for name, value in properties.items():
        if not name or NAME_VALUE_SEPARATOR in name or PROPERTY_SEPARATOR in name:
            raise RecordError(
                "message property", at="a name", needed="text without \\x01 and \\x02", found=name
            )
        if not value or PROPERTY_SEPARATOR in value:
            raise RecordError(
                "message property", at=name, needed="a value, without \\x02", found=value
            )
        pieces += (name, NAME_VALUE_SEPARATOR, value, PROPERTY_SEPARATOR)
    return "".join(pieces)


def change_properties(text: str, changes: Mapping[str, str | None]) -> str:
    """Return the string with some properties set, or removed if None; keep the others' order."""
    properties = decode_properties(text)
    for name, value in changes.items():
        if value is None:
            properties.pop(name, None)
        else:
            properties[name] = value
    return encode_properties(properties)


# ---- Tags code: the number that a consume queue has in place of a message's tags. It is Java's
# ``String.hashCode``, over UTF-16 code units, as a signed 32-bit number. Different tags can share
# one (``AaAa`` and ``BBBB`` do), so a match must still be compared by text.

TAG_SEPARATOR: Final = "||"
"""Text between the tags of a subscription."""

BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that Java's ``trim()`` removes, as around a tag: U+0000 to U+0020, and no others."""

_CACHED_CHARACTERS_MAX = 128  # longer texts rarely recur, and would use memory
_UTF_16 = "utf-16-le" if byteorder == "little" else "utf-16-be"
codecs.lookup(_UTF_16)  # imports it now: later there may be no file descriptor left for that


def java_string_hash(text: str) -> int:
    """Return Java's ``hashCode`` of a text."""
    return _cached_hash(text) if len(text) <= _CACHED_CHARACTERS_MAX else _hash(text)


def _hash(text: str) -> int:
    result = 0
    # A tag is nearly always ASCII: its bytes are its code units, and take half of the time.
    units = text.encode() if text.isascii() else array("H", text.encode(_UTF_16, "surrogatepass"))
    for unit in units:
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - ((result & 0x80000000) << 1)


# The same tags and index keys recur, and each character costs a step.
_cached_hash = lru_cache(maxsize=4096)(_hash)


def tags_code(tags: str | None) -> int:
    """Return the code of a message's TAGS property; 0 for a message without tags."""
    return java_string_hash(tags) if tags else 0
