"""ClientConnection: turns the bytes of one client into requests, and responses into bytes.

    bytes ──> FrameReader ──> RemotingCommand ──> dispatch ──> answers, all of one turn in one write

Reading depends on writing. When a client's unread responses reach a limit, the connection reads
nothing more from it and dispatches no request, not even one that has arrived; it only finishes a
multi-step request that has begun. It also stops when the loop's turn is over: the remaining
requests wait in the queue of `FairScheduler`. Requests that follow a multi-step request wait there,
too, or wait with it for the future that it needs.

`ConnectionTable` is the server's side, which has the limits over all clients.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import sys
import termios
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from rmq_spark.errors import FrameError, HeaderError
from rmq_spark.wire.codes import CommandFlag, ResponseCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.message.hosts import Host, host_of
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import PREFIX_BYTES, Buffer, FrameReader
from rmq_spark.wire.remoting.header import NO_EXT_FIELDS

from ..common.channel import Identity
from ..common.outgoing_requests import OutgoingRequests, ReplyCallback
from ..settings.config import ServerLimits
from ..store.errors import describe_error, is_transient
from .fair_scheduler import SLICE_SECONDS, FairScheduler
from .limits import RESPONSE_BYTES_MIN, ConcurrencyLimit, Permit, SendBufferLimits
from .tls.server_tls import ServerTls
from .tls.transport import HANDSHAKE_BYTE, TlsTransport

if TYPE_CHECKING:
    from ..common.channel import Channel, ResponseSteps

# ---- Fast paths of one client, selected by how its next request begins.

_HEADER_START_BYTES = 12
"""The length of ``{"code":310,``, with which most headers begin."""
_HEADER_STARTS_MAX = 16


class FastPath(Protocol):
    """A short way for requests that look like earlier ones, many at once."""

    def process(self, connection: Channel, data: bytes, start: int) -> int:
        """Process whole frames from a position in the data on; return where the rest begins."""

    def learn(self, connection: Channel, header: Buffer, request: RemotingCommand) -> bool:
        """Learn from a dispatched request; return whether `process` knows such requests now."""


class ClientFastPaths:
    """The fast paths of one client.

        {"code":310,"ext...   ─> the fast path that has learned a header with this beginning
        {"code":34,"extF...   ─> none: the normal path

    A fast path is tried only for requests that begin like one that it has learned, so all other
    requests cost one lookup.
    """

    def __init__(self, fast_paths: Sequence[FastPath]) -> None:
        self._fast_paths = fast_paths
        self._by_header_start: dict[bytes, FastPath] = {}

    def learn(self, connection: Channel, header: Buffer, request: RemotingCommand) -> None:
        """Pass a request of the normal path to the fast paths, which learn its header."""
        for fast_path in self._fast_paths:
            if fast_path.learn(connection, header, request):
                if len(self._by_header_start) >= _HEADER_STARTS_MAX:
                    self._by_header_start.clear()
                self._by_header_start[bytes(header[:_HEADER_START_BYTES])] = fast_path

    def process(self, connection: Channel, reader: FrameReader) -> bool:
        """Return whether a fast path has processed the next requests."""
        piece = reader.contiguous_data() if self._by_header_start else None
        if piece is None:
            return False
        data, start = piece
        header_at = start + PREFIX_BYTES
        fast_path = self._by_header_start.get(data[header_at : header_at + _HEADER_START_BYTES])
        end = start if fast_path is None else fast_path.process(connection, data, start)
        if end == start:
            return False
        reader.skip(end - start)
        return True


# ---- The server's side of a connection.

_Connection_contra = TypeVar("_Connection_contra", contravariant=True)


class ConnectionTable(Protocol[_Connection_contra]):
    """The server's side of a connection: it receives events and enforces common limits."""

    @property
    def concurrency_limit(self) -> ConcurrencyLimit:
        """The permits for multi-step requests."""

    @property
    def send_buffers(self) -> SendBufferLimits[Any]:
        """The limits of responses that clients do not read."""

    def register(self, connection: _Connection_contra) -> bool:
        """Count a new connection, and return whether it may stay."""

    def protocol_accepted(self, connection: _Connection_contra) -> None:
        """Record that the header of a client's first request has arrived."""

    def record_requests(
        self, connection: _Connection_contra, size: int, *, is_waiting: bool = False
    ) -> None:
        """Record that ``size`` bytes of requests have arrived and wait.

        With ``is_waiting`` they wait for their turn, otherwise for the client: the last request is
        partial, or the client does not read its responses.
        """

    def unregister(self, connection: _Connection_contra) -> None:
        """Remove a connection that has ended."""


# ---- Client sockets: the bytes in the system's buffers.

UNSENT_BYTES_MAX = 512 << 10
"""The maximum bytes of unsent responses in the system's buffer; more are kept, and counted, here.
Without this limit, the system keeps up to four megabytes for each client that does not read.
"""
_COUNTED_BYTES = 16 << 10
"""After this many written bytes, the table checks how many of them have not arrived yet."""
_TCP_NOTSENT_LOWAT = 25 if sys.platform == "linux" else None  # Python has the name since 3.12
_INT = struct.Struct("i")


def kernel_buffered_bytes(descriptor: int) -> int:
    """Return the bytes given to a socket that have not arrived; 0 if the system has no count."""
    try:
        size: int = _INT.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_INT.size)))[0]
    except (OSError, ValueError):  # ValueError: the socket is closed
        return 0
    return size


# ---- Clients of other protocols.

_PROTOCOL_PREFIXES = (
    (b"GET ", "HTTP"),
    (b"POST", "HTTP"),
    (b"HEAD", "HTTP"),
    (b"PRI ", "HTTP/2"),
    (b"\x16\x03", "TLS"),
)
_HINTS = {
    "TLS": ", and TLS is off here: set tls.server.certPath and tls.server.keyPath, or turn it off "
    "in the client"
}


def detect_protocol(first_bytes: bytes) -> str | None:
    """Return the name of the protocol that begins with these bytes, or None."""
    return next((name for start, name in _PROTOCOL_PREFIXES if first_bytes.startswith(start)), None)


_log = logging.getLogger(__name__)
_RESPONSE = CommandFlag.RESPONSE.value
_LINGER_SECONDS = 2.0
_NO_LINGER = struct.pack("ii", 1, 0)
"""With this value of SO_LINGER, a close resets the connection."""

Dispatch = Callable[["Channel", RemotingCommand], "RemotingCommand | ResponseSteps | None"]


class ClientConnection(asyncio.Protocol):
    """The asyncio protocol of one client: reads requests, dispatches them, and writes responses."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: ServerLimits,
        table: ConnectionTable[ClientConnection],
        dispatch: Dispatch,
        scheduler: FairScheduler,
        end_turn: Callable[[], object] = lambda: None,
        fast_paths: Sequence[FastPath] = (),
        server_tls: ServerTls | None = None,
    ) -> None:
        """Store the parts.

        ``end_turn`` is called when all requests of a turn are dispatched, before responses are
        sent; in a long turn now and then. The ``fast_paths`` learn from requests on the normal
        path, and process those that begin like them. ``server_tls`` decides about TLS.
        """
        self._loop = loop
        self._limits = limits
        self._table = table
        self._dispatch = dispatch
        self._scheduler = scheduler
        self._end_turn = end_turn
        self._fast_paths = ClientFastPaths(fast_paths)
        self._server_tls = server_tls
        self._tls: TlsTransport | None = None
        self._reader = FrameReader(limits.frame_bytes_max, limits.header_bytes_max)
        self._transport: asyncio.Transport
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._uncounted_bytes = 0
        """Bytes written since the last `SendBufferLimits.record_written`."""
        self._is_corked = False
        self._is_send_buffer_full = False
        self._unread_bytes = 0
        self._is_new = True
        self._first_bytes = b""
        self._buffered_bytes = 0
        self.undecrypted_bytes = 0
        """Bytes that have arrived and are still encrypted."""
        self._is_awaiting_turn = False
        """True if the table has recorded the buffered bytes as waiting for their turn."""
        self._steps: ResponseSteps | None = None
        self._steps_bytes = 0
        self._request: RemotingCommand
        self._permit: Permit | None = None
        self._is_queued = False
        self._is_registered = False
        """True once the client's addresses are known and the table counts it."""
        self._is_waiting = False
        """True while the next step waits for a future."""
        self._outgoing_requests = OutgoingRequests(loop)
        self.extensions: frozenset[Extension] = frozenset()
        self.identity: Identity | None = None
        self.is_closed = False
        self.was_closed_by_broker = False
        """True if the broker has closed the connection for what its client did or failed to do."""
        self.is_congested = False
        self.is_throttled = False
        self.last_active = 0.0
        self.remote_host = self.local_host = Host(bytes(4), 0)

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the socket and register the client, unless it is gone already."""
        self._transport = cast("asyncio.Transport", transport)
        names = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if not all(names):  # the client is gone, as a load balancer's health check is
            self.abort()
            return
        # With 0, asyncio reports any byte that the system does not accept.
        self._transport.set_write_buffer_limits(0)
        self.remote_host, self.local_host = map(host_of, names)
        tcp: socket.socket = transport.get_extra_info("socket")
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if _TCP_NOTSENT_LOWAT is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
        self.last_active = self._loop.time()
        self._is_registered = True
        if not self._table.register(self):
            self._reset(tcp)

    def data_received(self, data: bytes) -> None:
        """Process the next piece of the client's stream."""
        self.last_active = now = self._loop.time()
        if self._is_new and not self._first_bytes:
            self._first_bytes = data[:8]
            if self._tls is None and self._server_tls is not None and not self._is_plain(data):
                return
        try:
            self._reader.feed(data)
        except MemoryError as error:  # a part of the client's stream is lost
            self.close(describe_error(error))
            return
        if not self._is_queued and not self._scheduler.run(self._process_requests, now):
            self._enqueue()

    def _is_plain(self, data: bytes) -> bool:
        """Return whether the connection has no TLS; otherwise begin TLS, or refuse the client."""
        tls = self._server_tls
        if tls is None or self.is_closed:
            return True
        if tls.is_offered and data[0] == HANDSHAKE_BYTE:
            self._first_bytes = b""
            self._tls = TlsTransport(self._loop, self._transport, self, tls, self._scheduler)
            self._transport.set_protocol(self._tls)
            self._transport = self._tls
            self._tls.data_received(data)
            return False
        if tls.is_enforced:
            tls.refuse_plain(self.remote_host)
            self._disconnect()
            return False
        return True

    def pause_writing(self) -> None:
        """Record that the system accepts no more bytes now, because the client does not read."""
        self._is_send_buffer_full = True

    def resume_writing(self) -> None:
        """Continue with requests: the system has accepted all that was written."""
        self._is_send_buffer_full = self.is_congested = False
        self._unread_bytes = 0
        self.last_active = self._loop.time()
        self._table.send_buffers.discard(self)
        self._loop.call_soon(self._resume)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after a connection that the client or the broker has closed."""
        self.is_closed = True
        if not self._is_registered:
            return
        self._out.clear()
        self._end_steps()
        if exc is not None and not isinstance(exc, ConnectionError):
            _log.info("%s: lost: %s", self.remote_host, exc)
        self._table.unregister(self)
        self._outgoing_requests.cancel_all()

    # ---- called by other parts of the broker

    @property
    def is_silent(self) -> bool:
        """True while the client has sent nothing; under TLS, nothing after the handshake."""
        has_sent = not self._is_new or bool(self._first_bytes)
        return not (has_sent or (self._tls is not None and self._tls.is_handshaking))

    @property
    def response_bytes_max(self) -> int:
        """The maximum size of a response now, in bytes."""
        return self._table.send_buffers.response_bytes_max

    @property
    def is_waiting_for_broker(self) -> bool:
        """True if the client waits for the broker; False if the broker waits for the client."""
        if self._tls is not None and self._tls.is_queued:
            return True
        return self._is_busy or (self.is_throttled and not self.is_congested)

    @property
    def undelivered_bytes(self) -> int:
        """The written bytes that have not arrived at the client, in all buffers together.

        The system's buffer counts: the system accepts more only when a third of the megabytes in it
        have arrived, so without it a slow reader would appear to read nothing for a minute.
        """
        return self._transport.get_write_buffer_size() + kernel_buffered_bytes(self.descriptor())

    def send(self, command: RemotingCommand) -> None:
        """Send a command; a response for which there is no memory now becomes a refusal."""
        size = len(command.body)
        if size > RESPONSE_BYTES_MIN and command.is_response:
            fault = self._table.send_buffers.response_fault(size)
            if fault is not None:
                code, remark = fault
                command = command._replace(
                    code=code, remark=remark, ext_fields=NO_EXT_FIELDS, body=b""
                )
        self.send_frame(command.encode())

    def send_frame(self, head: bytes, body: Sequence[Buffer] = ()) -> None:
        """Send an encoded frame."""
        if self.is_closed:
            return
        self._out.append(head)
        self._out_bytes += len(head)
        if body:
            self._out += body
            self._out_bytes += sum(map(len, body))
            self._flush()  # earlier responses need not wait for large pieces
        elif self._out_bytes > self._limits.write_buffer_bytes:
            self._flush()
        elif not self._is_corked:  # answers that are ready at the same time go out together
            self._scheduler.defer_write(self._uncork)
            self._is_corked = True

    def request(self, command: RemotingCommand, timeout_ms: int, callback: ReplyCallback) -> None:
        """Send a request to the client, unless it does not read and so would not answer in time."""
        if self.is_closed or self.is_congested:
            self._loop.call_soon(callback, None)
            return
        registered = self._outgoing_requests.register(command, timeout_ms, callback)
        try:
            self.send(registered)
        except BaseException:  # its completed header is too long: reply now
            self._outgoing_requests.discard(registered)
            raise

    def close(self, reason: str, level: int = logging.WARNING) -> None:
        """Close the connection; a client that reads at once still gets what was sent before."""
        if not self.is_closed:
            if self._tls is None or not self._tls.fail_handshake(reason):
                _log.log(level, "%s: closed: %s", self.remote_host, reason)
            self._disconnect()

    def _disconnect(self) -> None:
        self.is_closed = self.was_closed_by_broker = True
        self._release_permit()  # its steps end here, even if the socket lingers
        self._scheduler.defer_write(self._close_when_written)

    def finish(self) -> None:
        """Close the connection after its responses are written, because the broker stops."""
        if self._steps is not None:
            self._end_steps()
            if not self._request.is_one_way:
                self.send(
                    self._request.respond(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker stops")
                )
        self._flush()
        self.is_closed = True
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.is_closed = True
        self._out.clear()
        self._transport.abort()

    def _reset(self, tcp: socket.socket) -> None:
        """Reset a refused connection, so that the system keeps nothing of it."""
        self.was_closed_by_broker = True
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.abort()

    def throttle(self) -> None:
        """Read nothing until `unthrottle`, because the memory for requests is used up."""
        self.is_throttled = True
        self._update_reading()

    def unthrottle(self) -> None:
        """Read on: there is memory again, perhaps only for this client's own request."""
        self.is_throttled = False
        self._loop.call_soon(self._resume)

    def descriptor(self) -> int:
        """Return the descriptor of the socket, or -1 if it is closed."""
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    # ---- internal

    @property
    def _is_busy(self) -> bool:
        """True while requests that have arrived wait for a later turn, or for a future."""
        return self._is_queued or self._is_waiting

    @property
    def _is_stopped(self) -> bool:
        """True if no request of the client is processed now.

        A multi-step request that has started is always finished, because it holds memory that all
        clients share.
        """
        return self.is_closed or self._is_waiting or (self.is_congested and self._steps is None)

    def _resume(self) -> None:
        """Process the requests that have arrived already, then read on."""
        if not (self._is_stopped or self._is_queued) and not self._scheduler.run(
            self._process_requests
        ):
            self._enqueue()
        self._update_reading()

    def _enqueue(self) -> None:
        """Wait for a later turn: this one is over, and there is more to do."""
        self._is_queued = True
        self._update_reading()

    def _update_reading(self) -> None:
        """Read from the client, or pause while its requests cannot be processed.

        Bytes that wait to be decrypted do not count: `TlsTransport` pauses for them itself, and
        does not report when it has decrypted them.
        """
        if self.is_closed:
            return
        if self.is_congested or self.is_throttled or self._is_busy:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _process_requests(self, until: float) -> bool:
        """Process waiting requests while there is time and the client reads its responses.

        Return whether none is left to process now.
        """
        if self.is_closed:
            return True
        time, take_step, reader = self._loop.time, self._process_next, self._reader
        is_over = False
        end_turn_at = slice_end = time() + SLICE_SECONDS
        wrong: Exception | None = None
        self._is_corked = True
        try:
            try:
                while not (is_over or self._is_stopped) and take_step():
                    if reader.is_empty and self._steps is None:  # usually one arrives at a time
                        break
                    now = time()
                    # after its slice, a request in steps continues in the queue
                    is_over = now >= until or (self._steps is not None and now >= slice_end)
                    if now >= end_turn_at:  # ending a whole turn at once would take half a turn
                        self._end_turn()
                        end_turn_at = now + SLICE_SECONDS
            finally:  # whatever happens, write the messages of the other clients
                self._end_turn()
                self._uncork()
        except Exception as error:  # noqa: BLE001  # only this client is closed
            wrong = error
        if wrong is not None:
            self.close(self._describe_error(wrong))
        buffered = self._steps_bytes + self.undecrypted_bytes
        if not reader.is_empty:
            buffered += reader.buffered_bytes
        awaits_turn = bool(buffered) and (is_over or self._is_waiting)
        if buffered != self._buffered_bytes or awaits_turn is not self._is_awaiting_turn:
            self._buffered_bytes, self._is_awaiting_turn = buffered, awaits_turn
            self._table.record_requests(self, buffered, is_waiting=awaits_turn)
        is_done = not is_over or self._is_stopped or not buffered
        if is_done and self._is_queued:
            self._is_queued = False
            self._update_reading()
        return is_done

    def _process_next(self) -> bool:
        """Process a request, or a step of the last one; return False if there is none."""
        if self._steps is None:
            return self._dispatch_fast_path() or self._dispatch_frame()
        response = self._next_step(self._steps)
        if response is not None:
            self.send(response)
        return True

    def _dispatch_frame(self) -> bool:
        frame = self._reader.next_frame()
        if frame is None:
            incomplete = self._reader.incomplete_frame() if self._is_new else None
            if incomplete is not None:
                decode_command(incomplete)
                self._accept_protocol()
            return False
        if self._buffered_bytes:
            self._clear_buffered()
        command = decode_command(frame)
        if self._is_new:
            self._accept_protocol()
        if command.flag & _RESPONSE:
            self._outgoing_requests.complete(command)
            return True
        if command.remark is not None:  # a remark may be long, and no request needs one
            command = command._replace(remark=None)
        dispatched = self._dispatch(self, command)
        if dispatched is None:
            self._fast_paths.learn(self, frame.header, command)
        elif isinstance(dispatched, RemotingCommand):
            self.send(dispatched)
        else:
            self._start_steps(
                command, dispatched, PREFIX_BYTES + len(frame.header) + len(frame.body)
            )
        return True

    def _dispatch_fast_path(self) -> bool:
        if not self._fast_paths.process(self, self._reader):
            return False
        if self._buffered_bytes:
            self._clear_buffered()
        return True

    def _clear_buffered(self) -> None:
        """Record that the partial request is complete, so that it does not count any more."""
        self._buffered_bytes, self._is_awaiting_turn = 0, False
        self._table.record_requests(self, 0)

    def _accept_protocol(self) -> None:
        """Record the first request header: from now on the limits of requests apply."""
        self._is_new = False
        self._first_bytes = b""
        self._table.protocol_accepted(self)

    def _start_steps(
        self, request: RemotingCommand, steps: ResponseSteps, frame_bytes: int
    ) -> None:
        self._steps, self._steps_bytes = steps, frame_bytes
        self._request = request.without_content()
        self._permit = permit = self._table.concurrency_limit.acquire(
            request.code, frame_bytes, self.remote_host.network
        )
        if not permit.granted.done():
            self._wait_for(permit.granted)

    def _next_step(self, steps: ResponseSteps) -> RemotingCommand | None:
        """Do one step of a multi-step request; return the response if it was the last."""
        try:
            awaited = next(steps)
        except StopIteration as end:
            response: RemotingCommand | None = end.value
            self._end_steps()
            return response
        if awaited is not None:
            self._wait_for(awaited)
        return None

    def _end_steps(self) -> None:
        if self._steps is not None:
            self._steps.close()
            self._steps, self._steps_bytes = None, 0
        self._release_permit()

    def _release_permit(self) -> None:
        if self._permit is not None:
            self._permit.release()
            self._permit = None

    def _wait_for(self, awaited: Future[None]) -> None:
        self._is_waiting = True
        self._update_reading()
        self._scheduler.when_done(awaited, self._resume_steps)

    def _resume_steps(self) -> None:
        self._is_waiting = False
        self._resume()

    def _uncork(self) -> None:
        self._is_corked = False
        self._flush()

    def _close_when_written(self) -> None:
        if self.is_congested:
            self._transport.abort()
        else:
            self._transport.close()
            self._loop.call_later(_LINGER_SECONDS, self._transport.abort)

    def _flush(self) -> None:
        out = self._out
        if out:
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)
            if self._is_send_buffer_full:
                self._record_unread(self._out_bytes)
            self._uncounted_bytes += self._out_bytes
            if self._uncounted_bytes >= _COUNTED_BYTES:
                self._uncounted_bytes = 0
                self._table.send_buffers.record_written(self)
        out.clear()
        self._out_bytes = 0

    def _record_unread(self, more_bytes: int) -> None:
        """Count written bytes, which take memory until the system accepts them."""
        self._unread_bytes += more_bytes
        self._table.send_buffers.record(self, self._unread_bytes, self._loop.time())
        if self._unread_bytes > self._limits.write_buffer_bytes and not self.is_congested:
            self.is_congested = True
            self._update_reading()

    def _describe_error(self, error: Exception) -> str:
        if not isinstance(error, (FrameError, HeaderError)):
            if not is_transient(error):
                _log.error("%s: handling its requests failed", self.remote_host, exc_info=error)
            return describe_error(error)
        name = detect_protocol(self._first_bytes)
        if name is not None:
            return f"it speaks {name}, not RocketMQ's remoting protocol{_HINTS.get(name, '')}"
        return f"not RocketMQ's remoting protocol: {error}"
