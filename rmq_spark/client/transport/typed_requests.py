"""Calls: one request with typed header and body, one answer; all but success is an exception.

Both the calls of brokers and those of name servers are made of these. This module knows no request
by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from rmq_spark.client.arguments import unsendable
from rmq_spark.client.errors import ProtocolError, refusal
from rmq_spark.errors import WireError
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.headers import exchange_of

_Body = TypeVar("_Body")
SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})

Ask = Callable[[str, RemotingCommand, int], RemotingCommand]


def command_of(code: int, header: Any = None, body: object = b"") -> RemotingCommand:
    """Return a request; ``body`` is bytes, or an instance of a body class.

    Raises:
        MessageRejected: A value cannot be sent, as a number of more than 64 bits.
    """
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
        raise unsendable(error) from error
    return RemotingCommand(code, ext_fields=ext_fields, body=data)


def checked(
    address: str, request_code: int, answer: RemotingCommand, accepted: Collection[int] = SUCCESS
) -> RemotingCommand:
    """Return the answer, if its code is one of those accepted.

    Raises:
        BrokerRefused: Its code is another; the class depends on the code.
    """
    if answer.code not in accepted:
        raise refusal(answer.code, answer.remark, address, request_code)
    return answer


def header_of(address: str, request_code: int, answer: RemotingCommand) -> Any:
    """Return the typed header of an answer."""
    codec = exchange_of(request_code).response
    if codec is None:
        raise TypeError(f"the answer to request {request_code} has no header")
    try:
        return codec.decode(answer.ext_fields)
    except WireError as error:
        raise ProtocolError(address, str(error)) from error


def body_of(address: str, body_type: type[_Body], answer: RemotingCommand) -> _Body:
    """Return the JSON body of an answer, with all fields at their defaults if there is none."""
    try:
        return decode_body(body_type, answer.body or b"{}")
    except WireError as error:
        raise ProtocolError(address, str(error)) from error


class Calls:
    """Typed requests to any address, over a function that asks."""

    def __init__(self, ask: Ask, timeout_ms: int) -> None:
        """Make calls by ``ask``, which returns the answer to a request, whatever its code is."""
        self.ask = ask
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
        command = command_of(code, header, body)
        answer = self.ask(address, command, self.timeout_ms if timeout_ms is None else timeout_ms)
        return checked(address, code, answer, accepted)

    def header(self, address: str, code: int, header: Any = None, body: object = b"") -> Any:
        """Make a request and return the typed header of the answer."""
        return header_of(address, code, self.call(address, code, header, body))

    def body(
        self,
        body_type: type[_Body],
        address: str,
        code: int,
        header: Any = None,
        body: object = b"",
    ) -> _Body:
        """Make a request and return the JSON body of the answer."""
        return body_of(address, body_type, self.call(address, code, header, body))
