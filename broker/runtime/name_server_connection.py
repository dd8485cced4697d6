"""NameServerConnection: the broker's connection to one name server of a RocketMQ cluster.

Its methods block: call them from one thread at a time, never on the event loop. A name server
forgets a broker whose connection closes, so the connection stays open between requests.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rmq_spark.errors import RocketPollError
from rmq_spark.wire.headers import exchange_of
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader

_READ_BYTES = 65_536


class NameServerError(RocketPollError, page="troubleshooting.md#the-broker-and-its-store"):
    """A name server did not answer, or refused a request."""


def build_request(code: int, header: Any = None, body: bytes = b"") -> RemotingCommand:
    """Return a request with its header, if it has one."""
    codec = exchange_of(code).request
    ext_fields = {} if header is None or codec is None else codec.encode(header)
    return RemotingCommand(code, ext_fields=ext_fields, body=body)


class NameServerConnection:
    """A connection that sends one request at a time and waits for its response."""

    def __init__(
        self,
        address: str,
        timeout_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the address, ``host:port``, without connecting."""
        self.address = address
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._opaque = 0

    @property
    def is_open(self) -> bool:
        """True after `open`, until `close` or a failed request."""
        return self._socket is not None

    @property
    def descriptor(self) -> int:
        """The descriptor of the socket; -1 if there is none."""
        connection = self._socket
        return -1 if connection is None else connection.fileno()

    def open(self) -> None:
        """Connect to the name server."""
        host, _, port = self.address.rpartition(":")
        self._reader = FrameReader()
        self._socket = socket.create_connection(
            (host.strip("[]"), int(port)), self._timeout_seconds
        )

    def request(self, command: RemotingCommand) -> RemotingCommand:
        """Return the response to a request.

        Raises:
            OSError: The connection failed, and is closed.
            NameServerError: The name server closed the connection, or did not respond in time.
                The connection is closed.
        """
        with self._lock:
            try:
                return self._exchange(command)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the connection, if it is open; a thread that waits for a response fails."""
        connection, self._socket = self._socket, None
        if connection is not None:
            with suppress(OSError):  # the other end has closed it
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _exchange(self, command: RemotingCommand) -> RemotingCommand:
        connection = self._socket
        if connection is None:
            raise NameServerError("the connection is closed")
        self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        until = self._monotonic() + self._timeout_seconds
        connection.settimeout(self._timeout_seconds)
        connection.sendall(command.with_opaque(opaque).encode())
        while True:
            while (frame := self._reader.next_frame()) is not None:
                response = decode_command(frame)
                # a name server's own requests to brokers concern only slaves
                if response.is_response and response.opaque == opaque:
                    return response
            seconds = until - self._monotonic()
            if seconds <= 0:
                raise NameServerError(f"no response within {self._timeout_seconds:g} s")
            connection.settimeout(seconds)
            try:
                data = connection.recv(_READ_BYTES)
            except TimeoutError:
                continue
            if not data:
                raise NameServerError("the name server closed the connection")
            self._reader.feed(data)
