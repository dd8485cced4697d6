"""TypedRequests: sends typed headers and bodies; any response but success raises an exception.

Requests to brokers and to name servers are both built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from rmq_spark.client.arguments import message_rejected
from rmq_spark.client.errors import ProtocolError, refusal
from rmq_spark.errors import WireError
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.headers import exchange_of

_Body = TypeVar("_Body")
SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})

RequestFunction = Callable[[str, RemotingCommand, int], RemotingCommand]


def build_request(code: int, header: Any = None, body: object = b"") -> RemotingCommand:
    """Return a request; ``body`` is bytes, or an instance of a body class."""
    ext_fields: dict[str, str] = {}
    try:
        if header is not None:
            codec = exchange_of(code).request
            if codec is None:
                raise TypeError(f"request {code} has no header")
            ext_fields = codec.encode(header)
        data: Buffer = (
            body if isinstance(body, (bytes, bytearray, memoryview)) else encode_body(body)
        )
    except WireError as error:
        raise message_rejected(error) from error
    return RemotingCommand(code, ext_fields=ext_fields, body=data)


def check_response(
    address: str, request_code: int, response: RemotingCommand, accepted: Collection[int] = SUCCESS
) -> RemotingCommand:
    """Return the response, if its code is an accepted one."""
    if response.code not in accepted:
        raise refusal(response.code, response.remark, address, request_code)
    return response


def response_header(address: str, request_code: int, response: RemotingCommand) -> Any:
    """Return the typed header of an answer."""
    codec = exchange_of(request_code).response
    if codec is None:
        raise TypeError(f"the answer to request {request_code} has no header")
    try:
        return codec.decode(response.ext_fields)
    except WireError as error:
        raise ProtocolError(address, str(error)) from error


def response_body(address: str, body_type: type[_Body], response: RemotingCommand) -> _Body:
    """Return the JSON body of a response, with all fields at their defaults if it has none."""
    try:
        return decode_body(body_type, response.body or b"{}")
    except WireError as error:
        raise ProtocolError(address, str(error)) from error


class TypedRequests:
    """Typed requests to any address, through a function that sends them."""

    def __init__(self, request: RequestFunction, timeout_ms: int) -> None:
        """Send requests by ``request``, which returns the response, with any code."""
        self.request = request
        self.timeout_ms = timeout_ms

    def call(
        self,
        address: str,
        code: int,
        header: Any = None,
        body: object = b"",
        *,
        accepted: Collection[int] = SUCCESS,
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        """Make a request and return the answer."""
        command = build_request(code, header, body)
        answer = self.request(
            address, command, self.timeout_ms if timeout_ms is None else timeout_ms
        )
        return check_response(address, code, answer, accepted)

    def header(self, address: str, code: int, header: Any = None) -> Any:
        """Make a request and return the typed header of the answer."""
        return response_header(address, code, self.call(address, code, header))

    def body(
        self,
        body_type: type[_Body],
        address: str,
        code: int,
        header: Any = None,
        timeout_ms: int | None = None,
    ) -> _Body:
        """Make a request and return the JSON body of the answer."""
        answer = self.call(address, code, header, timeout_ms=timeout_ms)
        return response_body(address, body_type, answer)
