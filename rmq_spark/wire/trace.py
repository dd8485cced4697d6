r"""Message traces: what producers and consumers record about each message, as in RocketMQ.

    a trace         fields, \x01 between two of them, \x02 at the end; null for a missing text
    trace message   the body has many traces, of any messages; KEYS has the ids and keys of these

    Pub             time region group topic id tags keys storeHost length cost msgType offsetId ok
    SubBefore       time region group request id retryTimes keys
    SubAfter        request id cost ok keys contextCode time group
    EndTransaction  time region group topic id tags keys storeHost msgType txId state fromCheck
    Recall          time region group topic id ok

A consumer writes a SubBefore before it calls its listener, and a SubAfter with the same request
after that. Clients of other versions write more fields at the end, or fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial
from typing import Final

FIELD_SEPARATOR: Final = "\x01"
TRACE_SEPARATOR: Final = "\x02"
DEFAULT_REGION: Final = "DefaultRegion"

_NULL: Final = "null"
_SEPARATORS: Final = str.maketrans({FIELD_SEPARATOR: " ", TRACE_SEPARATOR: " "})


class TraceType(Enum):
    """The event that a trace records.

    Attributes:
        PUB: A producer has sent the message.
        SUB_BEFORE: A consumer begins to process it.
        SUB_AFTER: A consumer has processed it.
        END_TRANSACTION: A producer has committed it, or rolled it back.
        RECALL: A producer has recalled it before it was delivered.
    """

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class TraceMessageType(IntEnum):
    """The kind of a message that was sent."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeReturnType(IntEnum):
    """The outcome of a call of a listener."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTrace:
    """One trace of a message; fields that its type does not have keep their defaults.

    Attributes:
        trace_type: What the trace records.
        message_id: Id that the producer gave the message.
        group: Group of the producer or consumer; empty in a SubAfter of older clients.
        timestamp_ms: Milliseconds since the epoch; 0 in a SubAfter of older clients.
        region_id: Region of the broker.
        topic: Topic of the message.
        tags: Tag of the message, or None.
        keys: Keys of the message, separated by spaces, or None.
        store_host: Address of the broker.
        body_length: Bytes of the body, as it was sent.
        cost_ms: Milliseconds that the send, or the listener, took for the message.
        message_type: Kind of the message that was sent.
        offset_message_id: Id given by the broker.
        is_success: Whether the message was stored safely, or the listener succeeded.
        request_id: Id that a SubBefore and its SubAfter share.
        retry_times: Times that the message was sent back before.
        return_type: How the listener ended.
        transaction_id: Id of the transaction.
        transaction_state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW, as RocketMQ spells them.
        is_from_check: Whether the transaction was ended because the broker asked for its state.
    """

    trace_type: TraceType
    message_id: str
    group: str = ""
    timestamp_ms: int = 0
    region_id: str = DEFAULT_REGION
    topic: str = ""
    tags: str | None = None
    keys: str | None = None
    store_host: str = ""
    body_length: int = 0
    cost_ms: int = 0
    message_type: TraceMessageType = TraceMessageType.NORMAL
    offset_message_id: str = ""
    is_success: bool = True
    request_id: str = ""
    retry_times: int = 0
    return_type: ConsumeReturnType = ConsumeReturnType.SUCCESS
    transaction_id: str = ""
    transaction_state: str = ""
    is_from_check: bool = False


def encode_trace(trace: MessageTrace) -> str:
    """Return a trace as text, with its separator at the end."""
    head = (trace.timestamp_ms, trace.region_id, trace.group)
    about = (trace.topic, trace.message_id, trace.tags, trace.keys, trace.store_host)
    kind = trace.trace_type
    values: tuple[object, ...]
    if kind is TraceType.PUB:
        values = (
            *(*head, *about, trace.body_length, trace.cost_ms, int(trace.message_type)),
            *(trace.offset_message_id, trace.is_success),
        )
    elif kind is TraceType.SUB_BEFORE:
        values = (*head, trace.request_id, trace.message_id, trace.retry_times, trace.keys)
    elif kind is TraceType.SUB_AFTER:
        values = (
            *(trace.request_id, trace.message_id, trace.cost_ms, trace.is_success, trace.keys),
            *(int(trace.return_type), trace.timestamp_ms, trace.group),
        )
    elif kind is TraceType.END_TRANSACTION:
        values = (
            *(*head, *about, int(trace.message_type), trace.transaction_id),
            *(trace.transaction_state, trace.is_from_check),
        )
    else:
        values = (*head, trace.topic, trace.message_id, trace.is_success)
    return FIELD_SEPARATOR.join([kind.value, *map(_text, values)]) + TRACE_SEPARATOR


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or value == "":  # Java's reader drops empty fields at the end
        return _NULL
    return str(value).translate(_SEPARATORS)


def encode_traces(traces: Iterable[MessageTrace]) -> bytes:
    """Return the body of a trace message."""
    return "".join(map(encode_trace, traces)).encode(errors="replace")


def decode_traces(body: bytes) -> list[MessageTrace]:
    """Return the traces in the body of a trace message; those that cannot be read are left out."""
    return list(_decode(body.decode(errors="replace")))


def _decode(text: str) -> Iterator[MessageTrace]:
    for piece in text.split(TRACE_SEPARATOR):
        name, *fields = piece.split(FIELD_SEPARATOR)
        with suppress(ValueError, IndexError):
            yield _decode_fields(TraceType(name), fields)


def _decode_fields(kind: TraceType, fields: list[str]) -> MessageTrace:
    if kind is TraceType.SUB_AFTER:
        request_id, message_id, cost, is_success, keys, *more = fields
        code, timestamp, group = (*more, *("", "", "")[len(more) :])[:3]  # newer clients add more
        return MessageTrace(
            trace_type=kind,
            request_id=request_id,
            message_id=message_id,
            cost_ms=int(cost),
            is_success=_flag(is_success),
            keys=_optional(keys),
            return_type=ConsumeReturnType(int(code or 0)),
            timestamp_ms=int(timestamp or 0),
            group=group,
        )
    timestamp, region_id, group, *rest = fields
    head = partial(
        MessageTrace,
        trace_type=kind,
        timestamp_ms=int(timestamp),
        region_id=region_id,
        group=group,
    )
    if kind is TraceType.SUB_BEFORE:
        request_id, message_id, retry_times, *more = rest
        return head(
            request_id=request_id,
            message_id=message_id,
            retry_times=int(retry_times),
            keys=_optional(more[0]) if more else None,
        )
    topic, message_id, *rest = rest
    if kind is TraceType.RECALL:
        return head(topic=topic, message_id=message_id, is_success=_flag(rest[0]))
    tags, keys, store_host, *rest = rest
    about = partial(
        head,
        topic=topic,
        message_id=message_id,
        tags=_optional(tags),
        keys=_optional(keys),
        store_host=store_host,
    )
    if kind is TraceType.END_TRANSACTION:
        message_type, transaction_id, state, is_from_check = rest[:4]
        return about(
            message_type=TraceMessageType(int(message_type)),
            transaction_id=transaction_id,
            transaction_state=state,
            is_from_check=_flag(is_from_check),
        )
    body_length, cost, message_type, *rest = rest
    # Clients before 4.4 wrote no offset id, those of the cloud add the client's address.
    offset_message_id, is_success = ("", rest[0]) if len(rest) == 1 else rest[:2]
    return about(
        body_length=int(body_length),
        cost_ms=int(cost),
        message_type=TraceMessageType(int(message_type)),
        offset_message_id=offset_message_id,
        is_success=_flag(is_success),
    )


def _optional(text: str) -> str | None:
    return None if text in ("", _NULL) else text


def _flag(text: str) -> bool:
    return text == "true"
