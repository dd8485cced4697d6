"""RemotingConnection: one socket to one address, with requests matched to their responses.

    request ──> opaque (`pending_requests`) ──> socket (`frame_writer`, `ResponseReader`)
            ──> opaque ──> waiter

Responses come in any order. Either a thread of the connection reads, or (``reads_itself``) the
thread that waits does, which saves two thread switches for each request and suits a program with
one puller.

Every wait is bounded and ends in an exception. Garbage, responses to no request, and the end of the
stream fail all pending requests at once.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rmq_spark.client.concurrency import deferred_wakeups
from rmq_spark.client.concurrency.threads import SIGNAL_CHECK_SECONDS, start_thread
from rmq_spark.client.errors import (
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
)
from rmq_spark.client.transport.frame_writer import TICK_SECONDS, FrameWriter
from rmq_spark.client.transport.pending_requests import (
    PendingRequest,
    PendingRequests,
    ResponseFuture,
    fail_each,
)
from rmq_spark.client.transport.sockets import SOCKETS, enable_keepalive, is_closed_by_peer
from rmq_spark.errors import FrameError, HeaderError, RocketPollError
from rmq_spark.wire.codes import CommandFlag, ResponseCode
from rmq_spark.wire.message.hosts import Host, host_of
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FRAME_BYTES_MAX, PREFIX_BYTES, FrameReader

if TYPE_CHECKING:
    from rmq_spark.client.transport.tls.client import TlsClient, TlsSocket

_log = logging.getLogger(__name__)
_Found = TypeVar("_Found")

OnRequest = Callable[["RemotingConnection", RemotingCommand], "RemotingCommand | None"]
"""Handles a request of a broker, in the thread that reads: it must not wait for the connection."""

CONNECT_TIMEOUT_MS: Final = 3_000

SILENT_SECONDS: Final = 1.0
"""Seconds without data, while a request waits, after which a peer counts as silent."""

_ONE_WAY: Final = CommandFlag.ONE_WAY.value
_PORT_DIGITS_MAX: Final = 20
_READ_BYTES: Final = 1 << 18


def identity(command: RemotingCommand) -> RemotingCommand:
    """Return the raw response; the caller interprets it."""
    return command


def uninitialized_buffer(size: int) -> memoryview:
    """Return ``size`` bytes of uninitialized memory, for a frame that fills all of it."""
    empty = getattr(sys.modules.get("numpy"), "empty", None)
    if empty is None:  # numpy is not loaded
        return memoryview(bytearray(size))
    memory: memoryview = empty(size, "u1").data
    return memory


class ResponseReader:
    """Reads the commands of one peer, and explains the end of the stream; one thread at a time.

    The body of a large response is received into its final buffer. Brokers do not always say why
    they close a connection: if one has never answered, the error asks about TLS.
    """

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
        """Time of the clock at which data last arrived."""

        self.peer_version = 0
        """RocketMQ's number of the peer's version; 0 before it has answered anything."""

    def read(
        self, seconds: float | None, on_command: Callable[[RemotingCommand], object]
    ) -> ClientError | None:
        """Pass on the commands that have arrived, or that arrive within a timeout.

        Without ``seconds``, the socket's own timeout applies. Return the error that ends the
        connection; None if it continues.
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
            why = "the broker closed it"
            if self._frame_reader.buffered_bytes:
                why += (
                    f" in the middle of a response, {self._frame_reader.buffered_bytes} bytes into "
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
        """Read, and return the number of bytes; a large response is read into its own buffer."""
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
        return is_closed_by_peer(self._socket)

    def close_reason(self, reason: str) -> str:
        """Add a hint about TLS to a reason, because brokers may refuse clients silently."""
        # a TLS alert has fewer bytes than a frame's prefix
        if self.peer_version or self._frame_reader.buffered_bytes >= PREFIX_BYTES:
            return reason
        if isinstance(self._socket, socket.socket):
            wanted = "TLS? If so, turn TLS on here"
        else:
            wanted = "a certificate from this client, or another one? If so, pass it"
        return f"{reason}, and it never answered anything. Does it require {wanted}"


class RemotingConnection:
    """A socket to one address, for requests and responses. All methods are thread-safe."""

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        address: str,
        on_request: OnRequest | None = None,
        on_closed: Callable[[RemotingConnection], None] | None = None,
        *,
        reads_itself: bool = False,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Take over a connected socket.

        ``on_closed`` is called once, by the thread that notices; ``clock`` is `time.monotonic` by
        default.
        """
        self.address = address
        self.clock = clock = clock or time.monotonic
        self._socket = sock
        self._on_request = on_request
        self._on_closed = on_closed
        self._response_reader = ResponseReader(sock, address, clock, frame_bytes_max)
        self._pending = PendingRequests(address)
        self._writer = FrameWriter(
            sock=sock,
            address=address,
            clock=clock,
            check_open=self._check_open,
            close_connection=self._close,
            read_rest=self._read_rest,
            close_reason=self._response_reader.close_reason,
        )
        self._memo_lock = threading.Lock()
        self._memo: tuple[Any, ...] = ()
        self._silent_since: float | None = None
        self.is_silent = False
        self._reads_itself = reads_itself
        self._reading_thread_id: int | None = None  # the thread whose turn it is
        self._turn_lock = threading.Lock()
        self._turn = threading.Condition(self._turn_lock)
        sock.settimeout(TICK_SECONDS)
        name = f"rocketpoll reader {address}"
        self._reader = threading.Thread(target=self._run, name=name, daemon=True)
        if not reads_itself:
            start_thread(self._reader)

    @classmethod
    def connect(
        cls,
        address: str,
        on_request: OnRequest | None = None,
        on_closed: Callable[[RemotingConnection], None] | None = None,
        *,
        reads_itself: bool = False,
        timeout_ms: int = CONNECT_TIMEOUT_MS,
        tls: TlsClient | None = None,
    ) -> RemotingConnection:
        """Connect to ``host:port``; a TLS handshake gets the rest of the timeout."""
        host, port = parse_address(address)
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            sock = SOCKETS.connect(host, port, timeout_ms / 1000)
        except TimeoutError as error:
            raise ConnectionFailed(address, f"no answer within {timeout_ms} ms") from error
        except OSError as error:
            raise ConnectionFailed(address, error.strerror or str(error)) from error
        enable_keepalive(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        under_tls = (
            None if tls is None else tls.handshake(sock, address, host, deadline - time.monotonic())
        )
        try:
            return cls(under_tls or sock, address, on_request, on_closed, reads_itself=reads_itself)
        except RuntimeError as error:  # at a limit of threads
            (under_tls or sock).close()
            raise ConnectionFailed(
                address, f"cannot start a thread that reads from it: {error}"
            ) from error

    @property
    def idle_seconds(self) -> float:
        """Seconds since the peer last sent something."""
        return self.clock() - self._response_reader.received_at

    @property
    def peer_version(self) -> int:
        """RocketMQ's number of the peer's version; 0 before it has answered anything."""
        return self._response_reader.peer_version

    @property
    def is_closed(self) -> bool:
        """True if the connection has ended."""
        return self._pending.close_error is not None

    @property
    def pending_count(self) -> int:
        """Number of pending requests."""
        return len(self._pending)

    @property
    def unwritten_bytes(self) -> int:
        """Number of bytes of requests that are not written to the socket yet."""
        return self._writer.unwritten_bytes

    @property
    def thread_count(self) -> int:
        """Number of threads of the connection that are alive."""
        reads = not self._reads_itself and not self.is_closed
        return reads + self._writer.thread_count

    @property
    def endpoints(self) -> tuple[Host, Host] | None:
        """The hosts of this side and of the peer; None once the system has ended the connection.

        While both ends exist, no other connection of this machine has the same two hosts.
        """
        try:
            return host_of(self._socket.getsockname()), host_of(self._socket.getpeername())
        except (OSError, ValueError):
            return None

    def memoize(self, compute: Callable[[RemotingConnection], _Found]) -> _Found:
        """Return ``compute``'s result for this connection; it is called once, unless it fails."""
        with self._memo_lock:
            if not self._memo:
                self._memo = (compute(self),)
            found: _Found = self._memo[0]
        return found

    # ---- requests

    def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request, wait for the response, and return it, whatever its code is.

        Raises:
            RequestTimeout: No response came in time. If the peer has been silent for a second, the
                connection is closed as well.
            ConnectionClosed: The stream ended first.
            ProtocolError: The received bytes are not a response.
        """
        future: ResponseFuture[RemotingCommand] = self.request_async(command, timeout_ms)
        try:
            return future.result(max(future.deadline - self.clock(), 0))
        except FutureTimeout:
            self._expire(future)
        try:
            return future.result(TICK_SECONDS)  # the request was expired, or is being answered now
        except FutureTimeout as error:  # the reader is blocked, as in a log handler
            raise RequestTimeout(self.address, command.code, timeout_ms) from error

    def request_async(
        self,
        command: RemotingCommand,
        timeout_ms: int,
        interpret: Callable[[RemotingCommand], Any] = identity,
        *,
        may_batch: bool = False,
    ) -> ResponseFuture[Any]:
        """Send a request and return a future of the response, converted by ``interpret``.

        If ``interpret`` raises an error, the future fails with it. Callbacks of the future run in
        the reading thread: they must not wait for this connection.
        """
        future: ResponseFuture[Any] = ResponseFuture(
            self, command.code, timeout_ms, self.clock(), interpret
        )
        self.submit(future, command, may_batch=may_batch)
        return future

    def submit(
        self, pending: PendingRequest, command: RemotingCommand, *, may_batch: bool = False
    ) -> None:
        """Send a request; the reading thread passes the response to the waiter.

        ``may_batch`` leaves writing to a thread, which sends all gathered requests at once: many
        times as fast for thousands of requests, and one thread switch slower for a single one.
        """
        command = command.with_opaque(self._pending.add(pending))
        try:
            if may_batch and not self._reads_itself:
                pending.buffer = self._writer
                self._writer.enqueue(command, pending.call_soon)
                if not self._pending.is_pending(pending):  # the request has expired meanwhile
                    self._writer.cancel(pending.opaque)
            else:
                self._writer.write(command, pending.deadline, pending.timeout_ms)
        except RocketPollError as error:
            if self._pending.remove(pending):
                if isinstance(error, RequestTimeout):
                    self._close_if_silent(pending)
                raise
        except BaseException:  # Ctrl-C, for example: no thread waits any more
            self.discard(pending)
            raise

    def send_one_way(self, command: RemotingCommand, timeout_ms: int) -> None:
        """Send a request without a response."""
        command = command._replace(opaque=self._pending.next_opaque(), flag=command.flag | _ONE_WAY)
        self._writer.write(command, self.clock() + timeout_ms / 1000, timeout_ms)

    def send(self, command: RemotingCommand, timeout_ms: int = CONNECT_TIMEOUT_MS) -> None:
        """Send a command unchanged: a response to a request of the broker."""
        self._pending.check_open()
        self._writer.write(command, self.clock() + timeout_ms / 1000, timeout_ms)

    def discard(self, pending: PendingRequest) -> None:
        """Discard a waiter: its response is ignored."""
        self._pending.discard(pending)
        self._writer.cancel(pending.opaque)

    def close(self, why: str = "this client closed it") -> None:
        """Close the connection, and fail all pending requests."""
        self._close(ConnectionClosed(self.address, why))

    def join(self, deadline: float) -> None:
        """Wait until the threads of a closed connection have ended, up to a deadline."""
        if self._reader.is_alive():
            self._reader.join(max(deadline - self.clock(), 0))
        self._writer.join(max(deadline - self.clock(), 0))

    def _check_open(self) -> None:
        self.detect_close()
        self._pending.check_open()

    def detect_close(self) -> None:
        """Check whether the broker has closed the connection, if no thread reads from it."""
        if (
            self._reads_itself
            and not self.is_closed
            and len(self._pending) <= 1
            and self._response_reader.is_closed_by_peer()
        ):
            self._read_rest()
            why = self._response_reader.close_reason("the broker closed it")
            self._close(ConnectionClosed(self.address, why))

    # ---- reading

    def _read_rest(self) -> None:
        """Read what the broker sent before it closed the connection: under TLS, also why.

        Its requests get no response, because the caller holds the lock that writing one needs.
        """
        if not self._reads_itself:
            if threading.current_thread() is not self._reader:
                self._reader.join(TICK_SECONDS)  # that thread reads up to the end
            return
        with self._turn_lock:
            if self._reading_thread_id is not None:
                return
            self._reading_thread_id = threading.get_ident()
        try:
            self._read_once(0, self._resolve)
        finally:
            self._release_turn()

    def read_until(self, response: ResponseFuture[Any], timeout: float | None) -> float | None:
        """Read until the response or the deadline, in turns with others, if no thread reads.

        Return the seconds that are left to wait.
        """
        if not self._reads_itself:
            return timeout
        deadline = (
            response.deadline if timeout is None else min(response.deadline, self.clock() + timeout)
        )
        thread_id = threading.get_ident()
        while not response.done():
            remaining = deadline - self.clock()
            if remaining <= 0:
                self._expire_overdue()
                break
            try:
                if self._acquire_turn(response, remaining):
                    self._read_once(min(remaining, TICK_SECONDS), self._dispatch)
            except Exception as error:  # noqa: BLE001  # as above
                self._fail(error)
            finally:
                if self._reading_thread_id == thread_id:
                    self._release_turn()
        # another thread may be resolving the response
        return 0 if timeout is not None else TICK_SECONDS

    def _acquire_turn(self, response: ResponseFuture[Any], seconds: float) -> bool:
        with self._turn_lock:
            if self._reading_thread_id is not None and not response.done():
                self._turn.wait(min(seconds, SIGNAL_CHECK_SECONDS))
            if self._reading_thread_id is not None or response.done():
                return False
            self._reading_thread_id = threading.get_ident()
            return True

    def _release_turn(self) -> None:
        self._reading_thread_id = None
        with self._turn_lock:
            self._turn.notify_all()

    def _run(self) -> None:
        try:
            while not self.is_closed:
                self._read_once(None, self._dispatch)
                if self.clock() >= self._pending.next_deadline:
                    self._expire_overdue()
        except Exception as error:  # noqa: BLE001  # a shortage of memory, for example
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Close the connection and fail all requests, because the read position is unknown."""
        why = f"its data could not be read: {type(error).__name__}: {error}"
        self._close(ConnectionClosed(self.address, why))
        _log.error("%s: reading failed", self.address, exc_info=error)

    def _read_once(
        self, seconds: float | None, on_command: Callable[[RemotingCommand], object]
    ) -> None:
        deferred_wakeups.begin()
        try:
            error = self._response_reader.read(seconds, on_command)
        finally:
            deferred_wakeups.end()
        if error is not None:
            self._close(error)

    def _dispatch(self, command: RemotingCommand) -> None:
        if command.is_response:
            self._resolve(command)
        else:
            self._handle_request(command)

    def _resolve(self, command: RemotingCommand) -> None:
        """Pass on a response; ignore a request."""
        if command.is_response:
            try:
                self._pending.resolve(command)
            except ProtocolError as error:
                self._close(error)

    def _handle_request(self, command: RemotingCommand) -> None:
        try:
            if self._on_request is None:
                response: RemotingCommand | None = command.respond(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {command.code} not supported",
                )
            else:
                response = self._on_request(self, command)
        except Exception as error:  # noqa: BLE001  # the broker gets a response in any case
            _log.exception("%s: request %d of the broker failed", self.address, command.code)
            response = command.respond(
                ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"
            )
        if response is not None and not command.is_one_way:
            with suppress(ClientError):  # the broker has gone, and needs no response
                self.send(response)

    # ---- closing

    def _expire_overdue(self) -> None:
        for waiter in self._pending.overdue(self.clock()):
            self._expire(waiter)

    def _expire(self, pending: PendingRequest) -> None:
        error = RequestTimeout(self.address, pending.request_code, pending.timeout_ms)
        if self._pending.expire(pending, error):
            self._writer.cancel(pending.opaque)
            self._close_if_silent(pending)

    def _close_if_silent(self, pending: PendingRequest) -> None:
        """End the connection if the peer is not slow but silent, which would stall every request.

        A single request with a short timeout does not prove that the peer is silent, and other
        requests share this connection.
        """
        received_at = self._response_reader.received_at
        if self._silent_since is None or self._silent_since < received_at:
            self._silent_since = max(received_at, pending.started_at)
        silent_seconds = pending.deadline - self._silent_since
        if silent_seconds >= SILENT_SECONDS:
            self.is_silent = True
            why = f"it has been silent for {int(silent_seconds * 1000)} ms"
            self._close(ConnectionClosed(self.address, why))

    def _close(self, error: ClientError) -> None:
        waiters = self._pending.close(error)
        if waiters is None:
            return
        try:
            self._writer.close()
            with suppress(OSError):  # closing alone does not wake a thread that reads
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        finally:
            try:
                fail_each(waiters, error)
            except MemoryError:  # memory may be available by now
                fail_each(waiters, error)
        if self._on_closed is not None:
            self._on_closed(self)

    def after_fork(self) -> None:
        """Drop pending requests; `SOCKETS` closes the copy of the parent's socket."""
        self._pending.after_fork()


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[v6]:port``."""
    host, _, port = address.strip().rpartition(":")
    if (
        not host
        or "/" in host
        or not port.isascii()
        or not port.isdigit()
        or len(port) > _PORT_DIGITS_MAX
        or not 0 < int(port) < 1 << 16
    ):
        raise ConnectionFailed(address, "an address is host:port, as in localhost:9876")
    host = host.removeprefix("[").removesuffix("]")
    try:
        host.encode("idna")
    except UnicodeError as error:  # looking the host up would raise it
        raise ConnectionFailed(address, "its host is not a valid host name") from error
    return host, int(port)
