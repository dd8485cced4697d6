"""A client that signs single requests with any key, or with a wrong signature.

Tests set every field of a request and see every field of the answer.
"""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from rmq_spark.wire.codes import LanguageCode, SerializeType
from rmq_spark.wire.remoting.command import CURRENT_VERSION, RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rmq_spark.wire.signature import signed_fields

ANSWER_SECONDS_MAX = 20


class Key(NamedTuple):
    """An access key and its secret."""

    name: str
    secret: str
    excluded: tuple[str, ...] = ()
    """Fields that the signature leaves out."""


class Answer(NamedTuple):
    """A broker's response."""

    code: int
    remark: str | None
    ext_fields: dict[str, str]
    body: bytes


class SignedClient:
    """One connection, as a context manager."""

    _opaques = itertools.count(1)

    def __init__(
        self,
        address: str,
        *,
        serialize_type: SerializeType = SerializeType.JSON,
        version: int = CURRENT_VERSION,
        source: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect; ``source`` is the address of this machine that the broker sees."""
        host, _, port = address.rpartition(":")
        self._serialize_type = serialize_type
        self._version = version
        plain = socket.create_connection(
            (host, int(port)), ANSWER_SECONDS_MAX, None if source is None else (source, 0)
        )
        self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        self._frames = FrameReader()

    def ask(
        self,
        code: int,
        ext_fields: Mapping[str, str] = MappingProxyType({}),
        body: bytes = b"",
        key: Key | None = None,
        changed: Mapping[str, str] = MappingProxyType({}),
    ) -> Answer:
        """Send a request and return the answer; ``changed`` are fields that are changed after
        signing."""
        opaque = next(self._opaques)
        self.send(code, ext_fields, body, key, changed, opaque=opaque)
        while True:
            answer = self._next_answer()
            if answer.opaque == opaque and answer.flag & 1:
                return Answer(
                    answer.code, answer.remark, dict(answer.ext_fields), bytes(answer.body)
                )

    def send(
        self,
        code: int,
        ext_fields: Mapping[str, str],
        body: bytes,
        key: Key | None,
        changed: Mapping[str, str],
        *,
        opaque: int,
        flag: int = 0,
    ) -> None:
        """Send a request without waiting."""
        fields = dict(ext_fields)
        if key is not None:
            fields = signed_fields(
                fields, body, access_key=key.name, secret_key=key.secret, excluded=key.excluded
            )
        command = RemotingCommand(
            code,
            language=LanguageCode.JAVA,
            version=self._version,
            opaque=opaque,
            flag=flag,
            ext_fields={**fields, **changed},
            serialize_type=self._serialize_type,
            body=body,
        )
        self._socket.sendall(command.encode())

    def _next_answer(self) -> RemotingCommand:
        while (frame := self._frames.next_frame()) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker has closed the connection")
            self._frames.feed(data)
        return decode_command(frame)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> SignedClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
