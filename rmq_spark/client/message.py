"""Message, to be sent, and MessageExt, as received: values, with RocketMQ's field names.

    CorrelatedMessage    a request, or the reply to one, by RocketMQ's properties

A message is checked when it is prepared for sending. A value that no broker would accept, or that
RocketMQ would understand differently from its sender, is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Any, Final, TypeVar

from rmq_spark.client.arguments import (
    check_kind,
    check_number,
    check_send_topic,
    check_text,
    check_utf8,
    explain_keywords,
)
from rmq_spark.client.damaged_records import decode_damaged_record, record_size_at
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.serializers import (
    SERIALIZERS,
    Serializer,
    decode_value,
    resolve_serializer,
)
from rmq_spark.client.times import normalize_duration, normalize_time
from rmq_spark.errors import BodyError, RecordError, Verbatim, sanitize
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.message.message_id import encode_offset_message_id
from rmq_spark.wire.message.properties import (
    CLUSTER,
    CORRELATION_ID,
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    MSG_TYPE,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_BYTES_SENT_MAX,
    PROPERTY_SEPARATOR,
    REPLY,
    REPLY_TO_CLIENT,
    RESERVED_NAMES,
    RETRY_TOPIC,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TTL,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
)
from rmq_spark.wire.message.record import (
    StoredMessage,
    decode_plain_record,
    decode_record,
    record_size,
)
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import reply_topic
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.java_numbers import INT32_MAX, parse_int32

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Greatest size of a body, in bytes, that brokers accept by default (maxMessageSize)."""

_DELAYS: Final = ("delay_level", "deliver_at", "deliver_after")
"""Fields that delay a message, which may have only one of them."""


def _check_separators(name: str, text: str) -> None:
    """Refuse a text that older clients of RocketMQ would drop, or read as another property."""
    if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text:
        raise MessageRejected(name, "a text without \\x01 and \\x02", text)


_Text = TypeVar("_Text", bound=str | None)


def _plain(text: _Text) -> _Text:
    """Return an instance of a subclass of str, such as an enum, as a plain str."""
    if type(text) is not str and isinstance(text, str):
        return str.__str__(text)  # type: ignore[return-value]  # a str in place of a subclass
    return text


def _only_key(key: str, keys: str | Sequence[str] | None) -> str:
    """Return the value of ``key=``; raise a TypeError if ``keys=`` is given as well."""
    if keys is not None:
        raise TypeError("both key and keys were given. Pass all keys in keys, as a list")
    return check_text("key", key, "order-42")


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """A message to send.

    Example:
        Message("orders", b"one", tags="paid", key="order-42")

    Attributes:
        topic: Name of the topic.
        body: Payload, as bytes or another buffer, at least one byte; with a producer's serializer,
            any value that it accepts.
        tags: One tag (in spite of the plural) that consumers filter by. No subscription by tags can
            select a tag that contains ``||``.
        keys: One key, or several, by which the message can be looked up; the argument ``key`` is
            another way to give one.
        properties: Further properties, text to text; names that RocketMQ uses itself are refused.
        delay_level: Delay before the message is delivered: a level of the broker's table, which has
            1 to 18 (1 s to 2 h) unless it is configured, or 0 for none. A level past the last
            counts as the last.
        flag: A 32-bit integer for the application's own use.
        sharding_key: Messages with the same key go to the same queue, in the order of the sends.
        wait_store_ok: Whether a broker with SYNC_FLUSH answers only when the message is on disk.
        deliver_at: Time from which on consumers get the message: a datetime with a time zone, or
            text such as ``"2026-01-31T12:00:00Z"``; by default, at once. At most three days ahead,
            unless the brokers are configured. RocketMQ 4.9 cannot do this: sends to it fail.
        deliver_after: Time until consumers get the message, as a timedelta or text such as
            ``"90s"``, by the broker's clock.

    Raises:
        TypeError: The topic is not a str, for example because body and topic are swapped, or both
            ``key`` and ``keys`` are given.
    """

    topic: str
    body: Any
    tags: str | None = None
    keys: str | Sequence[str] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int = 0
    flag: int = 0
    sharding_key: str | None = None
    wait_store_ok: bool = True
    deliver_at: datetime | str | None = None
    deliver_after: timedelta | str | None = None

    @explain_keywords
    def __init__(
        self,
        topic: str,
        body: Any,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        flag: int = 0,
        sharding_key: str | None = None,
        wait_store_ok: bool = True,  # noqa: FBT001, FBT002  # the order of the fields
        *,
        key: str | None = None,
        deliver_at: datetime | str | None = None,
        deliver_after: timedelta | str | None = None,
    ) -> None:
        if not isinstance(topic, str):
            check_kind("topic", topic, str, _TOPIC_NEEDED, _TOPIC_EXAMPLE)
        if key is not None:
            keys = _only_key(key, keys)
        set_field = object.__setattr__
        # a plain str is the common case, and each call costs as much as a field
        set_field(self, "topic", topic if type(topic) is str else _plain(topic))
        set_field(self, "body", body)
        set_field(self, "tags", tags if tags is None or type(tags) is str else _plain(tags))
        set_field(self, "keys", keys)
        set_field(self, "properties", {} if properties is None else properties)
        set_field(self, "delay_level", delay_level)
        set_field(self, "flag", flag)
        set_field(self, "sharding_key", None if sharding_key is None else _plain(sharding_key))
        set_field(self, "wait_store_ok", wait_store_ok)
        set_field(self, "deliver_at", deliver_at)
        set_field(self, "deliver_after", deliver_after)

    @property
    def key(self) -> str | None:
        """The first of the keys, or None."""
        keys = self.keys
        return keys if keys is None or isinstance(keys, str) else next(iter(keys), None)

    def check(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        """Raise an error if no broker would accept this message.

        Args:
            body_bytes_max: Greatest size of the body, in bytes.

        Raises:
            MessageRejected: A field has a value that brokers refuse; the error names it.
            TypeError: A field has the wrong type; the error names it.
        """
        delay_level, flag = self.delay_level, self.flag
        if not all(map(isinstance, _fields(self), _FIELD_TYPES)):
            for name, kinds, needed, example in _FIELD_CHECKS:
                check_kind(name, getattr(self, name), kinds, needed, example)
        if isinstance(delay_level, bool) or isinstance(flag, bool):
            check_number("delay_level", delay_level, 3)
            check_number("flag", flag, 0)
        check_send_topic(self.topic)
        body = self.body
        if not body:
            raise MessageRejected(
                "body",
                "at least one byte, because RocketMQ's consumers fail on empty bodies",
                Verbatim("none"),
            )
        if len(body) > body_bytes_max:
            raise MessageRejected(
                "body",
                f"at most {body_bytes_max} bytes{_size_hint(body_bytes_max)}",
                Verbatim(f"{len(body)} bytes"),
            )
        if not -(1 << 31) <= flag < 1 << 31:
            raise MessageRejected("flag", "a 32-bit integer", flag)
        if not 0 <= delay_level <= INT32_MAX:
            raise MessageRejected("delay_level", "0, or a level from 1 on", delay_level)
        self._check_timer()
        reserved = RESERVED_NAMES.intersection(self.properties)
        if reserved:
            names = ", ".join(sorted(reserved))
            raise MessageRejected("properties", "names that RocketMQ does not reserve", names)

    @property
    def has_timer(self) -> bool:
        """True if the message has a time of delivery, which RocketMQ 4.9 ignores."""
        return self.deliver_at is not None or self.deliver_after is not None

    def _check_timer(self) -> None:
        if not self.has_timer:
            return
        given = [name for name in _DELAYS if getattr(self, name)]
        if len(given) > 1:
            raise MessageRejected(
                given[1], f"no {given[0]} in the same message", getattr(self, given[1])
            )
        self._timer()

    def _timer(self) -> Mapping[str, str]:
        if self.deliver_at is not None:
            return {TIMER_DELIVER_MS: str(normalize_time("deliver_at", self.deliver_at))}
        after = "" if self.deliver_after is None else self.deliver_after
        return {TIMER_DELAY_MS: str(normalize_duration("deliver_after", after))}

    def json(self) -> Any:
        """Return the body parsed as JSON; a body that is not bytes is returned unchanged.

        Raises:
            BodyError: It is not JSON; the error names the topic.
        """
        return self.body if not isinstance(self.body, BUFFERS) else self._decoded("json")

    @property
    def text(self) -> str:
        """The body decoded as UTF-8; raises BodyError, which names the topic, for other bodies."""
        return self.body if isinstance(self.body, str) else str(self._decoded("text"))

    def _decoded(self, name: str) -> Any:
        check_kind("body", self.body, BUFFERS, "bytes", "b'body'")
        return decode_value(self.body, SERIALIZERS[name], f"a message to {self.topic}", "its body")

    def properties_text(self, unique_id: str) -> str:
        """Return all properties, encoded for sending.

        Args:
            unique_id: The id of the message, which becomes the property UNIQ_KEY.

        Raises:
            MessageRejected: A name or a value is not allowed, or all of them together are too long.
            TypeError: A name, a value or a key is not a str.
        """
        properties = dict(self.properties)
        if self.tags:
            _check_separators("tags", self.tags)
            properties[TAGS] = self.tags
        if self.keys:
            keys = (self.keys,) if isinstance(self.keys, str) else self.keys
            for key in keys:
                check_text("one of keys", key, "order-42")
                _check_separators("one of keys", key)
            properties[KEYS] = KEY_SEPARATOR.join(keys)
        if self.delay_level:
            properties[DELAY] = str(self.delay_level)
        elif self.has_timer:
            properties.update(self._timer())
        if self.sharding_key:
            properties[SHARDING_KEY] = self.sharding_key
        properties[UNIQ_KEY] = unique_id
        properties[WAIT] = "true" if self.wait_store_ok else "false"
        try:
            text = encode_properties(properties)
            size = len(text) if text.isascii() else len(text.encode())
        except (RecordError, TypeError, UnicodeEncodeError) as error:
            for name, value in properties.items():
                check_text("the name of a property", name, "colour")
                is_number = isinstance(value, (int, float))
                check_text(f"property {name}", value, str(value) if is_number else "red")
                check_utf8("the name of a property", name)
                check_utf8(f"property {name}", value)
            raise MessageRejected(
                "properties", "strings without \\x01 and \\x02", str(error)
            ) from error
        if size > PROPERTIES_BYTES_SENT_MAX:
            raise MessageRejected(
                "properties",
                f"at most {PROPERTIES_BYTES_SENT_MAX} bytes with keys and tags, because brokers "
                "add their own (move some into the body)",
                Verbatim(f"{size} bytes"),
            )
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedMessage(Message):
    """A request whose sender waits for a reply, or a reply.

    Attributes:
        correlation: RocketMQ's properties that mark a request or a reply.
        broker_name: The broker to which the client that waits is connected; None for a request.
    """

    correlation: Mapping[str, str]
    broker_name: str | None = None

    @classmethod
    def of_request(
        cls, message: Message, correlation_id: str, client_id: str, timeout_ms: int
    ) -> CorrelatedMessage:
        """Return a message as a request; ``client_id`` is the client that waits for the reply."""
        given = {each.name: getattr(message, each.name) for each in fields(Message)}
        correlation = {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: client_id,
            TTL: str(timeout_ms),
        }
        return cls(**given, correlation=correlation)

    @property
    def is_reply(self) -> bool:
        """True if it is a reply, False if it is a request."""
        return MSG_TYPE in self.correlation

    def properties_text(self, unique_id: str) -> str:
        """Return all properties, encoded for sending."""
        given = {each.name: getattr(self, each.name) for each in fields(Message)}
        properties = {**self.properties, **self.correlation}
        return Message(**{**given, "properties": properties}).properties_text(unique_id)


def _size_hint(body_bytes_max: int) -> str:
    """Return advice for a body over a limit, for the end of an error's ``needed``."""
    split = "split it, or send a reference to a file"
    if body_bytes_max >= PLAIN_BYTES_MAX:
        return f" before compression, the most that consumers inflate ({split})"
    return (
        f" before compression ({split}; if the brokers' limit is higher, raise max_message_bytes)"
    )


BUFFERS: Final = (bytes, bytearray, memoryview)
"""The types of bodies that are sent as they are."""

_TOPIC_NEEDED: Final = "a string (str), followed by the body"
_TOPIC_EXAMPLE: Final = "Message('orders', b'body')"

_FIELD_CHECKS: Final = (
    ("topic", str, _TOPIC_NEEDED, _TOPIC_EXAMPLE),
    (
        "body",
        BUFFERS,
        "bytes, or a producer with serializer=",
        "b'body', 'text'.encode(), or Producer(..., serializer='json')",
    ),
    ("tags", (str, NoneType), "one tag (str)", "'red'"),
    ("keys", (str, list, tuple, NoneType), "a string or several", "['order-42', 'customer-7']"),
    ("properties", (dict, Mapping), "a mapping of strings to strings", "{'colour': 'red'}"),
    ("delay_level", int, "a whole number (int)", "3"),
    ("flag", int, "a whole number (int)", "0"),
    ("sharding_key", (str, NoneType), "a string (str)", "'customer-7'"),
    ("wait_store_ok", bool, "True or False", "True"),
    (
        "deliver_at",
        (datetime, str, NoneType),
        "a datetime with a time zone, or a time as text",
        "datetime(2026, 1, 31, 12, tzinfo=timezone.utc)",
    ),
    (
        "deliver_after",
        (timedelta, str, NoneType),
        "a timedelta, or a duration as text",
        "timedelta(seconds=90) or '90s'",
    ),
)
"""Fields of a message: name, types, a description of what is needed, and an example."""

_fields: Final = attrgetter(*(name for name, *_ in _FIELD_CHECKS))
# checked for every message sent
_FIELD_TYPES: Final = tuple(kinds for _, kinds, *_ in _FIELD_CHECKS)


@dataclass(frozen=True, slots=True)
class MessageExt:
    """A message as a consumer receives it.

    Attributes:
        topic: Topic that the message was received from.
        body: Payload as the sender wrote it; decompressed, if it was sent compressed. With a
            ``fault``, the bytes as the broker stores them.
        properties: All properties, RocketMQ's own included.
        queue: Queue that the message is in.
        queue_offset: Offset in that queue.
        message_id: Unique id given by the producer, or ``offset_message_id`` if there is none.
        offset_message_id: Id given by the broker: its address and the position in its commit log.
        commit_log_offset: Position in the broker's commit log, in bytes.
        born_timestamp: Milliseconds since the epoch at which the producer made the message.
        born_host: Address of the producer.
        store_timestamp: Milliseconds since the epoch at which the broker stored the message.
        store_host: Address of the broker.
        reconsume_times: Number of times that the message was sent back for another delivery.
        flag: The sender's 32-bit integer.
        sys_flag: RocketMQ's own bits: compression, transaction state, IPv6 addresses.
        prepared_transaction_offset: Position of the half message of a transaction in the commit
            log.
        fault: Reason why the message cannot be read, such as a compressed body that cannot be
            inflated; None if it can be read. Consumers never return a message with a fault.
    """

    topic: str
    body: bytes
    properties: Mapping[str, str]
    queue: MessageQueue
    queue_offset: int
    message_id: str
    offset_message_id: str
    commit_log_offset: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    flag: int
    sys_flag: int
    prepared_transaction_offset: int
    fault: str | None = None

    @property
    def tags(self) -> str | None:
        """The tag that consumers filter by, or None."""
        return self.properties.get(TAGS)

    @property
    def key(self) -> str | None:
        """The first of the keys, or None."""
        return next(iter(self.keys), None)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by which the message can be looked up."""
        return tuple(filter(None, self.properties.get(KEYS, "").split(KEY_SEPARATOR)))

    @property
    def delay_level(self) -> int:
        """The delay level with which the message was sent; 0 if it was not delayed.

        A foreign client's text that is not a 32-bit integer counts as 0.
        """
        try:
            return max(parse_int32(self.properties.get(DELAY, "0")), 0)
        except ValueError:
            return 0

    def json(self) -> Any:
        """Return the body parsed as JSON.

        Raises:
            BodyError: It is not JSON; the error names topic, broker, queue and offset.
        """
        return self.value("json")

    @property
    def text(self) -> str:
        """The body decoded as UTF-8; raises BodyError, which names its place, for other bodies."""
        return str(self.value("text"))

    def value(self, serializer: str | Serializer) -> Any:
        """Return the value of the body, decoded by the serializer that encoded it.

        Raises:
            BodyError: The serializer cannot decode it, or the message has a ``fault``; the error
                names topic, broker, queue and offset.
            TypeError: ``serializer`` is not a serializer.
        """
        by = resolve_serializer(serializer)
        if by is None:
            raise TypeError("serializer: needed one, for example 'json', found None")
        queue = self.queue
        where = f"the message of queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"
        at = f"offset {self.queue_offset}"
        if self.fault is not None:
            raise BodyError(where, at=at, needed="one that can be read", found=Verbatim(self.fault))
        return decode_value(self.body, by, where, at)

    @property
    def correlation_id(self) -> str | None:
        """The id that a request and its reply share; None for other messages."""
        return self.properties.get(CORRELATION_ID)

    def reply(self, body: Any, properties: Mapping[str, str] | None = None) -> Message:
        """Return the reply to this request, which any producer can send.

        `Producer.request` returns it to the sender of the request, which waits for it.

        Args:
            body: Payload of the reply, as of a `Message`.
            properties: Properties of the reply, text to text.

        Raises:
            MessageRejected: The message is not a request, so nobody waits for a reply.
        """
        found = self.properties
        waits = (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT)
        missing = [name for name in waits if not found.get(name)]
        if missing:
            raise MessageRejected(
                "reply",
                "a message that Producer.request() has sent",
                f"one without the property {missing[0]}",
            )
        correlation = {name: found[name] for name in (*waits[1:], TTL) if name in found}
        return CorrelatedMessage(
            reply_topic(found[CLUSTER]),
            body,
            properties={} if properties is None else properties,
            correlation={MSG_TYPE: REPLY, **correlation},
            broker_name=self.queue.broker_name,
        )

    @property
    def real_topic(self) -> str:
        """The original topic of a message from the group's retry topic, else ``topic``."""
        return self.properties.get(RETRY_TOPIC) or self.topic


_host_text = lru_cache(maxsize=1024)(str)  # there are few hosts and many messages


def to_message(
    stored: StoredMessage,
    broker_name: str,
    *,
    max_body_bytes: int = PLAIN_BYTES_MAX,
    with_fault: bool = False,
) -> MessageExt:
    """Return the message that a stored record holds.

    With ``with_fault``, a message whose body cannot be decompressed is returned with its ``fault``.
    """
    try:
        return _build_message(stored, broker_name, stored.plain_body(max_body_bytes), None)
    except BodyError as error:
        if not with_fault:
            raise
        return unreadable_message(stored, broker_name, str(error))


def unreadable_message(stored: StoredMessage, broker_name: str, fault: str) -> MessageExt:
    """Return the message of a record that cannot be read, with its body as stored."""
    try:
        return _build_message(stored, broker_name, stored.body, fault)
    except RecordError:  # the hosts are unreadable as well
        bare = StoredMessage(
            *(stored.topic, stored.body, stored.properties_text, stored.queue_id),
            queue_offset=stored.queue_offset,
            flag=stored.flag,
        )
        return _build_message(bare, broker_name, stored.body, fault)


def _build_message(
    stored: StoredMessage, broker_name: str, body: bytes, fault: str | None
) -> MessageExt:
    properties = stored.properties
    offset_message_id = stored.offset_message_id
    return MessageExt(
        topic=stored.topic,
        body=body,
        properties=properties,
        queue=MessageQueue(stored.topic, broker_name, stored.queue_id),
        queue_offset=stored.queue_offset,
        message_id=properties.get(UNIQ_KEY) or offset_message_id,
        offset_message_id=offset_message_id,
        commit_log_offset=stored.physical_offset,
        born_timestamp=stored.born_timestamp,
        born_host=_host_text(stored.born_host),
        store_timestamp=stored.store_timestamp,
        store_host=_host_text(stored.store_host),
        reconsume_times=stored.reconsume_times,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        prepared_transaction_offset=stored.prepared_transaction_offset,
        fault=fault,
    )


_MutableMessage: Any = make_dataclass(
    "_MutableMessage", [each.name for each in fields(MessageExt)], slots=True
)
"""A `MessageExt` that is not frozen yet: its fields are set in a seventh of the time."""


class WrongQueueRecord(RecordError):
    """A broker returned a record of another queue."""


def decode_pulled(
    records: Buffer,
    queue: MessageQueue,
    *,
    max_body_bytes: int = PLAIN_BYTES_MAX,
    with_faults: bool = False,
) -> Iterator[MessageExt]:
    """Yield the messages in the records of a pull of a queue."""
    for message in decode_messages(
        records, queue.broker_name, max_body_bytes=max_body_bytes, with_faults=with_faults
    ):
        if message.fault is None:  # a damaged record may state a wrong queue
            check_record_queue(queue, message.topic, message.queue.queue_id, message.queue_offset)
        yield message


def check_record_queue(queue: MessageQueue, topic: str, queue_id: int, queue_offset: int) -> None:
    """Raise WrongQueueRecord if a record that was pulled from a queue is of another one."""
    if not queue.is_of(topic, queue_id):
        raise WrongQueueRecord(
            f"the answer of {queue.broker_name} to a pull of queue {queue.queue_id} of "
            f"{queue.topic}",
            at=f"queueOffset {queue_offset}",
            needed="a message of that queue",
            found=Verbatim(f"one of queue {queue_id} of {sanitize(topic)}"),
        )


def decode_messages(
    records: Buffer,
    broker_name: str,
    *,
    max_body_bytes: int = PLAIN_BYTES_MAX,
    with_faults: bool = False,
) -> Iterator[MessageExt]:
    """Yield the messages of records that lie back to back, of any queues.

    With ``with_faults``, a message that cannot be read is yielded with its ``fault``; otherwise it
    ends the iteration with an error.

    Raises:
        RecordError: The bytes are not records, or a record is damaged; with faults, only if the
            place of the next record is unknown.
        BodyError: A compressed body cannot be decompressed.
    """
    data = bytes(records)  # slices of bytes are cheaper than slices of views
    position = 0
    # reused, because successive messages mostly share a queue
    queue = MessageQueue("", broker_name, 0)
    while position < len(data):
        usual = decode_plain_record(data, position)
        if usual is None:
            size = record_size_at(data, position) if with_faults else record_size(data, position)
            try:
                stored = decode_record(data, position)
                yield to_message(
                    stored, broker_name, max_body_bytes=max_body_bytes, with_fault=with_faults
                )
            except RecordError as error:
                if not with_faults:
                    raise
                record = data[position : position + size]
                yield unreadable_message(decode_damaged_record(record), broker_name, str(error))
            position += size
            continue
        (
            position, topic, body, properties_text, queue_id, queue_offset, physical_offset,
            flag, sys_flag, born_timestamp, born_host, store_timestamp, store_host,
            reconsume_times, prepared_offset,
        ) = usual  # fmt: skip
        if topic != queue.topic or queue_id != queue.queue_id:
            queue = MessageQueue(topic, broker_name, queue_id)
        properties = decode_properties(properties_text)
        offset_message_id = encode_offset_message_id(store_host, physical_offset)
        message = _MutableMessage(
            topic,
            body,
            properties,
            queue,
            queue_offset,
            properties.get(UNIQ_KEY) or offset_message_id,
            offset_message_id,
            physical_offset,
            born_timestamp,
            _host_text(born_host),
            store_timestamp,
            _host_text(store_host),
            reconsume_times,
            flag,
            sys_flag,
            prepared_offset,
            None,
        )
        message.__class__ = MessageExt
        yield message
