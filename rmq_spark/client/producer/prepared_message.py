"""PreparedMessage: a message or batch that is ready to be sent to any queue.

    Message ──> checked ──> id, properties ──> compressed, if that is shorter ──> header for a queue

A batch is one request with several messages of one topic.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from rmq_spark.client.arguments import (
    check_group,
    check_kind,
    check_queue,
    check_range,
    check_topic,
    explain_all_keywords,
    wrong_kind,
)
from rmq_spark.client.errors import ClientShutDown, MessageRejected
from rmq_spark.client.forwarding import ForwardedMessage
from rmq_spark.client.message import BODY_BYTES_MAX, CorrelatedMessage, Message
from rmq_spark.errors import BodyError, CodecMissing, Verbatim, excerpt
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import DEFAULT_LEVEL, LEVELS, PLAIN_BYTES_MAX, compress_body
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch
from rmq_spark.wire.message.message_id import UniqueId
from rmq_spark.wire.message.properties import WAIT, encode_properties
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DEFAULT_TOPIC, RETRY_PREFIX
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.java_numbers import INT32_MAX

COMPRESS_BODY_BYTES: Final = 4_096
RECORD_OVERHEAD_BYTES: Final = 192
"""Bytes of a stored message besides body, topic and properties, including properties that a broker
adds."""

BATCH_MESSAGES_MAX: Final = 4_000
"""Most messages of a batch: the response lists their ids in its header (262,144 bytes at most)."""

_BATCH_SUFFIX: Final = "of a batch"
_HOUR_MS: Final = 3_600_000
_TAIL_DIGITS: Final = 12  # digits of an id's time and counter


@explain_all_keywords
@dataclass(frozen=True, slots=True)
class SendRules:
    """Settings of all messages of a producer.

    Attributes:
        producer_group: Name of the producer group.
        create_topic_key: Topic whose settings a broker copies when it creates a missing topic.
        default_topic_queue_nums: Most queues of a topic that is created by a send.
        max_message_bytes: Greatest size of a body, before compression, and of a batch, in bytes; up
            to 16 MiB (16,777,216), which consumers inflate by default.
        compress_body_bytes: Size, in bytes, from which on bodies are compressed if that makes them
            shorter.
        compress_type: Compression of bodies: COMPRESSION_ZLIB, COMPRESSION_LZ4 or COMPRESSION_ZSTD
            of `MessageSysFlag`.
        compress_level: Level of the compression: -1 to 9 with zlib, -131,072 to 22 with zstd; lz4
            has none.

    Raises:
        MessageRejected: A number is out of range, or a name is not valid.
        TypeError: A setting has the wrong type.
    """

    producer_group: str
    create_topic_key: str = DEFAULT_TOPIC
    default_topic_queue_nums: int = 4
    max_message_bytes: int = BODY_BYTES_MAX
    compress_body_bytes: int = COMPRESS_BODY_BYTES
    compress_type: MessageSysFlag = MessageSysFlag.COMPRESSION_ZLIB
    compress_level: int = DEFAULT_LEVEL

    def __post_init__(self) -> None:
        check_group(self.producer_group, "producer_group")
        check_topic(self.create_topic_key, "create_topic_key")
        check_range("default_topic_queue_nums", self.default_topic_queue_nums, 1, INT32_MAX)
        check_range("max_message_bytes", self.max_message_bytes)
        if self.max_message_bytes > PLAIN_BYTES_MAX:
            raise MessageRejected(
                "max_message_bytes",
                f"at most {PLAIN_BYTES_MAX}, to which consumers inflate a body (split larger "
                "messages, or send a reference to a file)",
                self.max_message_bytes,
            )
        check_range("compress_body_bytes", self.compress_body_bytes, 0)
        example = "MessageSysFlag.COMPRESSION_LZ4"
        check_kind("compress_type", self.compress_type, MessageSysFlag, "a MessageSysFlag", example)
        levels = LEVELS.get(self.compress_type)
        if levels is None:
            names = ", ".join(str(kind.name) for kind in LEVELS)
            raise MessageRejected("compress_type", f"one of {names}", str(self.compress_type.name))
        check_range("compress_level", self.compress_level, levels[0], levels[-1])


def now_ms() -> int:
    """Return the time of day, in ms since 1970."""
    return time.time_ns() // 1_000_000


class UniqueIdGenerator:
    """Generates the ids of one producer's messages (UNIQ_KEY), in RocketMQ's form.

    An id begins with address, process and a random number, which are this generator's own.
    Milliseconds since the month began follow, from which RocketMQ's tools read when a message was
    born, and a counter. Methods may be called from any thread.
    """

    def __init__(self, address: str, now_ms: Callable[[], int] = now_ms) -> None:
        import ipaddress  # noqa: PLC0415  # needed by producers only

        packed = ipaddress.ip_address(address).packed
        own = UniqueId(packed, os.getpid(), int.from_bytes(os.urandom(4), "big"), 0, 0)
        self._process_prefix = own.encode()[:-_TAIL_DIGITS]
        self._now_ms = now_ms
        self._counter = itertools.count()
        self._month_start_ms = 0
        self._month_valid_until_ms = 0

    def next(self) -> str:
        """Return an id that no other message has."""
        return f"{self._current_prefix()}{next(self._counter) & 0xFFFF:04X}"

    def next_many(self, count: int) -> list[str]:
        """Return ``count`` new ids at once."""
        start = self._current_prefix()
        return [
            f"{start}{number & 0xFFFF:04X}" for number in itertools.islice(self._counter, count)
        ]

    def _current_prefix(self) -> str:
        if sys.is_finalizing():  # `datetime` of 3.13.0 crashes then
            raise ClientShutDown(
                "Python is shutting down. Send before the program ends, or in an atexit function"
            )
        now_ms = self._now_ms()
        if not self._month_start_ms <= now_ms < self._month_valid_until_ms:
            self._month_start_ms = month_start_ms(now_ms)
            self._month_valid_until_ms = now_ms - now_ms % _HOUR_MS + _HOUR_MS
        since = (now_ms - self._month_start_ms) & 0xFFFFFFFF
        return f"{self._process_prefix}{since:08X}"


def month_start_ms(now_ms: int) -> int:
    """Return when the month of ``now_ms`` began, in the local time zone, as Java does."""
    local = datetime.fromtimestamp(now_ms / 1000).astimezone()
    month_start = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    return int(month_start.astimezone().timestamp() * 1000)


class PreparedMessage(NamedTuple):
    """One send request, complete except for the queue."""

    rules: SendRules
    topic: str
    body: Buffer
    message_id: str
    properties_text: str
    sys_flag: int
    flag: int
    born_timestamp: int
    is_batch: bool = False
    is_reply: bool = False

    def header(self, queue: MessageQueue) -> SendMessageRequestHeader:
        """Return the header of a request that sends it to a queue."""
        rules = self.rules
        return SendMessageRequestHeader(
            rules.producer_group,
            self.topic,
            rules.create_topic_key,
            rules.default_topic_queue_nums,
            queue.queue_id,
            self.sys_flag,
            self.born_timestamp,
            self.flag,
            self.properties_text,
            0,
            False,  # noqa: FBT003  # unit mode, which is not used
            None,
            self.is_batch,
            queue.broker_name,
        )


def prepare_message(
    message: Message, rules: SendRules, ids: UniqueIdGenerator, now_ms: int
) -> PreparedMessage:
    """Return a message prepared for sending."""
    message = _check_message(message, rules)
    if isinstance(message, ForwardedMessage):
        message_id, born_ms = message.message_id or ids.next(), message.born_timestamp or now_ms
        text, flags = message.properties_text(message_id), (message.sys_flag, message.flag)
        return PreparedMessage(
            rules, message.topic, message.body, message_id, text, *flags, born_ms
        )
    message_id = ids.next()
    body, sys_flag = message.body, 0
    if len(body) >= rules.compress_body_bytes:
        compressed = _compress(body, rules)
        if len(compressed) < len(body):  # otherwise it might exceed a broker's limit
            body = compressed
            sys_flag = MessageSysFlag.COMPRESSED.value | rules.compress_type.value
    return PreparedMessage(
        rules,
        message.topic,
        body,
        message_id,
        message.properties_text(message_id),
        sys_flag,
        message.flag,
        now_ms,
        is_reply=isinstance(message, CorrelatedMessage) and message.is_reply,
    )


def _check_message(message: Message, rules: SendRules) -> Message:
    """Return the message, with its body as bytes, or raise an error if no broker would accept it.

    A bytearray or view is copied, because a view may have larger items, or gaps, and its memory may
    change before it is sent.
    """
    if not isinstance(message, Message):
        check_kind("message", message, Message, "a Message", "Message('orders', b'body')")
    if isinstance(message.body, (bytearray, memoryview)):
        message = replace(message, body=bytes(message.body))
    message.check(rules.max_message_bytes)
    return message


def _compress(body: Buffer, rules: SendRules) -> bytes:
    try:
        return compress_body(body, rules.compress_type, rules.compress_level)
    except CodecMissing:
        raise
    except BodyError as error:
        raise MessageRejected(
            f"compress_{error.at}", error.needed, Verbatim(error.found)
        ) from error


class BatchPart(NamedTuple):
    """One checked message of a batch, with its id and its properties."""

    message: Message
    message_id: str
    properties_text: str

    @property
    def record_bytes(self) -> int:
        """Most bytes that the message may take in a broker's commit log."""
        text = self.properties_text
        text_bytes = len(text) if text.isascii() else len(text.encode())
        return RECORD_OVERHEAD_BYTES + len(self.message.topic) + len(self.message.body) + text_bytes


def prepare_batch(
    messages: Iterable[Message], rules: SendRules, ids: UniqueIdGenerator
) -> list[BatchPart]:
    """Return messages prepared for sending together."""
    parts: list[BatchPart] = []
    for message in (_check_message(given, rules) for given in messages):
        first = parts[0].message if parts else message
        if message.topic != first.topic:
            raise MessageRejected("topic " + _BATCH_SUFFIX, f"all of {first.topic}", message.topic)
        if message.wait_store_ok != first.wait_store_ok:
            raise MessageRejected("wait_store_ok " + _BATCH_SUFFIX, "the same for all", "both")
        if message.delay_level:
            raise MessageRejected("delay_level " + _BATCH_SUFFIX, "0", message.delay_level)
        if message.has_timer:
            needed = "messages without deliver_at and deliver_after (send each by itself)"
            raise MessageRejected("message " + _BATCH_SUFFIX, needed, message.topic)
        if isinstance(message, CorrelatedMessage):  # brokers do not push the replies in a batch
            raise MessageRejected(
                "message " + _BATCH_SUFFIX, "no reply (send each by itself)", message.topic
            )
        if message.sharding_key != first.sharding_key:  # a batch goes to one queue
            needed = f"{first.sharding_key!r} for all, or a batch for each"
            raise MessageRejected(
                "sharding_key " + _BATCH_SUFFIX, needed, repr(message.sharding_key)
            )
        check_batch_topic(message.topic)
        message_id = ids.next()
        parts.append(BatchPart(message, message_id, message.properties_text(message_id)))
    return parts


def check_batch_topic(topic: str) -> None:
    """Raise an error if RocketMQ accepts no batches for a topic."""
    if topic.startswith(RETRY_PREFIX):
        raise MessageRejected("topic " + _BATCH_SUFFIX, "no retry topic", topic)


def split_batches(parts: Sequence[BatchPart], bytes_max: int) -> Iterator[Sequence[BatchPart]]:
    """Yield the messages in as few batches as brokers accept, in order."""
    start = size = 0
    for at, part in enumerate(parts):
        more = part.record_bytes
        if at > start and (size + more > bytes_max or at - start == BATCH_MESSAGES_MAX):
            yield parts[start:at]
            start, size = at, 0
        size += more
    if start < len(parts):
        yield parts[start:]


def encode_prepared_batch(
    parts: Sequence[BatchPart], rules: SendRules, now_ms: int
) -> PreparedMessage:
    """Return the request that sends these messages as one batch."""
    first = parts[0].message
    body = encode_batch(
        BatchedMessage(bytes(part.message.body), part.properties_text, part.message.flag)
        for part in parts
    )
    ids = [part.message_id for part in parts]
    return wrap_encoded_batch(
        first.topic, body, ids, rules, now_ms, wait_store_ok=first.wait_store_ok
    )


def wrap_encoded_batch(
    topic: str,
    body: Buffer,
    ids: Sequence[str],
    rules: SendRules,
    now_ms: int,
    *,
    wait_store_ok: bool = True,
) -> PreparedMessage:
    """Return the request that sends messages already encoded as a batch."""
    wait = encode_properties({WAIT: "true" if wait_store_ok else "false"})
    return PreparedMessage(
        rules=rules,
        topic=topic,
        body=body,
        message_id=",".join(ids),
        properties_text=wait,
        sys_flag=0,
        flag=0,
        born_timestamp=now_ms,
        is_batch=True,
    )


# ---- Checks of a producer's arguments, by their public names.

_BULK_SETTINGS: Final = ("queue", "in_flight", "chunk_bytes", "timeout_ms")


def check_member(member: object) -> None:
    """Raise an error if a member cannot answer brokers' transaction checks."""
    checks_transactions = callable(
        getattr(member, "check_transaction_state", None)
    ) and not isinstance(member, type)
    if member is not None and not checks_transactions:
        raise wrong_kind(
            "member", "an object with check_transaction_state", excerpt(member), "None"
        )


def check_bulk_settings(settings: Mapping[str, object]) -> None:
    """Raise an error for a setting that sends of tables do not have."""
    for name in settings.keys() - _BULK_SETTINGS:
        raise wrong_kind("settings", f"some of {', '.join(_BULK_SETTINGS)}", name, "in_flight=8")


def check_queue_of_topic(name: str, queue: MessageQueue, topic: str) -> MessageQueue:
    """Return a queue, or raise an error if it is of another topic."""
    check_queue(name, queue)
    if queue.topic != topic:
        raise MessageRejected(name, f"one of topic {topic}", str(queue))
    return queue
