"""TlsTransport: TLS between the transport of a connection and its protocol.

    data_received ──> whole records ──> OpenSSL ──> plain bytes ──> the client's protocol
    write ──> plain bytes that wait ──> OpenSSL ──> encrypted bytes ──> the transport below

Handshakes, decryption and encryption take time, so they run in slices of the scheduler. Responses
that a client does not read wait unencrypted: at most one piece is encrypted before the system
accepts it. The protocol's writing is paused while anything waits.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Protocol

from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.remoting.framing import Buffer

from ...store.errors import describe_error
from ..fair_scheduler import FairScheduler
from .server_tls import ServerTls, explain_error

# ---- Where the records of TLS end in a stream of bytes.

HANDSHAKE_BYTE: Final = 0x16
"""The first byte of a connection with TLS: a handshake record. A frame of RocketMQ's protocol that
begins with it would have 369 MB."""
HEADER_BYTES: Final = 5
RECORD_BYTES_MAX: Final = HEADER_BYTES + (1 << 14) + 2_048
"""The largest record of any version; only TLS 1.2 may need all of it."""


def whole_records_bytes(data: Buffer, bytes_min: int) -> int:
    """Return the length of the whole records at the start of ``data``.

        u8   content type
        u16  version
        u16  length         of the bytes that follow; at most 2^14 and some for encryption

    OpenSSL gets whole records only, because it does not report that it keeps a part of one. The
    result is the end of the first record that reaches ``bytes_min``. A record over the maximum
    length counts as whole, with all bytes after it, so that OpenSSL refuses it.
    """
    size = len(data)
    end = 0
    while end < bytes_min and end + HEADER_BYTES <= size:
        record_bytes = HEADER_BYTES + (data[end + 3] << 8 | data[end + 4])
        if record_bytes > RECORD_BYTES_MAX:
            return size
        if end + record_bytes > size:
            break
        end += record_bytes
    return end


_RECORD_BYTES: Final = 16_384
"""The maximum plain bytes of one record."""
_PIECE_BYTES: Final = 65_536
"""Bytes that are encrypted between two reads of the clock; they take some 0.1 ms."""
_SILENT_BYTES_MAX: Final = 131_072
"""The maximum bytes that a client may send without data: its handshake, and later changes of keys.
A handshake has at most 100 KB, most of it certificates, and a change of keys 30 bytes.
"""


class PlainProtocol(Protocol):
    """The protocol above, which gets plain bytes."""

    undecrypted_bytes: int
    """The bytes of records that are not whole, or wait for their turn."""

    @property
    def remote_host(self) -> Host:
        """The client's address and port."""

    def data_received(self, data: bytes) -> None:
        """Process plain bytes, which are empty if only `undecrypted_bytes` may have changed."""

    def pause_writing(self) -> None:
        """Record that bytes wait to be sent."""

    def resume_writing(self) -> None:
        """Record that no bytes wait any more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection."""

    def close(self, reason: str) -> None:
        """Close the connection, and log the reason."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of a connection under TLS, and the protocol of the transport below it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        client: PlainProtocol,
        server_tls: ServerTls,
        scheduler: FairScheduler,
    ) -> None:
        """Prepare the server's side of a handshake, which begins with the client's first bytes."""
        super().__init__()
        self._time = loop.time
        self._transport = transport
        self._client = client
        self._server_tls = server_tls
        self._scheduler = scheduler
        self._tls, self._incoming, self._outgoing = server_tls.new_session()
        self.is_handshaking = True
        self._encrypted = memoryview(b"")
        """Received bytes that OpenSSL does not have yet."""
        self._silent_bytes = 0
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self.is_queued = False
        """True while received bytes wait for a later turn of the loop."""
        self._is_sending_queued = False
        self._is_full = False
        """True while the transport below has bytes that the system does not accept."""
        self._is_client_paused = False
        self._is_reading = True
        self._wants_to_read = True
        self._has_input_ended = False
        self._is_closing = False
        self._has_finished = False
        """True once nothing can be sent any more."""

    # ---- called by the transport below

    def data_received(self, data: bytes) -> None:
        """Receive encrypted bytes."""
        if self._has_input_ended or self._is_closing:
            return
        self._encrypted = memoryview(b"".join((self._encrypted, data)) if self._encrypted else data)
        if not self.is_queued and not self._scheduler.run(self._receive):
            self.is_queued = True
            self._update_reading()

    def eof_received(self) -> bool:
        """Close the connection once its input is processed, as without TLS."""
        self._has_input_ended = True
        self._close_after_input()
        return True

    def pause_writing(self) -> None:
        """Stop encrypting, because the system accepts no more bytes."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Continue to encrypt."""
        self._is_full = False
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection has ended."""
        self._drop_output()
        self._has_input_ended = True
        self.fail_handshake("the client has closed the connection")
        self._client.connection_lost(exc)

    # ---- called by the connection

    def fail_handshake(self, why: str) -> bool:
        """Report a failed handshake, unless the handshake is complete; return whether it failed."""
        if not self.is_handshaking:
            return False
        self.is_handshaking = False
        self._has_input_ended = True
        self._server_tls.handshake_failed(self._client.remote_host, why)
        return True

    def write(self, data: Buffer) -> None:
        """Send plain bytes, encrypted."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send pieces of plain bytes, encrypted."""
        if self._is_closing or self._has_finished:
            return
        for data in list_of_data:
            if data:
                self._waiting.append(memoryview(data))
                self._waiting_bytes += len(data)
        if not (self._is_sending_queued or self._is_full):
            self._encrypt(_RECORD_BYTES)  # most responses are smaller than a record
        self._send()

    def close(self) -> None:
        """Send the waiting bytes and the closing alert, then close."""
        if not self._is_closing:
            self._is_closing = True
            self._send()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self._drop_output()
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether the connection is ending."""
        return self._is_closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Suspend reading until `resume_reading`."""
        self._wants_to_read = False
        self._update_reading()

    def resume_reading(self) -> None:
        """Resume reading from the client."""
        self._wants_to_read = True
        self._update_reading()
        self._close_after_input()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information of the transport below."""
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the system has not accepted, encrypted or not."""
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    # ---- receiving

    def _receive(self, until: float) -> bool:
        """Decrypt records and pass their content on; return whether no whole record is left."""
        pieces: list[bytes] = []
        failure: str | None = None
        is_done = self._has_input_ended
        try:
            while not is_done:
                size = whole_records_bytes(self._encrypted, _RECORD_BYTES)
                if size:
                    self._incoming.write(self._encrypted[:size])
                    self._encrypted = self._encrypted[size:]
                    failure = self._decrypt_records(size, pieces)
                is_done = not (size and self._encrypted) or self._has_input_ended or bool(failure)
                if self._time() >= until:
                    break
        except ssl.SSLError as error:
            failure = explain_error(error)
        except MemoryError as error:  # a part of the client's stream is lost
            failure = describe_error(error)
        self.is_queued = not (is_done or failure)
        if failure:
            self._fail(failure)
        else:
            self._client.undecrypted_bytes = len(self._encrypted)
            self._client.data_received(b"".join(pieces) if len(pieces) != 1 else pieces[0])
        self._update_reading()
        self._close_after_input()
        return not self.is_queued

    def _decrypt_records(self, size: int, pieces: list[bytes]) -> str | None:
        """Decrypt whole records into ``pieces``; return why to disconnect the client, or None."""
        count = len(pieces)
        is_new = self.is_handshaking
        try:
            if is_new:
                self._tls.do_handshake()
                self.is_handshaking = False
                self._server_tls.handshakes_completed += 1
            while self._incoming.pending:
                data = self._tls.read(_RECORD_BYTES)
                if not data:
                    self._has_input_ended = True
                    break
                pieces.append(data)
        except ssl.SSLWantReadError:  # a part of a handshake, or a change of keys
            pass
        except ssl.SSLZeroReturnError:
            self._has_input_ended = True
        finally:
            has_written = self._flush_outgoing()
        if has_written and not is_new and self._tls.version() == "TLSv1.2":
            return "it requests a renegotiation"  # OpenSSL has refused, but the client may continue
        if len(pieces) == count:
            self._silent_bytes += size
            if self._silent_bytes > _SILENT_BYTES_MAX:
                return f"it has sent {self._silent_bytes} bytes that carry no data"
        return None

    def _fail(self, why: str) -> None:
        """Disconnect the client; OpenSSL has sent it an alert."""
        self._has_input_ended = True
        self._encrypted = memoryview(b"")
        self._client.close(why if self.is_handshaking else f"TLS: {why}")

    def _update_reading(self) -> None:
        """Read unless the connection has paused reading, or received bytes wait here."""
        reads = self._wants_to_read and not self.is_queued
        if reads != self._is_reading and not self._transport.is_closing():
            self._is_reading = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    def _close_after_input(self) -> None:
        """Close if the client has ended its side, and everything before that is processed."""
        if self._has_input_ended and self._wants_to_read and not self.is_queued:
            self.close()

    # ---- sending

    def _send(self) -> None:
        if self._waiting and not (self._is_full or self._is_sending_queued):
            self._is_sending_queued = not self._scheduler.run(self._encrypt_until)
        self._output_changed()

    def _encrypt_until(self, until: float) -> bool:
        """Encrypt until a time; return False if work is left that could be done now."""
        while self._waiting and not self._is_full:
            self._encrypt(_PIECE_BYTES)
            if self._time() >= until:
                break
        is_done = self._is_full or not self._waiting
        if is_done and self._is_sending_queued:
            self._is_sending_queued = False
            self._output_changed()
        return is_done

    def _encrypt(self, bytes_max: int) -> None:
        piece = self._next_piece(bytes_max)
        try:
            while piece:
                piece = piece[self._tls.write(piece) :]
        except ssl.SSLError as error:
            self._drop_output()
            self._fail(explain_error(error))
        self._flush_outgoing()

    def _next_piece(self, bytes_max: int) -> memoryview:
        pieces: list[memoryview] = []
        size = 0
        while self._waiting and size < bytes_max:
            piece = self._waiting.popleft()
            left = bytes_max - size
            if len(piece) > left:
                self._waiting.appendleft(piece[left:])
                piece = piece[:left]
            pieces.append(piece)
            size += len(piece)
        self._waiting_bytes -= size
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _output_changed(self) -> None:
        """Pause or resume the connection's writes; close it if it is closing and no bytes wait."""
        is_waiting = self._is_full or bool(self._waiting)
        if is_waiting != self._is_client_paused and not self._has_finished:
            self._is_client_paused = is_waiting
            (self._client.pause_writing if is_waiting else self._client.resume_writing)()
        if self._is_closing and not (self._waiting or self._has_finished):
            self._has_finished = True
            with suppress(
                ssl.SSLError
            ):  # do not wait for the client's alert; a handshake may be under way
                self._tls.unwrap()
            self._flush_outgoing()
            self._transport.close()

    def _drop_output(self) -> None:
        self._has_finished = True
        self._waiting.clear()
        self._waiting_bytes = 0

    def _flush_outgoing(self) -> bool:
        """Pass OpenSSL's output to the transport below; return whether there was any."""
        if not self._outgoing.pending:
            return False
        self._transport.write(self._outgoing.read())
        return True
