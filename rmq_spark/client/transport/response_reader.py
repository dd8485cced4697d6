"""ResponseReader: reads commands from a socket, and explains why no more come.

    socket ──▶ FrameReader ──▶ command, command, ...
       └──────────┴── its end, an error, garbage ──▶ the error for all pending requests

The body of a large response is received into its final buffer. Brokers do not always say why they
close a connection: if one has never answered, the error asks about TLS.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq_spark.client.errors import ClientError, ConnectionClosed, ProtocolError
from rmq_spark.errors import FrameError, HeaderError
from rmq_spark.wire.command import RemotingCommand, decode_command
from rmq_spark.wire.framing import PREFIX_BYTES, FrameReader

if TYPE_CHECKING:
    from rmq_spark.client.transport.tls.client import TlsSocket


# ---- Memory for a large frame, whose every byte is about to be written.


def uninitialized_buffer(size: int) -> memoryview:
    """Return uninitialized memory of this many bytes."""
    empty = getattr(sys.modules.get("numpy"), "empty", None)
    if empty is None:  # not loaded, or not yet
        return memoryview(bytearray(size))
    memory: memoryview = empty(size, "u1").data
    return memory


_READ_BYTES = 1 << 18


class ResponseReader:
    """Reads the commands of one peer; one thread at a time."""

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        address: str,
        clock: Callable[[], float],
        frame_bytes_max: int,
    ) -> None:
        """Read from a connected socket; ``clock`` is in seconds."""
        self._socket = sock
        self._address = address
        self._clock = clock
        self._frame_reader = FrameReader(frame_bytes_max, allocate=uninitialized_buffer)
        self.received_at = clock()
        """Time of the clock at which something last came."""

        self.peer_version = 0
        """RocketMQ's number of the peer's version; 0 before it has answered anything."""

    def read(
        self, seconds: float | None, on_command: Callable[[RemotingCommand], object]
    ) -> ClientError | None:
        """Pass on the commands that have arrived, or that arrive within a timeout.

        Args:
            seconds: Seconds to wait; None is for the socket's own timeout.
            on_command: Called with each command, in their order.

        Returns:
            The error that ends the connection; None if it continues.
        """
        try:
            if seconds is not None:
                self._socket.settimeout(seconds)
            count = self._receive()
        except (TimeoutError, BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            why = error.strerror or str(error)
            is_cut = isinstance(error, ConnectionResetError)
            return ConnectionClosed(self._address, self.close_reason(why) if is_cut else why)
        if not count:
            why = "the broker has closed it"
            if self._frame_reader.buffered_bytes:
                why += (
                    f" in the middle of an answer, {self._frame_reader.buffered_bytes} bytes into "
                    "it"
                )
            return ConnectionClosed(self._address, self.close_reason(why))
        self.received_at = self._clock()
        try:
            while (frame := self._frame_reader.next_frame()) is not None:
                command = decode_command(frame)
                if command.is_response:
                    self.peer_version = command.version
                on_command(command)
        except (FrameError, HeaderError) as error:
            return ProtocolError(self._address, str(error))
        return None

    def _receive(self) -> int:
        """Read, and return the number of bytes; those of a large answer go to their place."""
        room = self._frame_reader.get_buffer()
        if room is None:
            data = self._socket.recv(_READ_BYTES)
            self._frame_reader.feed(data)
            return len(data)
        count = self._socket.recv_into(room)
        self._frame_reader.buffer_updated(count)
        return count

    def is_closed_by_peer(self) -> bool:
        """Return whether the peer has closed the connection, without reading from it."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLRDHUP)
        except ValueError:  # it is closed here, too
            return True
        return bool(poll.poll(0))

    def close_reason(self, reason: str) -> str:
        """Add a hint about TLS to a reason: brokers do not always tell clients that they refuse."""
        if (
            self.peer_version or self._frame_reader.buffered_bytes >= PREFIX_BYTES
        ):  # an alert of TLS is shorter
            return reason
        if isinstance(self._socket, socket.socket):
            wanted = "TLS? If so, turn TLS on here"
        else:
            wanted = "a certificate from this client, or another one? If so, give it"
        return f"{reason}, and never answered anything: does it want {wanted}"
