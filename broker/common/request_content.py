"""Request content: typed headers and bodies of requests, and the refusal of a request.

The access lists and the handlers decode a request with the same functions, so that what is checked
is what is processed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

from rmq_spark.errors import HeaderError, RocketPollError
from rmq_spark.wire.bodies import decode_body, decode_body_in_steps
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand

Body = TypeVar("Body")

LENIENT_JSON_BYTES_MAX: Final = 16_384
"""Longer bodies must be strict JSON, as clients send: lenient parsing takes 100 times as long."""

_DECODERS = {
    int(code): exchange.request.decode
    for code, exchange in HEADERS.items()
    if exchange.request is not None
}


class RequestRejected(RocketPollError, page="troubleshooting.md#refused-by-a-broker"):
    """A refusal, which becomes a response with this code and this remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(f"{code.name}: {remark}")
        self.code = code
        self.remark = remark


class NotAuthenticated(RequestRejected):
    """A refusal of a request whose sender has proven no identity; it is logged already."""


def system_error(remark: str) -> RequestRejected:
    """Return the refusal of an invalid request for which RocketMQ has no code of its own."""
    return RequestRejected(ResponseCode.SYSTEM_ERROR, remark)


def no_permission(remark: str) -> RequestRejected:
    """Return the refusal of a request that permissions of client, group or broker forbid."""
    return RequestRejected(ResponseCode.NO_PERMISSION, remark)


def header_of(request: RemotingCommand) -> Any:
    """Return the typed header of a request; raise HeaderError if its code has none."""
    decode = _DECODERS.get(request.code)
    if decode is None:
        raise HeaderError("request", at="code", needed="a code with a header", found=request.code)
    return decode(request.ext_fields)


def body_of(request: RemotingCommand, body_type: type[Any]) -> Any:
    """Return the decoded JSON body of a request."""
    if not request.body:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"request {request.code} needs a body")
    return decode_body(body_type, request.body, lenient_bytes_max=LENIENT_JSON_BYTES_MAX)


def body_in_steps(request: RemotingCommand, body_type: type[Body]) -> Generator[None, None, Body]:
    """Decode, in steps, the JSON body of a request that may hold thousands of values."""
    if not request.body:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"request {request.code} needs a body")
    return (
        yield from decode_body_in_steps(
            body_type, request.body, lenient_bytes_max=LENIENT_JSON_BYTES_MAX
        )
    )
