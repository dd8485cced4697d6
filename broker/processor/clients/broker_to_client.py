"""Commands from the broker to clients, with typed headers.

The connection gives a request its opaque; a notice is one-way and needs none.
"""

from __future__ import annotations

from typing import Any

from rmq_spark.errors import HeaderError
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import CommandFlag
from rmq_spark.wire.headers.table import HEADERS

_ONE_WAY = CommandFlag.ONE_WAY.value


def one_way_command(code: int, header: Any, body: bytes = b"") -> RemotingCommand:
    """Build a command that wants no answer."""
    return request_command(code, header, body)._replace(flag=_ONE_WAY)


def request_command(code: int, header: Any, body: bytes = b"") -> RemotingCommand:
    """Build a command that wants an answer, for `Connection.request`."""
    codec = HEADERS[code].request
    if codec is None:
        raise HeaderError("request", at="code", needed="a code with a header", found=code)
    return RemotingCommand(code, ext_fields=codec.encode(header), body=body)
