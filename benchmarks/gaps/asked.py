"""Requests for the gap benchmark: by ext fields, by headers, and with bodies of maximum size."""

from __future__ import annotations

from typing import Any, NamedTuple

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.codes import PullSysFlag, RequestCode
from rmq_spark.wire.headers.members import PullMessageRequestHeader, SendMessageRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.remoting.command import RemotingCommand


class Scale(NamedTuple):
    """The sizes of the requests, each at or near the largest that a broker's defaults allow."""

    messages: int = 20_000
    requests: int = 200
    batch: int = 65_000
    chunk: int = 32_768
    message_bytes: int = 4_000_000
    json_bytes: int = 262_000
    queues: int = 4_096
    topics: int = 10_000
    groups: int = 5_000
    members: int = 10_000
    clients: int = 400
    holds: int = 15
    values: int = 9_000
    rounds: int = 5


QUICK = Scale(200, 5, 2_000, 300, 1_000, 2_000, 20, 50, 20, 12, 4, 3, 20, 1)
"""A scale to see that every kind works; its figures mean nothing."""


def ask(code: RequestCode, body: object = None, **fields: object) -> RemotingCommand:
    """Return a request by the names of its ext fields, with a body of JSON or of bytes."""
    data = body if isinstance(body, bytes) else b"" if body is None else encode_body(body)
    return RemotingCommand(
        code, ext_fields={name: str(each) for name, each in fields.items()}, body=data
    )


def ask_long(
    code: RequestCode, json_bytes: int, start: str, item: str, end: str
) -> RemotingCommand:
    """Return a request with a list of as many items as fit; ``%d`` stands for the item's number."""
    count = (json_bytes - len(start) - len(end)) // (len(item) + 5)
    items = ",".join(item.replace("%d", str(number)) for number in range(count))
    return RemotingCommand(code, body=f"{start}{items}{end}".encode())


def command(code: RequestCode, header: NamedTuple, body: bytes = b"") -> RemotingCommand:
    """Return a request by its header."""
    codec: Any = HEADERS[code].request
    return RemotingCommand(code, ext_fields=codec.encode(header), body=body)


def send(
    topic: str, number: int, queue_id: int = 0, size: int = 100, **properties: str
) -> RemotingCommand:
    """Return a request that sends a message which filters and keys can find."""
    text = encode_properties({"a": str(number), "KEYS": f"k{number % 100}", **properties})
    return command(RequestCode.SEND_MESSAGE_V2, send_header(topic, queue_id, text), bytes(size))


def batch(topic: str, body: bytes) -> RemotingCommand:
    """Return a request that sends many messages."""
    return command(
        RequestCode.SEND_BATCH_MESSAGE, send_header(topic, 0, "")._replace(batch=True), body
    )


def send_header(topic: str, queue_id: int, properties: str) -> SendMessageRequestHeader:
    """Return the header of a send: queue, properties and flags."""
    return SendMessageRequestHeader("P", topic, "TBW102", 4, queue_id, 0, 1, 0, properties)


def pull(
    topic: str,
    queue_id: int,
    *,
    code: RequestCode = RequestCode.PULL_MESSAGE,
    subscription: str | None = None,
    count: int = 32,
    suspend_timeout_ms: int | None = None,
) -> RemotingCommand:
    """Return a pull from the start of a queue, held there if possible, subscribed by SQL92."""
    flags = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if suspend_timeout_ms else 0)
    kind = "SQL92" if subscription is not None else "TAG"
    header = PullMessageRequestHeader(
        consumer_group="G",
        topic=topic,
        queue_id=queue_id,
        queue_offset=0,
        max_msg_nums=count,
        sys_flag=int(flags),
        commit_offset=0,
        suspend_timeout_millis=suspend_timeout_ms or 0,
        sub_version=0,
        subscription=subscription or "*",
        expression_type=kind,
    )
    return command(code, header)
