"""Request handling: the signature of handlers, their refusals, and typed headers.

A handler gets a request and returns its response, or None if the response is sent later through the
connection, or not at all. It refuses by raising `RequestRejected`. A handler that stores messages
may raise `TopicNotSaved` before it has stored any: the request is dispatched again when the topic
is saved. No handler ever blocks, because the broker has one thread: a handler with much to do
returns a generator that works in steps, and returns the response in the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rmq_spark.errors import HeaderError
from rmq_spark.wire.bodies import encode_body, encode_body_in_steps
from rmq_spark.wire.codes import CommandFlag, ResponseCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand

from ..common.channel import Channel, ResponseSteps
from ..common.request_content import (
    RequestRejected,
    body_in_steps,
    body_of,
    header_of,
    no_permission,
    system_error,
)

HandlerResult: TypeAlias = "RemotingCommand | ResponseSteps | None"
"""The response; its steps, if it takes many; None if it comes later or is not wanted."""
Handler: TypeAlias = Callable[[Channel, RemotingCommand], HandlerResult]
Handlers: TypeAlias = Mapping[int, Handler]

__all__ = [
    "Handler",
    "HandlerResult",
    "Handlers",
    "RequestRejected",
    "TopicNotSaved",
    "body_in_steps",
    "body_of",
    "header_of",
    "negotiated",
    "no_permission",
    "not_supported",
    "one_way_command",
    "refuse_if_busy",
    "reply",
    "request_command",
    "size_of",
    "success_response",
    "success_response_in_steps",
    "system_error",
]


class TopicNotSaved(Exception):
    """A message was sent to a topic that is not on the disk yet."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"the topic {topic} is not saved yet")
        self.topic = topic


def size_of(request: RemotingCommand) -> int:
    """Return approximately the bytes of memory that a request takes while it waits."""
    fields = request.ext_fields
    return (
        len(request.body)
        + sum(map(sys.getsizeof, fields))
        + sum(map(sys.getsizeof, fields.values()))
    )


def success_response(
    request: RemotingCommand, header: Any = None, body: object = None
) -> RemotingCommand:
    """Return a success response, optionally with a typed header and a JSON body."""
    ext_fields = {}
    if header is not None:
        codec = HEADERS[request.code].response
        if codec is None:
            raise HeaderError(
                "answer", at="code", needed="a code with a header", found=request.code
            )
        ext_fields = codec.encode(header)
    return request.respond(
        ResponseCode.SUCCESS, None, ext_fields, b"" if body is None else encode_body(body)
    )


def success_response_in_steps(request: RemotingCommand, body: object) -> ResponseSteps:
    """Return a success response, whose large JSON body is encoded in steps; it must not change."""
    data = yield from encode_body_in_steps(body)
    return request.respond(ResponseCode.SUCCESS, body=data)


def reply(connection: Channel, request: RemotingCommand, response: RemotingCommand) -> None:
    """Send a response after the handler has returned, unless the request is one-way."""
    if not request.is_one_way:
        connection.send(response)


_UNSERVED_FEATURES: Mapping[int, str] = {
    513: "static topics",
    **dict.fromkeys(range(200_070, 200_080), "lite topics"),
}
"""Features of RocketMQ 5 that refusals name, by the codes of their requests."""


def not_supported(request: RemotingCommand) -> RequestRejected:
    """Return the refusal of a request of an unknown code, or of an extension not agreed on."""
    remark = f" request type {request.code} not supported"
    feature = _UNSERVED_FEATURES.get(request.code)
    if feature is not None:
        remark += f": this broker has no {feature}"
    return RequestRejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


def negotiated(extension: Extension, handler: Handler) -> Handler:
    """Return a handler for clients that have agreed on an extension; others are refused."""

    def handle(connection: Channel, request: RemotingCommand) -> HandlerResult:
        if extension not in connection.extensions:
            raise not_supported(request)
        return handler(connection, request)

    return handle


def refuse_if_busy(reason: str | None) -> None:
    """Refuse a request that stores something while sends wait too long for the disk."""
    if reason is not None:
        raise RequestRejected(ResponseCode.SYSTEM_BUSY, reason)


# ---- Commands from the broker to clients.

_ONE_WAY = CommandFlag.ONE_WAY.value


def one_way_command(code: int, header: Any, body: bytes = b"") -> RemotingCommand:
    """Build a command without a response."""
    return request_command(code, header, body)._replace(flag=_ONE_WAY)


def request_command(code: int, header: Any, body: bytes = b"") -> RemotingCommand:
    """Build a command that expects a response, for `Channel.request`."""
    codec = HEADERS[code].request
    if codec is None:
        raise HeaderError("request", at="code", needed="a code with a header", found=code)
    return RemotingCommand(code, ext_fields=codec.encode(header), body=body)
